"""The HTTP server on real sockets."""

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mew_listener.connection_limits import UnjoinedLimits
from mew_listener.http_connection import admit, authenticate, bearer_of
from mew_listener.listener_options import ListenerOptions
from mew_listener.serving import listening_socket, serving, while_connected
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.support.waiting import PATIENCE_SECONDS

APP = PlainTextResponse("here")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_server_answers_while_its_block_runs(host: str) -> None:
    stopped: list[str] = []
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        async with serving(APP, host=host, port=0, stopping=lambda: stopped.append("now")) as url:
            assert (await client.get(url)).text == "here"
            assert not stopped
        assert stopped == ["now"]
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)


async def test_taken_port_is_reported_before_anything_is_served() -> None:
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        async with serving(APP, host="127.0.0.1", port=taken.getsockname()[1], stopping=lambda: None):
            raise AssertionError


async def test_unfinished_bodies_that_are_copied_count_as_memory_of_strangers() -> None:
    size = 100_000
    options = ListenerOptions(
        is_open=True, body_bytes=None, copied_bytes=size, unjoined=UnjoinedLimits(total_bytes=3 * size)
    )

    async def copy(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    async with serving(copy, host="127.0.0.1", port=0, stopping=lambda: None, options=options) as url:
        port = httpx2.URL(url).port or 0
        first = await anyio.connect_tcp("127.0.0.1", port)
        others = [first, *[await anyio.connect_tcp("127.0.0.1", port) for _ in range(3)]]
        with anyio.fail_after(PATIENCE_SECONDS):
            for one in others:
                await one.send(
                    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * (size - 1)
                )
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await first.receive()
        for one in others:
            await one.aclose()


async def test_a_client_with_many_unfinished_requests_loses_its_own_first() -> None:
    options = ListenerOptions(unjoined=UnjoinedLimits(connections=4))

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        authenticate(scope, request.headers["x-client"])
        await PlainTextResponse(await request.body())(scope, receive, send)

    async with serving(echo, host="127.0.0.1", port=0, stopping=lambda: None, options=options) as url:
        port, sent = httpx2.URL(url).port or 0, []
        with anyio.fail_after(PATIENCE_SECONDS):
            for client in ("ada", "eve", "eve", "eve", "eve"):
                connection = await anyio.connect_tcp("127.0.0.1", port)
                sent.append(connection)
                head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Client: {client}\r\nContent-Length: 4\r\n"
                await connection.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
                assert b"100 Continue" in await connection.receive()  # the application reads
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await sent[1].receive()
            await sent[0].send(b"here")
            assert (await sent[0].receive()).startswith(b"HTTP/1.1 200")
        for one in sent:
            await one.aclose()


async def test_a_client_that_reads_nothing_of_a_stream_is_disconnected() -> None:
    ended = dict[str, anyio.Event](idle=anyio.Event(), slow=anyio.Event())

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        admit(scope, "ada")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            async with while_connected(receive):
                while True:
                    await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
                    await anyio.lowlevel.checkpoint()
        finally:
            ended[scope["path"].strip("/")].set()

    options = ListenerOptions(stalled_seconds=0.5)
    async with serving(stream, host="127.0.0.1", port=0, stopping=lambda: None, options=options) as url:
        port = httpx2.URL(url).port or 0
        idle, slow = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(2)]
        await idle.send(b"GET /idle HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await slow.send(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with idle, slow:
            with anyio.fail_after(PATIENCE_SECONDS):
                while not ended["idle"].is_set():
                    await slow.receive(1_000)
            assert not ended["slow"].is_set()


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None), ("", None)],
)
def test_a_bearer_token_is_read_from_its_header(header: str, token: str | None) -> None:
    assert bearer_of({"authorization": header}) == token
