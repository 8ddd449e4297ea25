"""Capabilities, grants, invitations, removals and controls."""

from typing import Any

import anyio
import pytest
from mew_spaces.core import connections
from mew_spaces.gateway.gateway import RunningGateway

from tests.conformance.conftest import Http
from tests.conformance.rules import rule
from tests.support.gateway_client import Client, joined, opened
from tests.support.waiting import PATIENCE_SECONDS

CALL = {"kind": "mcp/request", "payload": {"method": "tools/call"}}


async def may(client: Client, kind: str, payload: Any = None, **headers: Any) -> bool:
    """Whether what a client sends comes back, or an error about capabilities."""
    await client.send_envelope(kind, payload, **headers)
    while True:
        answer = await client.next()
        if answer["kind"] == "system/error":
            assert answer["payload"]["error"] == "capability_violation"
            return False
        if answer["kind"] == kind and answer["from"] == client.name:
            return True


@rule("capability.payload", "capability.to")
async def test_patterns_match_payloads_and_addressees(gateway: RunningGateway) -> None:
    def call(name: str) -> dict[str, Any]:
        return {"method": "tools/call", "params": {"name": name}}

    async with joined(gateway, "coder") as coder:
        for name in ("read_file", "list_dir"):
            assert await may(coder, "mcp/request", call(name), to=["files"])
        assert not await may(coder, "mcp/request", call("write_file"), to=["files"])
        assert not await may(coder, "mcp/request", {"method": "resources/list"}, to=["files"])
        assert not await may(coder, "mcp/request", call("read_file"), to=["ada"])
        assert not await may(coder, "mcp/request", call("read_file"), to=["files", "ada"])
        assert not await may(coder, "mcp/request", call("read_file"))


@rule("capability.grant", "capability.cumulative", "capability.ack")
async def test_grants_take_effect_at_once_and_accumulate(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        for capability in (CALL, {"kind": "reasoning/*"}):
            payload = {"recipient": "bob", "capabilities": [capability]}
            await ada.send_envelope("capability/grant", payload, id=f"grant {capability['kind']}", to=["bob"])
            welcome = await bob.next()
            assert welcome["kind"] == "system/welcome"
            assert capability in welcome["payload"]["you"]["capabilities"]
            assert "active_streams" in welcome["payload"]
            assert (await bob.next())["payload"] == payload
        assert await may(bob, "mcp/request", {"method": "tools/call"})
        assert await may(bob, "reasoning/start", {"message": "x"})
        assert await may(bob, "capability/grant-ack", {"status": "accepted"}, correlation_id=["grant reasoning/*"])
        assert (await ada.until("capability/grant-ack"))["from"] == "bob"


@rule("capability.own")
async def test_a_grant_beyond_ones_own_capabilities_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob, joined(gateway, "coder") as coder:
        await bob.send_envelope("capability/grant", {"recipient": "coder", "capabilities": [CALL]}, id="g")
        refusal = await bob.until("system/error")
        assert (refusal["payload"]["error"], refusal["correlation_id"]) == ("grant_exceeds_own", ["g"])
        assert not await may(coder, "mcp/request", {"method": "tools/call"})
        await bob.send_envelope("capability/grant", {"recipient": "coder", "capabilities": [{"kind": "mcp/proposal"}]})
        assert (await coder.until("system/welcome"))["payload"]["you"]["id"] == "coder"


@rule("capability.recipient")
async def test_an_unknown_recipient_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.send_envelope("capability/grant", {"recipient": "Bob", "capabilities": [CALL]})
        assert CALL in (await bob.until("system/welcome"))["payload"]["you"]["capabilities"]
        await ada.send_envelope("capability/grant", {"recipient": "ghost", "capabilities": [CALL]})
        assert (await ada.error())["error"] == "participant_not_found"


@rule("capability.revoke")
@pytest.mark.parametrize("by", [{"grant_id": "g"}, {"capabilities": [CALL]}])
async def test_a_grant_can_be_revoked(gateway: RunningGateway, by: dict[str, Any]) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": [CALL]}, id="g")
        await bob.until("capability/grant")
        await ada.send_envelope("capability/revoke", {"recipient": "bob", **by})
        assert CALL not in (await bob.next())["payload"]["you"]["capabilities"]
        assert (await bob.next())["kind"] == "capability/revoke"
        assert not await may(bob, "mcp/request", {"method": "tools/call"})


@rule("capability.end", "stream.owner-gone")
async def test_grants_of_an_absent_participant_end(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OWNER_GRACE", connections.OWNER_GRACE * 0)
    async with joined(gateway, "ada") as ada:
        async with joined(gateway, "coder") as coder:
            await ada.send_envelope("capability/grant", {"recipient": "coder", "capabilities": [CALL]})
            await coder.send_envelope("stream/request", {"direction": "upload"})
            await coder.until("stream/request")
        closing = await ada.until("stream/close")
        assert (closing["from"], closing["payload"]["reason"]) == ("gateway", "owner_disconnected")
        async with opened(gateway, "coder") as coder:
            await coder.join(gateway.token_of("coder"))
            assert CALL not in (await coder.next())["payload"]["you"]["capabilities"]


@rule("space.invite", "space.invite-ack")
async def test_an_invited_participant_stays_one(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        payload = {"participant_id": "eve", "initial_capabilities": [{"kind": "chat"}], "reason": "help"}
        await ada.send_envelope("space/invite", payload, id="i")
        ack = await ada.until("space/invite-ack")
        assert (ack["from"], ack["to"], ack["correlation_id"]) == ("system:gateway", ["ada"], ["i"])
        assert (ack["payload"]["status"], ack["payload"]["participant_id"]) == ("created", "eve")
        assert ack["payload"]["connection_url"] == f"ws://localhost:{gateway.port}/"
        (reported,) = await bob.seen_so_far()
        assert (reported["payload"]["event"], reported["payload"]["invited_by"]) == ("invited", "ada")
        assert ack["payload"]["token"] not in str(reported)
        for _ in range(2):
            async with opened(gateway, "eve") as eve:
                await eve.join(ack["payload"]["token"])
                assert {"kind": "chat"} in (await eve.next())["payload"]["you"]["capabilities"]
                assert await may(eve, "chat", {"text": "hello"})


@rule("space.invite-again", "space.invite-name")
async def test_an_invitation_needs_a_new_valid_id(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        await ada.send_envelope("space/invite", {"participant_id": "bob"})
        payload = (await ada.until("space/invite-ack"))["payload"]
        assert (payload["status"], "token" in payload) == ("already_exists", False)
        for name in ("../x", "a/b", "a\\b", "", "x" * 500):
            await ada.send_envelope("space/invite", {"participant_id": name})
            assert (await ada.error())["error"] == "invalid_request"
        await ada.send_envelope("space/invite", {"participant_id": "a/b"})
        assert "invalid characters" in (await ada.error())["message"]


@rule("space.kick")
async def test_a_removed_participant_cannot_join_again(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.send_envelope("space/kick", {"participant_id": "bob", "reason": "loud"})
        assert (await bob.next())["payload"]["reason"] == "loud"
        assert await bob.closing() == (4403, "removed")
        assert (await ada.until("space/kick"))["from"] == "ada"
        assert (await ada.until("system/presence"))["payload"] == {"event": "leave", "participant": {"id": "bob"}}
        async with opened(gateway, "bob") as again:
            with pytest.raises(KeyError):
                gateway.token_of("bob")
            await again.join("whatever it was")
            assert (await again.closing())[0] == 4401


@rule("control.pause", "control.resume")
async def test_a_pause_is_enforced(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "coder") as coder:
        await ada.send_envelope("participant/pause", {"reason": "wait"}, to=["coder"])
        await coder.until("participant/pause")
        await coder.chat("but")
        assert (await coder.error())["error"] == "paused"
        assert await may(coder, "participant/status", {"messages_in_context": 1, "status": "paused"})
        assert await may(coder, "chat/acknowledge", {"status": "received"}, correlation_id=["x"])
        await ada.send_envelope("participant/resume", to=["coder"])
        await coder.until("participant/resume")
        assert await may(coder, "chat", {"text": "again"})
        await ada.send_envelope("participant/pause", {"timeout_seconds": 0.01}, to=["coder"])
        await coder.until("participant/pause")
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                await coder.chat("until it is over")
                if (await coder.next())["kind"] == "chat":
                    break


@rule("control.pause-told", "routing.heartbeat")
async def test_a_participant_that_joins_while_paused_gets_the_pause(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        async with joined(gateway, "coder") as coder:
            await ada.send_envelope("participant/pause", {"reason": "wait"}, to=["coder"])
            await coder.until("participant/pause")
        async with joined(gateway, "coder") as coder:
            pause = await coder.next()
            assert (pause["kind"], pause["from"], pause["to"]) == ("participant/pause", "system:gateway", ["coder"])
            assert pause["payload"] == {"reason": "wait"}
            await coder.send_envelope("system/heartbeat")
            await coder.chat("but")
            assert (await coder.next())["payload"]["attempted_kind"] == "chat"
        assert "participant/pause" not in [one["kind"] for one in (await ada.seen_so_far())[2:]]


@rule("control.shutdown")
async def test_a_participant_that_was_shut_down_may_join_again(gateway: RunningGateway, http: Http) -> None:
    async with joined(gateway, "ada") as ada:
        async with joined(gateway, "coder") as coder:
            await ada.send_envelope("participant/shutdown", to=["coder"])
            await coder.until("participant/shutdown")
            assert await may(coder, "participant/status", {"messages_in_context": 1, "status": "shutting_down"})
            await coder.chat("one more thing")
            assert (await coder.error())["error"] == "paused"
        answer = await http.post("coder", {"kind": "chat", "payload": {"text": "by http"}})
        assert (answer.status_code, answer.json()["error"]) == (403, "paused")
        async with joined(gateway, "coder") as coder:
            assert await may(coder, "chat", {"text": "anew"})


@rule("control.board")
async def test_a_late_joiner_gets_the_last_status(gateway: RunningGateway) -> None:
    status = {"messages_in_context": 3, "tokens": 10, "max_tokens": 100, "status": "active"}
    async with joined(gateway, "coder") as coder:
        await coder.send_envelope("participant/status", status)
        await coder.until("participant/status")
        async with opened(gateway, "bob") as bob:
            await bob.join(gateway.token_of("bob"))
            (line,) = (await bob.next())["payload"]["board"]
    assert (line["id"], line["status"]) == ("coder", status)
