"""A log in memory: the newest entries within bounds, gone with the process.

Also the readable part of the SQLite log, which stores each batch before it reaches this one.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import anyio
from mew_protocol.position import Position

from mew_spaces.log.interface import Batch, Bounds, Durability, Entry, SpaceLog


class MemoryLog(SpaceLog):
    """See `SpaceLog`. Readers hold no buffers here: each asks for what follows the place it has reached."""

    durability: Durability = "memory"

    def __init__(self, *, epoch: str, bounds: Bounds, remembered_ids: int = 50_000) -> None:
        """`remembered_ids` bounds how many ids are recognised when they come twice, kept entries or not."""
        self.epoch = epoch
        self.bounds = bounds
        self._remembered_ids = remembered_ids
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._gone_through = 0  # the number up to which nothing can be read any more
        self._published = 0
        self._staged_through = 0
        # Oldest first. A plain dict would be searched for its first key across the places of all that were deleted.
        self._sequences: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._staged: list[Entry] = []
        self._staged_state: dict[str, bytes | None] = {}
        self._state: dict[str, bytes] = {}
        self._waiters = 0
        self._changed = anyio.Event()
        self._is_closed = False

    @property
    def position(self) -> Position:
        return Position(self.epoch, self._published)

    @property
    def next_sequence(self) -> int:
        return self._staged_through + 1

    @property
    def start(self) -> Position:
        return Position(self.epoch, self._gone_through)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def stage(self, data: bytes, *, sender: str, id: str, at: float) -> int:  # noqa: A002 - the wire's word
        self._staged_through += 1
        entry = Entry(self._staged_through, data, sender, id, at)
        self._staged.append(entry)
        self._remember(entry)
        return entry.sequence

    def append(self, data: bytes, *, sender: str, id: str, at: float) -> int:  # noqa: A002 - the wire's word
        # What `stage`, `write` and `publish` do together, for the path that every envelope takes.
        if self._staged or self._staged_state:
            return super().append(data, sender=sender, id=id, at=at)
        sequence = self._staged_through + 1
        entry = tuple.__new__(Entry, (sequence, data, sender, id, at))
        if self.durability != "memory":
            self.write(Batch((entry,)))
        self._staged_through = self._published = sequence
        self._remember(entry)
        self._entries.append(entry)
        self._bytes += len(data)
        if len(self._entries) > self.bounds.entries or self._bytes > self.bounds.bytes or self.bounds.age_seconds:
            self._forget_oldest(at)
        if self._waiters:
            self._wake()
        return sequence

    def sequence_of(self, sender: str, id: str) -> int | None:  # noqa: A002 - the wire's word
        return self._sequences.get((sender, id))

    def put(self, key: str, value: bytes | None) -> None:
        self._staged_state[key] = value

    @property
    def has_staged_state(self) -> bool:
        return bool(self._staged_state)

    def state(self) -> Mapping[str, bytes]:
        return self._state

    def seal(self) -> Batch:
        batch = Batch(self._staged, self._staged_state)
        self._staged, self._staged_state = [], {}
        return batch

    def write(self, batch: Batch) -> None:
        """Nothing to store."""

    def publish(self, batch: Batch) -> None:
        for key, value in batch.state.items():
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value
        if batch.entries:
            self._extend(batch.entries)
            if self._waiters:
                self._wake()

    def discard(self, batch: Batch) -> None:
        self._staged_state = {**batch.state, **self._staged_state}  # it is still to be written
        for entry in batch.entries:
            if self._sequences.get((entry.sender, entry.id)) == entry.sequence:
                del self._sequences[entry.sender, entry.id]

    def since(self, position: Position, *, limit: int | None = None) -> Sequence[Entry] | None:
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
        return tuple(islice(newer, limit))

    def entry(self, sequence: int) -> Entry | None:
        found = self.since(Position(self.epoch, sequence - 1), limit=1)
        return found[0] if found and found[0].sequence == sequence else None

    def last(self, count: int) -> Sequence[Entry]:
        return tuple(islice(self._entries, max(0, len(self._entries) - count), None))

    async def wait_beyond(self, position: Position) -> None:
        while not self._is_closed and self._published <= position.sequence:
            self._waiters += 1
            try:
                await self._changed.wait()
            finally:
                self._waiters -= 1

    def end(self) -> None:
        self._is_closed = True
        self._wake()

    def close(self) -> None:
        self.end()

    def restore(
        self, entries: Iterable[Entry], *, state: Mapping[str, bytes], gone_through: int, last_sequence: int
    ) -> None:
        """Begin with what an earlier run stored. `last_sequence` is the highest number it gave."""
        self._state = dict(state)
        self._gone_through = self._published = gone_through
        for entry in entries:
            self._remember(entry)
            self._extend((entry,))
        self._published = self._staged_through = max(last_sequence, self._published)

    def begin_at(self, position: Position) -> None:
        """Forget everything, and give the next entry the number after this position."""
        self.epoch = position.epoch
        self._entries.clear()
        self._sequences.clear()
        self._bytes = 0
        self._gone_through = self._published = self._staged_through = position.sequence
        self._wake()

    def _remember(self, entry: Entry) -> None:
        self._sequences[entry.sender, entry.id] = entry.sequence
        if len(self._sequences) > self._remembered_ids:
            self._sequences.popitem(last=False)

    def _extend(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._bytes += len(entry.data)
        self._published = entries[-1].sequence
        self._forget_oldest(entries[-1].at)

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
