"""Joining, and what the joiner and the others get."""

import json
from typing import Any

import pytest
from mew_protocol.capability import BASELINE
from mew_spaces.gateway.gateway import RunningGateway

from tests.conformance.rules import rule
from tests.support.gateway_client import joined, opened


@rule("join.frame", "welcome.contents", "welcome.baseline", "welcome.star")
async def test_a_join_frame_gets_a_welcome(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada"), opened(gateway) as bob:
        await bob.send({"type": "join", "space": "demo", "token": gateway.token_of("bob"), "participantId": "bob"})
        welcome = await bob.next()
    assert (welcome["protocol"], welcome["from"], welcome["to"]) == ("mew/v0.4", "system:gateway", ["bob"])
    assert welcome["id"]
    assert welcome["ts"].endswith("Z")
    payload = welcome["payload"]
    assert payload["you"]["id"] == "bob"
    assert payload["you"]["capabilities"][0] == {"kind": "chat"}
    assert payload["you"]["capabilities"][-1] == BASELINE
    assert payload["participants"] == [{"id": "ada", "capabilities": [{"kind": "*"}, {"kind": "**"}, BASELINE]}]
    assert payload["active_streams"] == []


@rule("join.envelope")
@pytest.mark.parametrize("key", ["participantId", "participant_id", "participant"])
@pytest.mark.parametrize("nested", [True, False])
async def test_a_join_envelope_gets_a_welcome(gateway: RunningGateway, key: str, nested: bool) -> None:
    keys: dict[str, Any] = {"space": "demo", "token": gateway.token_of("bob"), key: "bob"}
    async with opened(gateway) as bob:
        await bob.send({"kind": "system/join", "payload": keys} if nested else {"kind": "system/join", **keys})
        assert (await bob.next())["payload"]["you"]["id"] == "bob"


@rule("join.header")
async def test_a_bearer_header_joins(gateway: RunningGateway) -> None:
    header = {"Authorization": f"Bearer {gateway.token_of('coder')}"}
    async with joined(gateway, "ada") as ada, opened(gateway, "coder", additional_headers=header) as coder:
        assert (await coder.next())["kind"] == "system/welcome"
        await coder.join(gateway.token_of("coder"))
        assert (await coder.next())["kind"] == "system/welcome"
        assert [one["kind"] for one in await ada.seen_so_far()] == ["system/presence"]


@rule("join.any-path")
@pytest.mark.parametrize("path", ["/", "/ws?space=demo", "/participants/bob/ws", "/spaces/demo/anything?x=1"])
async def test_every_path_accepts_websockets(gateway: RunningGateway, path: str) -> None:
    from websockets.asyncio.client import connect

    async with connect(gateway.ws_url + path) as socket:
        await socket.send(json.dumps({"type": "join", "token": gateway.token_of("bob")}))
        assert json.loads(await socket.recv())["kind"] == "system/welcome"


@rule("join.pipelined")
async def test_messages_right_after_the_join_are_handled(gateway: RunningGateway) -> None:
    async with opened(gateway, "bob") as bob:
        await bob.join(gateway.token_of("bob"))
        for number in range(20):
            await bob.chat(str(number))
        assert (await bob.next())["kind"] == "system/welcome"
        assert [(await bob.next())["payload"]["text"] for _ in range(20)] == [str(number) for number in range(20)]


@rule("join.token")
@pytest.mark.parametrize(("token", "name"), [("wrong", "bob"), (None, "bob"), ("bob", "ada"), ("wrong", "ada")])
async def test_a_wrong_token_is_refused(gateway: RunningGateway, token: str | None, name: str) -> None:
    given = gateway.token_of("bob") if token == "bob" else token
    async with joined(gateway, "ada"), opened(gateway) as stranger:
        await stranger.join(given, participant=name)
        assert (await stranger.error())["error"] == "unauthorized"
        assert (await stranger.closing())[0] == 4401


@rule("join.space")
async def test_an_unknown_space_is_refused(gateway: RunningGateway) -> None:
    async with opened(gateway, "bob") as bob:
        await bob.join(gateway.token_of("bob"), space="elsewhere")
        assert (await bob.error())["error"] == "space_not_found"
        assert (await bob.closing())[0] == 4404


@rule("join.first")
async def test_a_message_before_the_join_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, opened(gateway, "bob") as bob:
        await bob.chat("hello", id="early")
        refusal = await bob.next()
        assert (refusal["payload"]["error"], refusal["correlation_id"]) == ("not_joined", ["early"])
        assert refusal["payload"]["your_capabilities"] == []
        assert await ada.seen_so_far() == []


@rule("join.timeout")
async def test_a_silent_socket_is_closed(gateway: RunningGateway) -> None:
    async with opened(gateway) as silent:
        assert (await silent.error())["error"] == "not_joined"
        assert (await silent.closing())[0] == 4401


@rule("join.superseded")
async def test_a_new_socket_of_an_agent_supersedes_the_older_one(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as older, joined(gateway, "coder") as newer:
        assert (await older.error())["error"] == "superseded"
        await newer.chat("new")
        assert (await newer.next())["payload"]["text"] == "new"
        await older.chat("old")
        assert (await older.error())["error"] == "superseded"
        await older.socket.close()
        await newer.chat("still")
        assert (await newer.next())["payload"]["text"] == "still"


@rule("join.people")
async def test_a_person_may_hold_several_sockets(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as one, joined(gateway, "bob") as two:
        await one.chat("both")
        assert (await one.next())["payload"] == (await two.next())["payload"] == {"text": "both"}


@rule("welcome.unicast", "presence.join-leave")
async def test_others_get_presences_and_no_welcome(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        async with joined(gateway, "bob") as bob:
            assert await bob.seen_so_far() == []
        events = [await ada.next(), await ada.next()]
        assert await ada.seen_so_far() == []
    assert [one["kind"] for one in events] == ["system/presence"] * 2
    assert [one["payload"]["event"] for one in events] == ["join", "leave"]
    assert events[0]["payload"]["participant"]["capabilities"][-1] == BASELINE
    assert events[1]["payload"]["participant"] == {"id": "bob"}
