"""An environment without settings, for the tests of this command."""

from tests.support.command_space import quiet_environment

__all__ = ["quiet_environment"]
