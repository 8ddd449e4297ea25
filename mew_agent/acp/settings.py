"""The settings of an ACP agent: which program it is, where it works, and what it may do; and the file of its session.

Starts nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import anyio.to_thread
from mew_protocol.acp_settings import AcpSettings
from mew_protocol.agent_settings import Seconds
from mew_protocol.environment import inherited
from mew_protocol.private_files import replace_private_file
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


class KeptSession(BaseModel):
    """What a restart needs to continue an agent's session: its id, and its last figure.

    `program` and `cwd` are those that it was opened with: another agent cannot load it.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    program: tuple[str, ...]
    cwd: str
    tokens: int | None = None
    window: int | None = None
    measured_at: str | None = None

    @classmethod
    def load(cls, settings: AcpConfig) -> Self | None:
        """Return the session that an earlier process kept for this program and folder; None without one."""
        if settings.state_path is None:
            return None
        try:
            kept = cls.model_validate_json(settings.state_path.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None
        return kept if (kept.program, kept.cwd) == (settings.program, settings.cwd) else None

    async def save(self, path: Path) -> None:
        """Replace the file. Raises `OSError`."""
        await anyio.to_thread.run_sync(replace_private_file, path, self.model_dump_json(exclude_none=True))
