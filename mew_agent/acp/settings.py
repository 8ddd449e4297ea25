"""The settings of an ACP agent: which program it is, where it works, and what it may do. Starts nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mew_protocol.acp_settings import AcpSettings
from mew_protocol.environment import inherited
from pydantic import Field

from mew_agent.acp.profiles import PROFILES

ACP_CONFIG: Final = "MEW_ACP_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""


class AcpConfig(AcpSettings):
    """All settings of one ACP agent: those of `AcpSettings`, its working folder, its store, and limits of its program.

    `store` is the file of the chats that are not answered yet; the id of the session is kept in a file next to it, so
    that a later start can continue it.
    """

    cwd: str = "."
    store: str | None = None
    start_seconds: float = Field(default=60.0, gt=0)
    cancel_seconds: float = Field(default=30.0, gt=0)
    """How long a cancelled turn may take to end before the program is restarted."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum number of restarts in a row."""

    @property
    def state_path(self) -> Path | None:
        """The file that keeps the session's id."""
        return None if self.store is None else Path(self.store).with_suffix(".acp.json")

    @property
    def program(self) -> tuple[str, ...]:
        """The command to run."""
        return PROFILES[self.agent or ""].command if self.command is None else (self.command, *self.args)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of the program: the inherited part of `environ`, what the profile needs, and `env`."""
        profile = PROFILES.get(self.agent or "")
        return {**inherited(environ), **(profile.environment if profile else {}), **self.env}
