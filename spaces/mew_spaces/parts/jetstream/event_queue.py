"""The queue of events that a gateway submits to the shared order: bounded, in batches, one at a time.

Events that arrive while a batch is in flight form the next one, so the speed of the backplane determines the number of
batches. A batch is stored when it returns in the order. Otherwise it is appended again with the same id until it is
stored; its number reveals duplicates. Only senders of unsent events are notified that these are not stored. Does not
know the effects of events.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic

import anyio

from mew_spaces.core.events import (
    SEED_BYTES,
    BatchHeader,
    ConnectionJoins,
    EnvelopeArrives,
    GatewayStarts,
    encode_batch,
    encode_event,
)
from mew_spaces.gateway.storage import Submission
from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneError, BackplaneRefused, BackplaneUnavailable

BATCH_BYTES = 256 * 1024
"""A batch takes no further events above this size."""

LATE_SECONDS = 0.25
"""A batch that has not come back is appended again after this time, or twice as long."""

RETRY_SECONDS = 0.25

log = logging.getLogger("mew_spaces")


@dataclass(eq=False, slots=True)
class _Waiting:
    """An encoded event, and the start of its wait."""

    submission: Submission
    data: bytes
    at: float

    @property
    def may_be_refused(self) -> bool:
        """Whether it may be refused. Other events are facts that must reach the gateways."""
        return isinstance(self.submission.event, EnvelopeArrives | ConnectionJoins)


@dataclass(eq=False, slots=True)
class OwnBatch:
    """A batch in flight. `is_late`: it is time to check whether it is stored."""

    header: BatchHeader
    submissions: list[Submission]
    data: bytes
    id: str
    is_late: bool


class EventQueue:
    """The unapplied events of one gateway, in order of submission."""

    def __init__(
        self,
        backplane: Backplane,
        *,
        clock: Callable[[], datetime],
        refuse: Callable[[Submission], None],
        max_events: int,
        max_bytes: int,
        wait_seconds: float,
    ) -> None:
        """`refuse` is called for each refused event.

        While the backplane is unavailable, events wait up to `wait_seconds`; then further ones are refused at once.
        """
        self._backplane = backplane
        self._clock = clock
        self._refuse = refuse
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._wait_seconds = wait_seconds
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._in_flight: OwnBatch | None = None
        self._number = 0
        self._wake = asyncio.Event()  # an event of `anyio` cannot be cleared, and a new one each time is slow
        self._failing_since: dict[str, float] = {}
        self.gateway = 0
        """The number under which this gateway submits; 0: it has none, and all events are refused."""
        self.is_refused = False
        """Whether the backplane refused the batch in flight: its storage may be full. It is tried again and again."""

    def __len__(self) -> int:
        return len(self._waiting) + (0 if self._in_flight is None else len(self._in_flight.submissions))

    @property
    def is_away(self) -> bool:
        """Whether the backplane has been unavailable for longer than events wait."""
        return bool(self._failing_since) and min(self._failing_since.values()) + self._wait_seconds <= monotonic()

    def use_number(self, gateway: int) -> None:
        """Submit under another number from now on (0: not at all), and refuse waiting events.

        A batch in flight may still be stored.
        """
        dropped = tuple(self._waiting)
        self._in_flight = None
        self._waiting.clear()
        self._waiting_bytes = self._number = 0
        self.gateway = gateway
        self._failing_since.pop("append", None)  # the failed attempt has ended
        for one in dropped:
            self._refuse(one.submission)
        if gateway:
            self.submit(Submission(GatewayStarts()))

    def submit(self, submission: Submission) -> None:
        """Add an event. It is refused at once if the queue is full or the backplane stores nothing."""
        added = _Waiting(submission, encode_event(submission.event), monotonic())
        is_full = len(self._waiting) >= self._max_events or self._waiting_bytes >= self._max_bytes
        if not self.gateway or ((is_full or self.is_away or self.is_refused) and added.may_be_refused):
            self._refuse(submission)
        else:
            self._waiting.append(added)
            self._waiting_bytes += len(added.data)
            self._wake.set()

    def end_flight(self, data: bytes) -> OwnBatch | None:
        """Return the batch in flight if it has these bytes (else None), and continue with the next one."""
        batch = self._in_flight
        if batch is None or batch.data != data:
            return None
        self._in_flight, self.is_refused = None, False
        self.note_success("append")
        if self._waiting:
            self._wake.set()
        return batch

    def refuse_late(self) -> None:
        """Refuse events that have waited too long. Call this regularly."""
        self._refuse_waiting(before=monotonic() - self._wait_seconds)

    def _refuse_waiting(self, *, before: float) -> None:
        late = [one for one in self._waiting if one.at < before and one.may_be_refused]
        if late:
            kept = [one for one in self._waiting if one.at >= before or not one.may_be_refused]
            self._waiting = deque(kept)
            self._waiting_bytes = sum(len(one.data) for one in kept)
        for one in late:
            self._refuse(one.submission)

    async def run(self) -> None:
        """Send batch after batch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._notice_late)
            while True:
                if self._in_flight is not None and self._in_flight.is_late:
                    await self._append(self._in_flight)
                elif self._in_flight is None and self._waiting:
                    await asyncio.sleep(0)  # include events of the next turn of the event loop
                    if self._waiting:  # empty if all were refused in the meantime
                        await self._send()
                else:
                    self._wake.clear()
                    await self._wake.wait()

    async def _notice_late(self) -> None:
        # One timer for all batches: a timer for each costs more than the rest of the queue's work.
        while True:
            batch = self._in_flight
            await anyio.sleep(LATE_SECONDS)
            if batch is not None and batch is self._in_flight:
                batch.is_late = True
                self._wake.set()

    def note_failure(self, what: str, error: Exception) -> None:
        """Record a failed operation of the backplane, until the same operation succeeds."""
        if not self._failing_since:
            log.warning("backplane: %s; nothing is confirmed until it answers", error)
        self._failing_since.setdefault(what, monotonic())

    def note_success(self, what: str) -> None:
        """Record a successful operation of the backplane."""
        if self._failing_since.pop(what, None) is not None and not self._failing_since:
            log.info("backplane: answering again")

    async def _send(self) -> None:
        self._number += 1
        header = BatchHeader(self.gateway, self._number, self._clock(), secrets.token_bytes(SEED_BYTES))
        packed: list[_Waiting] = []
        size = 0
        while self._waiting and size < BATCH_BYTES:
            packed.append(self._waiting.popleft())
            size += len(packed[-1].data)
        self._waiting_bytes -= size
        data = encode_batch(header, [one.data for one in packed])
        batch_id = f"{header.gateway}.{header.number}.{header.seed.hex()}"
        # While the backplane fails, wait for the answer to each batch: it contains the error.
        is_late = self.is_refused or bool(self._failing_since)
        self._in_flight = batch = OwnBatch(header, [one.submission for one in packed], data, batch_id, is_late)
        if not is_late:
            try:
                await self._backplane.send(data, batch_id)
            except BackplaneError:
                batch.is_late = True

    async def _append(self, batch: OwnBatch) -> None:
        """Append a batch; an earlier copy counts. After a failure, wait before the next attempt."""
        try:
            await self._backplane.append(batch.data, batch.id)
        except BackplaneUnavailable as error:
            self.note_failure("append", error)
        except BackplaneRefused as error:
            if not self.is_refused:
                log.warning("backplane: %s; envelopes are refused until they can be stored", error)
            self.is_refused = True
            # Keep its own events: an earlier copy may be stored, and the missing permission may be that of another
            # call.
            self._refuse_waiting(before=inf)
        else:
            batch.is_late = self.is_refused = False
            self.note_success("append")
            return
        await anyio.sleep(RETRY_SECONDS)
