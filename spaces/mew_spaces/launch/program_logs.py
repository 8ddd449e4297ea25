"""The logs of a space's programs: one private file for the output of each.

Owns the names, the number and the size limits of these files. An unwritable log does not stop its program.
"""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream
from mew_listener.log_budget import survived
from mew_settings.line_reader import LineReader
from mew_settings.private_files import make_private_folder

from mew_spaces.errors import SpacesError

MAX_LOG_BYTES: Final = 64 * 1024 * 1024
"""Size at which a log is cut."""

CHECK_SECONDS: Final = 5.0
"""How often the sizes of logs are checked."""

MAX_TAIL_BYTES: Final = 256 * 1024
"""How much of a log's end is read at most."""

_LINE_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096

log = logging.getLogger("mew_spaces")


def log_folder(state: Path) -> Path:
    """Return the folder of a space's logs in its state folder, which agents' file tools cannot read."""
    return state / "logs"


def log_path(folder: Path, name: str) -> Path:
    """Return the log file of a program."""
    return folder / f"{name}.log"


def prepare_log_folder(folder: Path, names: Sequence[str], links: Path | None = None) -> None:
    """Create the folder and an empty log for each program; keep old logs as `.previous.log`. Raises `SpacesError`.

    `links` is a folder for links to the logs; non-empty files there are kept.
    """
    try:
        make_private_folder(folder)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        for name in names:
            path = log_path(folder, name)
            if path.exists():
                path.replace(path.with_suffix(".previous.log"))
            path.touch(mode=0o600)  # the output of agents is private to the user that started them
            if links is not None:
                links.mkdir(exist_ok=True)
                link = log_path(links, name)
                if link.is_file() and not link.is_symlink() and not link.stat().st_size:
                    link.unlink()  # scripts of the TypeScript reference create empty logs first
                with suppress(FileExistsError):
                    link.symlink_to(path.resolve())
    except OSError as error:
        raise SpacesError(
            f"{folder}: cannot write logs: {error.strerror or error}; check the permissions of the folder"
        ) from None


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to; a missing one is created. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


async def keep_logs_bounded(folder: Path) -> None:
    """Cut the logs in a folder when they grow too large, until cancelled."""
    while True:
        await anyio.sleep(CHECK_SECONDS)
        with survived("the check of log sizes", log):
            await anyio.to_thread.run_sync(cut_large_logs, folder, MAX_LOG_BYTES)


def cut_large_logs(folder: Path, max_bytes: int) -> None:
    """Copy each log above the limit to `.previous.log` and empty it.

    Programs write to their logs directly, and cannot switch to another file. They append, so after the cut they
    continue at the start. Output between the copy and the cut is lost.
    """
    for path in folder.glob("*.log"):
        if path.name.endswith(".previous.log"):
            continue
        try:
            if path.stat().st_size > max_bytes:
                previous = path.with_suffix(".previous.log")
                previous.unlink(missing_ok=True)
                previous.touch(mode=0o600)
                shutil.copyfile(path, previous)
                os.truncate(path, 0)
        except OSError as error:
            log.warning("%s: cannot be cut: %s", path, error.strerror or error)


def last_line(path: Path) -> str:
    """Return the last line of a log that is not blank, else an empty string."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return ""
    lines = [line for line in tail.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def tail(path: Path, lines: int, *, max_bytes: int = MAX_TAIL_BYTES) -> list[str]:
    """Return the last lines of a log; fewer if they exceed `max_bytes` in total. Raises `OSError`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - max_bytes)
        file.seek(start)
        content = file.read(max_bytes)
    if start:  # starts in the middle of a line
        content = content.partition(b"\n")[2]
    return [_as_text(line) for line in content.splitlines()[-lines:]]


def last_write(folder: Path) -> datetime | None:
    """Return the time of the last write to a log in a folder; None without logs."""
    times = [path.stat().st_mtime for path in folder.glob("*") if path.is_file()]
    return datetime.fromtimestamp(max(times), UTC) if times else None


async def copy_output(output: ByteReceiveStream, file: IO[bytes], on_line: Callable[[str], None]) -> None:
    """Log the output of a program, and call `on_line` for each line. Long lines are split."""
    reader, is_logged = LineReader(_LINE_BYTES), True
    try:
        async for chunk in output:
            try:
                file.write(chunk)
                is_logged = True
            except OSError as error:
                if is_logged:
                    log.warning("%s: cannot be written, output is lost: %s", file.name, error.strerror or error)
                is_logged = False
            for line in reader.feed(chunk):
                on_line(_as_text(line))
    finally:
        if rest := reader.take_rest():
            on_line(_as_text(rest))


def _as_text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r")
