"""What an event causes is stored together, before any member receives it, or refused."""

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio import to_thread
from mew_protocol.codec import StreamFrame, read_draft
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.effects import ConnectionId, Receipt
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.memory import Batch, Bounds, Durability, NotStored, SpaceLog

from tests.support.channels import RecordingChannel
from tests.support.waiting import PATIENCE_SECONDS, until

ADA, BOB = ParticipantId("ada"), ParticipantId("bob")


class RecordingLog(SpaceLog):
    """A log whose disk may be full."""

    def __init__(self, durability: Durability) -> None:
        super().__init__(epoch="e", bounds=Bounds(1_000, 1_000_000))
        self.durability = durability
        self.is_full = False
        self.attempts = 0
        self.is_writing = False
        self.may_write: threading.Event | None = None
        self.stored: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.attempts += 1
        self.is_writing = True
        if self.may_write is not None:
            assert self.may_write.wait(PATIENCE_SECONDS)
        self.is_writing = False
        if self.is_full:
            raise NotStored("the disk is full")
        self.stored.append(batch)


@pytest.fixture(params=["flushed", "synced"])
async def log(request: pytest.FixtureRequest) -> RecordingLog:
    return RecordingLog(request.param)


@pytest.fixture
async def service(config: SpaceConfig, log: RecordingLog) -> AsyncIterator[SpaceService]:
    made = SpaceService(config, TokenBook.generate(config), space_log=log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.keep_storing)
        yield made
        tasks.cancel_scope.cancel()


async def joined(service: SpaceService, participant: ParticipantId) -> tuple[ConnectionId, RecordingChannel]:
    connection, channel = service.new_connection(), RecordingChannel()
    service.attach(connection, channel)
    service.join(connection, participant)
    await until(lambda: service.log.position.sequence == service.log.next_sequence - 1)
    return connection, channel


def messages(channel: RecordingChannel) -> list[dict[str, Any]]:
    return [json.loads(one) for one in channel.written if one[:1] in ("{", b"{")]


def kinds(channel: RecordingChannel) -> list[str]:
    return [one["kind"] for one in messages(channel)]


def receive(service: SpaceService, connection: ConnectionId, kind: str, id: str, **payload: Any) -> None:  # noqa: A002
    service.receive(connection, ADA, read_draft({"kind": kind, "id": id, "payload": payload}))


async def test_a_stream_is_stored_together_with_its_announcement(service: SpaceService, log: RecordingLog) -> None:
    connection, ada = await joined(service, ADA)
    receive(service, connection, "chat", "c", text="ahead, so that the request waits for the disk")
    receive(service, connection, "stream/request", "r", direction="upload")
    await until(lambda: kinds(ada)[-1] == "stream/request")
    with_opening = next(one for one in log.stored if any(b'"stream/open"' in entry.data for entry in one.entries))
    assert {"space/streams/stream-1", "space:streams_opened"} <= with_opening.state.keys()
    assert [entry.id for entry in with_opening.entries][-1] == "r"


async def test_a_stream_that_is_not_stored_is_neither_announced_nor_kept(
    service: SpaceService, config: SpaceConfig, log: RecordingLog
) -> None:
    connection, ada = await joined(service, ADA)
    _, bob = await joined(service, BOB)
    log.is_full = True
    receive(service, connection, "stream/request", "r", direction="upload")
    await until(lambda: kinds(ada)[-1] == "system/error")
    assert messages(ada)[-1]["payload"]["error"] == "not_stored"
    assert "stream/open" not in kinds(ada) + kinds(bob)
    service.relay(connection, ADA, StreamFrame("stream-1", "0"))
    assert messages(ada)[-1]["payload"]["error"] == "unauthorized_stream_write"
    log.is_full = False
    service.expire()
    await until(lambda: service.is_storing)
    receive(service, connection, "stream/request", "r", direction="upload")
    await until(lambda: kinds(ada)[-1] == "stream/request")
    (opened,) = [one["payload"]["stream_id"] for one in messages(bob) if one["kind"] == "stream/open"]
    restarted = MembershipStore(config, TokenBook(), None, log).state
    assert list(restarted.streams) == [opened]


async def test_a_decision_that_is_not_stored_can_be_sent_again(service: SpaceService, log: RecordingLog) -> None:
    connection, ada = await joined(service, ADA)
    call = {"method": "tools/call", "params": {"name": "write"}}
    receive(service, connection, "mcp/proposal", "p", **call)
    await until(lambda: kinds(ada)[-1] == "mcp/proposal")
    for is_full, name, outcome in (
        (True, "d1", "not_stored"),
        (False, "d1", "mcp/request"),
        (False, "d2", "already_decided"),
    ):
        log.is_full = is_full
        service.expire()
        await until(lambda: service.is_storing)
        draft = {"kind": "mcp/request", "id": name, "correlation_id": ["p"], "to": ["coder"], "payload": call}
        before = len(ada.written)
        service.receive(connection, ADA, read_draft(draft))
        await until(lambda: len(ada.written) > before)  # noqa: B023
        last = messages(ada)[-1]
        assert last["payload"].get("error", last["kind"]) == outcome


async def test_a_full_disk_is_tried_again_only_at_intervals(service: SpaceService, log: RecordingLog) -> None:
    connection, ada = await joined(service, ADA)
    log.is_full = True
    attempts = log.attempts
    figures = {"tokens": 1, "max_tokens": 2, "messages_in_context": 1}
    receive(service, connection, "participant/status", "s", status="active", **figures)
    await until(lambda: kinds(ada)[-1] == "system/error")
    for attempt in range(1, 4):
        for _ in range(20):
            await to_thread.run_sync(lambda: None)
        assert log.attempts == attempts + attempt
        service.expire()
        await until(lambda: log.attempts > attempts + attempt)  # noqa: B023
    log.is_full = False
    service.expire()
    await until(lambda: service.is_storing)
    assert "space/statuses/ada" in log.stored[-1].state


@pytest.mark.parametrize("log", ["synced"], indirect=True)
@pytest.mark.parametrize("is_full", [False, True])
async def test_a_repeated_http_envelope_learns_what_became_of_the_first(
    service: SpaceService, log: RecordingLog, is_full: bool
) -> None:
    await joined(service, ADA)
    log.is_full, log.may_write = is_full, threading.Event()
    draft = read_draft({"kind": "chat", "id": "c", "payload": {"text": "hi"}})
    service.receive(None, ADA, draft)
    answers: dict[str, Receipt] = {}

    async def post(name: str) -> None:
        answers[name] = await service.post(ADA, draft)

    async with anyio.create_task_group() as tasks:
        await until(lambda: log.is_writing)
        tasks.start_soon(post, "while the first is written")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(PATIENCE_SECONDS):
            log.may_write.set()
            await until(lambda: answers)
    (answer,) = answers.values()
    assert (answer.refused is not None) == is_full
    assert is_full or answer.answer["status"] == "duplicate"


async def test_a_welcome_names_no_number_that_is_not_stored(service: SpaceService, log: RecordingLog) -> None:
    connection, _ = await joined(service, ADA)
    log.is_full = True
    receive(service, connection, "chat", "c", text="refused, so that its number may be used again")
    session, bob = service.new_connection(), RecordingChannel()
    service.attach(session, bob)
    service.join(session, BOB, DeliveryRequest())
    await until(lambda: "system/welcome" in kinds(bob))
    delivery = messages(bob)[0]["payload"]["delivery"]
    assert delivery["position"] == delivery["newest"] == str(service.log.position)
