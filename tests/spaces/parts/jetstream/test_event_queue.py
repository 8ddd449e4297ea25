"""Events are stored in batches, once and in order, or their senders learn that they are not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
from mew_protocol.ids import ParticipantId
from mew_spaces.core.events import (
    ConnectionId,
    ConnectionLeaves,
    EnvelopeArrives,
    GatewayStarts,
    InputEvent,
    decode_batch,
)
from mew_spaces.gateway.storage import Submission
from mew_spaces.parts.jetstream.backplane import BackplaneRefused, StoredBatch
from mew_spaces.parts.jetstream.event_queue import EventQueue

from tests.support.memory_backplane import MemoryBackplane, MemoryHub
from tests.support.waiting import PATIENCE_SECONDS, until

LEAVES = ConnectionLeaves(ConnectionId(1), ParticipantId("ada"))


def chat(text: str) -> EnvelopeArrives:
    return EnvelopeArrives(ConnectionId(1), ParticipantId("ada"), 0, may_repeat=True, data=text.encode())


class FullBackplane(MemoryBackplane):
    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub)
        self.is_full = False
        self.sent = False
        self.appended: list[str] = []

    async def send(self, data: bytes, batch_id: str) -> None:
        self.sent = True
        if not self.is_full:
            await super().send(data, batch_id)

    async def append(self, data: bytes, batch_id: str) -> int:
        self.appended.append(batch_id)
        if self.is_full:
            raise BackplaneRefused("the storage is full")
        return await super().append(data, batch_id)


class Driver:
    """A queue that runs within `running`, the events that came back to it, and what it refused."""

    def __init__(self, **bounds: float) -> None:
        self.hub = MemoryHub()
        self.backplane = FullBackplane(self.hub)
        self.refused: list[InputEvent] = []
        self.back: list[tuple[int, InputEvent]] = []
        """Each with the number of its batch."""
        options = {"max_events": 3, "max_bytes": 10_000, "wait_seconds": PATIENCE_SECONDS, **bounds}
        self.queue = EventQueue(
            self.backplane,
            clock=lambda: datetime.now(UTC),
            refuse=self._refuse,
            **options,  # type: ignore[arg-type]
        )
        self.queue.use_number(7)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.queue.run)
            tasks.start_soon(self.backplane.follow, 0, self._receive)
            yield
            tasks.cancel_scope.cancel()

    def submit(self, event: InputEvent) -> None:
        self.queue.submit(Submission(event))

    def _receive(self, batch: StoredBatch) -> None:
        own = self.queue.end_flight(batch.data)
        if own is not None:
            self.back += [(own.header.number, event) for event in (one.event for one in own.submissions)]

    def _refuse(self, submission: Submission) -> None:
        self.refused.append(submission.event)

    @property
    def stored(self) -> list[list[InputEvent]]:
        return [decode_batch(batch.data)[1] for batch in self.hub.batches]


async def test_events_that_wait_are_one_batch_and_a_full_queue_refuses() -> None:
    driver = Driver(max_events=4)
    for event in (chat("a"), LEAVES, chat("b"), chat("c"), LEAVES):
        driver.submit(event)
    assert driver.refused == [chat("c")]
    driver.hub.lost_sends, driver.hub.unacknowledged_appends = 1, 2
    async with driver.running():
        await until(lambda: driver.back)
        driver.submit(chat("d"))
        await until(lambda: len(driver.stored) == 2)
    first = [GatewayStarts(), chat("a"), LEAVES, chat("b"), LEAVES]
    assert driver.stored == [first, [chat("d")]]
    assert [decode_batch(batch.data)[0].number for batch in driver.hub.batches] == [1, 2]


async def test_a_late_batch_is_stored_once_and_before_the_next() -> None:
    driver = Driver()
    async with driver.running():
        await until(lambda: driver.back)
        driver.backplane.is_stalled = True
        driver.submit(chat("a"))
        await until(lambda: len(driver.stored) == 2)
        driver.submit(chat("b"))
        await until(lambda: driver.backplane.appended)
        assert len(driver.stored) == 2
        driver.backplane.is_stalled = False
        driver.hub.wake()
        await until(lambda: len(driver.back) == 3)
    assert driver.back == [(1, GatewayStarts()), (2, chat("a")), (3, chat("b"))]
    assert [decode_batch(batch.data)[0].number for batch in driver.hub.batches] == [1, 2, 3]


async def test_a_full_storage_refuses_only_unsent_envelopes() -> None:
    driver = Driver(max_events=10)
    driver.backplane.is_full = True
    driver.submit(chat("sent"))
    async with driver.running():
        await until(lambda: driver.backplane.sent)
        driver.submit(chat("waits"))
        driver.submit(LEAVES)
        await until(lambda: driver.queue.is_refused)
        driver.submit(chat("later"))
        assert driver.refused == [chat("waits"), chat("later")]
        driver.backplane.is_full = False
        await until(lambda: len(driver.back) == 3)
        driver.submit(chat("again"))
        await until(lambda: len(driver.back) == 4)
    assert driver.stored == [[GatewayStarts(), chat("sent")], [LEAVES], [chat("again")]]
    assert driver.refused == [chat("waits"), chat("later")]


async def test_an_event_that_was_sent_is_never_called_not_stored() -> None:
    driver = Driver()
    async with driver.running():
        await until(lambda: driver.back)
        driver.backplane.is_stalled = True
        driver.submit(chat("stored"))
        await until(lambda: len(driver.stored) == 2)
        driver.backplane.is_full = True
        await until(lambda: driver.queue.is_refused)
        driver.backplane.is_stalled = False
        driver.hub.wake()
        await until(lambda: len(driver.back) == 2)
        assert not driver.queue.is_refused
    driver.submit(chat("waits"))
    driver.queue.use_number(0)
    assert driver.refused == [chat("waits")]


async def test_a_gateway_without_a_number_refuses_everything() -> None:
    driver = Driver()
    driver.submit(chat("a"))
    driver.queue.use_number(0)
    driver.submit(chat("b"))
    assert driver.refused == [GatewayStarts(), chat("a"), chat("b")]
