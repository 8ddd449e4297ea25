"""The settings of an ACP agent: which program it is, where it works, and what it may do. Starts nothing."""

from collections.abc import Mapping
from pathlib import Path

from mew_protocol.acp_settings import AcpSettings
from mew_protocol.agent_settings import Seconds
from mew_protocol.environment import inherited
from pydantic import Field

from mew_agent.acp.profiles import PROFILES


class AcpConfig(AcpSettings):
    """All settings of one ACP agent. Times are in seconds.

    `store` is the file of the chats that are not answered yet; the id of the session is kept in a file next to it, so
    that a later start can continue it.
    """

    cwd: str = "."
    store: str | None = None
    start_seconds: Seconds = 60.0
    cancel_seconds: Seconds = 30.0
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
        """Return the environment of the program: the inherited part of `environ`, and `env`."""
        return {**inherited(environ), **self.env}
