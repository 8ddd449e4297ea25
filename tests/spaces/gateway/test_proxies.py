"""Clients behind a reverse proxy: their addresses, their limits, and headers that clients cannot forge."""

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import pytest
from anyio import to_thread
from mew_listener.proxies import Forwarded, TrustedProxies
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.support.gateway_client import opened
from tests.support.raw_socket import HANDSHAKE, raw_socket, read_until_closed

SPACE = """
space: {id: demo}
participants: {ada: {capabilities: [{kind: "*"}]}}
limits: {unjoined_connections_per_address: 5, failed_tokens_per_second: 0.001}
gateway: {public_url: "https://mew.example.org", trusted_proxies: %s}
"""
FAILURES_AT_ONCE = 100

PROXIES = TrustedProxies(("127.0.0.1", "10.0.0.0/8", "fd00::/8"))


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({"x-forwarded-for": "192.0.2.7"}, "192.0.2.7"),
        ({"x-forwarded-for": "6.6.6.6, 192.0.2.7"}, "192.0.2.7"),
        ({"x-forwarded-for": "6.6.6.6, 192.0.2.7, 10.1.2.3"}, "192.0.2.7"),
        ({"x-forwarded-for": "10.9.9.9, 10.1.2.3"}, "10.9.9.9"),
        ({"x-forwarded-for": "192.0.2.7:4711"}, "192.0.2.7"),
        ({"x-forwarded-for": "2001:db8::7"}, "2001:db8::7"),
        ({"x-forwarded-for": "[2001:DB8::7]:80, fd00::1"}, "2001:db8::7"),
        ({"x-forwarded-for": "::ffff:192.0.2.7"}, "192.0.2.7"),
        ({"x-forwarded-for": "192.0.2.7, unknown, 10.1.2.3"}, "10.1.2.3"),
        ({"x-forwarded-for": "<script>"}, "127.0.0.1"),
        ({"x-forwarded-for": ""}, "127.0.0.1"),
        ({"x-forwarded-proto": "https"}, "127.0.0.1"),
        ({"forwarded": "for=192.0.2.7;proto=https;host=mew.example.org"}, "192.0.2.7"),
        ({"forwarded": 'For="[2001:db8::7]:4711", for=10.1.2.3'}, "2001:db8::7"),
        ({"forwarded": "for=_hidden, for=10.1.2.3"}, "10.1.2.3"),
        ({"forwarded": "for=192.0.2.7", "x-forwarded-for": "192.0.2.7"}, "192.0.2.7"),
        # A client sends the form that its proxy does not set.
        ({"forwarded": "for=6.6.6.6", "x-forwarded-for": "192.0.2.7"}, "127.0.0.1"),
        ({"forwarded": "for=192.0.2.7", "x-forwarded-for": "6.6.6.6"}, "127.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(headers: dict[str, str], client: str) -> None:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    forwarded = PROXIES.read("127.0.0.1", sent)
    assert (forwarded.client if forwarded is not None else "127.0.0.1") == client
    assert PROXIES.read("192.0.2.99", sent) is None, "only a trusted proxy may say so"
    assert TrustedProxies().read("127.0.0.1", sent) is None


def test_scheme_and_host_are_the_nearest_proxys() -> None:
    both = [(b"x-forwarded-proto", b"javascript, HTTPS"), (b"x-forwarded-host", b"evil.example, mew.example.org")]
    assert PROXIES.read("10.0.0.1", both) == Forwarded("10.0.0.1", "https", "mew.example.org")
    unknown = [(b"x-forwarded-proto", b"javascript")]
    assert PROXIES.read("10.0.0.1", unknown) == Forwarded("10.0.0.1", None, None)
    assert PROXIES.read("::ffff:10.0.0.1", unknown) is not None, "a proxy may be reached over either protocol"
    assert PROXIES.read("", unknown) is None


def space(*, trusted: bool) -> SpaceConfig:
    return parse_space(SPACE % ("[127.0.0.1]" if trusted else "[]"))


@contextmanager
def half_open(gateway: RunningGateway, client: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections of a client behind a proxy that do not join."""
    line = f"Host: localhost\r\nX-Forwarded-For: {client}\r\n".encode()
    request = HANDSHAKE.replace(b"Host: localhost\r\n", line)
    with ExitStack() as stack:
        connections = [stack.enter_context(raw_socket(gateway)) for _ in range(count)]
        for connection in connections:
            connection.sendall(request)
            assert connection.recv(12) == b"HTTP/1.1 101"
        yield connections


def is_open(connection: socket.socket) -> bool:
    """Whether the gateway has left a connection open."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


async def test_connections_before_join_count_for_the_client_behind_the_proxy() -> None:
    def attack(gateway: RunningGateway) -> tuple[list[bool], list[bool]]:
        with (
            half_open(gateway, "192.0.2.2", 1) as other,
            half_open(gateway, "192.0.2.1", 7) as greedy,
        ):
            for connection in greedy[:2]:
                read_until_closed(connection)
            return [is_open(one) for one in greedy[2:]], [is_open(one) for one in other]

    async with serve_gateway(space(trusted=True)) as gateway:
        greedy, other = await to_thread.run_sync(attack, gateway)
    assert greedy == [True] * 5
    assert other == [True], "the others behind the proxy are not affected"


async def test_forged_headers_do_not_multiply_connections() -> None:
    def attack(gateway: RunningGateway) -> list[bool]:
        with ExitStack() as stack:
            forged = [stack.enter_context(half_open(gateway, f"192.0.2.{number}", 1))[0] for number in range(7)]
            for connection in forged[:2]:
                read_until_closed(connection)
            return [is_open(one) for one in forged[2:]]

    async with serve_gateway(space(trusted=False)) as gateway:
        assert await to_thread.run_sync(attack, gateway) == [True] * 5


@pytest.mark.parametrize("trusted", [True, False], ids=["proxy", "stranger"])
async def test_wrong_tokens_count_for_the_client_behind_the_proxy(
    trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serve_gateway(space(trusted=trusted)) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http,
    ):

        async def guess(client: str) -> int:
            headers = {"authorization": "Bearer guess", "x-forwarded-for": client}
            return (await http.get("/participants", headers=headers)).status_code

        with caplog.at_level(logging.CRITICAL):
            for _ in range(FAILURES_AT_ONCE):
                assert await guess("192.0.2.1") == 403
            assert await guess("192.0.2.1") == 429
            # Another client behind the proxy has its own rate; a stranger who forges an address has not.
            assert await guess("192.0.2.2") == (403 if trusted else 429)
        async with opened(gateway, "ada", additional_headers={"x-forwarded-for": "192.0.2.1"}) as ada:
            await ada.join("guess")
            assert (await ada.error())["error"] == "rate_limited"


async def test_log_names_the_client_behind_the_proxy(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serve_gateway(space(trusted=True)) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http,
    ):
        await http.get("/participants", headers={"authorization": "Bearer x", "x-forwarded-for": "192.0.2.77"})
    assert "invalid token from 192.0.2.77" in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-forwarded-host": "mew.example.org"}, 200),
        ({"x-forwarded-host": "mew.example.org", "origin": "https://mew.example.org"}, 200),
        ({"x-forwarded-host": "evil.example"}, 403),
        ({"x-forwarded-host": "mew.example.org", "origin": "https://evil.example"}, 403),
        ({"x-forwarded-host": "mew.example.org", "host": "evil.example"}, 403),
    ],
)
async def test_forwarded_host_is_checked_like_the_host_itself(headers: dict[str, str], status: int) -> None:
    async with (
        serve_gateway(space(trusted=True)) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http,
    ):
        assert (await http.get("/health", headers=headers)).status_code == status
