"""The files of an agent's working folder. The agent reads and writes them through us if its settings allow it.

Paths may reach only regular files below the folder, after symbolic links are resolved, and nothing in `.mew`, which has
the tokens. Does not know the protocol.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from mew_agent.parts.acp.settings import FileAccess

READ: Final = "fs/read_text_file"
WRITE: Final = "fs/write_text_file"
MAX_FILE_BYTES: Final = 10_000_000
SPACE_FOLDER: Final = ".mew"


class ProjectFiles:
    """The files below one folder."""

    def __init__(self, folder: str, access: FileAccess) -> None:
        self._root = Path(folder).resolve()
        self.capabilities: Final = {"readTextFile": access != "none", "writeTextFile": access == "write"}
        """As `clientCapabilities.fs` declares them."""

    def allows(self, method: str) -> bool:
        """Return True if the agent may make requests of this method."""
        declared = {READ: "readTextFile", WRITE: "writeTextFile"}
        return method in declared and self.capabilities[declared[method]]

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request that is allowed. Raises `ValueError` and `OSError` with the reason."""
        path = str(params.get("path") or "")
        if method == WRITE:
            await anyio.to_thread.run_sync(self._write, path, str(params.get("content") or ""))
            return {}
        line, limit = params.get("line"), params.get("limit")
        first = line if isinstance(line, int) and line > 0 else 1
        count = limit if isinstance(limit, int) and limit >= 0 else None
        return {"content": await anyio.to_thread.run_sync(self._read, path, first, count)}

    def _read(self, path: str, first: int, count: int | None) -> str:
        with os.fdopen(self._open(path, os.O_RDONLY), "r", encoding="utf-8", newline="") as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                raise ValueError(f"'{path}' is larger than {MAX_FILE_BYTES:,} bytes")
            return "".join(islice(file, first - 1, None if count is None else first - 1 + count))

    def _write(self, path: str, content: str) -> None:
        with os.fdopen(self._open(path, os.O_WRONLY | os.O_CREAT), "w", encoding="utf-8", newline="") as file:
            file.truncate()
            file.write(content)

    def _open(self, path: str, flags: int) -> int:
        """Open a regular file below the folder.

        Each folder is opened from its parent without following links: in a resolved path, any link was added meanwhile.
        """
        target = Path(os.path.realpath(self._root / path))  # `resolve` raises another error if links form a circle
        if not path or not target.is_relative_to(self._root) or target == self._root:
            raise ValueError(f"'{path}' is not in {self._root}")
        *folders, name = target.relative_to(self._root).parts
        if SPACE_FOLDER in (*folders, name):
            raise ValueError(f"'{path}' belongs to the space")
        place = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                if flags & os.O_CREAT:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=place)
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
                os.close(place)
                place = inner
            # Without O_NONBLOCK a pipe would block the thread forever.
            found = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=place)
        finally:
            os.close(place)
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(found)
            raise ValueError(f"'{path}' is not a regular file with one name")
        return found
