"""HTTP routes, limits and logs."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.conformance.conftest import Http
from tests.conformance.rules import rule
from tests.support.gateway_client import joined, opened
from tests.support.waiting import PATIENCE_SECONDS


@rule("http.health", "http.participants")
async def test_a_token_lists_participants(gateway: RunningGateway, http: Http) -> None:
    async with joined(gateway, "bob"):
        health = (await http.get("/health")).json()
        listed = (await http.get("/participants", "bob")).json()["participants"]
        named = (await http.get("/participants?space=demo", "bob")).json()["participants"]
    assert (health["status"], health["spaces"], health["clients"]) == ("ok", 1, 1)
    assert health["features"] == ["capabilities", "context", "validation", "http-io"]
    assert isinstance(health["uptime"], float)
    assert listed == named
    assert {one["id"]: one["connected"] for one in listed} == {
        "ada": False,
        "bob": True,
        "coder": False,
        "files": False,
    }


@rule("http.post")
async def test_an_http_envelope_follows_the_same_rules(gateway: RunningGateway, http: Http) -> None:
    async with joined(gateway, "ada") as ada:
        message = {"id": "mine", "ts": "2020-01-01T00:00:00Z", "kind": "chat", "payload": {"text": "hi"}}
        answer = await http.post("bob", message)
        told = answer.json()
        assert told.pop("position"), "where the envelope is stored"
        assert (answer.status_code, told) == (
            200,
            {"id": "mine", "status": "accepted", "timestamp": "2020-01-01T00:00:00Z"},
        )
        assert await ada.next() == {"protocol": "mew/v0.4", "from": "bob", **message}
        await http.post(
            "ada", {"kind": "capability/grant", "payload": {"recipient": "bob", "capabilities": [{"kind": "x"}]}}
        )
        assert (await http.post("bob", {"kind": "x"})).status_code == 200
    async with joined(gateway, "bob") as bob:
        await http.post("bob", {"kind": "participant/clear"})
        assert (await bob.error())["error"] == "capability_violation"


@rule("http.refusals")
@pytest.mark.parametrize(
    ("message", "token", "status", "error"),
    [
        (b"no json", None, 400, "invalid_json"),
        ([], None, 400, "invalid_envelope"),
        ({}, None, 400, "invalid_envelope"),
        ({"kind": "chat", "payload": {"text": "x" * 9000}}, None, 413, "too_large"),
        ({"kind": "chat", "payload": {"text": "x"}}, "wrong", 403, "unauthorized"),
        ({"kind": "participant/clear"}, None, 403, "capability_violation"),
        ({"kind": "system/register"}, None, 400, "invalid_request"),
    ],
)
async def test_a_refusal_has_a_status_and_a_json_body(
    http: Http, message: Any, token: str | None, status: int, error: str
) -> None:
    answer = await http.post("bob", message, token=token)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.json()["message"]
    bare = await http.client.post("/participants/bob/messages", json={"kind": "chat"})
    assert (bare.status_code, bare.json()["error"]) == (401, "unauthorized")


@rule("http.answers")
async def test_http_answers_describe_the_change(gateway: RunningGateway, http: Http) -> None:
    async with joined(gateway, "files"), joined(gateway, "coder"):
        opened_ = (await http.post("coder", {"kind": "stream/request", "payload": {"direction": "upload"}})).json()
        assert (opened_["status"], opened_["stream_id"]) == ("stream_opened", "stream-1")
        about = {"stream_id": "stream-1", "participant_id": "files"}
        granted = (await http.post("coder", {"kind": "stream/grant-write", "payload": about})).json()
        assert (granted["status"], granted["authorized_writers"]) == ("granted", ["coder", "files"])
        revoked = (await http.post("coder", {"kind": "stream/revoke-write", "payload": about})).json()
        assert (revoked["status"], revoked["authorized_writers"]) == ("revoked", ["coder"])
        given = {"stream_id": "stream-1", "new_owner": "files"}
        moved = (await http.post("coder", {"kind": "stream/transfer-ownership", "payload": given})).json()
        assert (moved["status"], moved["previous_owner"], moved["new_owner"]) == ("transferred", "coder", "files")
        foreign = await http.post("coder", {"kind": "stream/grant-write", "payload": about})
        assert (foreign.status_code, foreign.json()["error"]) == (403, "unauthorized")
        absent = await http.post(
            "coder", {"kind": "stream/request", "payload": {"direction": "upload", "target": ["ghost"]}}
        )
        assert (absent.status_code, absent.json()["targets"]) == (400, ["ghost"])
    invited = await http.post("ada", {"kind": "space/invite", "payload": {"participant_id": "eve"}})
    assert (invited.status_code, invited.json()["status"]) == (200, "created")
    hello = {"kind": "mcp/response", "payload": {"result": 1}}
    assert (await http.post("eve", hello, token=invited.json()["token"])).status_code == 200
    again = await http.post("ada", {"kind": "space/invite", "payload": {"participant_id": "eve"}})
    assert (again.status_code, again.json()["status"], again.json()["participant_id"]) == (409, "already_exists", "eve")


@rule("http.poll")
async def test_a_poll_continues_at_its_position(http: Http) -> None:
    place = (await http.get("/participants/bob/messages", "bob")).json()["next"]
    for text in ("one", "two"):
        await http.post("bob", {"kind": "chat", "payload": {"text": text}})
        polled = (await http.get(f"/participants/bob/messages?since={place}", "bob")).json()
        assert ([one["payload"]["text"] for one in polled["messages"]], polled["complete"]) == ([text], True)
        place = polled["next"]


@rule("http.events")
async def test_events_resume_after_the_last_one_seen(gateway: RunningGateway, http: Http) -> None:
    start = (await http.get("/participants/bob/messages", "bob")).json()["next"]
    for text in ("one", "two", "three"):
        await http.post("bob", {"kind": "chat", "payload": {"text": text}})
    first = await events(http, gateway, f"?since={start}", count=2)
    assert [one["data"]["payload"]["text"] for one in first] == ["one", "two"]
    # As a browser does: the same URL, and what it saw last.
    (later,) = await events(http, gateway, f"?since={start}", count=1, seen=first[-1]["id"])
    assert later["data"]["payload"]["text"] == "three"
    (board,) = await events(http, gateway, "", count=1)
    assert (board["event"], board["data"]["space"]) == ("board", "demo")


async def events(
    http: Http, gateway: RunningGateway, query: str, *, count: int, seen: str = ""
) -> list[dict[str, Any]]:
    """The first server-sent events that bob receives."""
    headers = {"authorization": f"Bearer {gateway.token_of('bob')}", **({"last-event-id": seen} if seen else {})}
    found: list[dict[str, Any]] = [{}]
    with anyio.fail_after(PATIENCE_SECONDS):
        async with http.client.stream("GET", f"/spaces/demo/events{query}", headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line:
                    key, value = line.split(": ", 1)
                    found[-1][key] = json.loads(value) if key == "data" else value
                elif len(found) == count:
                    break
                else:
                    found.append({})
    return found


@rule("http.virtual")
async def test_an_output_log_receives_as_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a log may not leave the space's folder
    early, lazy = tmp_path / "early.log", tmp_path / "deep" / "lazy.log"
    config = parse_space(
        json.dumps(
            {
                "space": {"id": "demo"},
                "participants": {
                    "early": {"output_log": str(early), "auto_connect": True},
                    "lazy": {"output_log": str(lazy)},
                },
            }
        )
    )
    async with serve_gateway(config) as gateway, joined(gateway, "early") as socket:
        await gateway_says(gateway, "lazy", "hi")
        assert (await socket.until("chat"))["payload"]["text"] == "hi"
        await lines(early, 3)
        early.write_text("")
        await gateway_says(gateway, "lazy", "again")
        (line,) = await lines(early, 1)
        assert (line["from"], line["payload"]) == ("lazy", {"text": "again"})
        kinds = [one["kind"] for one in await lines(lazy, 3)]
    assert kinds == ["system/welcome", "chat", "chat"]


async def gateway_says(gateway: RunningGateway, name: str, text: str) -> None:
    import httpx2

    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as client:
        answer = await Http(gateway, client).post(name, {"kind": "chat", "payload": {"text": text}})
        assert answer.status_code == 200


async def lines(path: Path, count: int) -> list[dict[str, Any]]:
    """A log's lines, once there are so many."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            texts = path.read_text().splitlines() if path.exists() else []
            if len(texts) >= count:
                return [json.loads(text) for text in texts]
            await anyio.sleep(0.01)


@rule("limit.size")
async def test_a_message_above_the_limit_closes_its_sender(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await bob.chat("x" * 70_000)
        assert (await bob.closing())[0] == 1009
        assert [(await ada.next())["payload"]["event"] for _ in range(2)] == ["join", "leave"]


@rule("limit.depth")
async def test_a_message_nested_too_deeply_is_refused(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        for levels in (99, 400, 30_000):
            await bob.send('{"kind":"chat","payload":{"text":"x","deep":' + "[" * levels + "]" * levels + "}}")
            assert (await bob.error())["error"] == "too_deep"


@rule("limit.rate", "limit.members")
async def test_limits_of_a_space_are_enforced() -> None:
    limits = "limits: {envelopes_per_second: 0.001, envelope_burst: 2, members: 2}"
    config = parse_space(f"space: {{id: demo}}\nparticipants: {{ada: {{}}, bob: {{}}, eve: {{}}}}\n{limits}")
    async with serve_gateway(config) as gateway, joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        for _ in range(3):
            await ada.chat("more")
        assert [(await ada.next())["kind"] for _ in range(4)] == ["system/presence", "chat", "chat", "system/error"]
        await bob.chat("me")
        assert (await ada.next())["payload"]["text"] == "me"
        async with opened(gateway, "eve") as eve:
            await eve.join(gateway.token_of("eve"))
            assert (await eve.error())["error"] == "limit_exceeded"
            assert (await eve.closing())[0] == 4429


@rule("log.envelopes", "log.decisions")
async def test_logs_have_the_form_of_the_typescript_gateway(gateway: RunningGateway, state: Path) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await bob.chat("x", id="good")
        await bob.send_envelope("participant/clear", id="bad")
        await ada.send_envelope("capability/grant", {"recipient": "bob", "capabilities": [{"kind": "x"}]}, id="grant")
        await bob.until("capability/grant")
    history = state / "logs" / "envelope-history.jsonl"
    decisions = state / "logs" / "capability-decisions.jsonl"
    with anyio.fail_after(PATIENCE_SECONDS):
        while '"event":"capability_grant"' not in (decisions.read_text() if decisions.exists() else ""):
            await anyio.sleep(0.01)
        while '"id":"grant"' not in history.read_text():
            await anyio.sleep(0.01)
    reported = [json.loads(line) for line in history.read_text().splitlines()]
    good = [(one["event"], one["participant"], one["direction"]) for one in reported if one["id"] == "good"]
    assert good == [("received", "bob", "inbound"), ("delivered", "ada", "outbound"), ("delivered", "bob", "outbound")]
    assert list(next(one for one in reported if one["id"] == "good")) == [
        "timestamp",
        "event",
        "id",
        "envelope",
        "participant",
        "space_id",
        "direction",
        "transport",
    ]
    assert [(one["event"], one.get("metadata")) for one in reported if one["id"] == "bad"] == [
        ("received", None),
        ("rejected", {"reason": "capability_violation"}),
    ]
    decided = [json.loads(line) for line in decisions.read_text().splitlines()]
    assert {one["envelope_id"]: one["result"] for one in decided if "result" in one} == {
        "good": "allowed",
        "bad": "denied",
        "grant": "allowed",
    }
    assert list(next(one for one in decided if one["envelope_id"] == "good")) == [
        "timestamp",
        "event",
        "envelope_id",
        "participant",
        "space_id",
        "result",
        "required_capability",
        "matched_capability",
        "matched_source",
        "granted_capabilities",
        "metadata",
    ]
