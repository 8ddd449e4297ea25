"""Numbered delivery over real sockets: receipts, replay, gaps, duplicates, and a disk that is full."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.service import SpaceService
from mew_spaces.log.sqlite import SqliteLog

from tests.support.full_disk import full_disk
from tests.support.gateway_client import Client, Message, joined, opened
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [token-of-ada]}
  bob: {capabilities: [{kind: chat}], tokens: [token-of-bob]}
  coder: {command: mew, capabilities: [{kind: chat}, {kind: "stream/*"}], tokens: [token-of-coder]}
limits: {history_envelopes: 400, write_buffer_bytes: 65536, message_bytes: 65536}
history: {durability: DURABILITY}
"""


@pytest.fixture(params=["memory", "flushed", "synced"])
def config(request: pytest.FixtureRequest) -> SpaceConfig:
    return parse_space(SPACE.replace("DURABILITY", request.param))


@pytest.fixture
async def gateway(config: SpaceConfig, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(config, state=tmp_path) as running:
        yield running


@asynccontextmanager
async def session(gateway: RunningGateway, name: str, **wanted: Any) -> AsyncIterator[tuple[Client, Message]]:
    """A connection that asked for numbers, and the `delivery` of its welcome."""
    async with opened(gateway, name) as client:
        token = gateway.token_of(name)
        await client.send({"type": "join", "token": token, "participantId": name, "delivery": wanted})
        welcome = await client.next()
        assert welcome["kind"] == "system/welcome", welcome
        yield client, welcome["payload"]["delivery"]


@asynccontextmanager
async def opened_welcome(gateway: RunningGateway, name: str) -> AsyncIterator[tuple[Client, Message]]:
    """A plain member, and the payload of its welcome."""
    async with opened(gateway, name) as client:
        await client.join(gateway.token_of(name))
        yield client, (await client.next())["payload"]


async def chats(client: Client, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while len(found) < count:
        message = await client.until("chat")
        found.append((message["seq"], message["payload"]["text"]))
    return found


async def test_a_session_gets_numbers_and_others_get_the_plain_envelope(gateway: RunningGateway) -> None:
    async with session(gateway, "coder") as (coder, begun), joined(gateway, "bob") as bob:
        assert begun["recovered"]
        assert begun["live"]
        place = int(begun["position"].rpartition("-")[2])
        presence = await coder.until("system/presence")
        assert presence["seq"] > place
        await coder.chat("hi", id="c1", seq=999)
        echo = await coder.until("chat")
        assert (echo["id"], echo["seq"]) == ("c1", presence["seq"] + 1)
        assert (await bob.until("chat"))["seq"] == 999  # what its sender wrote, as any other key
        await bob.chat("plain")
        assert "seq" not in await bob.until("chat")
    async with joined(gateway, "bob"), opened(gateway, "ada") as ada:
        await ada.join(gateway.token_of("ada"))
        assert "delivery" not in (await ada.next())["payload"]


async def test_a_returning_session_gets_missed_envelopes_in_order(gateway: RunningGateway) -> None:
    async with session(gateway, "coder") as (coder, _), joined(gateway, "bob") as bob:
        await bob.chat("0")
        seen = await chats(coder, 1)
    async with joined(gateway, "bob") as bob:
        for number in range(1, 150):
            await bob.chat(str(number))
        await bob.until("chat")
        since = f"{gateway.service.log.epoch}-{seen[-1][0]}"
        async with session(gateway, "coder", since=since) as (coder, begun):
            assert begun["recovered"]
            assert not begun["live"]
            await bob.chat("150")
            seen += await chats(coder, 150)
            await bob.chat("151")
            seen += await chats(coder, 1)
    assert [text for _, text in seen] == [str(number) for number in range(152)]
    assert [number for number, _ in seen] == sorted({number for number, _ in seen})


async def test_a_replay_larger_than_the_write_buffer_makes_no_slow_consumer(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        for number in range(40):
            await bob.chat(f"{number:02d}" + "x" * 30_000)
            await bob.until("chat")
        async with session(gateway, "coder", last=1_000) as (coder, begun):
            assert begun["recovered"]
            found = await chats(coder, 40)
            assert [text[:2] for _, text in found] == [f"{number:02d}" for number in range(40)]
            live = await coder.until("system/receipt")
            assert live["payload"]["status"] == "live"
            await bob.chat("next")
            assert (await chats(coder, 1))[0][1] == "next"


async def test_a_late_joiner_may_ask_for_the_newest(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        for number in range(10):
            await bob.chat(str(number))
            await bob.until("chat")
        async with session(gateway, "coder", last=4) as (coder, _):
            assert [text for _, text in await chats(coder, 4)] == ["6", "7", "8", "9"]


@pytest.mark.parametrize(
    ("since", "reason"), [("{epoch}-1", "history_gone"), ("other-3", "other_epoch"), ("nonsense", "other_epoch")]
)
async def test_a_gap_is_reported(gateway: RunningGateway, since: str, reason: str) -> None:
    async with joined(gateway, "bob") as bob:
        for number in range(450):
            await bob.chat(str(number))
            await bob.until("chat")
        place = since.format(epoch=gateway.service.log.epoch)
        async with session(gateway, "coder", since=place) as (coder, begun):
            assert not begun["recovered"]
            assert (begun["gap"]["after"], begun["gap"]["reason"]) == (place, reason)
            if reason == "history_gone":
                (first,) = await chats(coder, 1)
                before = int(begun["gap"]["before"].rpartition("-")[2])
                assert before <= first[0] <= before + 1  # its own joining may push one more out


async def test_only_the_first_welcome_has_the_position(gateway: RunningGateway) -> None:
    async with session(gateway, "ada") as (ada, _), session(gateway, "bob", last=1) as (bob, delivery):
        assert delivery["position"]
        await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "my/kind"}]})
        welcome = await bob.until("system/welcome")
        assert {"kind": "my/kind"} in welcome["payload"]["you"]["capabilities"]
        assert "delivery" not in welcome["payload"]


@pytest.mark.parametrize("delivery", [True, {"since": 5}])
async def test_a_join_with_an_invalid_delivery_is_refused(gateway: RunningGateway, delivery: object) -> None:
    async with opened(gateway, "ada") as client:
        await client.send({"type": "join", "token": gateway.token_of("ada"), "delivery": delivery})
        assert (await client.error())["error"] == "invalid_frame"
        await client.join(gateway.token_of("ada"))
        assert (await client.next())["kind"] == "system/welcome"


async def test_an_envelope_sent_twice_is_delivered_once(gateway: RunningGateway) -> None:
    async with session(gateway, "coder") as (coder, _), joined(gateway, "bob") as bob:
        await coder.chat("once", id="same")
        echo = await coder.until("chat")
        await coder.chat("once", id="same")
        receipt = await coder.until("system/receipt")
        assert receipt["correlation_id"] == ["same"]
        place = f"{gateway.service.log.epoch}-{echo['seq']}"
        assert receipt["payload"] == {"status": "duplicate", "position": place}
        seen = [one["id"] for one in await bob.seen_so_far() if one["kind"] == "chat"]
        assert seen == ["same"]


@pytest.mark.parametrize("about", ["correlation_id", "context"])
async def test_an_id_that_is_used_again_about_something_else_is_no_duplicate(
    gateway: RunningGateway, about: str
) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False) as client:

        async def post(value: str) -> str:
            body = {"kind": "chat", "id": "1", "payload": {"text": "No."}, about: value}
            token = {"authorization": f"Bearer {gateway.token_of('ada')}"}
            answer = (await client.post("/participants/ada/messages", headers=token, json=body)).json()
            return str(answer["status"])

        assert [await post(value) for value in ("p", "q", "q")] == ["accepted", "accepted", "duplicate"]


async def test_an_id_that_is_used_again_is_no_duplicate_of_an_unechoed_envelope(gateway: RunningGateway) -> None:
    async with (
        joined(gateway, "ada"),
        joined(gateway, "bob"),
        httpx2.AsyncClient(trust_env=False, verify=False) as http,
    ):

        async def post(kind: str, payload: dict[str, Any]) -> str:
            body = {"id": "1", "kind": kind, "payload": payload}
            headers = {"authorization": "Bearer token-of-ada"}
            answer = await http.post(f"{gateway.url}/participants/ada/messages", json=body, headers=headers)
            return str(answer.json()["status"])

        assert await post("stream/request", {"direction": "upload"}) == "stream_opened"
        bob = {"stream_id": "stream-1", "participant_id": "bob"}
        assert await post("stream/grant-write", bob) == "granted"
        assert await post("stream/grant-write", bob) == "duplicate"
        assert await post("stream/revoke-write", bob) == "revoked"


async def test_an_http_message_sent_twice_is_delivered_once(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, httpx2.AsyncClient(trust_env=False, verify=False) as http:
        url = f"{gateway.url}/participants/ada/messages"
        headers = {"authorization": "Bearer token-of-ada"}
        body = {"id": "same", "kind": "chat", "payload": {"text": "hi"}}
        first = (await http.post(url, json=body, headers=headers)).json()
        second = (await http.post(url, json=body, headers=headers)).json()
        assert (first["status"], second["status"]) == ("accepted", "duplicate")
        assert second["id"] == "same"
        assert [one["id"] for one in await bob.seen_so_far() if one["kind"] == "chat"] == ["same"]


async def test_an_accepted_envelope_without_an_echo_gets_a_receipt(gateway: RunningGateway) -> None:
    async with session(gateway, "ada") as (ada, _):
        await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "x"}]}, id="g1")
        echoed = receipted = 0
        while not echoed + receipted:
            message = await ada.next()
            echoed += message.get("id") == "g1"
            receipted += message["kind"] == "system/receipt" and message["correlation_id"] == ["g1"]
        assert echoed + receipted == 1


async def test_a_refused_envelope_gets_an_error_that_names_it(gateway: RunningGateway) -> None:
    async with session(gateway, "coder") as (coder, _):
        await coder.send_envelope("participant/clear", {}, id="no", to=["ada"])
        error = await coder.until("system/error")
        assert error["correlation_id"] == ["no"]


@pytest.mark.parametrize("durability", ["flushed", "synced"])
async def test_a_restart_keeps_positions(tmp_path: Path, durability: str) -> None:
    config = parse_space(SPACE.replace("DURABILITY", durability))
    async with serve_gateway(config, state=tmp_path) as gateway:
        async with session(gateway, "coder") as (coder, _), joined(gateway, "bob") as bob:
            await bob.chat("a")
            ((number, _),) = await chats(coder, 1)
            since = f"{gateway.service.log.epoch}-{number}"
        async with joined(gateway, "bob") as bob:
            await bob.chat("b", id="b")
            await bob.until("chat")
    async with serve_gateway(config, state=tmp_path) as again:
        assert again.service.log.epoch == since.partition("-")[0]
        async with session(again, "coder", since=since) as (coder, begun):
            assert begun["recovered"]
            assert [text for _, text in await chats(coder, 1)] == ["b"]
        async with session(again, "bob") as (bob, _):
            await bob.chat("b", id="b")  # its sender never received the confirmation
            assert (await bob.until("system/receipt"))["payload"]["status"] == "duplicate"


@pytest.mark.parametrize("durability", ["flushed", "synced"])
async def test_a_restart_keeps_grants_pauses_streams_proposals_and_the_board(tmp_path: Path, durability: str) -> None:
    config = parse_space(SPACE.replace("DURABILITY", durability))
    status = {"tokens": 5, "max_tokens": 10, "messages_in_context": 1, "status": "active"}
    async with serve_gateway(config, state=tmp_path) as gateway, joined(gateway, "ada") as ada:
        await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "reasoning/*"}]})
        await ada.send_envelope("participant/pause", {"reason": "wait"}, to=["coder"])
        await ada.send_envelope("participant/status", status)
        await ada.send_envelope("mcp/proposal", {"method": "tools/list"}, id="p1", to=["coder"])
        await ada.send_envelope("stream/request", {"direction": "upload"})
        opened = (await ada.until("stream/open"))["payload"]["stream_id"]
        await ada.seen_so_far()
    async with serve_gateway(config, state=tmp_path) as again:
        async with joined(again, "coder") as coder:
            assert (await coder.until("participant/pause"))["payload"]["reason"] == "wait"
        async with opened_welcome(again, "bob") as (bob, welcome):
            assert {"kind": "reasoning/*"} in welcome["you"]["capabilities"]
            assert [one["stream_id"] for one in welcome["active_streams"]] == [opened]
            assert [(one["id"], one["status"]["tokens"]) for one in welcome["board"]] == [("ada", 5)]
            await bob.chat("withdraws", id="w")
        async with joined(again, "ada") as ada:
            await ada.send_envelope("stream/request", {"direction": "upload"})
            assert (await ada.until("stream/open"))["payload"]["stream_id"] != opened
            await ada.send_envelope("mcp/withdraw", {"reason": "no"}, correlation_id=["p1"], id="w1")
            assert (await ada.until("mcp/withdraw"))["id"] == "w1"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_unstorable_envelopes_are_refused_until_the_disk_recovers(tmp_path: Path) -> None:
    config = parse_space(SPACE.replace("DURABILITY", "flushed"))
    async with (
        serve_gateway(config, state=tmp_path) as gateway,
        joined(gateway, "bob") as bob,
        session(gateway, "coder") as (coder, _),
    ):
        with full_disk(_log_of(gateway.service)):
            await coder.chat("x" * 60_000, id="big")
            error = await coder.until("system/error")
            assert (error["payload"]["error"], error["correlation_id"]) == ("not_stored", ["big"])
            await coder.chat("small", id="small")
            assert (await coder.error())["error"] == "not_stored"
            async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
                answer = await http.post(
                    f"{gateway.url}/participants/ada/messages",
                    json={"kind": "chat", "payload": {"text": "y" * 3_000}},
                    headers={"authorization": "Bearer token-of-ada"},
                )
            assert (answer.status_code, answer.json()["error"]) == (503, "not_stored")
            assert not [one for one in await bob.seen_so_far() if one["kind"] == "chat"]
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                await coder.chat("again", id="big")
                reply = await coder.next()
                if reply["kind"] == "chat":
                    break
        assert (await bob.until("chat"))["payload"]["text"] == "again"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_grant_and_a_pause_that_a_full_disk_refused_do_not_hold(tmp_path: Path) -> None:
    config = parse_space(SPACE.replace("DURABILITY", "flushed"))
    async with (
        serve_gateway(config, state=tmp_path) as gateway,
        joined(gateway, "ada") as ada,
        session(gateway, "bob") as (bob, _),
    ):
        with full_disk(_log_of(gateway.service)):
            await ada.send_envelope("participant/pause", {"reason": "refused"}, to=["bob"], id="pause")
            assert (await ada.error())["error"] == "not_stored"
        gateway.service.expire()
        assert gateway.service.storage.is_storing
        with full_disk(_log_of(gateway.service)):
            granted = {"recipient": "bob", "capabilities": [{"kind": "reasoning/*"}]}
            await ada.send_envelope("capability/grant", granted, id="grant")
            assert (await ada.error())["error"] == "not_stored"
        gateway.service.expire()
        await bob.send_envelope("reasoning/start", {"message": "I may not"})
        assert (await bob.error())["error"] == "capability_violation"
        await bob.chat("I may")
        await bob.until("chat")
        await ada.send_envelope("capability/grant", granted, id="grant")
        await bob.until("capability/grant")
    async with serve_gateway(config, state=tmp_path) as again, opened_welcome(again, "bob") as (_, welcome):
        assert {"kind": "reasoning/*"} in welcome["you"]["capabilities"]


async def test_an_envelope_sent_twice_to_a_full_disk_is_never_confirmed(tmp_path: Path) -> None:
    config = parse_space(SPACE.replace("DURABILITY", "synced"))
    async with serve_gateway(config, state=tmp_path) as gateway, session(gateway, "coder") as (coder, _):
        database = _log_of(gateway.service)._database
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
        text = "x" * 60_000
        draft = Draft(kind="chat", id="big", payload={"text": text})
        connection = next(iter(gateway.service.performer.owners))
        for _ in range(2):  # the second copy arrives while the first is being stored
            gateway.service.receive(connection, ParticipantId("coder"), draft)
        for _ in range(2):
            answer = await coder.next()
            assert (answer["kind"], answer["payload"].get("error")) == ("system/error", "not_stored")
            assert answer["correlation_id"] == ["big"]


async def test_an_envelope_without_an_echo_is_refused_once_with_its_batch(tmp_path: Path) -> None:
    config = parse_space(SPACE.replace("DURABILITY", "synced"))
    async with serve_gateway(config, state=tmp_path) as gateway, session(gateway, "coder") as (coder, _):
        await coder.send_envelope("stream/request", {"direction": "upload"})
        stream = (await coder.until("stream/open"))["payload"]["stream_id"]
        await coder.until("stream/request")
        database = _log_of(gateway.service)._database
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
        connection = next(iter(gateway.service.performer.owners))
        granted = {"stream_id": stream, "participant_id": "coder"}
        for draft in (
            Draft(kind="chat", id="big", payload={"text": "x" * 60_000}),
            Draft(kind="stream/grant-write", id="without an echo", payload=granted),
        ):
            gateway.service.receive(connection, ParticipantId("coder"), draft)
        answers = [await coder.next() for _ in range(2)]
        assert [answer["payload"]["error"] for answer in answers] == ["not_stored", "not_stored"]
        assert [answer["correlation_id"] for answer in answers] == [["big"], ["without an echo"]]
        assert not await coder.seen_so_far()


def _log_of(service: SpaceService) -> SqliteLog:
    assert isinstance(service.log, SqliteLog)
    return service.log
