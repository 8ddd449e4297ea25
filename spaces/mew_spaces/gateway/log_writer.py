"""Log files, written by one background thread from a bounded queue.

Owns rotation, batching and the handling of a full disk. The thread calls a function to render each line, which relieves
the event loop. A file is opened and closed for each batch, so it may be truncated, moved or removed at any time, even
with its folder. Lines that do not fit into the queue or onto the disk are dropped, and the file's next line states
their number.
"""

import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_QUEUED_LINES = 100_000
MAX_QUEUED_BYTES = 64 * 1024 * 1024

BATCH_SECONDS = 0.2
"""Pause after each batch. A line after a quiet time is written at once, the next one at most this much later.

A batch costs some 100 microseconds whatever its size, so the pause decides what the logs cost at a steady rate.
"""

CLOSE_SECONDS = 10.0

Render = Callable[..., bytes]
"""Returns one or more lines as bytes, each with its line break."""

log = logging.getLogger("mew_spaces")


@dataclass(frozen=True, slots=True, eq=False)
class LogFile:
    """A log file. Above `max_bytes` it is renamed to `<name>.1`; `kept` old files remain."""

    path: Path
    max_bytes: int | None = None
    kept: int = 0
    follows_links: bool = True
    """False where others may write to the folder: they could turn the file into a link to another one."""

    def append(self, data: bytes) -> None:
        """Append all of the data or none. Raises `OSError`."""
        if not data:
            return  # an envelope without recipients has no lines; it must not rotate the file
        try:
            self._append(data)
        except FileNotFoundError:  # the folder was removed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(data)

    def _append(self, data: bytes) -> None:
        if not self._write(data, self.max_bytes):
            self._rotate()
            self._write(data, None)

    def _write(self, data: bytes, max_bytes: int | None) -> bool:
        """Append unless that would exceed the limit; an empty file accepts any line. Returns whether it was written."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # os.open, because creating a file object costs more than this single write.
        file = os.open(self.path, flags if self.follows_links else flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            size = os.fstat(file).st_size
            if max_bytes is not None and size > 0 and size + len(data) > max_bytes:
                return False
            try:
                while data:
                    data = data[os.write(file, data) :]
            except OSError:
                os.ftruncate(file, size)  # half a line would corrupt the next one too
                raise
        finally:
            os.close(file)
        return True

    def _rotate(self) -> None:
        if not self.kept:
            self.path.unlink()
            return
        for number in range(self.kept - 1, 0, -1):
            older = self._rotated(number)
            if older.exists():
                older.replace(self._rotated(number + 1))
        self.path.replace(self._rotated(1))

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class LogWriter:
    """The queue and its thread, from the first line to `close`."""

    def __init__(
        self,
        *,
        max_queued_lines: int = MAX_QUEUED_LINES,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        writes_at_once: bool = False,
    ) -> None:
        """With `writes_at_once` there is no thread: `put` returns when the line is in the file."""
        self._writes_at_once = writes_at_once
        self._max_lines = max_queued_lines
        self._max_bytes = max_queued_bytes
        self._queue: deque[tuple[LogFile, Render, tuple[Any, ...], int]] = deque()
        # Each counter has one writer, so neither needs a lock.
        self._bytes_in = 0  # written by callers of `put`
        self._bytes_out = 0  # written by the thread
        self._dropped: dict[LogFile, int] = {}
        self._lost: dict[LogFile, int] = {}  # used by the thread only: lines that failed to be written
        self._is_awake = False  # set by `put`; cleared by the thread before it empties the queue
        self._is_closing = False
        self._wake_up = threading.Semaphore(0)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, file: LogFile, render: Render, size: int, *about: Any) -> bool:
        """Queue a line rendered by `render(*about)`. `size` is its approximate memory until written.

        Returns False if the queue is full.
        """
        if self._is_closing:
            return False
        queue = self._queue
        if len(queue) >= self._max_lines or self._bytes_in - self._bytes_out + size > self._max_bytes:
            self._dropped[file] = self._dropped.get(file, 0) + 1
            return False
        if self._dropped and (dropped := self._dropped.pop(file, 0)):
            queue.append((file, _dropped_line, (dropped,), 0))
        self._bytes_in += size
        queue.append((file, render, about, size))
        if self._writes_at_once:
            self._write_queued()
        elif not self._is_awake:
            self._wake()
        return True

    def _wake(self) -> None:
        self._is_awake = True
        self._wake_up.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write everything queued, then stop. Later lines are dropped."""
        self._is_closing = True
        self._closing.set()
        self._wake_up.release()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while not self._is_closing:
            self._wake_up.acquire()
            self._is_awake = False
            self._write_queued()
            self._closing.wait(BATCH_SECONDS)
        self._write_queued()

    def _write_queued(self) -> None:
        batches: defaultdict[LogFile, list[bytes]] = defaultdict(list)
        take = self._queue.popleft
        for _ in range(len(self._queue)):
            file, render, about, size = take()
            self._bytes_out += size
            try:
                batches[file].append(render(*about))
            except Exception:
                log.exception("failed to render a line of %s", file.path)
        for file, lines in batches.items():
            lost = self._lost.get(file, 0)
            try:
                file.append(b"".join((_dropped_line(lost), *lines) if lost else lines))
            except OSError as error:
                self._lost[file] = lost + sum(one.count(b"\n") for one in lines)
                if not lost:
                    log.warning("failed to write %s: %s", file.path, error)
            else:
                self._lost.pop(file, None)


def _dropped_line(lines: int) -> bytes:
    return b'{"event":"dropped","lines":%d}\n' % lines
