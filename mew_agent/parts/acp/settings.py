"""The settings of an ACP agent: which program it is, where it works, and what it may do; and the file of its session.

Starts nothing.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import anyio.to_thread
from mew_protocol.acp_settings import AcpSettings
from mew_protocol.agent_settings import Seconds
from mew_protocol.environment import inherited
from mew_settings.private_files import replace_private_file
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.parts.acp.profiles import PROFILES, UNKNOWN, AcpProfile


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
        if self.command is not None:
            return self.command, *self.args
        return installed_command(PROFILES[self.agent or ""], self.env.get("PATH"))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program: the inherited part of `environ`, what makes it ask, and `env`."""
        return {**inherited(environ), **self._asking_environment, **self.env}

    @property
    def asks_by_environment(self) -> bool:
        """Whether its environment makes the agent ask before it acts, in any mode."""
        asking = self._asking_environment
        return bool(asking) and all(self.env.get(name, value) == value for name, value in asking.items())

    @property
    def _asking_environment(self) -> Mapping[str, str]:
        profile = PROFILES.get(self.agent or "", UNKNOWN)
        return profile.asking_environment if self.mode is None else {}


def installed_command(profile: AcpProfile, path: str | None = None) -> tuple[str, ...]:
    """Return the command of a known agent, under the first of its names in `path` (default: PATH)."""
    name, *arguments = profile.command
    names = (name, *profile.other_commands)
    return next((one for one in names if shutil.which(one, path=path)), name), *arguments


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
