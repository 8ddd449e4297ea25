"""Reads and writes lines of standard input, files and FIFOs next to an event loop.

Uses daemon threads, because reading a terminal or a FIFO cannot be cancelled. Does not interpret the lines.
"""

import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TextIO

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mew_agent.errors import ConfigError

MAX_WAITING_LINES: Final = 10_000
"""Lines buffered for a FIFO without a reader; beyond that the newest are dropped."""

# Bounded, so that a large file is read no faster than it is sent.
_LINES_AHEAD: Final = 100
_FULL_SECONDS: Final = 0.01
_EMPTY_SECONDS: Final = 0.01


WriteLine = Callable[[str], None]
"""Writes a line without waiting for a reader."""


@asynccontextmanager
async def read_lines(source: Iterable[str]) -> AsyncIterator[MemoryObjectReceiveStream[str]]:
    """Receive the lines of a blocking source as they arrive, without line ends."""
    send, receive = anyio.create_memory_object_stream[str](_LINES_AHEAD)
    token = anyio.lowlevel.current_token()

    def read() -> None:
        try:
            for line in source:
                while not anyio.from_thread.run_sync(_offer, send, line.rstrip("\r\n"), token=token):
                    time.sleep(_FULL_SECONDS)
            anyio.from_thread.run_sync(send.close, token=token)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, CancelledError, RuntimeError):
            return  # the receiver was closed, or the event loop ended

    threading.Thread(target=read, name="lines", daemon=True).start()
    try:
        with receive:
            yield receive
    finally:
        send.close()


def _offer(stream: MemoryObjectSendStream[str], line: str) -> bool:
    """Return True if the stream had room. Never waits, so that no task outlives the event loop."""
    try:
        stream.send_nowait(line)
    except anyio.WouldBlock:
        return False
    return True


def lines_of_stdin() -> Iterator[str]:
    """Return the lines of standard input.

    Reads through a separate file object, because at exit the interpreter waits for the lock of `sys.stdin`.
    """
    stream = os.fdopen(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False)
    return iter(stream.readline, "")


def lines_of_fifo(path: Path) -> Iterator[str]:
    """Return the lines of all writers of a FIFO, in turn; it is created if missing. A plain file is read once."""
    make_fifo(path)
    return _fifo_lines(path) if stat.S_ISFIFO(path.stat().st_mode) else _file_lines(path)


def _file_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _fifo_lines(path: Path) -> Iterator[str]:
    """Read writer after writer. Keeps one end open, because a line written with no open end would be lost."""
    file = _open_without_waiting(path)
    try:
        while True:
            _wait_for_writer(file)
            yield from file
            used, file = file, _open_without_waiting(path)
            used.close()
    finally:
        file.close()


def _open_without_waiting(path: Path) -> TextIO:
    """Open the reading end of a FIFO without waiting for a writer."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8", errors="replace")


def _wait_for_writer(file: TextIO) -> None:
    """Wait until data arrives or a writer has come and gone, then make reads blocking again."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    if not any(event & select.POLLIN for _, event in poll.poll()):
        time.sleep(_EMPTY_SECONDS)  # only a hang-up, which some systems report on every poll
    os.set_blocking(file.fileno(), True)


def make_fifo(path: Path) -> None:
    """Create a FIFO that only this user can open, unless the path exists. Raises `ConfigError`."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(path, 0o600)
    except (OSError, AttributeError) as error:
        raise ConfigError(str(path), f"cannot create a FIFO: {getattr(error, 'strerror', None) or error}") from None


def file_writer(path: Path) -> WriteLine:
    """Append lines to a file. Raises `ConfigError` if it cannot be written."""

    def write(line: str) -> None:
        # Opened for each line, because other programs may empty or move the file.
        with path.open("a", encoding="utf-8") as file:
            file.write(line)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write("")
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None
    return lambda line: write(f"{line}\n")


def fifo_writer(path: Path, *, on_full: Callable[[], None]) -> WriteLine:
    """Write lines to a FIFO; they are buffered until a reader comes. `on_full` is called for the first dropped line.

    Creates the FIFO if the path does not exist. Raises `ConfigError`.
    """
    make_fifo(path)
    waiting: queue.Queue[str] = queue.Queue(MAX_WAITING_LINES)
    is_reported = False

    def write(line: str) -> None:
        nonlocal is_reported
        try:
            waiting.put_nowait(line)
        except queue.Full:
            if not is_reported:
                is_reported = True
                on_full()

    def run() -> None:
        # Opened for both directions, so that it does not wait for a reader, and survives a reader that closes it.
        with os.fdopen(os.open(path, os.O_RDWR), "w", encoding="utf-8", closefd=True) as fifo:
            while True:
                fifo.write(waiting.get() + "\n")
                fifo.flush()

    threading.Thread(target=run, name="fifo", daemon=True).start()
    return write
