"""Events are stored in batches, once and in order, or their senders learn that they are not."""

from datetime import UTC, datetime

import anyio
from mew_protocol.ids import ParticipantId
from mew_spaces.backplane.interface import BackplaneRefused
from mew_spaces.core.effects import ConnectionId
from mew_spaces.core.events import ConnectionLeaves, EnvelopeArrives, GatewayStarts, SpaceEvent, decode_batch
from mew_spaces.gateway.event_queue import EventQueue, Submission

from tests.support.memory_backplane import MemoryBackplane, MemoryHub
from tests.support.waiting import PATIENCE_SECONDS, until

LEAVES = ConnectionLeaves(ConnectionId(1), ParticipantId("ada"))


def chat(text: str) -> EnvelopeArrives:
    return EnvelopeArrives(ConnectionId(1), ParticipantId("ada"), 0, may_repeat=True, data=text.encode())


class FullBackplane(MemoryBackplane):
    is_full = False

    async def append(self, data: bytes, batch_id: str) -> int:
        if self.is_full:
            raise BackplaneRefused("the storage is full")
        return await super().append(data, batch_id)


class Driver:
    """A queue whose batches are never applied here, and what it refused."""

    def __init__(self, **bounds: float) -> None:
        self.hub = MemoryHub()
        self.backplane = FullBackplane(self.hub)
        self.refused: list[SpaceEvent] = []
        options = {"max_events": 3, "max_bytes": 10_000, "wait_seconds": PATIENCE_SECONDS, **bounds}
        self.queue = EventQueue(
            self.backplane,
            clock=lambda: datetime.now(UTC),
            refuse=self._refuse,
            stored=lambda *_: None,
            **options,  # type: ignore[arg-type]
        )
        self.queue.begin(7)

    def _refuse(self, submission: Submission) -> None:
        self.refused.append(submission.event)

    @property
    def stored(self) -> list[list[SpaceEvent]]:
        return [decode_batch(batch.data)[1] for batch in self.hub.batches]


async def test_events_that_wait_are_one_batch_and_a_full_queue_refuses() -> None:
    driver = Driver(max_events=4)
    for event in (chat("a"), LEAVES, chat("b"), chat("c"), LEAVES):
        driver.queue.submit(event)
    assert driver.refused == [chat("c")]
    driver.hub.unacknowledged_appends = 2
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.queue.run)
        await until(lambda: driver.stored)
        driver.queue.submit(chat("d"))
        await until(lambda: len(driver.stored) == 2)
        tasks.cancel_scope.cancel()
    first = [GatewayStarts(), chat("a"), LEAVES, chat("b"), LEAVES]
    assert driver.stored == [first, [chat("d")]]
    assert [decode_batch(batch.data)[0].number for batch in driver.hub.batches] == [1, 2]


async def test_a_full_storage_refuses_envelopes_and_keeps_facts() -> None:
    driver = Driver()
    driver.backplane.is_full = True
    driver.queue.submit(chat("a"))
    driver.queue.submit(LEAVES)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.queue.run)
        await until(lambda: driver.refused == [chat("a")])
        await until(lambda: driver.queue.is_refused)
        driver.backplane.is_full = False
        await until(lambda: driver.stored and not driver.queue.is_refused)
        tasks.cancel_scope.cancel()
    assert driver.stored == [[GatewayStarts(), LEAVES]]


async def test_a_gateway_without_a_number_refuses_everything() -> None:
    driver = Driver()
    driver.queue.submit(chat("a"))
    driver.queue.begin(0)
    driver.queue.submit(chat("b"))
    assert driver.refused == [GatewayStarts(), chat("a"), chat("b")]
