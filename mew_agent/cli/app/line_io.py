"""Lines in and out of a program that waits for other things meanwhile: standard input, files, FIFOs.

Reading a terminal or a FIFO cannot be cancelled, so it happens in a thread that the end of the program does not wait
for. Knows nothing of what the lines hold.
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
"""How many lines wait for a FIFO that nobody reads; beyond that the newest are dropped."""

_LINES_AHEAD: Final = 100
_FULL_SECONDS: Final = 0.01
_EMPTY_SECONDS: Final = 0.01


class Lines(Protocol):
    """Somewhere lines go to."""

    def write(self, line: str) -> None:
        """Add a line; returns at once."""


@asynccontextmanager
async def reading(source: Callable[[], Iterator[str]]) -> AsyncIterator[MemoryObjectReceiveStream[str]]:
    """The lines of a source that blocks, without their ends, as they come."""
    send, receive = anyio.create_memory_object_stream[str](_LINES_AHEAD)
    token = anyio.lowlevel.current_token()

    def read() -> None:
        try:
            for line in source():
                while not anyio.from_thread.run_sync(_offer, send, line.rstrip("\r\n"), token=token):
                    time.sleep(_FULL_SECONDS)
            anyio.from_thread.run_sync(send.close, token=token)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, CancelledError, RuntimeError):
            return  # nobody wants them any more, or the event loop has ended

    threading.Thread(target=read, name="lines", daemon=True).start()
    try:
        with receive:
            yield receive
    finally:
        send.close()


def _offer(stream: MemoryObjectSendStream[str], line: str) -> bool:
    """Whether there was room. Nothing here waits, so that an event loop that ends leaves nothing behind."""
    try:
        stream.send_nowait(line)
    except anyio.WouldBlock:
        return False
    return True


def lines_of(stream: TextIO) -> Callable[[], Iterator[str]]:
    """A stream's lines until its end."""
    return lambda: iter(stream.readline, "")


def lines_of_stdin() -> Callable[[], Iterator[str]]:
    """What is typed or piped in, through a reader of its own: the interpreter's end would wait for the shared one."""
    return lines_of(os.fdopen(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False))


def lines_of_fifo(path: Path) -> Callable[[], Iterator[str]]:
    """Whatever anybody writes into a FIFO, one writer after the other; a plain file is read once.

    Makes the FIFO if there is nothing. Raises `ConfigError`.
    """
    make_fifo(path)
    if stat.S_ISFIFO(path.stat().st_mode):
        return lambda: _fifo_lines(path)
    return lambda: _file_lines(path)


def _file_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _fifo_lines(path: Path) -> Iterator[str]:
    """Never without an open end: what is written while nobody has the FIFO open is lost when its writer closes it."""
    file = _waiting_end(path)
    try:
        while True:
            _wait_for_writer(file)
            yield from file
            used, file = file, _waiting_end(path)
            used.close()
    finally:
        file.close()


def _waiting_end(path: Path) -> TextIO:
    """The reading end of a FIFO, opened without waiting for a writer."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8", errors="replace")


def _wait_for_writer(file: TextIO) -> None:
    """Until there is something to read or a writer came and went; from then on reading waits as usual."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    if not any(event & select.POLLIN for _, event in poll.poll()):
        time.sleep(_EMPTY_SECONDS)  # nothing but an end: where each poll says so at once, this is the pace
    os.set_blocking(file.fileno(), True)


def make_fifo(path: Path) -> None:
    """Make a FIFO for this user alone, unless something is there already. Raises `ConfigError`."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(path, 0o600)
    except (OSError, AttributeError) as error:
        raise ConfigError(str(path), f"no FIFO can be made here: {getattr(error, 'strerror', None) or error}") from None


class Printed:
    """Lines to standard output."""

    def write(self, line: str) -> None:
        """Print it."""
        print(line, file=sys.stdout, flush=True)


class Appended:
    """Lines to the end of a file, which others may empty or move meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` for a file that cannot be written."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
        except OSError as error:
            raise ConfigError(str(path), f"cannot be written: {error.strerror or error}") from None

    def write(self, line: str) -> None:
        """Append it."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Piped:
    """Lines into a FIFO. They wait for a reader; when too many wait, `on_full` is called for each that is dropped."""

    def __init__(self, path: Path, *, on_full: Callable[[], None] = lambda: None) -> None:
        """Makes the FIFO if there is nothing. Raises `ConfigError`."""
        make_fifo(path)
        self._path = path
        self._on_full = on_full
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING_LINES)
        threading.Thread(target=self._run, name="fifo", daemon=True).start()

    def write(self, line: str) -> None:
        """Let it wait for its turn."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._on_full()

    def _run(self) -> None:
        # Opened for both directions it never waits for a reader to open it, and no reader's end breaks it.
        with os.fdopen(os.open(self._path, os.O_RDWR), "w", encoding="utf-8", closefd=True) as fifo:
            while True:
                fifo.write(self._waiting.get() + "\n")
                fifo.flush()
