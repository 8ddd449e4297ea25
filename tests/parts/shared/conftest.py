"""The space and the participant that the tests of this room use."""

from tests.support.api_participants import connected, space

__all__ = ["connected", "space"]
