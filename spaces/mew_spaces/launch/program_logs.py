"""What the programs of a space print: one file for each, which its owner alone reads.

Owns the names of these files and what is kept of them. A log that cannot be written is no reason to stop a program.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from anyio.abc import ByteReceiveStream

from mew_spaces.errors import SpacesError

_LINE_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096

log = logging.getLogger("spaces")


def log_path(folder: Path, name: str) -> Path:
    """The file that a program's output goes to."""
    return folder / f"{name}.log"


def prepare_log_folder(folder: Path, names: Sequence[str]) -> None:
    """Make the folder; each program starts a new log, and the one of the run before is kept beside it.

    Raises `SpacesError` where nothing can be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        for name in names:
            path = log_path(folder, name)
            if path.exists():
                path.replace(path.with_suffix(".previous.log"))
            path.touch(mode=0o600)  # what agents say of their work is for whoever started them
    except OSError as error:
        raise SpacesError(f"{folder}: no logs can be written there: {error.strerror or error}") from None


def open_log(path: Path) -> IO[bytes]:
    """A log to append to, made again when it is gone. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


def last_line(path: Path) -> str:
    """The last line in a log that says anything; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return ""
    lines = [line for line in tail.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


async def copy_output(output: ByteReceiveStream, file: IO[bytes], tell: Callable[[str], None]) -> None:
    """Log what a program prints, and tell it line by line; a line without end is cut. Raises what `tell` raises."""
    rest, is_logged = b"", True
    try:
        async for chunk in output:
            is_logged = _logs(file, chunk, is_logged)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                tell(_as_text(line))
            if len(rest) > _LINE_BYTES:
                tell(_as_text(rest))
                rest = b""
    finally:
        if rest:
            tell(_as_text(rest))


def _logs(file: IO[bytes], chunk: bytes, was_logged: bool) -> bool:
    """Write to a log, and say once that it cannot be written. Returns whether it could."""
    try:
        file.write(chunk)
    except OSError as error:
        if was_logged:
            log.warning("%s cannot be written: %s", file.name, error.strerror or error)
        return False
    return True


def _as_text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r")
