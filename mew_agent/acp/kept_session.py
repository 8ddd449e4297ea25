"""What a restart needs to continue an agent's session: its id, and its last figure.

Owns the file, which only its owner may read and which is replaced in one step. Does not know the protocol.
"""

import os
import secrets
from pathlib import Path
from typing import Self

import anyio.to_thread
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
        """The session that an earlier process kept for this program and folder; None without one."""
        try:
            kept = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None
        return kept if (kept.program, kept.cwd) == (program, cwd) else None

    async def save(self, path: Path) -> None:
        """Replace the file. Raises `OSError`."""
        await anyio.to_thread.run_sync(self._save, path)

    def _save(self, path: Path) -> None:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(self.model_dump_json(exclude_none=True))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
