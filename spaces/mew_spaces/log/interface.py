"""[pure] The contract of a space's log: number, store, read back, recognise what came twice.

An entry goes through three steps. `stage` gives it the next number. `write` stores everything staged so far as one
batch; where `is_slow`, callers run it in a thread. `publish` makes the batch visible to readers. An envelope must not
be sent before its batch is written: a gateway that restarts must never give a number to two envelopes.

Numbers grow and are never reused within an epoch, but they may have gaps: a batch that could not be written leaves
one. A log that lost its past starts a new epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from mew_protocol.position import Position

Durability = Literal["memory", "flushed", "synced"]
"""What accepted means: kept in memory, handed to the operating system, or written to the disk."""


class NotStored(Exception):
    """A batch could not be stored; its entries do not exist."""


class Entry(NamedTuple):
    """One accepted envelope: its number, its JSON text, and the sender and id that name it."""

    sequence: int
    data: bytes
    sender: str
    id: str
    at: float
    """When it was accepted, in seconds since 1970."""


class Batch(NamedTuple):
    """What one `write` stores, all of it or nothing."""

    entries: Sequence[Entry] = ()
    state: Mapping[str, bytes | None] = MappingProxyType({})
    """Values by key; None deletes."""

    def __bool__(self) -> bool:
        return bool(self.entries) or bool(self.state)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a log keeps. The oldest entries leave first."""

    entries: int
    bytes: int
    age_seconds: float | None = None


class SpaceLog(ABC):
    """One space's log. All methods but `write` return at once."""

    epoch: str
    durability: Durability

    @property
    @abstractmethod
    def position(self) -> Position:
        """The newest published entry's place; sequence 0 before the first."""

    @property
    @abstractmethod
    def next_sequence(self) -> int:
        """The number that the next staged entry will get."""

    @property
    @abstractmethod
    def start(self) -> Position:
        """The place before the oldest entry that can still be read."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether no more entries will come."""

    @abstractmethod
    def stage(self, data: bytes, *, sender: str, id: str, at: float) -> int:  # noqa: A002 - the wire's word
        """Give an envelope the next number; it is stored by the next `write` and read after its `publish`."""

    @abstractmethod
    def sequence_of(self, sender: str, id: str) -> int | None:  # noqa: A002 - the wire's word
        """Return the number of the envelope with this sender and id, staged or published; None if it is unknown."""

    @abstractmethod
    def put(self, key: str, value: bytes | None) -> None:
        """Stage a change of the state that belongs to the log; None deletes."""

    @property
    @abstractmethod
    def has_staged_state(self) -> bool:
        """Whether a `put` waits to be written."""

    @abstractmethod
    def state(self) -> Mapping[str, bytes]:
        """The state as last published."""

    @abstractmethod
    def seal(self) -> Batch:
        """Return everything staged since the last `seal` as a batch to write. At most one batch is in flight."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Store a batch. Blocks. Raises `NotStored`, after which no part of the batch is stored."""

    @property
    def is_slow(self) -> bool:
        """Whether `write` waits for a disk, so that callers run it in a thread."""
        return self.durability == "synced"

    @property
    def wants_upkeep(self) -> bool:
        """Whether `upkeep` is due."""
        return False

    def upkeep(self) -> None:
        """Move and delete what has piled up. Blocks; runs in a thread, possibly during a `write`."""
        return

    @abstractmethod
    def publish(self, batch: Batch) -> None:
        """Make a written batch visible and wake readers."""

    @abstractmethod
    def discard(self, batch: Batch) -> None:
        """Forget the entries of a batch that could not be written, and stage its state again."""

    @abstractmethod
    def since(self, position: Position, *, limit: int | None = None) -> Sequence[Entry] | None:
        """Return what follows a position, oldest first; None if some of it is gone or of another log."""

    @abstractmethod
    def entry(self, sequence: int) -> Entry | None:
        """Return the published entry with this number, or None if it is gone."""

    @abstractmethod
    def last(self, count: int) -> Sequence[Entry]:
        """Return the newest entries, at most `count`, oldest first."""

    @abstractmethod
    async def wait_beyond(self, position: Position) -> None:
        """Return once an entry follows this position or the log is closed. Callers bound the wait."""

    @abstractmethod
    def end(self) -> None:
        """Wake all readers: no more entries follow."""

    @abstractmethod
    def close(self) -> None:
        """End, and release what the log holds."""

    def append(self, data: bytes, *, sender: str, id: str, at: float) -> int:  # noqa: A002 - the wire's word
        """Stage, write and publish one envelope with all that is staged. Returns its number. Raises `NotStored`."""
        sequence = self.stage(data, sender=sender, id=id, at=at)
        self.commit()
        return sequence

    def commit(self) -> Batch:
        """Seal, write and publish in one step; it may block. Raises `NotStored`."""
        batch = self.seal()
        if batch:
            try:
                self.write(batch)
            except NotStored:
                self.discard(batch)
                raise
            self.publish(batch)
        return batch
