"""The relay over real sockets: bytes pass unchanged and at once, and failures of either side reach the other."""

import gzip
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream

from mew_agent.errors import ConfigError
from mew_agent.parts.meter.calls import MeasuredCalls
from mew_agent.parts.meter.main_line import MainLine, MeteredCall
from mew_agent.parts.meter.replies import Reply
from mew_agent.parts.meter.request_facts import CallFacts
from mew_agent.parts.meter.run_meter import parsed_listen
from mew_agent.parts.shared.relay import MAX_READ_BODY_BYTES, checked_upstream, serve_relay
from tests.support.waiting import PATIENCE_SECONDS, until

KEY = "sk-very-secret-7c1f"
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "tools": TOOLS, "stream": True}
CHUNKS = (
    b'data: {"model":"m-1","choices":[{"delta":{"content":"a\xc3\xa4"}}]}\n\ndata: {"choi',
    b'ces":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n: comment\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-odd: 1\r\nx-odd: 2\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass
class Observed:
    """A `CallObserver` that records the calls, in the order in which they ended."""

    line: MainLine = field(default_factory=MainLine)
    ended: list[MeteredCall] = field(default_factory=list)

    def begin(self, facts: CallFacts) -> MeteredCall:
        return self.line.begin(facts)

    def end(self, call: MeteredCall, reply: Reply | None) -> None:
        self.line.end(call, reply, "2026-01-31T12:00:00Z")
        self.ended.append(call)


@dataclass
class Upstream:
    """A model server at the level of bytes: `answer` gets each connection and the request that came."""

    requests: list[bytes] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)
    next: anyio.Event = field(default_factory=anyio.Event)
    sizes: list[int] = field(default_factory=list)
    connections: int = 0

    async def read_request(self, stream: SocketStream) -> bytes:
        self.connections += 1
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        size = len(body)
        while size < length:
            more = await stream.receive()
            size += len(more)
            if length < 1_000_000:
                body += more
        self.sizes.append(size)
        self.requests.append(head + b"\r\n\r\n" + body)
        return body

    async def until_closed(self, stream: SocketStream) -> None:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        self.closed.set()


Answer = Callable[[Upstream, SocketStream], Any]
StartRelay = Callable[[Answer], AbstractAsyncContextManager[tuple[Upstream, Observed, httpx2.AsyncClient]]]


@pytest.fixture
def relayed() -> StartRelay:
    """`relayed(answer)`: a relay in front of a server that answers each connection with `answer`."""

    @asynccontextmanager
    async def start(answer: Answer) -> AsyncIterator[tuple[Upstream, Observed, httpx2.AsyncClient]]:
        upstream, observed = Upstream(), Observed()

        async def serve(stream: SocketStream) -> None:
            async with stream:
                await upstream.read_request(stream)
                await answer(upstream, stream)

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with (
                serve_relay(f"http://127.0.0.1:{port}/v1", MeasuredCalls(observed)) as url,
                httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as client,
            ):
                yield upstream, observed, client
            tasks.cancel_scope.cancel()
        await listener.aclose()

    return start


def as_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def test_a_server_on_this_machine_is_reached_without_the_proxy(
    relayed: StartRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")

    async with relayed(answer) as (_, _, client):
        assert (await client.post("/chat/completions", json=QUESTION)).text == "hi"


async def test_chunk_passes_unchanged_before_the_next_exists(relayed: StartRelay) -> None:
    async def answer(upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(STREAM_HEAD)
        for chunk in CHUNKS:
            await stream.send(as_chunk(chunk))
            await upstream.next.wait()
            upstream.next = anyio.Event()
        await stream.send(b"0\r\n\r\n")

    headers = {"authorization": f"Bearer {KEY}", "x-Odd": "kept", "accept-encoding": "br, gzip, zstd"}
    async with relayed(answer) as (upstream, observed, client):
        received = []
        body = json.dumps(QUESTION, indent=3).encode()
        async with client.stream("POST", "/chat/completions?a=%2F", content=body, headers=headers) as response:
            assert response.headers.get_list("x-odd") == ["1", "2"]
            with anyio.fail_after(PATIENCE_SECONDS):
                async for chunk in response.aiter_raw():
                    received.append(chunk)
                    upstream.next.set()
    assert tuple(received) == CHUNKS
    head, _, sent = upstream.requests[0].partition(b"\r\n\r\n")
    assert sent == body
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/chat/completions?a=%2F HTTP/1.1"
    assert f"authorization: Bearer {KEY}".encode() in lines
    assert b"x-odd: kept" in lines
    assert b"accept-encoding: gzip" in lines  # the only one that the meter can read
    call = observed.ended[0]
    assert call.usage is not None
    assert (call.usage.total_tokens, call.verdict) == (10, "provisional")
    assert call.reply is not None
    assert call.reply.model == "m-1"


@pytest.mark.parametrize("has_usage", [True, False])
async def test_end_mark_before_the_usage_waits_for_it(relayed: StartRelay, *, has_usage: bool) -> None:
    first, usage, done = CHUNKS[0] + CHUNKS[1], CHUNKS[2], CHUNKS[3]

    async def answer(upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(STREAM_HEAD + as_chunk(first) + as_chunk(done))
        if has_usage:
            await stream.send(as_chunk(usage))
        await upstream.until_closed(stream)

    async with relayed(answer) as (_, observed, client):
        received = b""
        async with client.stream("POST", "/chat/completions", json=QUESTION) as response:
            with anyio.fail_after(PATIENCE_SECONDS):
                async for chunk in response.aiter_raw():
                    received += chunk
                    if b"[DONE]" in received:
                        break
        assert [call.usage and call.usage.total_tokens for call in observed.ended] == [10 if has_usage else None]
        assert observed.ended[0].verdict == "provisional"


async def test_whole_answer_and_error_pass_unchanged(relayed: StartRelay) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
    choice = {"message": {"content": "Hi."}, "finish_reason": "stop"}
    answers = [
        (b"200 OK", gzip.compress(json.dumps({"choices": [choice], "usage": usage}).encode()), b"gzip"),
        (b"429 Too Many Requests", b'{"error": {"message": "slow  down"}}', b"identity"),
    ]
    waiting = list(answers)

    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        status, body, encoding = waiting.pop(0)
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nretry-after: 7\r\n" % status
        head += b"content-encoding: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (encoding, len(body))
        await stream.send(head + body[:5])
        await stream.send(body[5:])

    async with relayed(answer) as (_, observed, client):
        for status, body, _encoding in answers:
            async with client.stream("POST", "/chat/completions", json={**QUESTION, "stream": False}) as response:
                assert str(response.status_code).encode() == status[:3]
                assert response.headers["retry-after"] == "7"
                assert b"".join([chunk async for chunk in response.aiter_raw()]) == body
    assert [(call.verdict, call.usage and call.usage.total_tokens) for call in observed.ended] == [
        ("provisional", 23),
        ("failed", None),
    ]


async def test_other_paths_pass_and_are_not_measured(relayed: StartRelay) -> None:
    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    async with relayed(answer) as (upstream, observed, client):
        for path in ("/responses/compact", "/messages/count_tokens"):
            assert (await client.post(path, json=QUESTION)).text == "{}"
        unreadable = await client.post("/chat/completions", content=b"[" * 100_000)
        assert unreadable.text == "{}"
    assert [data.split(b" ")[1] for data in upstream.requests][:2] == [
        b"/v1/responses/compact",
        b"/v1/messages/count_tokens",
    ]
    assert not observed.ended


async def test_server_that_is_down_is_a_502(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    observed = Observed()
    caplog.set_level(logging.DEBUG)
    async with (
        serve_relay(f"http://127.0.0.1:{free_port}", MeasuredCalls(observed)) as url,
        httpx2.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as client,
    ):
        headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY}
        response = await client.post(f"{url}/v1/messages?key={KEY}", json=QUESTION, headers=headers)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unreachable"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("mew_agent")]
    assert ours == ["the model server cannot be reached: connection refused"]
    assert not observed.ended


async def test_cut_stream_is_cut_for_the_agent_too(relayed: StartRelay) -> None:
    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(STREAM_HEAD + as_chunk(CHUNKS[0]))

    async with relayed(answer) as (_, observed, client):
        received = []
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("POST", "/chat/completions", json=QUESTION) as response:
                received += [chunk async for chunk in response.aiter_raw()]
        await until(lambda: observed.ended)
    assert [call.verdict for call in observed.ended] == ["failed"]


@pytest.mark.parametrize("has_begun", [True, False])
async def test_agent_that_goes_away_cancels_the_call(relayed: StartRelay, has_begun: bool) -> None:
    async def answer(upstream: Upstream, stream: SocketStream) -> None:
        if has_begun:
            await stream.send(STREAM_HEAD + as_chunk(CHUNKS[0]))
        upstream.next.set()
        await upstream.until_closed(stream)

    async with relayed(answer) as (upstream, observed, client), anyio.create_task_group() as tasks:

        async def ask() -> None:
            async with client.stream("POST", "/chat/completions", json=QUESTION) as response:
                async for _ in response.aiter_raw():
                    break
                await anyio.sleep_forever()

        tasks.start_soon(ask)
        with anyio.fail_after(PATIENCE_SECONDS):
            await upstream.next.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await upstream.closed.wait()
    assert [call.verdict for call in observed.ended if call.verdict != "failed"] == []


async def test_agent_that_goes_away_within_a_huge_request_cancels_the_call(caplog: pytest.LogCaptureFixture) -> None:
    observed, began, closed = Observed(), anyio.Event(), anyio.Event()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    began.set()
            closed.set()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        upstream = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        with anyio.fail_after(PATIENCE_SECONDS):
            async with serve_relay(upstream, MeasuredCalls(observed)) as url:
                async with await anyio.connect_tcp("127.0.0.1", httpx2.URL(url).port or 0) as agent:
                    await agent.send(unfinished(MAX_READ_BODY_BYTES + 1))
                    await began.wait()
                await closed.wait()
        tasks.cancel_scope.cancel()
    assert not observed.ended
    assert not caplog.records


async def test_a_request_that_stays_unfinished_calls_no_model(relayed: StartRelay) -> None:
    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(STREAM_HEAD + b"".join(map(as_chunk, CHUNKS)) + b"0\r\n\r\n")

    async with (
        relayed(answer) as (upstream, _, client),
        await anyio.connect_tcp("127.0.0.1", client.base_url.port or 0) as stranger,
    ):
        await stranger.send(unfinished(1))
        response = await client.post("/chat/completions", json=QUESTION)
        assert response.content == b"".join(CHUNKS)
    assert upstream.connections == 1


def unfinished(size: int) -> bytes:
    """A request that has sent so many bytes of its body, and not the last ones."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size + 99}\r\n\r\n"
    return head.encode() + b" " * size


async def test_huge_request_passes_unread_in_bounded_memory(relayed: StartRelay) -> None:
    piece, pieces = b"x" * 1_000_000, 100

    async def answer(_upstream: Upstream, stream: SocketStream) -> None:
        await stream.send(STREAM_HEAD + b"".join(map(as_chunk, CHUNKS)) + b"0\r\n\r\n")

    async def body() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield piece

    async with relayed(answer) as (upstream, observed, client):
        headers = {"content-length": str(pieces * len(piece))}
        response = await client.post("/chat/completions", content=body(), headers=headers)
        assert response.content == b"".join(CHUNKS)
    assert upstream.sizes == [pieces * len(piece)]
    assert pieces * len(piece) > MAX_READ_BODY_BYTES
    assert not observed.ended


def test_addresses_are_checked() -> None:
    assert checked_upstream("https://api.openai.com/v1/") == "https://api.openai.com/v1"
    for wrong in ("api.openai.com", "ftp://host", "https://me:secret@host/v1", "https://host?key=1"):
        with pytest.raises(ConfigError, match="--upstream") as caught:
            checked_upstream(wrong)
        assert "secret" not in str(caught.value)
    assert [parsed_listen(text) for text in ("8191", ":0", "[::1]:80")] == [
        ("127.0.0.1", 8191),
        ("127.0.0.1", 0),
        ("::1", 80),
    ]
    with pytest.raises(ConfigError, match="--listen"):
        parsed_listen("127.0.0.1:http")
