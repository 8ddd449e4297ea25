"""A provider that sends raw bytes, for answers that no server library would send."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest


@dataclass(frozen=True)
class Answer:
    """The bytes of one answer. `then`: `keep` or `close` the connection, or `hang` until the client disconnects."""

    payload: bytes
    then: str = "keep"


@dataclass
class ReceivedRequest:
    """A received request and the number of its connection."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class RawProvider:
    """Answers requests with the queued answers in order. Without an answer it closes the connection.

    `requests_per_connection` makes it drop a connection unanswered at the request after that many.
    """

    port: int = 0
    answers: list[Answer] = field(default_factory=list)
    routes: dict[str, Answer] = field(default_factory=dict)
    received: list[ReceivedRequest] = field(default_factory=list)
    requests_per_connection: int | None = None
    client_left: anyio.Event = field(default_factory=anyio.Event)
    _connections: int = 0
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @staticmethod
    def json(body: object, status: int = 200, content_type: str = "application/json", **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(content)}\r\n{extra}\r\n"
        return Answer(head.encode() + content)

    @staticmethod
    def body(content: bytes, content_type: str) -> Answer:
        """A body in one chunk, of no announced length."""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        return Answer(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))

    @staticmethod
    def silence() -> Answer:
        """Send nothing until the client disconnects."""
        return Answer(b"", "hang")

    @staticmethod
    def events(
        *chunks: object, end: str = "done", then: str = "keep", content_type: str = "text/event-stream"
    ) -> Answer:
        """A stream. `end`: `done` has the end mark, `body` lacks it, `open` leaves the body unfinished."""
        lines = [chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode() for chunk in chunks]
        if end == "done":
            lines.append(b"data: [DONE]")
        pieces = [line + b"\n\n" for line in lines]
        payload = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        payload += b"" if end == "open" else b"0\r\n\r\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nx-request-id: req-7\r\n"
        head += "transfer-encoding: chunked\r\n\r\n"
        return Answer(head.encode() + payload, then)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number, served = self._connections, 0
        self._writers.append(writer)
        try:
            while (request := await self._read(reader, number)) is not None:
                self.received.append(request)
                answer = self.routes.get(request.path) or (self.answers.pop(0) if self.answers else None)
                if answer is None or served == self.requests_per_connection:
                    break
                served += 1
                writer.write(answer.payload)
                await writer.drain()
                if answer.then == "close":
                    break
                if answer.then == "hang":
                    await reader.read()
                    self.client_left.set()
                    break
        except ConnectionError:
            self.client_left.set()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> ReceivedRequest | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = head[0].split(" ")
        return ReceivedRequest(connection, method, path, headers, json.loads(content) if content else None)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def _serving() -> AsyncIterator[RawProvider]:
    provider = RawProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()
        await provider.close()
        await server.wait_closed()


@pytest.fixture
async def provider() -> AsyncIterator[RawProvider]:
    async with _serving() as provider:
        yield provider


@pytest.fixture
def chunk() -> Callable[..., dict[str, Any]]:
    """Makes a chunk of a stream: `chunk("text", finish="stop", usage={...})`."""

    def make(content: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
        delta = {} if content is None else {"content": content}
        return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}

    return make
