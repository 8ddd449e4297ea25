"""The shared fixtures for commands: a space, and an environment without settings."""

from tests.support.command_space import gateway, quiet_environment

__all__ = ["gateway", "quiet_environment"]
