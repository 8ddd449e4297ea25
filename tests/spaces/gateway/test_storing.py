"""What an event causes is stored together, before any member receives it, or it is refused and changes nothing."""

import copy
import json
import shutil
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from mew_protocol.codec import StreamFrame, read_draft
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.effects import Receipt
from mew_spaces.core.events import ConnectionId, FrameArrives, TimePasses
from mew_spaces.core.state import Change, Invitation
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.service import SpaceService
from mew_spaces.gateway.storage import PENDING
from mew_spaces.log.memory import SYNCED_PREFIX, Batch, Bounds, Durability, NotStored, OutcomeUnknown, SpaceLog
from mew_spaces.log.sqlite import SqliteLog

from tests.support.channels import RecordingChannel
from tests.support.waiting import PATIENCE_SECONDS, until

ADA, BOB, CODER, FAY = (ParticipantId(name) for name in ("ada", "bob", "coder", "fay"))
CALL = {"method": "tools/call", "params": {"name": "write"}}
PROBE = f"{SYNCED_PREFIX}probe"
FIGURES = {"status": "active", "tokens": 1, "max_tokens": 2, "messages_in_context": 1}
STREAM = {"stream_id": "stream-1", "participant_id": "bob", "new_owner": "bob"}
STORED: list[dict[str, Any]] = [
    {"kind": "stream/request", "payload": {"direction": "upload"}},
    {"kind": "stream/grant-write", "payload": STREAM | {"participant_id": "coder"}},
    {"kind": "capability/grant", "payload": {"recipient": "bob", "capabilities": [{"kind": "x"}], "grant_id": "g"}},
    {"kind": "participant/pause", "to": ["coder"]},
    {"kind": "mcp/proposal", "id": "p", "to": ["ada", "coder"], "payload": CALL},
    {"kind": "participant/status", "payload": FIGURES},
]
CHANGING: list[dict[str, Any]] = [
    {"kind": "capability/grant", "payload": {"recipient": "bob", "capabilities": [{"kind": "y"}]}},
    {"kind": "capability/revoke", "payload": {"recipient": "bob", "grant_id": "g"}},
    {"kind": "participant/pause", "to": ["bob"]},
    {"kind": "participant/resume", "to": ["coder"]},
    {"kind": "participant/shutdown", "to": ["bob"]},
    {"kind": "participant/status", "payload": FIGURES | {"tokens": 2}},
    {"kind": "mcp/proposal", "payload": CALL},
    {"kind": "mcp/request", "to": ["coder"], "correlation_id": ["p"], "payload": CALL},
    {"kind": "mcp/response", "to": ["ada"], "correlation_id": ["p"], "payload": {"result": {}}},
    {"kind": "mcp/reject", "correlation_id": ["p"]},
    {"kind": "mcp/withdraw", "correlation_id": ["p"]},
    {"kind": "stream/request", "payload": {"direction": "upload"}},
    {"kind": "stream/close", "payload": STREAM},
    {"kind": "stream/grant-write", "payload": STREAM},
    {"kind": "stream/revoke-write", "payload": STREAM | {"participant_id": "coder"}},
    {"kind": "stream/transfer-ownership", "payload": STREAM},
    {"kind": "space/invite", "payload": {"participant_id": "fay", "initial_capabilities": [{"kind": "chat"}]}},
    {"kind": "space/kick", "payload": {"participant_id": "bob"}},
]
"""One of each kind that changes something, after `STORED`."""


class RecordingLog(SpaceLog):
    """A log whose disk may be full."""

    def __init__(self, durability: Durability) -> None:
        super().__init__(epoch="e", bounds=Bounds(1_000, 1_000_000))
        self.durability = durability
        self.is_full = False
        self.failure = NotStored
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
        if self.is_full and (self.durability != "memory" or batch.synced_state):
            raise self.failure("the disk is full")
        self.stored.append(batch)


@pytest.fixture(params=["flushed", "synced"])
async def log(request: pytest.FixtureRequest) -> RecordingLog:
    return RecordingLog(request.param)


@pytest.fixture
async def service(config: SpaceConfig, log: RecordingLog) -> AsyncIterator[SpaceService]:
    made = SpaceService(config, TokenBook.generate(config), space_log=log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.storage.run)
        yield made
        tasks.cancel_scope.cancel()


async def joined(service: SpaceService, participant: ParticipantId) -> tuple[ConnectionId, RecordingChannel]:
    connection, channel = service.new_connection(), RecordingChannel()
    service.attach(connection, channel)
    service.join(connection, participant)
    await until(lambda: not service.storage.waiting)
    return connection, channel


def messages(channel: RecordingChannel) -> list[dict[str, Any]]:
    return [json.loads(one) for one in channel.written if one[:1] in ("{", b"{")]


def kinds(channel: RecordingChannel) -> list[str]:
    return [one["kind"] for one in messages(channel)]


def picture(service: SpaceService) -> Any:
    """What envelopes change."""
    space = service.space
    state = space.state.model_dump()
    sockets = {name: member.sockets for name, member in space.members.items()}
    permissions = {name: space.membership.permissions_of(name).patterns for name in ("ada", "bob", "coder", "fay")}
    board = space.board.trends, space.board.measured_at
    absent = space.connections.absent_since
    return copy.deepcopy((state, sockets, absent, permissions, board, service.tokens.knows(FAY)))


async def recovered(service: SpaceService, log: RecordingLog) -> None:
    await until(lambda: not service.storage.waiting)
    log.is_full = False
    service.expire()
    await until(lambda: service.storage.is_storing)
    await until(lambda: PROBE not in log.state())
    assert {PROBE: None} in [one.state for one in log.stored]


async def test_a_probe_that_an_earlier_run_left_is_deleted(config: SpaceConfig, log: RecordingLog) -> None:
    log.restore((), {PROBE: b"."})
    service = SpaceService(config, TokenBook.generate(config), space_log=log)
    service.receive(None, ADA, read_draft({"kind": "chat", "payload": {"text": "first"}}))
    service.close()
    assert [one.state for one in log.stored] == [{PROBE: None}, {}]


@pytest.mark.parametrize("log", ["memory"], indirect=True)
async def test_an_invitation_that_ends_on_a_full_disk_refuses_no_chat_kept_in_memory(
    config: SpaceConfig, log: RecordingLog
) -> None:
    invitation = Invitation(until_restart=True, invited_by="ada", invited_at="", through=())
    stored = Change("invited", FAY, invitation)
    key = f"{SYNCED_PREFIX}space/invited/fay"
    log.restore((), {key: stored.encode()})
    log.is_full = True
    service = SpaceService(config, TokenBook.generate(config), space_log=log)
    connection, ada = await joined(service, ADA)
    for number in range(3):
        receive(service, connection, "chat", f"c{number}", text="hi")
        service.expire()
    assert kinds(ada)[1:] == ["chat"] * 3
    assert not service.storage.is_storing
    assert key in log.state()
    log.is_full = False
    service.expire()
    await until(lambda: service.storage.is_storing)
    assert log.state() == {}
    service.close()


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
    service.storage.submit(FrameArrives(connection, ADA, StreamFrame("stream-1", "0")))
    await until(lambda: messages(ada)[-1]["payload"]["error"] == "unauthorized_stream_write")
    log.is_full = False
    service.expire()
    await until(lambda: service.storage.is_storing)
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
        await until(lambda: service.storage.is_storing)
        draft = {"kind": "mcp/request", "id": name, "correlation_id": ["p"], "to": ["coder"], "payload": call}
        before = len(ada.written)
        service.receive(connection, ADA, read_draft(draft))
        await until(lambda: len(ada.written) > before)  # noqa: B023
        last = messages(ada)[-1]
        assert last["payload"].get("error", last["kind"]) == outcome


@pytest.mark.parametrize("over_http", [False, True], ids=["socket", "http"])
@pytest.mark.parametrize("envelope", CHANGING, ids=lambda envelope: envelope["kind"])
async def test_a_refused_envelope_changes_nothing_and_can_be_sent_again(
    service: SpaceService,
    config: SpaceConfig,
    log: RecordingLog,
    envelope: dict[str, Any],
    over_http: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mew_spaces")
    session, ada = service.new_connection(), RecordingChannel()
    service.attach(session, ada)
    service.join(session, ADA, DeliveryRequest())
    (_, bob), (_, coder) = await joined(service, BOB), await joined(service, CODER)
    for number, stored in enumerate(STORED):
        service.receive(session, ADA, read_draft({"id": f"stored-{number}", **stored}))
    await until(lambda: kinds(coder)[-1] == "participant/status")
    draft = read_draft({"id": "e", **envelope})

    async def send() -> Receipt:
        if over_http:
            return await service.post(ADA, draft)
        sent = service.receive(session, ADA, draft)
        await until(lambda: sent.receipt is not PENDING)
        return sent.receipt

    before, received = picture(service), [len(one.written) for one in (ada, bob, coder)]
    caplog.clear()
    log.is_full = True
    receipt = await send()
    await until(lambda: kinds(ada)[-1] == "system/error")
    assert picture(service) == before
    error = messages(ada)[-1]
    assert (error["payload"]["error"], error["correlation_id"]) == ("not_stored", ["e"])
    assert [len(one.written) for one in (ada, bob, coder)] == [received[0] + 1, *received[1:]]
    assert bob.closed is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]  # no change of permissions is noted
    assert not over_http or (receipt.refused is not None and receipt.refused.error == "not_stored")

    await recovered(service, log)
    restarted = MembershipStore(config, TokenBook(), None, log).state
    assert restarted.model_dump() == before[0]
    receipt = await send()
    await until(lambda: len(ada.written) > received[0] + 1)
    assert "system/error" not in kinds(ada)[received[0] + 1 :]
    assert receipt.accepted is not None
    assert receipt.answer.get("status") != "duplicate"
    assert picture(service) != before


@pytest.mark.parametrize("log", ["synced"], indirect=True)
async def test_envelopes_that_build_on_a_refused_one_are_refused_too(service: SpaceService, log: RecordingLog) -> None:
    (connection, ada), (bob, _) = await joined(service, ADA), await joined(service, BOB)
    before = picture(service)
    log.is_full, log.may_write = True, threading.Event()
    grant = {"recipient": "bob", "capabilities": [{"kind": "capability/grant"}, {"kind": "stream/*"}]}
    receive(service, connection, "capability/grant", "g", **grant)
    await until(lambda: log.is_writing)
    for number, (kind, payload) in enumerate(
        [
            ("capability/grant", {"recipient": "coder", "capabilities": [{"kind": "stream/*"}]}),
            ("stream/request", {"direction": "upload"}),
            ("stream/transfer-ownership", {"stream_id": "stream-1", "new_owner": "ada"}),
        ]
    ):
        draft = read_draft({"kind": kind, "id": f"b{number}", "payload": payload})
        service.receive(bob, BOB, draft)
    with anyio.fail_after(PATIENCE_SECONDS):
        answer = await after_refusal(service, log)
    assert answer.refused is not None
    assert picture(service) == before
    assert {"stream/open", "capability/grant"}.isdisjoint(kinds(ada))


async def after_refusal(service: SpaceService, log: RecordingLog) -> Receipt:
    """Let the disk answer, and return what the sender of one more envelope learns."""
    answers = []

    async def post() -> None:
        answers.append(await service.post(ADA, read_draft({"kind": "chat", "payload": {"text": "last"}})))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await anyio.wait_all_tasks_blocked()
        assert log.may_write is not None
        log.may_write.set()
    return answers[0]


@pytest.mark.parametrize("log", ["synced"], indirect=True)
async def test_a_member_that_joins_late_receives_nothing_that_was_refused(
    service: SpaceService, log: RecordingLog
) -> None:
    connection, _ = await joined(service, ADA)
    log.is_full, log.may_write = True, threading.Event()
    receive(service, connection, "stream/request", "r", direction="upload")
    service.receive(connection, ADA, read_draft({"kind": "participant/pause", "id": "pause", "to": ["bob"]}))
    await until(lambda: log.is_writing)
    session, bob = service.new_connection(), RecordingChannel()
    service.attach(session, bob)
    service.join(session, BOB, DeliveryRequest())
    await after_refusal(service, log)
    await until(lambda: bob.written)
    (welcome,) = messages(bob)
    assert welcome["kind"] == "system/welcome"
    assert welcome["payload"]["active_streams"] == []
    assert welcome["payload"]["delivery"]["recovered"]


@pytest.mark.parametrize("log", ["synced"], indirect=True)
async def test_grants_that_the_gateway_ended_stay_ended(service: SpaceService, log: RecordingLog) -> None:
    (connection, _), (bob, _) = await joined(service, ADA), await joined(service, BOB)
    receive(service, connection, "capability/grant", "g", recipient="bob", capabilities=[{"kind": "x"}])
    await until(lambda: service.space.state.grants and not service.storage.waiting)
    service.leave(bob)
    await until(lambda: not service.storage.waiting)
    log.is_full, log.may_write = True, threading.Event()
    receive(service, connection, "capability/grant", "h", recipient="bob", capabilities=[{"kind": "y"}])
    await until(lambda: log.is_writing)
    service.space.connections.absent_since[BOB] -= timedelta(seconds=6)
    service.storage.submit(TimePasses())
    await after_refusal(service, log)
    await until(lambda: service.space.state.grants == {})
    await recovered(service, log)
    assert "space/grants/bob" not in log.state()


@pytest.mark.parametrize("log", ["synced"], indirect=True)
async def test_a_member_that_leaves_during_a_refused_removal_is_gone(service: SpaceService, log: RecordingLog) -> None:
    (connection, ada), (bob, _) = await joined(service, ADA), await joined(service, BOB)
    log.is_full, log.may_write = True, threading.Event()
    receive(service, connection, "space/kick", "k", participant_id="bob")
    await until(lambda: log.is_writing)
    service.leave(bob)
    await after_refusal(service, log)
    await until(lambda: not service.storage.waiting)
    assert set(service.space.members) == {ADA}
    assert BOB in service.space.connections.absent_since
    assert [one["payload"]["event"] for one in messages(ada) if one["kind"] == "system/presence"] == ["join", "leave"]
    assert "space/kick" not in kinds(ada)


@pytest.mark.parametrize("log", ["synced"], indirect=True)
async def test_a_token_that_was_checked_before_a_removal_is_stored_is_refused_after_it(
    service: SpaceService, log: RecordingLog
) -> None:
    connection, ada = await joined(service, ADA)
    log.may_write = threading.Event()
    receive(service, connection, "space/kick", "k", participant_id="bob")
    await until(lambda: log.is_writing)
    receive(service, connection, "space/invite", "i", participant_id="bob", initial_capabilities=[{"kind": "chat"}])
    late, bob = service.new_connection(), RecordingChannel()
    service.attach(late, bob)
    service.join(late, BOB)
    chat = service.receive(None, BOB, read_draft({"kind": "chat", "payload": {"text": "with the old token"}}))
    log.may_write.set()
    await until(lambda: not service.storage.waiting)
    assert chat.receipt.refused is not None
    assert chat.receipt.refused.error == "unauthorized"
    assert BOB not in service.space.members
    assert "system/welcome" not in kinds(bob)
    assert [one["payload"]["event"] for one in messages(ada) if one["kind"] == "system/presence"] == []


async def test_a_refused_removal_of_an_absent_participant_changes_nothing(
    service: SpaceService, log: RecordingLog
) -> None:
    (connection, ada), (bob, _) = await joined(service, ADA), await joined(service, BOB)
    service.leave(bob)
    await until(lambda: not service.storage.waiting)
    before = picture(service)
    log.is_full = True
    receive(service, connection, "space/kick", "k", participant_id="bob")
    await until(lambda: kinds(ada)[-1] == "system/error")
    assert BOB in service.space.connections.absent_since
    assert picture(service) == before


@pytest.mark.parametrize("envelope", CHANGING[-2:], ids=lambda envelope: envelope["kind"])
async def test_a_refused_removal_or_invitation_leaves_no_token(
    config: SpaceConfig, log: RecordingLog, tmp_path: Path, envelope: dict[str, Any]
) -> None:
    service = SpaceService(config, TokenBook.generate(config), space_log=log, state=tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.storage.run)
        connection, ada = await joined(service, ADA)
        await joined(service, BOB)
        log.is_full = True
        service.receive(connection, ADA, read_draft(envelope))
        await until(lambda: kinds(ada)[-1] == "system/error")
        assert list(tmp_path.rglob("*.token")) == []
        assert (service.tokens.knows(BOB), service.tokens.knows(FAY)) == (True, False)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("durability", ["memory", "flushed", "synced"])
@pytest.mark.parametrize("envelope", CHANGING[-2:], ids=lambda envelope: envelope["kind"])
async def test_a_removal_or_invitation_is_whole_whenever_the_gateway_is_killed(
    config: SpaceConfig, tmp_path: Path, envelope: dict[str, Any], durability: Durability
) -> None:
    folder, killed = tmp_path / "state", tmp_path / "killed"
    folder.mkdir()

    class KilledLog(SqliteLog):
        """A log that keeps the files as a gateway leaves them that is killed right after a write."""

        def write(self, batch: Batch) -> None:
            super().write(batch)
            if batch.synced_state:
                shutil.copytree(folder, killed)

    def opened(folder: Path, made: type[SqliteLog]) -> SpaceService:
        log = made(folder / "log", bounds=Bounds(1_000, 1_000_000), durability=durability)
        tokens = TokenBook.load(config, folder, environ={})
        return SpaceService(config, tokens, space_log=log, state=folder)

    service = opened(folder, KilledLog)
    bob = service.tokens.token_of(BOB)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.storage.run)
        await service.post(ADA, read_draft(envelope))
        tasks.cancel_scope.cancel()
    (killed / "log.lock").unlink()
    restarted = opened(killed, SqliteLog)
    names = restarted.space.membership.names
    assert (BOB in names, FAY in names) == (envelope["kind"] != "space/kick", envelope["kind"] == "space/invite")
    assert restarted.tokens.identify(bob) == (BOB if BOB in names else None)
    assert restarted.tokens.token_of(FAY) == service.tokens.token_of(FAY)
    assert (restarted.tokens.token_of(FAY) is not None) == (FAY in names)
    for one in (service, restarted):
        one.close()


async def test_an_envelope_that_may_be_stored_is_not_called_refused(service: SpaceService, log: RecordingLog) -> None:
    connection, ada = await joined(service, ADA)
    log.is_full, log.failure = True, OutcomeUnknown
    draft = read_draft({"kind": "chat", "id": "c", "payload": {"text": "hi"}})
    service.receive(connection, ADA, draft)
    await until(lambda: kinds(ada)[-1] == "system/error")
    assert messages(ada)[-1]["payload"]["error"] == "outcome_unknown"
    await recovered(service, log)
    receipt = await service.post(ADA, draft)
    assert receipt.accepted is not None
    assert kinds(ada).count("chat") == 1


async def test_a_repetition_above_the_rate_limit_learns_that_the_first_is_stored(
    config: SpaceConfig, log: RecordingLog
) -> None:
    limits = config.limits.model_copy(update={"envelopes_per_second": 0.001, "envelope_burst": 1})
    limited = config.model_copy(update={"limits": limits})
    service = SpaceService(limited, TokenBook.generate(limited), space_log=log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.storage.run)
        draft = read_draft({"kind": "chat", "id": "c", "payload": {"text": "hi"}})
        assert (await service.post(ADA, draft)).accepted is not None
        attempts = log.attempts
        assert (await service.post(ADA, draft)).answer["status"] == "duplicate"
        assert log.attempts == attempts
        for other in ({"id": "c", "text": "other"}, {"id": "d", "text": "hi"}):
            refused = (
                await service.post(ADA, read_draft({"kind": "chat", "id": other["id"], "payload": other}))
            ).refused
            assert refused is not None
            assert refused.error == "rate_limited"
        tasks.cancel_scope.cancel()


async def test_new_envelopes_above_the_rate_limit_leave_room_for_repetitions(
    config: SpaceConfig, log: RecordingLog
) -> None:
    limits = config.limits.model_copy(update={"envelopes_per_second": 0.001, "envelope_burst": 2})
    limited = config.model_copy(update={"limits": limits})
    service = SpaceService(limited, TokenBook.generate(limited), space_log=log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.storage.run)
        drafts = [read_draft({"kind": "chat", "id": f"c{n}", "payload": {"text": "hi"}}) for n in range(6)]
        receipts = [await service.post(ADA, one) for one in drafts]
        assert [one.accepted is not None for one in receipts] == [True] * 2 + [False] * 4
        assert [(await service.post(ADA, one)).answer.get("status") for one in drafts[:2]] == ["duplicate"] * 2
        tasks.cancel_scope.cancel()


async def test_an_envelope_that_comes_after_the_end_is_refused(config: SpaceConfig, log: RecordingLog) -> None:
    service = SpaceService(config, TokenBook.generate(config), space_log=log)
    before = picture(service)
    service.close()
    for envelope in (CHANGING[0], {"kind": "chat", "payload": {"text": "late"}}):
        receipt = await service.post(ADA, read_draft(envelope))
        assert receipt.refused is not None
        assert receipt.refused.error == "not_stored"
    assert picture(service) == before


async def test_a_gateway_that_stops_stores_what_a_full_disk_did_not_take(
    config: SpaceConfig, log: RecordingLog
) -> None:
    service = SpaceService(config, TokenBook.generate(config), space_log=log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.storage.run)
        connection, _ = await joined(service, ADA)
        service.receive(connection, ADA, read_draft({"kind": "participant/shutdown", "to": ["bob"]}))
        await until(lambda: "space/shut_down/bob" in log.state())
        log.is_full = True
        await joined(service, BOB)
        log.is_full = False
        service.stop()
        tasks.cancel_scope.cancel()
    assert "space/shut_down/bob" not in log.state()
    assert MembershipStore(config, TokenBook(), None, log).state == service.space.state


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
    await until(lambda: service.storage.is_storing)
    assert "space/statuses/ada" not in log.stored[-1].state


@pytest.mark.parametrize("log", ["synced"], indirect=True)
@pytest.mark.parametrize("is_full", [False, True])
async def test_a_repeated_http_envelope_gets_the_outcome_of_the_first(
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
