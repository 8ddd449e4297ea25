"""The fixtures of the part, as `pytest_plugins` gives them to a project."""

from mew_agent.parts.testing import (
    mew_environment,
    mew_gateway,
    mew_model,
    mew_participant,
    mew_space,
    mew_thread,
)

__all__ = ["mew_environment", "mew_gateway", "mew_model", "mew_participant", "mew_space", "mew_thread"]
