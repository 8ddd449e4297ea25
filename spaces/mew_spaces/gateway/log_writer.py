"""Files of lines, written by one thread: whoever has something to say leaves it in a bounded queue and goes on.

What is left is rendered to bytes by the thread as well, so that the event loop pays for little more than the
leaving. A file is opened, appended to and closed for every batch: it may be truncated, moved or removed meanwhile,
with its folder. Lines that find no room, because more waits than may or the disk is full, are dropped and counted, and
the count is the next line of their file.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_WAITING_LINES = 100_000
MAX_WAITING_BYTES = 64 * 1024 * 1024

BATCH_SECONDS = 0.05
"""While there is much to write, how long lines are gathered for the next write."""

PROMPT_WRITES = 8
"""How many writes follow each other at once before lines are gathered: who looks at a quiet log sees all of it."""

QUIET_SECONDS = 0.1
"""After so long without a line, writes are prompt again."""

CLOSE_SECONDS = 10.0

Render = Callable[..., bytes]
"""Makes the bytes of one or more lines, each with its line break."""

RenderBoth = Callable[..., tuple[bytes, bytes]]
"""The same for two files at once."""

log = logging.getLogger("spaces")


@dataclass(frozen=True, slots=True, eq=False)
class LogFile:
    """Where lines go. Above `max_bytes` the file moves aside to `<name>.1`, and `kept` such files are kept."""

    path: Path
    max_bytes: int | None = None
    kept: int = 0
    is_private: bool = True

    def append(self, data: bytes) -> None:
        """Write behind what is there, all of it or nothing. Raises `OSError`."""
        if not data:
            return  # an envelope that nobody received has no lines, and moves no file aside
        try:
            self._append(data)
        except FileNotFoundError:  # its folder is gone
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(data)

    def _append(self, data: bytes) -> None:
        if not self._write(data, self.max_bytes):
            self._move_aside()
            self._write(data, None)

    def _write(self, data: bytes, max_bytes: int | None) -> bool:
        """Write unless there is something already and no room for more."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # A file object would cost more than the writing: a batch is one write of bytes that are there already.
        file = os.open(self.path, flags, 0o600 if self.is_private else 0o666)
        try:
            size = os.fstat(file).st_size
            if max_bytes is not None and size > 0 and size + len(data) > max_bytes:
                return False
            try:
                while data:
                    data = data[os.write(file, data) :]
            except OSError:
                os.ftruncate(file, size)  # half a line would spoil the next one too
                raise
        finally:
            os.close(file)
        return True

    def _move_aside(self) -> None:
        if not self.kept:
            self.path.unlink()
            return
        for number in range(self.kept - 1, 0, -1):
            older = self._aside(number)
            if older.exists():
                older.replace(self._aside(number + 1))
        self.path.replace(self._aside(1))

    def _aside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class LogWriter:
    """The queue and its thread. The thread starts with the first line and ends with `close`."""

    def __init__(
        self, *, max_waiting_lines: int = MAX_WAITING_LINES, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._max_lines = max_waiting_lines
        self._max_bytes = max_waiting_bytes
        self._waiting: deque[tuple[LogFile, LogFile | None, Callable[..., Any], tuple[Any, ...], int]] = deque()
        self._bytes_in = 0  # counted by who leaves lines
        self._bytes_out = 0  # counted by the thread
        self._dropped: dict[LogFile, int] = {}
        self._lost: dict[LogFile, int] = {}  # the thread's own: lines that could not be written
        self._is_awake = False  # set by who leaves lines, taken back by the thread before it looks
        self._is_closing = False
        self._something = threading.Semaphore(0)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, file: LogFile, render: Render, size: int, *about: Any) -> bool:
        """Leave a line, to be made of `about` by `render`. `size` is about what it holds until it is written.

        Returns whether there was room.
        """
        return self._put(file, None, render, about, size)

    def put_both(self, file: LogFile, other: LogFile, render: RenderBoth, size: int, *about: Any) -> bool:
        """Leave what makes lines of two files."""
        return self._put(file, other, render, about, size)

    def close(self) -> None:
        """Write what waits, then end. Later lines are dropped."""
        self._is_closing = True
        self._closing.set()
        self._something.release()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _put(
        self, file: LogFile, other: LogFile | None, render: Callable[..., Any], about: tuple[Any, ...], size: int
    ) -> bool:
        if self._is_closing:
            return False
        waiting = self._waiting
        if len(waiting) >= self._max_lines or self._bytes_in - self._bytes_out + size > self._max_bytes:
            for full in (file,) if other is None else (file, other):
                self._dropped[full] = self._dropped.get(full, 0) + 1
            return False
        if self._dropped:
            for one in (file,) if other is None else (file, other):
                dropped = self._dropped.pop(one, 0)
                if dropped:
                    waiting.append((one, None, _dropped_line, (dropped,), 0))
        self._bytes_in += size
        waiting.append((file, other, render, about, size))
        if not self._is_awake:
            self._is_awake = True
            self._something.release()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="line-files", daemon=True)
                self._thread.start()
        return True

    def _run(self) -> None:
        prompt = PROMPT_WRITES
        while not self._is_closing:
            if not self._something.acquire(timeout=QUIET_SECONDS):
                prompt = PROMPT_WRITES
                self._something.acquire()
            self._is_awake = False
            self._write_what_waits()
            if prompt:
                prompt -= 1
            else:
                self._closing.wait(BATCH_SECONDS)
        self._write_what_waits()

    def _write_what_waits(self) -> None:
        batches: dict[LogFile, list[bytes]] = {}
        take = self._waiting.popleft
        for _ in range(len(self._waiting)):
            file, other, render, about, size = take()
            self._bytes_out += size
            try:
                made = render(*about)
            except Exception:
                log.exception("a line of %s could not be made", file.path)
                continue
            if other is None:
                batches.setdefault(file, []).append(made)
            else:
                batches.setdefault(file, []).append(made[0])
                batches.setdefault(other, []).append(made[1])
        for file, lines in batches.items():
            lost = self._lost.get(file, 0)
            try:
                file.append(b"".join((_dropped_line(lost), *lines) if lost else lines))
            except OSError as error:
                self._lost[file] = lost + sum(one.count(b"\n") for one in lines)
                if not lost:
                    log.warning("%s cannot be written: %s", file.path, error)
            else:
                self._lost.pop(file, None)


def _dropped_line(lines: int) -> bytes:
    return b'{"event":"dropped","lines":%d}\n' % lines
