"""Points of OWASP's WebSocket security cheat sheet that no other test shows."""

import json
import logging

import httpx2
import pytest
from anyio import to_thread
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.gateway_client import joined, opened
from tests.support.raw_socket import HANDSHAKE, raw_socket

OLDER = {
    "hybi-07": HANDSHAKE.replace(b"Version: 13", b"Version: 7"),
    "no version": HANDSHAKE.replace(b"Sec-WebSocket-Version: 13\r\n", b""),
    "hixie-76": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nOrigin: http://localhost\r\n"
        b"Sec-WebSocket-Key1: 4 @1  46546xW%0l 1 5\r\nSec-WebSocket-Key2: 12998 5 Y3 1  .P00\r\n\r\n^n:ds[4U"
    ),
}
INJECTIONS = (
    "<script>alert(1)</script>",
    "'; DROP TABLE envelopes; --",
    "$(touch /tmp/owned) `id` | sh",
    "${TOKEN} {{7*7}} %s %n",
    "../../etc/passwd\x00",
    '{"__proto__": {"admin": true}}',
    "line\r\nX-Injected: 1\u2028\u202e",
)


@pytest.mark.parametrize("draft", OLDER)
async def test_handshakes_of_older_drafts_are_refused(draft: str, gateway: RunningGateway) -> None:
    def attack() -> bytes:
        with raw_socket(gateway) as connection:
            connection.sendall(OLDER[draft])
            return connection.recv(100)

    assert b" 101 " not in (await to_thread.run_sync(attack)).splitlines()[0]


async def test_cookies_are_neither_set_nor_accepted(gateway: RunningGateway) -> None:
    cookies = {
        "cookie": "; ".join(f"{name}={gateway.token_of('ada')}" for name in ("token", "session", "Authorization"))
    }
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        for path in ("/dashboard", "/health", "/participants"):
            assert "set-cookie" not in (await http.get(path)).headers
        assert (await http.get("/participants", headers=cookies)).status_code == 401
    async with opened(gateway, "ada", additional_headers=cookies) as ada:
        await ada.join(None)
        assert (await ada.error())["error"] == "unauthorized"


async def test_a_token_in_the_query_is_not_accepted(gateway: RunningGateway) -> None:
    token = gateway.token_of("ada")
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        for name in ("token", "access_token", "authorization"):
            assert (await http.get("/participants", params={name: token})).status_code == 401


async def test_injections_are_carried_as_data(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        for text in INJECTIONS:
            await ada.chat(text)
            assert (await bob.until("chat"))["payload"]["text"] == text
        await ada.send_envelope("space/invite", {"participant_id": "../../etc/cron.d/x", "initial_capabilities": []})
        assert "invalid characters" in (await ada.error())["message"]
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        answer = await http.get(f"/spaces/{INJECTIONS[0]}/context", headers={"authorization": "Bearer x"})
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text)["error"]


async def test_a_refused_token_is_not_logged(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "almost-the-right-token"
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        await http.get("/participants", headers={"authorization": f"Bearer {secret}"})
    async with opened(gateway, "ada") as ada:
        await ada.join(secret)
        await ada.closing()
    written = [one.getMessage() for one in caplog.records if one.name == "mew_spaces"]
    assert any("invalid token" in line for line in written)
    assert not any(secret in line or gateway.token_of("ada") in line for line in written)


async def test_refused_hosts_and_origins_are_logged_with_the_address(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http:
        await http.get("/health", headers={"host": "evil.example"})
        await http.get("/health", headers={"origin": "https://evil.example"})
    lines = [one.getMessage() for one in caplog.records if "request refused" in one.getMessage()]
    assert lines == [
        "request refused: from 127.0.0.1, host 'evil.example', origin ''",
        f"request refused: from 127.0.0.1, host '{gateway.host}:{gateway.port}', origin 'https://evil.example'",
    ]
