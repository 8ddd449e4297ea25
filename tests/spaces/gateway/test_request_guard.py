"""Attacks through a browser and by guessing: foreign pages, DNS rebinding, tokens, expensive reads."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from mew_listener.proxies import TrustedProxies
from mew_listener.request_guard import RequestGuard
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.log.memory import Entry
from starlette.types import Message
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.gateway_client import joined, opened
from tests.support.space_logs import commit

SPACE = """
space: {id: demo}
participants: {ada: {tokens: [token-of-ada], capabilities: [{kind: chat}]}}
gateway: {allowed_hosts: [mew.example.org], allowed_origins: ["https://pages.example.org"]}
limits: {failed_tokens_per_second: 0.01, joins_per_second: 0.01, reads_per_second: 0.01}
"""
TOKEN = {"authorization": "Bearer token-of-ada"}


@pytest.fixture
def config() -> SpaceConfig:
    return parse_space(SPACE)


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as client:
        yield client


HOSTS = {
    "localhost": 200,
    "localhost:8080": 200,
    "127.0.0.1:1": 200,
    "[::1]:8080": 200,
    "mew.example.org": 200,
    "rebound.example.com:8080": 403,
    "localhost.example.com": 403,
    "[::1": 403,
    "LOCALHOST:": 200,
    "evil.example.com@localhost": 403,
    "evil.example.com:80@127.0.0.1": 403,
    "evil.example.com@[::1]:80": 403,
    "a b@localhost": 403,
    "localhost/evil.example.com": 403,
    "localhost?evil.example.com": 403,
    "localhost#evil.example.com": 403,
    "lo\tcalhost": 403,
    "127.0.0.1:evil": 403,
    "[::1]evil.example.com": 403,
}


@pytest.mark.parametrize("host", HOSTS)
async def test_only_the_gateways_own_hosts_are_served(http: httpx2.AsyncClient, host: str) -> None:
    for path in ("/health", "/dashboard", "/spaces/demo/context"):
        answer = await http.get(path, headers={**TOKEN, "host": host})
        assert answer.status_code == HOSTS[host]


async def test_a_foreign_host_is_refused_without_an_address_of_the_client() -> None:
    refused: list[Message] = []

    async def serve(*_: object) -> None:
        pytest.fail("served")

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        refused.append(message)

    guard = RequestGuard(serve, hosts=(), origins=(), proxies=TrustedProxies())
    await guard({"type": "http", "client": None, "headers": [(b"host", b"rebound.example.com")]}, receive, send)
    assert refused[0]["status"] == 403


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://localhost:1", "file://"])
async def test_a_foreign_page_gets_nothing(gateway: RunningGateway, http: httpx2.AsyncClient, origin: str) -> None:
    headers = {**TOKEN, "origin": origin}
    assert (await http.get("/participants", headers=headers)).status_code == 403
    post = await http.post("/participants/ada/messages", headers=headers, json={"kind": "chat"})
    assert post.status_code == 403
    with pytest.raises(InvalidStatus) as caught:
        async with connect(gateway.ws_url, additional_headers=headers):
            pytest.fail("a foreign page connected")
    assert caught.value.response.status_code == 403


async def test_own_pages_and_allowed_origins_are_served(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    for origin in (gateway.url, "https://pages.example.org"):
        assert (await http.get("/participants", headers={**TOKEN, "origin": origin})).status_code == 200
        async with connect(gateway.ws_url, additional_headers={"origin": origin}):
            pass


async def test_failed_tokens_are_limited_over_http_and_logged(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"authorization": "Bearer guess"}
    statuses = [(await http.get("/participants", headers=wrong)).status_code for _ in range(105)]
    assert statuses == [403] * 100 + [429] * 5
    assert "invalid token from 127.0.0.1" in caplog.text
    assert (await http.get("/participants", headers=TOKEN)).status_code == 200


async def test_failed_tokens_are_limited_over_websocket(gateway: RunningGateway) -> None:
    for _ in range(100):
        gateway.registry.failed_tokens.try_spend("127.0.0.1")
    async with opened(gateway, "ada") as stranger:
        await stranger.join("guess")
        assert (await stranger.error())["error"] == "rate_limited"
        assert (await stranger.closing())[0] == 4429


async def test_repeated_joins_are_limited(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        for _ in range(200):
            await ada.join("token-of-ada")
        assert (await ada.error())["error"] == "rate_limited"
        await ada.chat("still connected")
        assert (await ada.until("chat"))["payload"]["text"] == "still connected"


async def test_reads_are_limited(http: httpx2.AsyncClient) -> None:
    statuses = [(await http.get("/participants/ada/messages", headers=TOKEN)).status_code for _ in range(502)]
    assert statuses == [200] * 500 + [429] * 2


class Counted(deque[Entry]):
    """Entries of a log, and how many were read."""

    read = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in super().__iter__():
            self.read += 1
            yield entry

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        return super().__getitem__(index)


async def test_a_read_of_one_message_costs_one_message(gateway: RunningGateway, http: httpx2.AsyncClient) -> None:
    log = gateway.service.log
    for number in range(9_000):
        log.stage(b"{}" * 20, sender="ada", id=str(number), at=0.0)
    commit(log)
    log._entries = entries = Counted(log._entries)
    assert len(log.since(log.start, limit=2) or ()) == 2
    assert entries.read == 2
    page = (await http.get("/participants/ada/messages?limit=1000", headers=TOKEN)).text
    assert '"more":true' in page
