"""The fixture of commands: an environment without settings, in an empty folder."""

from tests.support.command_space import quiet_environment

__all__ = ["quiet_environment"]
