"""The log of a space: numbers, stores and reads envelopes. In memory, it ends with the process.

An entry goes through three steps. `stage` gives it the next number. `write` stores everything staged so far as one
batch; where `is_slow`, callers run it in a thread. `publish` makes the batch visible to readers. An envelope must not
be sent before its batch is written, because a restarted gateway must never give one number to two envelopes.

Numbers grow and are never reused within an epoch, but they may have gaps, left by batches that could not be written. A
log that lost its past starts a new epoch. `sqlite` stores each batch before it is published here.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import anyio
from mew_protocol.ids import Position

Durability = Literal["memory", "flushed", "synced"]
"""When an envelope counts as accepted: kept in memory, handed to the operating system, or written to the disk."""

SYNCED_PREFIX = "synced/"
"""State under keys with this prefix is on the disk when it is written, with any durability."""


class NotStored(Exception):
    """A batch could not be stored; its entries do not exist."""


class OutcomeUnknown(NotStored):
    """A batch may be stored, because the disk failed at its end. The next written batch replaces it."""


class Entry(NamedTuple):
    """One accepted envelope: its number, its JSON text, and the sender and id that name it."""

    sequence: int
    data: bytes
    sender: str
    id: str
    at: float
    """When it was accepted, in seconds since 1970."""


class Batch(NamedTuple):
    """The contents of one `write`: stored as a whole or not at all."""

    entries: Sequence[Entry] = ()
    state: Mapping[str, bytes | None] = MappingProxyType({})
    """Values by key; None deletes."""

    @property
    def synced_state(self) -> Mapping[str, bytes | None]:
        """The values that must be on the disk."""
        return {key: value for key, value in self.state.items() if key.startswith(SYNCED_PREFIX)}


NOTHING = Batch()
"""The batch of `seal` if nothing is staged."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The size limits of a log. The oldest entries are deleted first."""

    entries: int
    bytes: int
    age_seconds: float | None = None


def within_bytes(entries: Iterable[Entry], max_bytes: float) -> Sequence[Entry]:
    """Return the first entries within this total size, but at least one."""
    found: list[Entry] = []
    for entry in entries:
        max_bytes -= len(entry.data)
        if max_bytes < 0 and found:
            break
        found.append(entry)
    return tuple(found)


class SpaceLog:
    """One space's log. All methods but `write` return at once. Keeps the newest entries within bounds.

    Readers have no buffers here: each requests the entries after its position.
    """

    durability: Durability = "memory"
    path: Path | None = None
    """The file that stores it."""

    def __init__(self, *, epoch: str, bounds: Bounds) -> None:
        self.epoch = epoch
        self.bounds = bounds
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._gone_through = 0  # the number up to which nothing can be read any more
        self._published = 0
        self.staged_through = 0
        """The number of the newest staged entry."""
        self._staged: list[Entry] = []
        self.staged_state: dict[str, bytes | None] = {}
        """Each `put` that waits to be written."""
        self._state: dict[str, bytes] = {}
        self._waiters = 0
        self._changed = anyio.Event()
        self.is_closed = False
        """Whether no more entries will come."""
        self.is_released = False
        """Whether nothing can be written any more."""

    @property
    def position(self) -> Position:
        """The position of the newest published entry; sequence 0 before the first."""
        return Position(self.epoch, self._published)

    @property
    def start(self) -> Position:
        """The position before the oldest readable entry."""
        return Position(self.epoch, self._gone_through)

    def stage(self, data: bytes, *, sender: str, id: str, at: float) -> int:  # noqa: A002 - the wire's word
        """Give an envelope the next number; the next `write` stores it, and `publish` makes it readable."""
        self.staged_through += 1
        if self.staged_through > self._published:
            self._staged.append(Entry(self.staged_through, data, sender, id, at))
        return self.staged_through

    def put(self, key: str, value: bytes | None) -> None:
        """Stage a change of the log's state; None deletes."""
        self.staged_state[key] = value

    def state(self) -> Mapping[str, bytes]:
        """Return the last published state."""
        return self._state

    def seal(self) -> Batch:
        """Return everything staged since the last `seal` as a batch to write. At most one batch is in flight."""
        if not (self._staged or self.staged_state):
            return NOTHING
        batch = Batch(self._staged, self.staged_state)
        self._staged, self.staged_state = [], {}
        return batch

    def write(self, batch: Batch) -> None:
        """Store a batch. Blocks. Raises `NotStored` if no part of the batch is stored, and always once closed.

        Raises `OutcomeUnknown` if this is unknown.
        """
        if self.is_released:
            raise NotStored("the log is closed")

    @property
    def is_slow(self) -> bool:
        """Whether `write` waits for a disk, so callers should run it in a thread."""
        return self.durability == "synced"

    @property
    def wants_upkeep(self) -> bool:
        """Whether `upkeep` is due."""
        return False

    def upkeep(self) -> None:
        """Move new batches and delete old entries. Blocks; runs in a thread, possibly during a `write`."""
        return

    def publish(self, batch: Batch) -> None:
        """Make a written batch visible and wake readers."""
        for key, value in batch.state.items():
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value
        entries = batch.entries
        if not entries:
            return
        for entry in entries:
            self._entries.append(entry)
            self._bytes += len(entry.data)
        self._published = entries[-1].sequence
        self._forget_oldest(entries[-1].at)
        if self._waiters:
            self._wake()

    def since(
        self, position: Position, *, limit: int | None = None, max_bytes: float = math.inf
    ) -> Sequence[Entry] | None:
        """Return the entries after a position, oldest first; None if some are gone or the position is of another log.

        `max_bytes` limits the total size, but one entry of any size is returned.
        """
        if position.epoch != self.epoch or not self._gone_through <= position.sequence <= self._published:
            return None
        missing = self._published - position.sequence
        if not missing:
            return ()
        # Numbers have gaps only where a batch was not written, so this guess is nearly always exact.
        first = max(0, len(self._entries) - missing)
        if first and self._entries[first - 1].sequence > position.sequence:
            first = bisect_right(self._entries, position.sequence, hi=first, key=lambda entry: entry.sequence)
        newer = (entry for entry in islice(self._entries, first, None) if entry.sequence > position.sequence)
        return within_bytes(islice(newer, limit), max_bytes)

    def entry(self, sequence: int) -> Entry | None:
        """Return the published entry with this number, or None if it is gone."""
        found = self.since(Position(self.epoch, sequence - 1), limit=1)
        return found[0] if found and found[0].sequence == sequence else None

    def last(self, count: int) -> Sequence[Entry]:
        """Return the newest entries, at most `count`, oldest first."""
        return tuple(islice(self._entries, max(0, len(self._entries) - count), None))

    async def wait_beyond(self, position: Position) -> None:
        """Return once an entry follows this position or the log is closed. Callers limit the wait."""
        while not self.is_closed and self._published <= position.sequence:
            self._waiters += 1
            try:
                await self._changed.wait()
            finally:
                self._waiters -= 1

    def end(self) -> None:
        """Wake all readers: no more entries follow."""
        self.is_closed = True
        self._wake()

    def expire(self, now: float) -> None:
        """Delete entries that are too old. `now` is in seconds since 1970."""
        if self.bounds.age_seconds is not None:
            self._forget_oldest(now)

    def close(self) -> None:
        """End, and release the files of the log."""
        self.end()
        self.is_released = True

    def restore(self, entries: Sequence[Entry], state: Mapping[str, bytes]) -> None:
        """Start with the entries and state of an earlier run."""
        if entries:
            self._gone_through = entries[0].sequence - 1
        self.publish(Batch(entries, state))
        self.staged_through = self._published

    def begin_at(self, position: Position) -> None:
        """Give the next entry the number after this position.

        Known entries after it are not stored again. Deletes everything if the log ends before the position or has
        another epoch.
        """
        if self.epoch == position.epoch and position.sequence <= self._published:
            self.staged_through = position.sequence
            return
        self.epoch = position.epoch
        self._entries.clear()
        self._bytes = 0
        self._gone_through = self._published = self.staged_through = position.sequence
        self._wake()

    def _forget_oldest(self, newest_at: float) -> None:
        bounds = self.bounds
        while self._entries and (
            len(self._entries) > bounds.entries
            or self._bytes > bounds.bytes
            or (bounds.age_seconds is not None and self._entries[0].at < newest_at - bounds.age_seconds)
        ):
            oldest = self._entries.popleft()
            self._bytes -= len(oldest.data)
            self._gone_through = oldest.sequence

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
