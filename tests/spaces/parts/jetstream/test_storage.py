"""What a space needs of its storage, whichever holds it: this process, SQLite, the double of a backplane, JetStream."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mew_protocol.ids import Position
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions
from mew_spaces.parts.jetstream.jetstream import connect_jetstream
from mew_spaces.parts.jetstream.nats_server import NatsServer
from mew_spaces.parts.jetstream.shared_records import SharedStorageOptions
from mew_spaces.parts.jetstream.shared_storage import on_backplane

from tests.support.gateway_client import Client, Message, joined, opened
from tests.support.memory_backplane import MemoryHub
from tests.support.waiting import PATIENCE_SECONDS

Serve = Callable[[], AbstractAsyncContextManager[RunningGateway]]
"""Runs a gateway on the storage of the test. One after the other, several gateways find what the one before left."""

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {command: x, capabilities: [{kind: chat}, {kind: "stream/*"}, {kind: participant/status}], tokens: [b]}
history: {durability: DURABILITY}
"""
PATIENT = SharedStorageOptions(wait_seconds=PATIENCE_SECONDS, start_seconds=PATIENCE_SECONDS, renew_seconds=0.1)


@pytest.fixture(params=["memory", "flushed", "double", "jetstream"])
def storage(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def serve(storage: str, request: pytest.FixtureRequest, space: str, tmp_path: Path) -> Serve:
    is_alone = storage in ("memory", "flushed")
    config = parse_space(SPACE.replace("DURABILITY", storage if is_alone else "flushed"))
    if is_alone:
        return lambda: serve_gateway(config, state=tmp_path, tokens=TokenBook.generate(config))
    if storage == "double":
        hub = MemoryHub(lease_seconds=PATIENCE_SECONDS)
        return lambda: serve_gateway(config, storage=on_backplane(hub.connect(), PATIENT))
    server: NatsServer = request.getfixturevalue("nats_server")

    @asynccontextmanager
    async def serve_on_nats() -> AsyncIterator[RunningGateway]:
        options = JetStreamOptions(servers=(server.address,))
        connected = connect_jetstream(options, space, folder=tmp_path, kept_bytes=2**24, lease_seconds=PATIENCE_SECONDS)
        async with connected as backplane, serve_gateway(config, storage=on_backplane(backplane, PATIENT)) as running:
            yield running

    return serve_on_nats


async def post(running: RunningGateway, kind: str, payload: Message, **headers: Any) -> Message:
    """Send as ada, over HTTP: the answer says when the envelope is stored, and where."""
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer a"}, timeout=PATIENCE_SECONDS) as client:
        url = f"{running.url}/participants/ada/messages"
        answer: Message = (await client.post(url, json={"kind": kind, "payload": payload, **headers})).json()
        return answer


async def chats_of(client: Client, count: int) -> list[tuple[str, int]]:
    seen = [await client.until("chat") for _ in range(count)]
    return [(one["payload"]["text"], one["seq"]) for one in seen]


async def test_an_appended_envelope_gets_the_next_number_of_its_epoch(serve: Serve) -> None:
    async with serve() as running:
        log, before = running.service.log, running.service.log.position
        for number in range(3):
            await post(running, "chat", {"text": str(number)}, id=str(number))
        found = [one.sequence for one in log.last(10) if one.id in ("0", "1", "2")]
        assert found == [before.sequence + 1, before.sequence + 2, before.sequence + 3]
        assert log.position == Position(before.epoch, before.sequence + 3)


async def test_an_envelope_that_comes_twice_is_stored_once(serve: Serve) -> None:
    async with serve() as running:
        log = running.service.log
        first, again = [await post(running, "chat", {"text": "once"}, id="once") for _ in range(2)]
        assert (first["status"], again["status"]) == ("accepted", "duplicate")
        stored = [one.sequence for one in log.last(10) if one.id == "once"]
        assert [str(Position(log.epoch, one)) for one in stored] == [again["position"]]


async def test_a_reader_gets_what_follows_its_position(serve: Serve) -> None:
    async with serve() as running:
        places = []
        for number in range(4):
            await post(running, "chat", {"text": str(number)})
            places.append(str(running.service.log.position))
        async with opened(running, "bob") as bob:
            await bob.send({"type": "join", "token": "b", "delivery": {"since": places[1]}})
            welcome = await bob.until("system/welcome")
            assert welcome["payload"]["delivery"]["recovered"] is True
            await post(running, "chat", {"text": "new"})
            seen = await chats_of(bob, 3)
        assert [text for text, _ in seen] == ["2", "3", "new"]
        assert [number for _, number in seen] == sorted({number for _, number in seen})


async def test_a_position_of_another_log_is_a_gap(serve: Serve) -> None:
    async with serve() as running, opened(running, "bob") as bob:
        await bob.send({"type": "join", "token": "b", "delivery": {"since": str(Position("other", 1))}})
        delivery = (await bob.until("system/welcome"))["payload"]["delivery"]
        assert (delivery["recovered"], delivery["gap"]["reason"]) == (False, "other_epoch")


async def test_the_small_state_outlasts_the_gateway(serve: Serve, storage: str) -> None:
    async with serve() as running, joined(running, "bob") as bob:
        await post(running, "chat", {"text": "kept"}, id="kept")
        place = str(running.service.log.position)
        await post(running, "capability/grant", {"recipient": "bob", "capabilities": [{"kind": "mcp/request"}]})
        invited = await post(running, "space/invite", {"participant_id": "eve"})
        await post(running, "space/invite", {"participant_id": "mallory"})
        await post(running, "space/kick", {"participant_id": "mallory"})
        await post(running, "mcp/proposal", {"method": "tools/call", "params": {}}, id="asked")
        await bob.send_envelope("stream/request", {"direction": "upload"})
        stream = (await bob.until("stream/open"))["payload"]["stream_id"]
        await bob.send_envelope("participant/status", {"tokens": 700, "max_tokens": 1000, "messages_in_context": 3})
        await bob.chat("all of this is applied")
        await bob.until("chat")
        epoch = running.service.log.epoch

    async with serve() as running:
        if storage == "memory":
            assert running.service.log.epoch != epoch
            return
        space, service = running.service.space, running.service
        assert service.log.epoch == epoch
        again = await post(running, "chat", {"text": "kept"}, id="kept")
        assert (again["status"], again["position"]) == ("duplicate", place)
        async with joined(running, "bob") as bob, opened(running, "eve") as eve:
            await bob.send_envelope("mcp/request", {"method": "x"}, to=["ada"])
            assert (await bob.until("mcp/request"))["from"] == "bob"
            await eve.join(invited["token"])
            assert (await eve.next())["kind"] == "system/welcome"
        assert not service.tokens.knows("mallory")
        assert [one.envelope and one.envelope["id"] for one in space.membership.proposals.undecided.values()] == [
            "asked"
        ]
        assert space.state.streams[stream].owner == "bob"
        status = next(one.status for one in running.board().participants if one.id == "bob")
        assert status is not None
        assert status.tokens == 700
