"""Files of lines, written by one thread: whoever has something to say leaves it in a bounded queue and goes on.

What is left is rendered to bytes by the thread as well, so that the event loop pays for little more than the
leaving. A file is opened, appended to and closed for every batch: it may be truncated, moved or removed meanwhile.
When more waits than may, lines are dropped and counted, and the count is the next line of their file.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_WAITING_LINES = 100_000
MAX_WAITING_BYTES = 64 * 1024 * 1024

BATCH_SECONDS = 0.01
"""After a write, how long further lines are gathered for the next; the first line of a burst is there at once."""

CLOSE_SECONDS = 10.0

Render = Callable[[], bytes]
"""Makes the bytes of one or more lines, each with its line break."""

log = logging.getLogger("spaces")


@dataclass(frozen=True, slots=True)
class LineFile:
    """Where lines go. Above `max_bytes` the file moves aside to `<name>.1`, and `kept` such files are kept."""

    path: Path
    max_bytes: int | None = None
    kept: int = 0
    is_private: bool = True

    def append(self, data: bytes) -> None:
        """Write behind what is there. Raises `OSError`."""
        if self.max_bytes is not None and self._size() + len(data) > self.max_bytes:
            self._rotate()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(self.path, flags, 0o600 if self.is_private else 0o666), "ab") as file:
            file.write(data)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        if not self._size():
            return
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


class LineWriter:
    """The queue and its thread. The thread starts with the first line and ends with `close`."""

    def __init__(
        self, *, max_waiting_lines: int = MAX_WAITING_LINES, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._max_lines = max_waiting_lines
        self._max_bytes = max_waiting_bytes
        self._waiting: deque[tuple[LineFile, Render, int]] = deque()
        self._bytes_in = 0  # counted by who leaves lines
        self._bytes_out = 0  # counted by the thread
        self._dropped: dict[LineFile, int] = {}
        self._failed: set[LineFile] = set()
        self._something = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, file: LineFile, render: Render, size: int) -> bool:
        """Leave a line. `size` is about what it holds until it is written. Returns whether there was room."""
        if self._closing.is_set():
            return False
        if len(self._waiting) >= self._max_lines or self._bytes_in - self._bytes_out + size > self._max_bytes:
            self._dropped[file] = self._dropped.get(file, 0) + 1
            return False
        dropped = self._dropped.pop(file, 0) if self._dropped else 0
        if dropped:
            self._waiting.append((file, lambda: b'{"event":"dropped","lines":%d}\n' % dropped, 0))
        self._bytes_in += size
        self._waiting.append((file, render, size))
        if not self._something.is_set():
            self._something.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="line-files", daemon=True)
                self._thread.start()
        return True

    def close(self) -> None:
        """Write what waits, then end. Later lines are dropped."""
        self._closing.set()
        self._something.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while not self._closing.is_set():
            self._something.wait()
            self._something.clear()
            self._write_what_waits()
            self._closing.wait(BATCH_SECONDS)
        self._write_what_waits()

    def _write_what_waits(self) -> None:
        batches: dict[LineFile, list[bytes]] = {}
        for _ in range(len(self._waiting)):
            file, render, size = self._waiting.popleft()
            self._bytes_out += size
            try:
                batches.setdefault(file, []).append(render())
            except Exception:
                log.exception("a line of %s could not be made", file.path)
        for file, lines in batches.items():
            try:
                file.append(b"".join(lines))
            except OSError as error:
                if file not in self._failed:
                    self._failed.add(file)
                    log.warning("%s cannot be written: %s", file.path, error)
            else:
                self._failed.discard(file)
