"""The HTTP side, over real HTTP."""

import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest
from anyio import to_thread
from mew_protocol.payloads.context_history import ContextHistory
from mew_spaces.gateway import http as http_api
from mew_spaces.gateway.dashboard_files import DASHBOARD
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.gateway.http import LARGE_ANSWERS, Call
from mew_spaces.gateway.server_sent_events import PAGE_BYTES

from tests.support.gateway_client import joined
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        yield client


def bearer(gateway: RunningGateway, name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.token_of(name)}"}


def problem(answer: httpx2.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["message"]
    return answer.status_code, body["error"]


async def test_health_needs_no_token_and_counts_connections(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    async with joined(gateway, "ada"):
        body = (await http.get("/health")).json()
    assert body["features"] == ["capabilities", "context", "validation", "http-io"]
    assert (body["status"], body["spaces"], body["clients"], body["protocol"]) == ("ok", 1, 1, "mew/v0.4")
    assert body["uptime"] >= 0
    assert body["version"]


async def test_many_readers_of_figures_leave_threads_to_the_storage(
    gateway: RunningGateway, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, is_over, known, threads = list[int](), threading.Event(), bearer(gateway, "bob"), 40

    def read(space: str, **_: object) -> ContextHistory:
        begun.append(1)
        is_over.wait(PATIENCE_SECONDS)
        return ContextHistory(space=space, at="2026-01-01T00:00:00Z", participants=())

    async def ask() -> None:
        assert (await http.get("/spaces/demo/context/history", headers=known)).status_code == 200

    monkeypatch.setattr(gateway.service.figures, "read", read)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(threads):
                tasks.start_soon(ask)
            await until(lambda: len(begun) > 0)
            await anyio.wait_all_tasks_blocked()
            assert len(begun) == 1
            is_over.set()


async def test_a_head_request_for_the_events_ends(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    known = bearer(gateway, "bob")
    with anyio.fail_after(PATIENCE_SECONDS):
        assert (await http.head("/spaces/demo/events", headers=known)).status_code == 200
        assert (await http.get("/spaces/demo/context", headers=known)).status_code == 200  # on the same connection


async def test_participants_lists_configured_and_connected_ones(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    async with joined(gateway, "bob"):
        known = bearer(gateway, "bob")
        listed = (await http.get("/participants?space=demo", headers=known)).json()["participants"]
    assert {one["id"]: one["connected"] for one in listed} == {
        "bob": True,
        "ada": False,
        "coder": False,
        "files": False,
    }
    assert listed[0]["capabilities"] == [{"kind": "chat"}, {"id": "mcp-response", "kind": "mcp/response"}]
    assert (await http.get("/participants?space=other", headers=known)).status_code in (403, 404)
    assert (await http.get("/participants?space=demo")).status_code == 401


async def test_a_posted_message_reaches_every_member(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    async with joined(gateway, "ada") as ada:
        answer = await http.post(
            "/participants/bob/messages?space=demo",
            headers=bearer(gateway, "bob"),
            json={"kind": "chat", "payload": {"text": "hi"}, "correlation_id": "7"},
        )
        received = await ada.next()
        position = str(gateway.service.log.position)
    assert answer.status_code == 200
    expected = {"id": received["id"], "status": "accepted", "timestamp": received["ts"], "position": position}
    assert answer.json() == expected
    assert (received["from"], received["payload"], received["correlation_id"]) == ("bob", {"text": "hi"}, ["7"])


async def test_a_posted_stream_request_is_answered_with_its_stream(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    answer = await http.post(
        "/participants/coder/messages",
        headers=bearer(gateway, "coder"),
        json={"kind": "stream/request", "payload": {"direction": "upload"}},
    )
    assert (answer.json()["status"], answer.json()["stream_id"]) == ("stream_opened", "stream-1")


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"garbage", 400, "invalid_json"),
        (b"[]", 400, "invalid_envelope"),
        (b"{}", 400, "invalid_envelope"),
        (b'{"kind": "  "}', 400, "invalid_envelope"),
        (b'{"kind": "chat"}', 400, "invalid_payload"),
        (b'{"kind": "chat", "protocol": "mew/v9", "payload": {"text": "x"}}', 400, "unsupported_protocol"),
        (b'{"kind": "chat", "from": "ada", "payload": {"text": "x"}}', 403, "identity_mismatch"),
        (b'{"kind": "system/register"}', 400, "invalid_request"),
        (b'{"kind": "system/welcome"}', 400, "reserved_kind"),
        (b'{"kind": "participant/clear"}', 403, "capability_violation"),
        (b'{"kind": "chat", "payload": {"text": "' + b"x" * 5_000 + b'"}}', 413, "too_large"),
    ],
)
async def test_a_refused_message_has_a_json_error(
    gateway: RunningGateway, http: httpx2.AsyncClient, body: bytes, status: int, error: str
) -> None:
    answer = await http.post("/participants/bob/messages", headers=bearer(gateway, "bob"), content=body)
    assert problem(answer) == (status, error)


async def test_a_stream_error_has_its_own_status(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    body = {"kind": "stream/grant-write", "payload": {"stream_id": "x", "participant_id": "ada"}}
    answer = await http.post("/participants/coder/messages", headers=bearer(gateway, "coder"), json=body)
    assert problem(answer) == (404, "stream_not_found")


async def test_every_protected_route_requires_the_right_token(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    wrong = {"authorization": "Bearer wrong"}
    for path in ("/spaces/demo/context", "/spaces/demo/proposals", "/spaces/demo/events"):
        refused = await http.get(path)
        assert problem(refused) == (401, "unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert problem(await http.get(path, headers=wrong)) == (403, "unauthorized")
    chat = {"kind": "chat", "payload": {"text": "x"}}
    url = "/participants/bob/messages"
    assert problem(await http.post(url, json=chat)) == (401, "unauthorized")
    assert problem(await http.post(url, json=chat, headers=wrong)) == (403, "unauthorized")
    assert problem(await http.post(url, json=chat, headers=bearer(gateway, "ada"))) == (403, "unauthorized")
    assert problem(await http.post("/participants/ghost/messages", json=chat, headers=wrong)) == (403, "unauthorized")


async def test_an_unknown_space_path_or_method_has_a_json_error(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    token = bearer(gateway, "bob")
    assert problem(await http.get("/spaces/other/context", headers=token)) == (404, "space_not_found")
    assert problem(await http.get("/spaces/other/events", headers=token)) == (404, "space_not_found")
    chat = {"kind": "chat", "payload": {"text": "x"}}
    url = "/participants/bob/messages?space=other"
    assert problem(await http.post(url, json=chat, headers=token)) == (404, "space_not_found")
    assert problem(await http.get("/nowhere")) == (404, "not_found")
    assert problem(await http.delete("/participants/bob/messages")) == (405, "method_not_allowed")


async def test_the_board_equals_the_reported_statuses(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    status = {
        "messages_in_context": 7,
        "tokens": 4321,
        "max_tokens": 8192,
        "context": {"basis": "reported", "level": "healthy", "severity": 0},
    }
    async with joined(gateway, "coder") as coder:
        await coder.send_envelope("participant/status", status)
        await coder.next()
    board = (await http.get("/spaces/demo/context", headers=bearer(gateway, "bob"))).json()
    lines = {line["id"]: line for line in board["participants"]}
    assert board["space"] == "demo"
    assert lines["coder"]["status"] == status
    assert lines["coder"]["age_seconds"] >= 0
    assert lines["ada"] == {"id": "ada", "connected": False}


async def test_whether_a_text_fits_follows_from_the_last_status(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    context = {"basis": "reported", "next_prompt_tokens": 7_000, "next_prompt_basis": "exact"}
    context["queued"] = {"messages": 2, "tokens": 500, "basis": "projected"}
    async with joined(gateway, "coder") as coder:
        await coder.send_envelope(
            "participant/status", {"messages_in_context": 7, "tokens": 6_900, "max_tokens": 8_192, "context": context}
        )
        await coder.next()

    async def ask(name: str, tokens: str) -> httpx2.Response:
        path = f"/spaces/demo/context/{name}/fit?tokens={tokens}"
        return await http.get(path, headers=bearer(gateway, "bob"))

    fit = (await ask("coder", "283")).json()
    assert (fit["fits"], fit["headroom_tokens"], fit["queued_messages"]) == (True, 283, 2)
    assert (fit["context_basis"], fit["tokens_basis"]) == ("exact", "given")
    assert fit["as_of"]
    assert (await ask("coder", "284")).json()["fits"] is False
    unknown = (await ask("ada", "1")).json()
    assert "fits" not in unknown
    assert unknown["reason"] == "no_report"
    assert problem(await ask("ghost", "1")) == (404, "participant_not_found")
    assert problem(await ask("coder", "many")) == (400, "invalid_request")


async def test_open_proposals_are_listed_with_their_possible_approvers(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    payload = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "a"}}}
    proposal = {"kind": "mcp/proposal", "id": "p1", "to": ["coder"], "payload": payload}
    posted = await http.post("/participants/ada/messages", headers=bearer(gateway, "ada"), json=proposal)
    assert posted.status_code == 200
    answer = (await http.get("/spaces/demo/proposals", headers=bearer(gateway, "bob"))).json()
    (one,) = answer["proposals"]
    assert (one["id"], one["from"], one["to"], one["payload"]) == ("p1", "ada", ["coder"], payload)
    assert "ada" in one["may_fulfil"]
    assert 0 <= one["age_seconds"] < 30


async def test_events_are_streamed_and_resumed(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    token = bearer(gateway, "bob")

    async def events(count: int, **headers: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with anyio.fail_after(PATIENCE_SECONDS):
            async with http.stream("GET", "/spaces/demo/events", headers={**token, **headers}) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                one: dict[str, Any] = {}
                async for line in answer.aiter_lines():
                    if line:
                        key, value = line.split(": ", 1)
                        one[key] = json.loads(value) if key == "data" else value
                    elif one:
                        found.append(one)
                        one = {}
                        if len(found) == 1 and not headers:
                            gateway.service.receive(None, *_chat("live"))
                    if len(found) == count:
                        break
        return found

    board, live = await events(2)
    assert (board["event"], live["event"], live["data"]["payload"]["text"]) == ("board", "envelope", "live")
    gateway.service.receive(None, *_chat("later"))
    (later,) = await events(1, **{"last-event-id": live["id"]})
    assert later["data"]["payload"]["text"] == "later"


async def test_last_event_id_takes_precedence_over_since(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    for text in ("first", "second", "third"):
        gateway.service.receive(None, *_chat(text))
    start, seen = (f"{gateway.service.log.epoch}-{number}" for number in (0, 2))
    headers = {**bearer(gateway, "bob"), "last-event-id": seen}
    with anyio.fail_after(PATIENCE_SECONDS):
        async with http.stream("GET", f"/spaces/demo/events?since={start}", headers=headers) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == f"id: {gateway.service.log.position}"


def _chat(text: str) -> Any:
    from mew_protocol.codec import read_draft

    return "bob", read_draft({"kind": "chat", "payload": {"text": text}})


async def test_an_invitation_returns_the_token_and_a_second_one_conflicts(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    async def invite(name: str) -> httpx2.Response:
        body = {"kind": "space/invite", "payload": {"participant_id": name, "initial_capabilities": [{"kind": "chat"}]}}
        return await http.post("/participants/ada/messages", headers=bearer(gateway, "ada"), json=body)

    created = (await invite("eve")).json()
    assert (created["status"], created["participant_id"]) == ("created", "eve")
    assert created["connection_url"] == f"ws://localhost:{gateway.port}/"
    hello = {"kind": "chat", "payload": {"text": "hello"}}
    mine = {"authorization": f"Bearer {created['token']}"}
    assert (await http.post("/participants/eve/messages", headers=mine, json=hello)).status_code == 200
    conflict = await invite("eve")
    assert problem(conflict) == (409, "already_exists")
    assert (conflict.json()["status"], conflict.json()["participant_id"]) == ("already_exists", "eve")
    assert problem(await invite("a/b")) == (400, "invalid_request")


async def test_a_removed_participant_can_neither_send_nor_receive(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    token = bearer(gateway, "bob")
    kick = {"kind": "space/kick", "payload": {"participant_id": "bob"}}
    with anyio.fail_after(PATIENCE_SECONDS):
        async with (
            joined(gateway, "bob") as bob,
            http.stream("GET", "/spaces/demo/events", headers=token) as events,
        ):
            assert (await http.post("/participants/ada/messages", headers=bearer(gateway, "ada"), json=kick)).is_success
            assert (await bob.next())["kind"] == "space/kick"
            assert await bob.closing() == (4403, "removed")
            assert "space/kick" not in [line async for line in events.aiter_lines()]
    chat = {"kind": "chat", "payload": {"text": "x"}}
    assert problem(await http.post("/participants/bob/messages", headers=token, json=chat)) == (403, "unauthorized")


@pytest.mark.parametrize(
    ("path", "start", "end"),
    [
        ("/participants/bob/messages", b'{"kind": "chat", ', b'"payload": {"text": "from before the removal"}}'),
        ("/spaces/demo/programs", b'{"participant": ', b'"eve"}'),
    ],
)
async def test_a_token_that_was_revoked_while_the_body_arrived_does_nothing(
    gateway: RunningGateway,
    http: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    start: bytes,
    end: bytes,
) -> None:
    reads, read_body = anyio.Event(), http_api._read_body
    old, ada = bearer(gateway, "bob"), bearer(gateway, "ada")

    async def noted(call: Call) -> bytes:
        reads.set()
        return await read_body(call)

    monkeypatch.setattr(http_api, "_read_body", noted)

    async def body() -> AsyncIterator[bytes]:
        yield start
        await reads.wait()  # the token is checked
        monkeypatch.undo()
        invitation = {"participant_id": "bob", "initial_capabilities": [{"kind": "chat"}]}
        for kind, payload in (("space/kick", {"participant_id": "bob"}), ("space/invite", invitation)):
            change = {"kind": kind, "payload": payload}
            assert (await http.post("/participants/ada/messages", headers=ada, json=change)).is_success
        yield end

    with anyio.fail_after(PATIENCE_SECONDS):
        answer = await http.post(path, headers=old, content=body())
    assert problem(answer) == (403, "unauthorized")
    assert not any(b"from before" in one.data for one in gateway.service.log.last(10))


async def test_messages_can_be_polled_from_a_position(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    url, token = "/participants/bob/messages", bearer(gateway, "bob")

    async def poll(**query: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await http.get(url, headers=token, params=query)).json()
        found["messages"] = [one["payload"]["text"] for one in found["messages"]]
        return found

    start = (await poll())["next"]
    for text in ("one", "two", "three"):
        gateway.service.receive(None, *_chat(text))
    first = await poll(since=start, limit=2)
    assert (first["messages"], first["complete"], first["more"]) == (["one", "two"], True, True)
    rest = await poll(since=first["next"])
    assert (rest["messages"], rest["complete"], rest["more"]) == (["three"], True, False)
    assert rest["positions"] == [rest["next"]]
    assert await poll(since=rest["next"]) == {**rest, "messages": [], "positions": []}
    for since in ("other-1", "garbage", f"{start.split('-')[0]}-999"):
        gone = await poll(since=since)
        assert (gone["messages"], gone["complete"]) == (["one", "two", "three"], False)
    last = await poll(before="newest", limit=1)
    assert (last["messages"], last["positions"]) == (["three"], rest["positions"])
    newest = await poll(before=rest["next"], limit=1)
    assert (newest["messages"], newest["complete"], newest["more"]) == (["two"], True, True)
    oldest = await poll(before=newest["next"])
    assert (oldest["messages"], oldest["complete"], oldest["more"]) == (["one"], True, False)
    for before in ("other-1", "garbage"):
        gone = await poll(before=before)
        assert (gone["messages"], gone["complete"], gone["more"]) == ([], False, False)


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "9" * 30, ""])
async def test_an_invalid_limit_is_refused(gateway: RunningGateway, http: httpx2.AsyncClient, limit: str) -> None:
    answer = await http.get(f"/participants/bob/messages?limit={limit}", headers=bearer(gateway, "bob"))
    assert problem(answer) == (400, "invalid_request")


async def test_polling_for_another_participant_is_refused(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    url = "/participants/bob/messages"
    assert problem(await http.get(url)) == (401, "unauthorized")
    assert problem(await http.get(url, headers=bearer(gateway, "ada"))) == (403, "unauthorized")


async def test_responses_carry_security_headers(http: httpx2.AsyncClient) -> None:
    headers = (await http.get("/health")).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


async def test_only_the_dashboards_files_are_served(http: httpx2.AsyncClient) -> None:
    root = await http.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "/dashboard")
    page = await http.get("/dashboard")
    assert page.status_code == (200 if (DASHBOARD / "index.html").exists() else 404)
    for path in ("/dashboard/..%2fgateway%2fhttp.py", "/dashboard/%00", "/dashboard/none.js", "/dashboard/.hidden.js"):
        assert problem(await http.get(path)) == (404, "not_found")


LONG = "x" * 900_000


async def test_a_long_history_is_read_in_pages_of_bounded_size(
    gateway: RunningGateway, http: httpx2.AsyncClient
) -> None:
    url, token = "/participants/bob/messages", bearer(gateway, "bob")
    for number in range(60):
        gateway.service.receive(None, *_chat(f"{number} {LONG}"))
    gateway.service.receive(None, *_chat("last"))

    async def read(direction: str, place: str) -> list[str]:
        found: list[str] = []
        while True:
            answer = await http.get(url, headers=token, params={direction: place, "limit": 1000})
            page = answer.json()
            assert page["complete"]
            assert len(answer.content) < 2 * PAGE_BYTES
            found += [one["payload"]["text"].split()[0] for one in page["messages"]]
            if not page["more"]:
                return found
            assert page["next"] != place
            place = page["next"]

    end = str(gateway.service.log.position)
    assert await read("since", str(gateway.service.log.start)) == [*map(str, range(60)), "last"]
    assert sorted(await read("before", end), key=int) == [*map(str, range(60))]


async def test_a_message_above_the_size_of_a_page_is_read(http: httpx2.AsyncClient, gateway: RunningGateway) -> None:
    for text in ("one", LONG * 3, "three"):
        gateway.service.receive(None, *_chat(text))
    end, url, token = str(gateway.service.log.position), "/participants/bob/messages", bearer(gateway, "bob")
    page = (await http.get(url, headers=token, params={"since": str(gateway.service.log.start)})).json()
    large = (await http.get(url, headers=token, params={"since": page["next"]})).json()
    assert [len(one["messages"]) for one in (page, large)] == [1, 1]
    assert large["messages"][0]["payload"]["text"] == LONG * 3
    assert large["more"]
    earlier = (await http.get(url, headers=token, params={"before": end})).json()
    assert earlier["messages"] == large["messages"]
    assert earlier["more"]


async def test_readers_that_pause_are_neither_closed_nor_without_bound(gateway: RunningGateway) -> None:
    gateway.service.receive(None, *_chat("x" * 8_000_000))
    url, token = "/participants/bob/messages", bearer(gateway, "bob")
    request = f"GET {url} HTTP/1.1\r\nhost: localhost\r\nauthorization: {token['authorization']}\r\n\r\n"

    def begin() -> socket.socket:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(PATIENCE_SECONDS)
        reader.connect(("127.0.0.1", gateway.port))
        reader.sendall(request.encode())
        assert reader.recv(12) == b"HTTP/1.1 200"
        return reader

    def finish(reader: socket.socket) -> int:
        with reader:
            received = 0
            while received < 8_000_000:
                received += len(reader.recv(1024 * 1024)) or 8_000_000
            return received

    readers = [await to_thread.run_sync(begin) for _ in range(LARGE_ANSWERS)]
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        assert problem(await http.get(url, headers=token)) == (429, "rate_limited")
        assert (await http.get("/participants", headers=token)).status_code == 200
        for reader in readers:
            assert 8_000_000 <= await to_thread.run_sync(finish, reader) < 8_100_000
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await http.get(url, headers=token)).status_code != 200:
                await anyio.sleep(0.01)
