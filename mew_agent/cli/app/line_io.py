"""Reads and writes lines of standard input, files and FIFOs beside an event loop.

Reading a terminal or a FIFO cannot be cancelled, so it happens in a daemon thread. Does not know what the lines hold.
"""

import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, TextIO

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from mew_agent.errors import ConfigError

MAX_WAITING_LINES: Final = 10_000
"""Lines buffered for a FIFO without a reader; beyond that the newest are dropped."""

_LINES_AHEAD: Final = 100
_FULL_SECONDS: Final = 0.01
_EMPTY_SECONDS: Final = 0.01


class LineWriter(Protocol):
    """A destination of lines."""

    def write(self, line: str) -> None:
        """Write a line without waiting for a reader."""


@asynccontextmanager
async def read_lines(source: Callable[[], Iterator[str]]) -> AsyncIterator[MemoryObjectReceiveStream[str]]:
    """Receive the lines of a blocking source as they arrive, without line ends."""
    send, receive = anyio.create_memory_object_stream[str](_LINES_AHEAD)
    token = anyio.lowlevel.current_token()

    def read() -> None:
        try:
            for line in source():
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
    """Whether the stream had room. Never waits, so that no task outlives the event loop."""
    try:
        stream.send_nowait(line)
    except anyio.WouldBlock:
        return False
    return True


def lines_of(stream: TextIO) -> Callable[[], Iterator[str]]:
    """The lines of a stream until its end."""
    return lambda: iter(stream.readline, "")


def lines_of_stdin() -> Callable[[], Iterator[str]]:
    """The lines of standard input.

    They are read through a file object of their own: at exit the interpreter waits for the lock of `sys.stdin`.
    """
    return lines_of(os.fdopen(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False))


def lines_of_fifo(path: Path) -> Callable[[], Iterator[str]]:
    """The lines of all writers of a FIFO, one writer after the other; a plain file is read once.

    Creates the FIFO if the path does not exist. Raises `ConfigError`.
    """
    make_fifo(path)
    if stat.S_ISFIFO(path.stat().st_mode):
        return lambda: _fifo_lines(path)
    return lambda: _file_lines(path)


def _file_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _fifo_lines(path: Path) -> Iterator[str]:
    """Read writer after writer. One end is always open: a line written while no end is open would be lost."""
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
    """Wait until there is something to read or a writer came and went, then make reading block again."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    if not any(event & select.POLLIN for _, event in poll.poll()):
        time.sleep(_EMPTY_SECONDS)  # only a hang-up: some systems report it on every poll
    os.set_blocking(file.fileno(), True)


def make_fifo(path: Path) -> None:
    """Create a FIFO that only this user can open, unless the path exists. Raises `ConfigError`."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(path, 0o600)
    except (OSError, AttributeError) as error:
        raise ConfigError(str(path), f"cannot create a FIFO: {getattr(error, 'strerror', None) or error}") from None


class StandardOutputWriter:
    """Writes lines to standard output."""

    def write(self, line: str) -> None:
        """Print the line."""
        print(line, file=sys.stdout, flush=True)


class FileWriter:
    """Appends lines to a file. Opens it for each line, because other programs may empty or move it."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the file cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None

    def write(self, line: str) -> None:
        """Append the line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class FifoWriter:
    """Writes lines to a FIFO. They are buffered until a reader comes; `on_full` is called for each dropped line."""

    def __init__(self, path: Path, *, on_full: Callable[[], None] = lambda: None) -> None:
        """Creates the FIFO if the path does not exist. Raises `ConfigError`."""
        make_fifo(path)
        self._path = path
        self._on_full = on_full
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING_LINES)
        threading.Thread(target=self._run, name="fifo", daemon=True).start()

    def write(self, line: str) -> None:
        """Buffer the line."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._on_full()

    def _run(self) -> None:
        # Opened for both directions, it does not wait for a reader, and a reader that closes it breaks nothing.
        with os.fdopen(os.open(self._path, os.O_RDWR), "w", encoding="utf-8", closefd=True) as fifo:
            while True:
                fifo.write(self._waiting.get() + "\n")
                fifo.flush()
