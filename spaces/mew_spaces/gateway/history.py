"""The last envelopes of one space, numbered, behind a narrow seam: publish, read since, wait for more.

Readers hold no buffers here: each keeps the number it has read up to and asks for what follows, so a slow reader
costs nothing and at worst learns that its place is gone. A backplane that spans processes would stand behind the
same four methods. Knows nothing of what envelopes mean.
"""

import itertools
from collections import deque
from dataclasses import dataclass

import anyio


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted envelope as its JSON text, and its number within the epoch."""

    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a history. Numbers of another epoch say nothing about this one."""

    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"

    @staticmethod
    def parse(text: str) -> "Position | None":
        """Read `<epoch>-<sequence>`; None when it is none."""
        epoch, dash, sequence = text.strip().rpartition("-")
        if not dash or not epoch or not sequence.isascii() or not sequence.isdigit() or len(sequence) > 18:
            return None
        return Position(epoch, int(sequence))


class EnvelopeHistory:
    """A bounded history. `max_bytes` bounds the JSON texts kept, `max_entries` their number."""

    def __init__(self, *, epoch: str, max_entries: int, max_bytes: int) -> None:
        self.epoch = epoch
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._texts: deque[bytes] = deque()  # their numbers follow from the newest one's
        self._bytes = 0
        self._sequence = 0
        self._waiters = 0
        self._changed = anyio.Event()
        self._is_closed = False

    @property
    def position(self) -> Position:
        """The newest entry's place; sequence 0 before the first."""
        return Position(self.epoch, self._sequence)

    @property
    def start(self) -> Position:
        """The place before the oldest entry that is kept."""
        return Position(self.epoch, self._sequence - len(self._texts))

    @property
    def is_closed(self) -> bool:
        """Whether no more will come."""
        return self._is_closed

    def publish(self, data: bytes) -> None:
        """Append an envelope's JSON text and wake who waits; `position` is its place then."""
        texts = self._texts
        self._sequence += 1
        texts.append(data)
        self._bytes += len(data)
        while texts and (len(texts) > self._max_entries or self._bytes > self._max_bytes):
            self._bytes -= len(texts.popleft())
        if self._waiters:
            self._wake()

    def since(self, position: Position) -> tuple[Entry, ...] | None:
        """What follows a position, oldest first; None when some of that is gone or never was here."""
        if position.epoch != self.epoch or position.sequence > self._sequence:
            return None
        missing = self._sequence - position.sequence
        first = len(self._texts) - missing
        if first < 0:
            return None
        newer = itertools.islice(self._texts, first, None)
        return tuple(Entry(number, data) for number, data in enumerate(newer, start=position.sequence + 1))

    async def wait_beyond(self, position: Position) -> None:
        """Return once something follows this position or the history is closed. Callers bound the wait."""
        while not self._is_closed and self._sequence <= position.sequence:
            self._waiters += 1
            try:
                await self._changed.wait()
            finally:
                self._waiters -= 1

    def close(self) -> None:
        """Wake every reader for good."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
