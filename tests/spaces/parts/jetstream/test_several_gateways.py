"""Several gateways hold one space: whatever happens on one happens on all, in one order."""

import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import nats
import pytest
from anyio.abc import TaskStatus
from mew_protocol import errors
from mew_protocol.codec import StreamFrame, encode_frame
from mew_spaces.config.loading import parse_space
from mew_spaces.core import events
from mew_spaces.core.events import RULES_VERSION
from mew_spaces.errors import SpacesError
from mew_spaces.gateway import service
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.log.memory import NotStored
from mew_spaces.log.sqlite import SqliteLog
from mew_spaces.parts.jetstream import shared_records
from mew_spaces.parts.jetstream.backplane import Backplane, HistoryLost
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream, safe_name
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.shared_records import SharedStorageOptions
from mew_spaces.parts.jetstream.shared_storage import on_backplane

from mew_agent.errors import NotAccepted
from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.gaps import HistoryGap, StreamGap
from mew_agent.participant.participant import Participant
from tests.support.faulty_link import faulty_link
from tests.support.gateway_client import joined, opened
from tests.support.memory_backplane import MemoryBackplane, MemoryHub
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {command: x, capabilities: [{kind: chat}, {kind: "mcp/*"}, {kind: "stream/*"}, {kind: participant/status}],
    tokens: [b]}
  cleo: {command: x, capabilities: [{kind: chat}], tokens: [c]}
  dan: {command: x, capabilities: [{kind: chat}], tokens: [d]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
"""
PATIENT = SharedStorageOptions(wait_seconds=PATIENCE_SECONDS, start_seconds=PATIENCE_SECONDS, renew_seconds=0.1)
"""A busy machine refuses nothing, and takes no gateway for gone."""


Nats = Callable[[], AbstractAsyncContextManager[Backplane]]
"""Connects one gateway to the test's space on a real server."""


@pytest.fixture(params=["memory", "jetstream"])
def hub(request: pytest.FixtureRequest, space: str) -> MemoryHub | Nats:
    if request.param == "memory":
        return new_hub()
    server: NatsServer = request.getfixturevalue("nats_server")
    options = JetStreamOptions(servers=(server.address,))
    return partial(connect_jetstream, options, space, folder=Path(), kept_bytes=2**24, lease_seconds=PATIENCE_SECONDS)


@asynccontextmanager
async def gateway(
    hub: MemoryHub | Nats, options: SharedStorageOptions = PATIENT, config: str = SPACE, state: Path | None = None
) -> AsyncIterator[tuple[RunningGateway, Backplane]]:
    async with AsyncExitStack() as stack:
        link = hub.connect() if isinstance(hub, MemoryHub) else await stack.enter_async_context(hub())
        serving = serve_gateway(parse_space(config), state=state, storage=on_backplane(link, options))
        yield await stack.enter_async_context(serving), link


def new_hub(lease_seconds: float = PATIENCE_SECONDS) -> MemoryHub:
    return MemoryHub(lease_seconds=lease_seconds)


def participant(where: RunningGateway | str, name: str) -> Participant:
    url = where if isinstance(where, str) else where.ws_url
    return Participant(url, space="demo", id=name, token=name[0])


class Recorder:
    """The chats and gaps that one participant got."""

    def __init__(self, me: Participant) -> None:
        self.texts: list[str] = []
        self.gaps: list[HistoryGap] = []
        me.on_chat(self._record)
        me.on(HistoryGap)(self._miss)

    async def _record(self, chat: ChatReceived) -> None:
        self.texts.append(chat.text)

    async def _miss(self, gap: HistoryGap) -> None:
        self.gaps.append(gap)


class FrameRecorder(Participant):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frames: list[str | bytes] = []

    async def receive_frame(self, frame: StreamFrame) -> None:
        self.frames.append(frame.data)


def history(running: RunningGateway) -> list[tuple[int, bytes]]:
    return [(entry.sequence, entry.data) for entry in running.service.log.last(10_000)]


def figures(running: RunningGateway) -> list[tuple[str, bool, Any]]:
    return [
        (one.id, one.connected, None if one.status is None else one.status.tokens)
        for one in sorted(running.board().participants, key=lambda one: one.id)
    ]


async def refusal_of(send: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(NotAccepted) as refused:
        await send()
    return refused.value.error


async def test_members_of_two_gateways_receive_all_chats_in_one_order(hub: MemoryHub | Nats) -> None:
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        ada, bob, cleo = participant(first, "ada"), participant(second, "bob"), participant(second, "cleo")
        dan = participant(first, "dan")
        far, near = Recorder(cleo), Recorder(dan)
        async with ada, bob, cleo, dan:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ada.chat, f"a{number}")
                    tasks.start_soon(bob.chat, f"b{number}")
            await until(lambda: len(far.texts) == len(near.texts) == 40)
            assert far.texts == near.texts
            assert [text for text in far.texts if text[0] == "a"] == [f"a{number}" for number in range(20)]
            await bob.report_context(tokens=700, window=1000)
            await until(lambda: figures(first) == figures(second))
            assert ("bob", True, 700) in figures(first)
            await until(lambda: history(first) == history(second))


async def test_the_newest_connection_wins_across_gateways_and_people_hold_several() -> None:
    hub = new_hub()
    async with (
        gateway(hub) as (first, _),
        gateway(hub) as (second, _),
        joined(first, "bob") as older,
        joined(second, "bob") as newer,
        joined(first, "ada") as here,
        joined(second, "ada") as there,
    ):
        assert (await older.error())["error"] == errors.SUPERSEDED
        await older.chat("from the older one")
        assert (await older.error())["error"] == errors.SUPERSEDED
        await newer.chat("to both")
        for client in (here, there):
            assert (await client.until("chat"))["payload"]["text"] == "to both"


async def test_grants_pauses_and_kicks_act_on_every_gateway() -> None:
    hub = new_hub()
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        ada, cleo = participant(first, "ada"), participant(second, "cleo")
        async with ada, cleo:
            assert not cleo.may_send("mcp/request")
            await ada.send("capability/grant", {"recipient": "cleo", "capabilities": [{"kind": "mcp/request"}]})
            await until(lambda: cleo.may_send("mcp/request"))
            await cleo.send("mcp/request", {"method": "x"})
            await ada.send("participant/pause", to="cleo")
            assert await refusal_of(lambda: cleo.chat("paused")) == errors.PAUSED
            await ada.send("participant/resume", to="cleo")
            await cleo.chat("resumed")
            async with httpx2.AsyncClient(headers={"Authorization": "Bearer a"}) as client:
                body = {"kind": "space/invite", "payload": {"participant_id": "eve"}}
                invited = (await client.post(f"{first.url}/participants/ada/messages", json=body)).json()
            async with opened(second, "eve") as eve:
                await until(lambda: second.service.tokens.knows("eve"))
                await eve.join(invited["token"])
                assert (await eve.next())["kind"] == "system/welcome"
                await ada.send("space/kick", {"participant_id": "eve"})
                assert (await eve.closing())[0] == errors.CLOSE_REMOVED
            await until(lambda: not second.service.tokens.knows("eve"))


async def test_a_revocation_ends_passed_on_rights_at_every_gateway(hub: MemoryHub | Nats) -> None:
    rights = [{"kind": "capability/*"}, {"kind": "space/kick"}]

    def holders(running: RunningGateway) -> list[str]:
        membership = running.service.space.membership
        return [name for name in membership.names if rights[1] in membership.permissions_of(name).patterns]

    async with (
        gateway(hub) as (first, _),
        gateway(hub) as (second, _),
        joined(first, "ada") as ada,
        joined(second, "cleo") as cleo,
        joined(first, "dan") as dan,
    ):
        steps = ((ada, "cleo", cleo), (cleo, "dan", dan), (dan, "cleo", ada))
        for giver, recipient, witness in steps:
            await giver.send_envelope("capability/grant", {"recipient": recipient, "capabilities": rights})
            while (await witness.until("capability/grant"))["payload"]["recipient"] != recipient:
                pass
        async with gateway(hub) as (third, _):
            await until(lambda: holders(first) == holders(second) == holders(third) == ["cleo", "dan"])
            revoked = {"recipient": "cleo", "capabilities": [{"kind": "*"}], "keep_passed_on": True}
            await ada.send_envelope("capability/revoke", revoked)
            await cleo.until("capability/revoke")
            await dan.send_envelope("capability/grant", {"recipient": "cleo", "capabilities": rights})
            assert (await dan.until("system/error"))["payload"]["error"] == "grant_exceeds_own"
            await ada.send_envelope("capability/revoke", {**revoked, "keep_passed_on": False})
            ended = (await dan.until("capability/ended"))["payload"]["ended"]
            assert [(one["participant"], one["granted_by"]) for one in ended] == [("dan", "cleo")]
            await until(lambda: holders(first) == holders(second) == holders(third) == [])
            assert first.service.space.state.grants == second.service.space.state.grants == {}


async def test_an_envelope_sent_through_two_gateways_is_delivered_once(hub: MemoryHub | Nats) -> None:
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        bob = participant(second, "bob")
        recorder = Recorder(bob)
        envelope = {"kind": "chat", "id": "once", "payload": {"text": "once"}}
        async with bob, httpx2.AsyncClient(headers={"Authorization": "Bearer a"}) as client:
            answers = [
                (await client.post(f"{one.url}/participants/ada/messages?space=demo", json=envelope)).json()
                for one in (first, second, first)
            ]
            async with opened(first, "ada") as session:
                await session.send({"type": "join", "token": "a", "participantId": "ada", "delivery": {}})
                await session.send(envelope)
                receipt = await session.until("system/receipt")
                while receipt["payload"]["status"] != "duplicate":
                    receipt = await session.until("system/receipt")
            await client.post(f"{second.url}/participants/ada/messages", json={**envelope, "payload": {"text": "last"}})
            await until(lambda: "last" in recorder.texts)
        assert [one["status"] for one in answers] == ["accepted", "duplicate", "duplicate"]
        assert answers[1]["position"] == answers[2]["position"] == receipt["payload"]["position"]
        assert recorder.texts == ["once", "last"]


async def test_members_of_a_gateway_that_dies_move_and_miss_nothing() -> None:
    hub = new_hub(lease_seconds=1.0)
    async with gateway(hub) as (first, _), anyio.create_task_group() as tasks:
        ends, started = anyio.CancelScope(), anyio.Event()
        found: list[tuple[RunningGateway, Backplane]] = []

        async def run_second() -> None:
            with ends:
                async with gateway(hub, SharedStorageOptions(stop_seconds=0.0)) as running:
                    found.append(running)
                    started.set()
                    await anyio.sleep_forever()

        tasks.start_soon(run_second)
        await started.wait()
        second, link = found[0]
        async with faulty_link(second.port) as wire:
            ada, bob = participant(first, "ada"), participant(f"{wire.url},{first.ws_url}", "bob")
            recorder = Recorder(bob)
            async with ada, bob, joined(second, "cleo"):
                await ada.chat("before")
                await until(lambda: "cleo" in first.service.space.members)
                assert isinstance(link, MemoryBackplane)
                link.is_cut_off = True  # it cannot say that it ends
                await ada.chat("meanwhile")
                ends.cancel()
                await wire.cut("reset")
                await until(lambda: "cleo" not in first.service.space.members)
                await ada.chat("after")
                await until(lambda: "after" in recorder.texts)
                assert recorder.texts == ["before", "meanwhile", "after"]
                assert recorder.gaps == []


async def test_nothing_is_confirmed_while_the_backplane_is_away() -> None:
    hub = new_hub()
    brief = SharedStorageOptions(wait_seconds=0.0, start_seconds=PATIENCE_SECONDS, renew_seconds=0.1)
    has_started_late = anyio.Event()

    async def start_late() -> None:
        async with gateway(hub):
            pass
        has_started_late.set()

    async with gateway(hub, brief) as (first, _), gateway(hub) as (second, _):
        ada, bob = participant(first, "ada"), participant(second, "bob")
        recorder = Recorder(bob)
        async with ada, bob, joined(first, "cleo") as cleo, anyio.create_task_group() as tasks:
            await ada.chat("before")
            hub.is_available = False
            await until(lambda: not first.service.storage.is_storing)
            await cleo.chat("refused", id="refused")
            error = await cleo.until("system/error")
            assert (error["payload"]["error"], error["correlation_id"]) == (errors.NOT_STORED, ["refused"])
            tasks.start_soon(ada.chat, "sent again")
            tasks.start_soon(start_late)
            async with httpx2.AsyncClient(headers={"Authorization": "Bearer a"}) as client:
                body = {"kind": "chat", "payload": {"text": "refused"}}
                grant = {"kind": "capability/grant", "payload": {"recipient": "bob", "capabilities": [{"kind": "x"}]}}
                for refused_body in (body, grant):
                    answer = await client.post(f"{first.url}/participants/ada/messages", json=refused_body)
                    assert (answer.status_code, answer.json()["error"]) == (503, errors.NOT_STORED)
                assert first.service.space.state.grants == {}
                assert (await client.get(f"{first.url}/ready")).status_code == 503
            async with opened(first, "dan") as late:
                await late.join("d")
                refused = await late.error()
                assert refused["error"] == errors.NOT_STORED
                assert refused["retry_after_seconds"] > 0
            assert ada.is_joined
            hub.is_available = True
            await until(lambda: "sent again" in recorder.texts)
            await until(has_started_late.is_set)
            await ada.chat("after")
            hub.lost_sends = hub.unacknowledged_appends = 1
            await ada.chat("lost, then stored without an answer")
            assert first.service.storage.is_storing
            await until(lambda: len(recorder.texts) == 4)
            assert recorder.texts == ["before", "sent again", "after", "lost, then stored without an answer"]


async def test_a_gateway_that_was_cut_off_starts_again_under_another_number() -> None:
    hub = new_hub(lease_seconds=1.0)
    async with gateway(hub) as (first, _), gateway(hub) as (second, link):
        ada, bob = participant(first, "ada"), participant(second, "bob")
        recorder = Recorder(bob)
        async with ada, bob:
            await until(lambda: "bob" in first.service.space.members)
            assert isinstance(link, MemoryBackplane)
            link.is_cut_off = True
            await until(lambda: "bob" not in first.service.space.members)
            await ada.chat("meanwhile")
            link.is_cut_off = False
            await until(lambda: "bob" in first.service.space.members)
            await bob.chat("back")
            await until(lambda: recorder.texts == ["meanwhile"])
            assert recorder.gaps == []
            await until(lambda: history(first) == history(second))


@pytest.mark.parametrize("keeps_records", [False, True])
async def test_gateways_begin_again_when_the_backplane_lost_all_batches(*, keeps_records: bool) -> None:
    hub = new_hub()
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        ada, bob = participant(first, "ada"), participant(second, "bob")
        recorder = Recorder(bob)
        async with ada, bob:
            await ada.chat("before")
            await until(lambda: recorder.texts == ["before"])
            hub.batches.clear()
            if not keeps_records:
                hub.values.clear()
            hub.last_sequence = 0
            hub.wake()
            await until(lambda: recorder.gaps)
            await ada.chat("after")
            await until(lambda: recorder.texts == ["before", "after"])
            assert [gap.reason for gap in recorder.gaps] == ["other_epoch"]
            await until(lambda: history(first) == history(second))


async def test_a_space_that_lost_its_batches_begins_again_from_its_newest_snapshot(
    hub: MemoryHub | Nats, space: str, request: pytest.FixtureRequest
) -> None:
    often = replace(PATIENT, renew_seconds=0.05, snapshot_events=5)
    async with gateway(hub, often) as (running, link), participant(running, "ada") as ada:
        await ada.send("space/invite", {"participant_id": "eve"})
        while (await link.bounds())[0] < 5:  # a snapshot replaced the first batches
            await ada.chat("more")
        epoch = running.service.log.epoch
    if isinstance(hub, MemoryHub):
        hub.batches.clear()
        hub.last_sequence = 0
    else:
        client = await nats.connect(request.getfixturevalue("nats_server").address)
        name = f"mew-batches-{safe_name(space)}"
        config = (await client.jetstream().stream_info(name)).config
        await client.jetstream().delete_stream(name)
        await client.jetstream().add_stream(config)
        await client.close()
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        await until(lambda: first.service.storage.is_storing and second.service.storage.is_storing)
        assert first.service.log.epoch == second.service.log.epoch != epoch
        assert "eve" in second.service.space.membership.names
        async with participant(second, "bob") as bob:
            await bob.chat("again")
            await until(lambda: history(first) == history(second))
            assert b'"again"' in history(first)[-1][1]


async def test_stream_frames_cross_gateways_to_the_stream_s_readers(hub: MemoryHub | Nats) -> None:
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        bob = participant(first, "bob")
        ada, cleo = (FrameRecorder(second.ws_url, space="demo", id=name, token=name[0]) for name in ("ada", "cleo"))
        async with bob, ada, cleo:
            opening = await bob.ask(
                "stream/request", {"direction": "up", "target": ["ada"]}, to="gateway", answer="stream/open"
            )
            stream = str(opening.body["stream_id"])
            for number in range(50):
                await bob.send_frame(encode_frame(stream, str(number)))
            await until(lambda: len(ada.frames) == 50)
            assert ada.frames == [str(number) for number in range(50)]
            assert cleo.frames == []


async def test_frames_that_are_lost_between_gateways_are_counted_as_missed() -> None:
    hub = new_hub()
    async with gateway(hub) as (first, _), gateway(hub) as (second, link):
        bob, ada = participant(first, "bob"), FrameRecorder(second.ws_url, space="demo", id="ada", token="a")
        gaps: list[StreamGap] = []

        async def miss(gap: StreamGap) -> None:
            gaps.append(gap)

        ada.on(StreamGap)(miss)
        async with bob, ada:
            opening = await bob.ask("stream/request", {"direction": "up"}, to="gateway", answer="stream/open")
            stream = str(opening.body["stream_id"])
            await bob.send_frame(encode_frame(stream, "0"))
            await until(lambda: ada.frames == ["0"])
            assert isinstance(link, MemoryBackplane)
            link.is_cut_off = True
            for number in range(1, 4):
                await bob.send_frame(encode_frame(stream, str(number)))
            await bob.chat("behind the frames")  # they have left the gateway before this is confirmed
            link.is_cut_off = False
            await bob.send_frame(encode_frame(stream, "4"))
            await until(lambda: ada.frames == ["0", "4"] and gaps == [StreamGap(stream, 3)])


async def test_a_gateway_starts_from_a_snapshot_with_all_that_others_know(hub: MemoryHub | Nats) -> None:
    often = SharedStorageOptions(
        wait_seconds=PATIENCE_SECONDS, start_seconds=PATIENCE_SECONDS, renew_seconds=0.05, snapshot_events=5
    )
    async with gateway(hub, often) as (first, link):
        headers = {"Authorization": "Bearer a"}
        async with httpx2.AsyncClient(headers=headers) as client:

            async def post(running: RunningGateway, **envelope: Any) -> dict[str, Any]:
                answer = await client.post(f"{running.url}/participants/ada/messages", json=envelope)
                found: dict[str, Any] = answer.json()
                return found

            invited = await post(first, kind="space/invite", payload={"participant_id": "eve"})
            async with joined(first, "bob"):
                pass
            await until(lambda: "bob" not in first.service.space.members)
            await post(first, kind="chat", id="once", payload={"text": "once"}, to=["bob"])

            async def is_trimmed() -> bool:
                await post(first, kind="chat", payload={"text": "more"})
                first_kept, _ = await link.bounds()
                return first_kept > 5

            await until(is_trimmed)
            async with gateway(hub) as (second, _):
                again = await post(second, kind="chat", id="once", payload={"text": "once"}, to=["bob"])
                assert again["status"] == "duplicate"
                (bob,) = [one.unread for one in second.service.board().participants if one.id == "bob"]
                assert bob is not None
                assert (bob.messages, bob.is_complete) == (1, True)
                async with opened(second, "eve") as eve:
                    await eve.join(invited["token"])
                    assert (await eve.next())["kind"] == "system/welcome"
                await until(lambda: history(second)[-1] == history(first)[-1])
                assert history(first)[-len(history(second)) :] == history(second)


async def test_a_gateway_with_another_configuration_starts_only_alone() -> None:
    hub = new_hub()
    changed = SPACE.replace("cleo: {command: x, capabilities: [{kind: chat}]", "cleo: {command: x, capabilities: []")
    async with gateway(hub) as (first, _), joined(first, "ada"):
        with pytest.raises(SpacesError, match="participants"):
            async with gateway(hub, config=changed):
                pass
    async with (
        gateway(hub, config=changed) as (second, _),
        gateway(hub, config=changed) as (third, _),
        joined(second, "cleo") as cleo,
        joined(third, "ada"),
    ):
        await cleo.chat("not allowed")
        assert (await cleo.error())["error"] == errors.CAPABILITY_VIOLATION
    async with gateway(hub, config=changed):
        with pytest.raises(SpacesError, match="participants"):
            async with gateway(hub):
                pass


@pytest.mark.parametrize("other", [RULES_VERSION - 1, RULES_VERSION + 1])
async def test_a_space_of_another_version_is_refused(other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = new_hub(lease_seconds=0.5)
    with monkeypatch.context() as patched:
        for module in (events, shared_records):
            patched.setattr(module, "RULES_VERSION", other)
        async with gateway(hub):
            pass
    with pytest.raises(SpacesError, match=f"holds batches of the rules {other}"):
        async with gateway(hub):
            pass


async def test_one_gateway_of_a_folder_writes_a_log_file_and_another_takes_over(tmp_path: Path) -> None:
    hub, config = new_hub(), SPACE.replace("cleo: {", "cleo: {output_log: cleo.log, auto_connect: true, ")
    state = tmp_path / ".mew"

    def texts() -> list[str]:
        written = [json.loads(line) for line in (tmp_path / "cleo.log").read_text().splitlines()]
        return [one["payload"]["text"] for one in written if one["kind"] == "chat"]

    async with gateway(hub, config=config, state=state) as (second, _):
        async with gateway(hub, config=config, state=state) as (first, _):
            await until(lambda: "cleo" in first.service.space.members and "cleo" in second.service.space.members)
            async with participant(first, "ada") as ada:
                await ada.chat("one")
            await until(lambda: texts() == ["one"])
        async with participant(second, "ada") as ada:
            await until(lambda: second.service.performer.virtual)
            await ada.chat("two")
        await until(lambda: texts() == ["one", "two"])


async def test_gateways_take_over_the_storage_of_a_single_gateway(tmp_path: Path, hub: MemoryHub | Nats) -> None:
    state, config = tmp_path / ".mew", parse_space(SPACE)
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        await ada.chat("before")
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {alone.token_of('ada')}"}) as client:
            sent = {"kind": "chat", "id": "c1", "payload": {"text": "alone"}}
            assert (await client.post(f"{alone.url}/participants/ada/messages", json=sent)).is_success
        await ada.send("capability/grant", {"recipient": "cleo", "capabilities": [{"kind": "mcp/request"}]})
        await ada.send("space/invite", {"participant_id": "eve"})
        await ada.send("space/kick", {"participant_id": "dan"})
        token, before = alone.tokens.token_of("eve"), alone.service.log.position
    async with gateway(hub, state=state) as (first, _), gateway(hub) as (second, _):
        for running in (first, second):
            space = running.service.space
            assert running.service.log.epoch == before.epoch
            assert space.membership.permissions_of("cleo").granted == ({"kind": "mcp/request"},)
            assert running.tokens.identify(token) == "eve"
            assert not running.tokens.knows("dan")
        assert [one.id for one in first.service.log.last(1_000)][: before.sequence].count("c1") == 1
        async with httpx2.AsyncClient(headers={"Authorization": "Bearer a"}) as client:
            again = {"kind": "chat", "id": "c1", "payload": {"text": "alone"}}
            answer = (await client.post(f"{second.url}/participants/ada/messages", json=again)).json()
            assert answer["status"] == "duplicate"
        async with participant(second, "ada") as ada:
            await ada.chat("shared")
        stored = first.service.log.position
    async with gateway(hub, state=state) as (again_first, _):
        kept = [json.loads(one.data)["payload"] for one in again_first.service.log.last(1_000)]
        assert [one["text"] for one in kept if "text" in one] == ["before", "alone", "shared"]
        assert again_first.service.log.position.sequence >= stored.sequence
    async with serve_gateway(config, state=state) as alone_again:
        assert alone_again.tokens.identify(token) == "eve"
        assert not alone_again.tokens.knows("dan")


@pytest.mark.parametrize("is_here", [True, False])
async def test_a_removal_from_a_shared_space_holds_without_it(
    tmp_path: Path, hub: MemoryHub | Nats, *, is_here: bool
) -> None:
    state, config = tmp_path / ".mew", parse_space(SPACE)
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        await ada.send("space/invite", {"participant_id": "eve"})
        token = alone.tokens.token_of("eve")
        assert token is not None
    async with gateway(hub, state=state) as (first, _), gateway(hub) as (second, _):
        async with participant(first if is_here else second, "ada") as ada:
            for name in ("eve", "cleo"):
                await ada.send("space/kick", {"participant_id": name})
        await until(lambda: not first.tokens.knows("cleo"))
    async with gateway(new_hub(), state=state) as (on_new_servers, _):
        assert on_new_servers.tokens.identify(token) is None
        assert {"eve", "cleo"}.isdisjoint(on_new_servers.service.space.membership.names)
    async with serve_gateway(config, state=state) as alone_again:
        assert alone_again.tokens.identify(token) is None
        assert {"eve", "cleo"}.isdisjoint(alone_again.service.space.membership.names)


async def replace_token_of_cleo(running: RunningGateway, ada: Participant) -> None:
    """Remove a participant of space.yaml, and invite it again with another token."""
    await ada.send("space/kick", {"participant_id": "cleo"})
    await until(lambda: not running.tokens.knows("cleo"))
    await ada.send("space/invite", {"participant_id": "cleo"})
    await until(lambda: running.tokens.knows("cleo"))
    assert running.tokens.identify("c") is None


async def test_an_invitation_in_a_shared_space_makes_no_old_token_valid_without_it(tmp_path: Path) -> None:
    state, config = tmp_path / ".mew", parse_space(SPACE)
    async with gateway(new_hub(), state=state) as (first, _), participant(first, "ada") as ada:
        await replace_token_of_cleo(first, ada)
    async with serve_gateway(config, state=state) as alone:
        assert alone.tokens.identify("c") is None


async def test_the_membership_stays_as_it_is_when_the_servers_lose_everything(tmp_path: Path) -> None:
    state, config, hub = tmp_path / ".mew", parse_space(SPACE), new_hub()
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        await ada.send("space/kick", {"participant_id": "dan"})
        await replace_token_of_cleo(alone, ada)
        await ada.send("space/invite", {"participant_id": "eve"})
        await ada.send("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "x"}]})
        eve = alone.tokens.token_of("eve")
        assert eve is not None

    def as_before(running: RunningGateway) -> bool:
        tokens, membership = running.tokens, running.service.space.membership
        assert [tokens.identify(one) for one in ("c", "d", eve)] == [None, None, "eve"]
        assert {"cleo", "eve"} < {*membership.names}
        return membership.permissions_of("bob").granted == ({"kind": "x"},)

    async with gateway(hub, state=state) as (first, _):
        recorder = Recorder(me := participant(first, "ada"))
        async with me:
            hub.batches.clear()
            hub.values.clear()
            hub.last_sequence = 0
            hub.wake()
            await until(lambda: recorder.gaps)
            assert as_before(first)
    async with gateway(hub, state=state) as (again, _):
        assert as_before(again)
    async with serve_gateway(config, state=state) as alone_again:
        assert as_before(alone_again)


@pytest.mark.parametrize("content", [b"x", zlib.compress(b"x")])
async def test_a_damaged_first_state_is_named_and_ends_no_running_gateway(tmp_path: Path, content: bytes) -> None:
    state, hub = tmp_path / ".mew", new_hub()
    hasty = replace(PATIENT, start_seconds=0.0)
    async with serve_gateway(parse_space(SPACE), state=state) as alone, participant(alone, "ada") as ada:
        await ada.send("space/invite", {"participant_id": "eve"})
    async with gateway(hub, state=state) as (first, _):
        (key,) = [one for one in hub.values if one.startswith("first.")]
        hub.values[key], epoch = hub.values[key]._replace(value=content), first.service.log.epoch
        with pytest.raises(HistoryLost, match="the state with which this space began cannot be read"):
            async with gateway(hub, options=hasty):
                pass
        async with participant(first, "ada") as ada:
            hub.batches.clear()
            hub.last_sequence = 0
            hub.wake()
            await until(lambda: first.service.log.epoch != epoch and first.service.storage.is_storing)
            await ada.chat("still here")


async def test_rights_ended_in_a_shared_space_stay_ended_without_it(tmp_path: Path) -> None:
    state, config = tmp_path / ".mew", parse_space(SPACE)
    rights = {"capabilities": [{"kind": "x"}]}
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        for name in ("bob", "cleo"):
            await ada.send("capability/grant", {"recipient": name, **rights})
        await ada.send("participant/pause", to="dan")
    async with gateway(new_hub(), state=state) as (first, _), participant(first, "ada") as ada:
        await ada.send("capability/revoke", {"recipient": "cleo", **rights})
        await ada.send("participant/resume", to="dan")
    async with serve_gateway(config, state=state) as alone:
        membership = alone.service.space.membership
        assert [membership.permissions_of(name).granted for name in ("bob", "cleo")] == [({"kind": "x"},), ()]
        assert alone.service.space.state.pauses == {}


async def test_a_removal_at_the_second_gateway_of_a_folder_holds_at_the_first(tmp_path: Path) -> None:
    state, config, hub = tmp_path / ".mew", parse_space(SPACE), new_hub()
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        await ada.send("space/invite", {"participant_id": "eve"})
        eve = alone.tokens.token_of("eve")
        assert eve is not None
    ends = anyio.Event()

    async def serve_first(*, task_status: TaskStatus[None]) -> None:
        async with gateway(hub, state=state):
            task_status.started()
            await ends.wait()

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_first)
        async with gateway(hub, state=state) as (second, _):
            ends.set()
            await until(lambda: len(second.service.space.gateways) == 1)
            async with participant(second, "ada") as ada:
                for name in ("cleo", "eve"):
                    await ada.send("space/kick", {"participant_id": name})
                await until(lambda: not (second.tokens.knows("cleo") or second.tokens.knows("eve")))
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        assert [alone.tokens.identify(one) for one in ("c", eve)] == [None, None]
        await ada.send("space/invite", {"participant_id": "cleo"})
    async with serve_gateway(config, state=state) as alone_again:
        assert alone_again.tokens.knows("cleo"), "a removal is moved once"


async def test_a_removal_is_kept_after_a_write_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, config = tmp_path / ".mew", parse_space(SPACE)

    def fail(*_: object) -> None:
        raise NotStored("disk full")

    async with gateway(new_hub(), state=state) as (first, _), participant(first, "ada") as ada:
        with monkeypatch.context() as patched:
            patched.setattr(SqliteLog, "write", fail)
            await ada.send("space/kick", {"participant_id": "dan"})
        await ada.send("space/kick", {"participant_id": "cleo"})
        await until(lambda: not first.tokens.knows("cleo"))
    async with serve_gateway(config, state=state) as alone:
        assert [alone.tokens.identify(one) for one in ("c", "d")] == [None, None]


async def test_a_folder_keeps_its_removals_in_a_space_that_others_began(tmp_path: Path) -> None:
    state, config, hub = tmp_path / ".mew", parse_space(SPACE), new_hub()
    async with serve_gateway(config, state=state) as alone, participant(alone, "ada") as ada:
        await ada.send("space/kick", {"participant_id": "cleo"})
        await until(lambda: not alone.tokens.knows("cleo"))
    async with gateway(hub), gateway(hub, state=state):
        pass
    async with serve_gateway(config, state=state) as alone_again:
        assert alone_again.tokens.identify("c") is None


async def test_an_http_sender_is_not_refused_while_the_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ANSWER_SECONDS", 0.05)
    hub = new_hub()
    async with gateway(hub) as (running, link), httpx2.AsyncClient(headers={"Authorization": "Bearer a"}) as client:
        assert isinstance(link, MemoryBackplane)
        link.is_stalled = True  # the batch is stored, and does not come back
        url, sent = f"{running.url}/participants/ada/messages", {"kind": "chat", "id": "c", "payload": {"text": "x"}}
        answer = await client.post(url, json=sent)
        assert (answer.status_code, answer.json()["error"]) == (504, errors.OUTCOME_UNKNOWN)
        link.is_stalled = False
        hub.wake()
        monkeypatch.setattr(service, "ANSWER_SECONDS", PATIENCE_SECONDS)
        assert (await client.post(url, json=sent)).json()["status"] == "duplicate"


async def test_figures_of_all_gateways_outlast_them(tmp_path: Path) -> None:
    hub, state = new_hub(), tmp_path / ".mew"
    async with gateway(hub, state=state), gateway(hub) as (second, _), participant(second, "bob") as bob:
        for tokens in (100, 200):
            await bob.report_context(tokens=tokens, window=1000)
    for _ in range(2):  # what is applied again at a start is not stored twice
        async with gateway(hub, state=state) as (first, _):
            await until(lambda: not first.service.figures.has_news)
            found = await first.service.figures_of(3_600, 100, "bob")
            assert [one.tokens for one in found.participants[0].samples][-1] == 200
            assert len(found.participants[0].samples) <= 2
