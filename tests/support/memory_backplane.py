"""A backplane for several gateways within one process, gone with the process.

`MemoryHub` contains what is shared; each gateway has a `MemoryBackplane` from `connect`. Faults can be injected:
the hub or the link of one gateway is away, or a stored batch is not acknowledged.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream
from mew_spaces.parts.jetstream.backplane import (
    LEASE_SECONDS,
    Backplane,
    BackplaneRefused,
    BackplaneUnavailable,
    Conflict,
    HistoryLost,
    SavedValue,
    StoredBatch,
)

_MAX_WAITING_FRAMES = 10_000
"""What may wait for a slow reader; further frames are lost for it."""


class MemoryHub:
    """What the gateways of one space share: batches, values, leases, and who listens for frames."""

    def __init__(
        self,
        *,
        kept_batches: int | None = None,
        lease_seconds: float = LEASE_SECONDS,
        max_frame_bytes: int = 1024 * 1024,
    ) -> None:
        """`kept_batches` bounds how many batches can be read; the oldest leave first (default: no bound)."""
        self.max_frame_bytes = max_frame_bytes
        self.lease_seconds = lease_seconds
        self.unacknowledged_appends = 0
        """How many of the next appends are stored and then raise `BackplaneUnavailable`."""
        self.lost_sends = 0
        """How many of the next batches that are sent without an answer are lost."""
        self.batches: deque[StoredBatch] = deque(maxlen=kept_batches)
        self.last_sequence = 0
        self.sequences: dict[str, int] = {}
        """The sequence of each batch id, for ever."""
        self.values: dict[str, SavedValue] = {}
        self.last_revision = 0
        self.leases: dict[str, tuple[bytes, float]] = {}
        """Value and time of expiry, of leases that may have expired."""
        self.listeners: dict[MemoryObjectSendStream[bytes], MemoryBackplane] = {}
        self._is_available = True
        self._away_since = 0.0
        self._changed = anyio.Event()

    @property
    def is_available(self) -> bool:
        """Whether any gateway can reach the hub; set it to False for an outage of all."""
        return self._is_available

    @is_available.setter
    def is_available(self, value: bool) -> None:
        now = anyio.current_time()
        if value and not self._is_available:  # an outage expires no lease
            away_seconds = now - self._away_since
            self.leases = {name: (lease, at + away_seconds) for name, (lease, at) in self.leases.items()}
        self._is_available, self._away_since = value, now
        self.wake()

    def connect(self) -> "MemoryBackplane":
        """Return the backplane of one more gateway."""
        return MemoryBackplane(self)

    def leases_in_force(self) -> Mapping[str, bytes]:
        """Return the leases that have not expired."""
        now = anyio.current_time()
        return {name: value for name, (value, expires_at) in self.leases.items() if expires_at > now}

    def wake(self) -> None:
        """Let every generator look for changes."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self, *, until: float = float("inf")) -> None:
        """Return after the next `wake`, or at a time of the event loop's clock."""
        with anyio.CancelScope(deadline=until):
            await self._changed.wait()


class MemoryBackplane(Backplane):
    """See `Backplane`. `is_cut_off` cuts this gateway off from the hub while others still reach it."""

    def __init__(self, hub: MemoryHub) -> None:
        self.hub = hub
        self._is_cut_off = False
        self._is_closed = False
        self.is_stalled = False
        """Whether `follow` hands over nothing, as while a consumer is replaced. Call `hub.wake` after a change."""

    @property
    def max_frame_bytes(self) -> int:
        return self.hub.max_frame_bytes

    @property
    def stale_lease_seconds(self) -> float:
        return 0.0

    @property
    def is_connected(self) -> bool:
        return self.hub.is_available and not self._is_cut_off and not self._is_closed

    @property
    def is_cut_off(self) -> bool:
        """Whether this gateway cannot reach the hub, even if others can."""
        return self._is_cut_off

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        self._is_cut_off = value
        self.hub.wake()

    async def send(self, data: bytes, batch_id: str) -> None:
        await self._reach()
        if self.hub.lost_sends:
            self.hub.lost_sends -= 1
        else:
            self._store(data, batch_id)

    async def append(self, data: bytes, batch_id: str) -> int:
        await self._reach()
        sequence = self._store(data, batch_id)
        if self.hub.unacknowledged_appends:
            self.hub.unacknowledged_appends -= 1
            raise BackplaneUnavailable("no acknowledgement")
        return sequence

    async def follow(self, after: int, receive: Callable[[StoredBatch], object], *, until: float = math.inf) -> None:
        while after < until and not self._is_closed:
            if self.is_connected and not self.is_stalled:
                first = self.hub.last_sequence - len(self.hub.batches) + 1
                if not first - 1 <= after <= self.hub.last_sequence:
                    raise HistoryLost(f"batch {after + 1} is not kept; there are {first} to {self.hub.last_sequence}")
                if after < self.hub.last_sequence:
                    batch = self.hub.batches[after + 1 - first]
                    after = batch.sequence
                    receive(batch)
                    continue
            await self.hub.wait()

    async def bounds(self) -> tuple[int, int]:
        await self._reach()
        return self.hub.last_sequence - len(self.hub.batches) + 1, self.hub.last_sequence

    async def trim(self, before: int) -> None:
        await self._reach()
        while self.hub.batches and self.hub.batches[0].sequence < before:
            self.hub.batches.popleft()

    async def load(self, key: str) -> SavedValue | None:
        await self._reach()
        return self.hub.values.get(key)

    async def save(self, key: str, value: bytes, *, expected: int) -> int:
        await self._reach()
        saved = self.hub.values.get(key)
        revision = saved.revision if saved is not None else 0
        if revision != expected:
            raise Conflict(f"{key}: revision {expected} expected, {revision} found")
        self.hub.last_revision += 1
        self.hub.values[key] = SavedValue(value, self.hub.last_revision)
        return self.hub.last_revision

    async def delete(self, key: str) -> None:
        await self._reach()
        self.hub.values.pop(key, None)

    async def renew(self, lease: str, value: bytes) -> None:
        await self._reach()
        self._put_in_force(lease, value)

    async def claim(self, lease: str, value: bytes) -> bool:
        await self._reach()
        if self.hub.leases_in_force().get(lease, value) != value:
            return False
        self._put_in_force(lease, value)
        return True

    async def release(self, lease: str) -> None:
        await self._reach()
        self.hub.leases.pop(lease, None)
        self.hub.wake()

    async def leases(self) -> AsyncGenerator[Mapping[str, bytes], None]:
        last: Mapping[str, bytes] | None = None
        while not self._is_closed:
            if not self.is_connected:
                await self.hub.wait()
                continue
            current = self.hub.leases_in_force()
            if current != last:
                last = current
                yield current
                continue
            await self.hub.wait(until=min((self.hub.leases[name][1] for name in current), default=float("inf")))

    async def publish(self, data: bytes) -> None:
        await self._reach()
        if len(data) > self.max_frame_bytes:
            raise BackplaneRefused(f"a frame of {len(data)} bytes is larger than {self.max_frame_bytes}")
        for stream, listener in list(self.hub.listeners.items()):
            if listener.is_connected:
                try:
                    stream.send_nowait(data)
                except anyio.WouldBlock:
                    continue  # lost for this one

    async def frames(self) -> AsyncGenerator[bytes, None]:
        sending, receiving = anyio.create_memory_object_stream[bytes](_MAX_WAITING_FRAMES)
        self.hub.listeners[sending] = self
        try:
            with sending, receiving:
                async for data in receiving:
                    yield data
        finally:
            self.hub.listeners.pop(sending, None)

    async def close(self) -> None:
        self._is_closed = True
        for stream in [stream for stream, listener in self.hub.listeners.items() if listener is self]:
            stream.close()
        self.hub.wake()

    async def _reach(self) -> None:
        """Let other tasks run, as every call over a network does, and fail if the hub is away."""
        await anyio.lowlevel.checkpoint()
        if not self.is_connected:
            raise BackplaneUnavailable("the backplane is away")

    def _store(self, data: bytes, batch_id: str) -> int:
        hub = self.hub
        sequence = hub.sequences.get(batch_id)
        if sequence is None:
            hub.last_sequence = sequence = hub.sequences[batch_id] = hub.last_sequence + 1
            hub.batches.append(StoredBatch(sequence, data))
            hub.wake()
        return sequence

    def _put_in_force(self, lease: str, value: bytes) -> None:
        self.hub.leases[lease] = (value, anyio.current_time() + self.hub.lease_seconds)
        self.hub.wake()
