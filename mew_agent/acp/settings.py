"""The settings of an ACP agent: which program it is, where it works, and what it may do. Starts nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mew_protocol.environment import inherited
from pydantic import BaseModel, ConfigDict, Field

from mew_agent.acp.files import FileAccess
from mew_agent.acp.profiles import PROFILES

ACP_CONFIG: Final = "MEW_ACP_CONFIG"
"""Environment variable with the settings as JSON. Not an argument, because `ps` would show the keys in it."""


class AcpSettings(BaseModel):
    """The settings of one ACP agent. Times are in seconds.

    `agent` names a profile, which has a command; `command` replaces it. `store` is the file of the chats that are not
    answered yet; the id of the session is kept in a file next to it, so that a later start can continue it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str = "."
    start_timeout_seconds: float = Field(default=60.0, gt=0)
    turn_timeout_seconds: float = Field(default=3600.0, gt=0)
    compact_timeout_seconds: float = Field(default=300.0, gt=0)
    permission_timeout_seconds: float = Field(default=600.0, gt=0)
    files: FileAccess = "none"
    """Access to the files of `cwd` through this process; does not limit the agent's own tools."""
    terminal: bool = False
    """Whether we run commands for the agent; does not limit the commands that it runs itself."""
    answer_broadcasts: bool = False
    store: str | None = None
    compact_at_percent: int | None = Field(default=None, ge=1, le=99)
    """Percentage of its window at which we ask it to compact, at the end of a turn (default: never)."""
    max_compacting: int | None = Field(default=None, ge=1)
    """Maximum number of agents of the space that compact at the same time this way (default: half of them)."""
    space_tools: bool = True
    """Whether the agent gets the tools of the space, such as the board and chats to peers."""
    cancel_timeout_seconds: float = Field(default=30.0, gt=0)
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
        return self.command or PROFILES[self.agent or ""].command

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of the program: the inherited part of `environ`, what the profile needs, and `env`."""
        profile = PROFILES.get(self.agent or "")
        return {**inherited(environ), **(profile.environment if profile else {}), **self.env}
