"""What a restart needs to continue an agent's session: its id, and its last figure.

Owns the form of the file. Does not know the protocol.
"""

from pathlib import Path
from typing import Self

import anyio.to_thread
from mew_protocol.private_files import replace_private_file
from pydantic import BaseModel, ConfigDict, ValidationError


class KeptSession(BaseModel):
    """One session. `program` and `cwd` are those that it was opened with: another agent cannot load it."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    program: tuple[str, ...]
    cwd: str
    tokens: int | None = None
    window: int | None = None
    measured_at: str | None = None

    @classmethod
    def load(cls, path: Path, program: tuple[str, ...], cwd: str) -> Self | None:
        """Return the session that an earlier process kept for this program and folder; None without one."""
        try:
            kept = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None
        return kept if (kept.program, kept.cwd) == (program, cwd) else None

    async def save(self, path: Path) -> None:
        """Replace the file. Raises `OSError`."""
        await anyio.to_thread.run_sync(replace_private_file, path, self.model_dump_json(exclude_none=True))
