"""Which envelopes reach which members, and which are refused."""

import json
from typing import Any

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from tests.conformance.rules import rule
from tests.support.gateway_client import Client, joined, opened


async def echoed(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    await client.send(message)
    return await client.next()


async def refused(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    """The error that answers a message."""
    answer = await echoed(client, message)
    assert answer["kind"] == "system/error"
    return answer


@rule("envelope.filled")
@pytest.mark.parametrize("missing", [{}, {"protocol": None, "id": None, "ts": None, "from": None}])
async def test_missing_headers_are_filled_in(gateway: RunningGateway, missing: dict[str, None]) -> None:
    async with joined(gateway, "bob") as bob:
        one = await echoed(bob, {"kind": "chat", "payload": {"text": "x"}, **missing})
        two = await echoed(bob, {"kind": "chat", "payload": {"text": "x"}, **missing})
    assert (one["protocol"], one["from"]) == ("mew/v0.4", "bob")
    assert one["ts"].endswith("Z")
    assert one["id"] != two["id"]


@rule("envelope.kept")
async def test_an_envelope_arrives_as_written(gateway: RunningGateway) -> None:
    message = {
        "protocol": "mew/v0.4",
        "id": "mine-1",
        "ts": "2020-02-02T02:02:02+02:00",
        "from": "bob",
        "to": ["ada", "nobody"],
        "kind": "chat",
        "correlation_id": ["a", "b"],
        "context": {"operation": "push", "topic": "x"},
        "payload": {"text": "Grüße 🐈", "n": 12345678901234567890, "deep": {"list": [1, 2.5, None, True]}},
        "own": {"key": 1},
    }
    async with joined(gateway, "bob") as bob:
        assert await echoed(bob, message) == message


@rule("envelope.from")
async def test_a_foreign_from_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        answer = await refused(bob, {"kind": "chat", "from": "ada", "payload": {"text": "x"}})
        assert answer["payload"]["error"] == "identity_mismatch"
        assert [one["kind"] for one in await ada.seen_so_far()] == ["system/presence"]


@rule("envelope.version")
async def test_two_protocol_versions_are_accepted(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        for version in ("mew/v0.3", "mew/v0.4"):
            answer = await echoed(bob, {"protocol": version, "kind": "chat", "payload": {"text": "x"}})
            assert answer["protocol"] == version
        answer = await refused(bob, {"protocol": "mew/v1", "kind": "chat", "payload": {"text": "x"}})
        assert answer["payload"]["code"] == "VALIDATION_ERROR"


@rule("envelope.lists")
async def test_bare_strings_become_lists(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        answer = await echoed(bob, {"kind": "chat", "to": "ada", "correlation_id": "q", "payload": {"text": "x"}})
    assert (answer["to"], answer["correlation_id"]) == (["ada"], ["q"])


@rule("envelope.compact")
async def test_json_is_compact_and_strict(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        await bob.send('{ "kind" : "chat" ,\n "payload" : { "text" : "\\u00fc" } }')
        raw = await bob.raw()
        await bob.send('{"kind":"chat","payload":{"text":"x","n":NaN}}')
        assert (await bob.error())["error"] == "invalid_json"
    assert isinstance(raw, str)
    assert raw == json.dumps(json.loads(raw), separators=(",", ":"), ensure_ascii=False)
    assert '"text":"ü"' in raw


@rule("envelope.kind")
@pytest.mark.parametrize("kind", [None, "", "  "])
async def test_an_envelope_without_kind_is_refused(gateway: RunningGateway, kind: str | None) -> None:
    async with joined(gateway, "ada") as ada:
        answer = await refused(ada, {"kind": kind, "payload": {}})
    assert answer["payload"]["error"] == "invalid_envelope"


@rule("routing.everybody")
@pytest.mark.parametrize("to", [None, [], ["ada"], ["nobody"], ["bob"]])
async def test_every_member_receives_every_envelope(gateway: RunningGateway, to: list[str] | None) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await bob.chat("heard", to=to)
        for one in (ada, bob, coder):
            assert (await one.until("chat"))["payload"]["text"] == "heard"


@rule("routing.order")
async def test_frames_and_envelopes_of_a_sender_keep_their_order(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/request", {"direction": "upload"})
        for number in range(10):
            await coder.send(f"#stream-1#{number}")
            await coder.chat(str(number))
        await ada.until("stream/request")
        for number in range(10):
            assert await ada.raw() == f"#stream-1#{number}"
            assert (await ada.next())["payload"]["text"] == str(number)


@rule("routing.system")
@pytest.mark.parametrize("kind", ["system/welcome", "system/presence", "system/error", "system/own"])
async def test_system_kinds_are_reserved(gateway: RunningGateway, kind: str) -> None:
    async with joined(gateway, "ada") as ada:
        assert (await refused(ada, {"kind": kind}))["payload"]["error"] == "reserved_kind"
        register = (await refused(ada, {"kind": "system/register"}))["payload"]
    assert register["error"] == "invalid_request"
    assert "system/register is reserved for the gateway" in register["message"]


@rule("routing.heartbeat")
async def test_a_heartbeat_is_not_delivered(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await coder.send_envelope("system/heartbeat")
        await coder.chat("next")
        assert (await coder.next())["kind"] == "chat"
        assert [one["kind"] for one in await bob.seen_so_far()] == ["system/presence", "chat"]


@rule("routing.chat-text", "routing.mcp-method")
@pytest.mark.parametrize(
    "message", [{"kind": "chat"}, {"kind": "chat", "payload": {"text": ""}}, {"kind": "mcp/request", "payload": {}}]
)
async def test_a_message_without_its_required_field_is_refused(
    gateway: RunningGateway, message: dict[str, Any]
) -> None:
    async with joined(gateway, "ada") as ada:
        payload = (await refused(ada, message))["payload"]
    assert (payload["error"], payload["code"]) == ("invalid_payload", "VALIDATION_ERROR")


@rule("error.full", "error.violation")
async def test_a_violation_goes_to_its_sender_alone(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        answer = await refused(bob, {"kind": "mcp/request", "id": "q", "payload": {"method": "tools/list"}})
        assert [one["kind"] for one in await ada.seen_so_far()] == ["system/presence"]
    assert (answer["from"], answer["to"], answer["correlation_id"]) == ("system:gateway", ["bob"], ["q"])
    assert answer["protocol"] == "mew/v0.4"
    assert answer["id"]
    assert answer["ts"]
    payload = answer["payload"]
    assert (payload["error"], payload["attempted_kind"]) == ("capability_violation", "mcp/request")
    assert {"kind": "chat"} in payload["your_capabilities"]


@rule("error.garbage")
@pytest.mark.parametrize("garbage", ["", "{", "null", "[]", "5", '"x"', "#", "##", "#half", b"\x00", '{"kind":{}}'])
async def test_an_unreadable_message_gets_one_error(gateway: RunningGateway, garbage: str | bytes) -> None:
    async with joined(gateway, "bob") as bob:
        await bob.send(garbage)
        refusal = await bob.next()
        assert refusal["kind"] == "system/error"
        assert refusal["payload"]["error"]
        assert refusal["payload"]["message"]
        await bob.chat("still here")
        assert (await bob.next())["kind"] == "chat"


@rule("proposal.fulfil")
async def test_a_proposal_is_fulfilled_and_answered(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "ada") as ada, joined(gateway, "files") as files:
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "read_file"}}
        await bob.send_envelope("mcp/proposal", call, id="p", to=["files"])
        assert (await ada.until("mcp/proposal"))["payload"] == call
        await ada.send_envelope("mcp/request", call, id="r", to=["files"], correlation_id=["p"])
        request = await files.until("mcp/request")
        assert (request["correlation_id"], request["payload"]) == (["p"], call)
        await files.send_envelope("mcp/response", {"result": 1}, to=["ada"], correlation_id=["r"])
        assert (await bob.until("mcp/request"))["correlation_id"] == ["p"]
        assert (await bob.until("mcp/response"))["correlation_id"] == ["r"]


@rule("proposal.withdraw", "proposal.reject")
async def test_only_the_proposer_withdraws_a_proposal(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "ada") as ada:
        await bob.send_envelope("mcp/proposal", {"method": "tools/call"}, id="p")
        await ada.until("mcp/proposal")
        await ada.send_envelope("mcp/withdraw", {"reason": "mine"}, correlation_id=["p"])
        assert (await ada.error())["error"] == "unauthorized"
        await ada.send_envelope("mcp/reject", {"reason": "unsafe"})
        assert (await ada.error())["error"] == "invalid_envelope"
        await ada.send_envelope("mcp/reject", {"reason": "unsafe"}, correlation_id=["p"])
        assert (await bob.until("mcp/reject"))["payload"] == {"reason": "unsafe"}
        await bob.send_envelope("mcp/withdraw", {"reason": "timeout"}, correlation_id=["p"])
        assert (await ada.until("mcp/withdraw"))["from"] == "bob"


@rule("error.full")
@pytest.mark.parametrize(
    "message",
    [
        '{"id":"7","kind":{}}',
        '{"id":"7","kind":"chat","payload":{"text":"x"},"protocol":"mew/v9"}',
        '{"id":"7","kind":"chat","payload":{"text":1e999}}',
        '{"id":"7","kind":"chat","payload":' + '{"a":' * 99 + "1" + "}" * 100,
        '{"id":"7","kind":"mcp/request","payload":{}}',
        '{"id":"7","kind":"system/welcome","payload":{}}',
        '{"id":"7","kind":"chat","from":"ada","payload":{"text":"x"}}',
    ],
)
async def test_a_refusal_contains_the_id_of_the_refused_envelope(gateway: RunningGateway, message: str) -> None:
    async with joined(gateway, "bob") as bob:
        await bob.send(message)
        refusal = await bob.next()
    assert (refusal["kind"], refusal["correlation_id"]) == ("system/error", ["7"])


@rule("error.full")
async def test_a_refused_join_carries_its_id(gateway: RunningGateway) -> None:
    join = {"id": "j1", "kind": "system/join", "payload": {"space": gateway.config.space.id, "token": "wrong"}}
    async with opened(gateway) as stranger:
        await stranger.send(join)
        refusal = await stranger.next()
    assert (refusal["payload"]["error"], refusal["correlation_id"]) == ("unauthorized", ["j1"])


@rule("error.full")
async def test_a_negative_number_of_messages_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        refusal = await refused(coder, {"kind": "participant/status", "payload": {"messages_in_context": -1}})
    assert refusal["payload"]["error"] == "invalid_payload"
