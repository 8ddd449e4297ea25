"""Relay HTTP requests to a model server, and the responses back, byte for byte.

Owns the two connections: streaming in both directions, the failures of either side, and the headers for a single
connection. Passes calls to a `CallWatcher`. Stores and logs neither headers nor bodies.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from mew_listener.listener_options import ListenerOptions
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.serving import break_connection, serving, until_disconnected
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mew_agent.client_options import client_options
from mew_agent.errors import ConfigError
from mew_agent.failed_connections import connection_cause

logger = logging.getLogger("mew_agent.parts.shared.relay")

MAX_READ_BODY_BYTES: Final = 32 * 1024 * 1024
"""A larger request passes unread."""

CONNECT_SECONDS: Final = 30.0
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
AFTER_DONE_SECONDS: Final = 1.0
"""How long the usage of a stream may follow its end mark."""

_VERSION: Final = "/v1"

Headers = list[tuple[bytes, bytes]]


Holding = Literal["nothing", "the end", "briefly"]


class WatchedCall(Protocol):
    """Reads one response while it passes."""

    @property
    def holds(self) -> Holding:
        """Return which chunk to hold back.

        `the end` holds the newest chunk until the next one or the end; `briefly` for at most `AFTER_DONE_SECONDS`. So
        the client cannot start its next call before this one has ended here.
        """

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the body."""

    def end(self, *, was_cut: bool = False) -> None:
        """Read the end. Called at least once, before the client sees the end."""


class CallWatcher(Protocol):
    """Chooses the calls to read."""

    @property
    def encodings(self) -> Sequence[str]:
        """Return the readable compressions, from which the model server may choose."""

    def reads(self, method: str, path: str) -> bool:
        """Return True to read a request."""

    async def begin(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes | None, response: httpx2.Response
    ) -> WatchedCall | None:
        """Begin a call when its response begins. `body` is None if too large or incomplete."""


def checked_upstream(url: str) -> str:
    """Return the URL of a model server, with or without `/v1`. Raises `ConfigError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            "--upstream", f"{url!r} is not the URL of a model server", "such as https://api.openai.com/v1"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError("--upstream", "contains a password", "a URL without one; the agent sends its own API key")
    return url.rstrip("/")


@asynccontextmanager
async def serve_relay(
    upstream: str,
    watcher: CallWatcher | None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allowed: Allowed = ONLY_OWN,
    api_key: str | None = None,
) -> AsyncIterator[str]:
    """Relay to `upstream` until the block exits; yields the URL that the agent uses in its place. Port 0 picks a port.

    `api_key` replaces the client's key. Without a `watcher`, calls are not read. Raises `ConfigError` for an `upstream`
    that is not the URL of a server, and `OSError` if the port is in use.
    """
    # No read timeout, because models think for minutes; no limit of connections, because agents make calls in parallel.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    base = checked_upstream(upstream)
    async with httpx2.AsyncClient(timeout=timeout, limits=limits, **client_options(base)) as client:
        relay = ModelRelay(base.removesuffix(_VERSION), client, watcher, api_key)
        async with serving(
            relay,
            host=host,
            port=port,
            stopping=relay.stopping.set,
            options=ListenerOptions(is_open=True, body_bytes=None, copied_bytes=MAX_READ_BODY_BYTES),
            allowed=allowed,
        ) as url:
            yield f"{url}{_VERSION}" if base.endswith(_VERSION) else url


class ModelRelay:
    """The ASGI app."""

    def __init__(
        self, upstream: str, client: httpx2.AsyncClient, watcher: CallWatcher | None, api_key: str | None = None
    ) -> None:
        self._upstream = httpx2.URL(upstream)
        self.client = client
        self.watcher = watcher
        self._api_key = api_key
        self.stopping = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay one request. Cancels it upstream when the agent disconnects or the meter stops."""
        body = _RequestBody(scope, receive)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_gone, body, receive, tasks.cancel_scope)
            tasks.start_soon(self._cancel_when_stopping, scope, receive, tasks.cancel_scope)
            await _Exchange(self, scope, receive, send, body, tasks).run()
            tasks.cancel_scope.cancel()

    def request(self, scope: Scope, body: "_RequestBody") -> httpx2.Request:
        """Return the request for the model server: the same method, path, headers and bytes."""
        path = self._upstream.raw_path.rstrip(b"/") + scope.get("raw_path", scope["path"].encode())
        query = scope.get("query_string", b"")
        url = self._upstream.copy_with(raw_path=path + (b"?" + query if query else b""))
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        content = body.pass_on() if has_body else None
        return httpx2.Request(scope["method"], url, headers=self._headers(scope), content=content)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        headers = [one for one in _end_to_end(scope["headers"]) if one[0] != b"host"]
        if self.watcher is not None:
            headers = [_readable(name, value, self.watcher.encodings) for name, value in headers]
        if self._api_key is not None:
            own = (b"authorization", f"Bearer {self._api_key}".encode())
            headers = [own, *(one for one in headers if one[0] not in (b"authorization", b"x-api-key"))]
        return headers

    async def _cancel_when_gone(self, body: "_RequestBody", receive: Receive, scope: anyio.CancelScope) -> None:
        await body.ended.wait()
        await until_disconnected(receive)
        scope.cancel()

    async def _cancel_when_stopping(self, scope: Scope, receive: Receive, tasks: anyio.CancelScope) -> None:
        await self.stopping.wait()
        await break_connection(scope, receive)
        tasks.cancel()


class _RequestBody:
    """The body of a request on its way upstream, with a copy while it is small enough."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._chunks = Request(scope, receive).stream()
        self.ended = anyio.Event()
        self._copy: bytearray | None = bytearray()

    async def collect(self) -> None:
        """Wait for the whole body, or for more than the readable size. Raises `ClientDisconnect`.

        So an unfinished request opens no connection to the model server.
        """
        assert self._copy is not None
        async for chunk in self._chunks:
            self._copy += chunk
            if len(self._copy) > MAX_READ_BODY_BYTES:
                return
        self.ended.set()

    async def pass_on(self) -> AsyncIterator[bytes]:
        """Yield the collected chunks, then the others as they arrive. Raises `ClientDisconnect`."""
        if self._copy:
            yield bytes(self._copy)
        if not self.ended.is_set():
            self._copy = None
            async for chunk in self._chunks:
                if chunk:
                    yield chunk
            self.ended.set()

    def take_copy(self) -> bytes | None:
        """Return the whole body, once; None if too large or incomplete."""
        copy, self._copy = self._copy, None
        return bytes(copy) if copy is not None and self.ended.is_set() else None


class _Exchange:
    """One request and its response."""

    def __init__(
        self, relay: ModelRelay, scope: Scope, receive: Receive, send: Send, body: _RequestBody, tasks: TaskGroup
    ) -> None:
        self._tasks = tasks
        self._relay, self._scope, self._receive, self._send, self._body = relay, scope, receive, send, body
        self._call: WatchedCall | None = None
        self._held = b""

    async def run(self) -> None:
        try:
            await self._body.collect()
            response = await self._relay.client.send(self._relay.request(self._scope, self._body), stream=True)
        except ClientDisconnect:
            return
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            problem = f"the model server cannot be reached: {connection_cause(error)}"
            logger.warning("%s", problem)
            self._body.ended.set()
            await self._fail(problem)
            return
        self._body.ended.set()
        try:
            await self._begin_call(response)
            await self._pass_back(response)
        except httpx2.HTTPError as error:
            logger.warning("the model server cut its answer: %s", type(error).__name__)
            self._end_call(was_cut=True)
            await break_connection(self._scope, self._receive)
        finally:
            self._end_call(was_cut=True)
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _begin_call(self, response: httpx2.Response) -> None:
        watcher, path = self._relay.watcher, self._scope["path"]
        if watcher is not None and watcher.reads(self._scope["method"], path):
            self._call = await watcher.begin(path, self._scope["headers"], self._body.take_copy(), response)

    async def _pass_back(self, response: httpx2.Response) -> None:
        # The server of this process writes its own date.
        headers = [
            (name.lower(), value) for name, value in _end_to_end(response.headers.raw) if name.lower() != b"date"
        ]
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for chunk in response.aiter_raw():
            if self._call is not None:
                self._call.feed(chunk)
            await self._send_held()
            self._held = chunk
            holds: Holding = "nothing" if self._call is None else self._call.holds
            if holds == "briefly":
                self._tasks.start_soon(self._release)
            elif holds == "nothing":
                await self._send_held()
        self._end_call()
        await self._send({"type": "http.response.body", "body": self._held, "more_body": False})

    async def _send_held(self) -> None:
        """Send the held chunk."""
        held, self._held = self._held, b""
        if held:
            await self._send({"type": "http.response.body", "body": held, "more_body": True})

    async def _release(self) -> None:
        """End the call unless its usage follows soon."""
        await anyio.sleep(AFTER_DONE_SECONDS)
        self._end_call()
        await self._send_held()

    def _end_call(self, *, was_cut: bool = False) -> None:
        if self._call is not None:
            self._call.end(was_cut=was_cut)

    async def _fail(self, problem: str) -> None:
        """Send a 502 response that clients of all three APIs can read."""
        about = {"type": "api_error", "code": "upstream_unreachable"}
        response = JSONResponse({"type": "error", "error": {**about, "message": f"mew: {problem}"}}, status_code=502)
        await response(self._scope, self._receive, self._send)


def _end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers for the other end, without hop-by-hop headers."""
    named = {
        one.strip().lower() for name, value in headers if name.lower() == b"connection" for one in value.split(b",")
    }
    dropped = _HOP_BY_HOP | named | {b"expect"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _readable(name: bytes, value: bytes, encodings: Sequence[str]) -> tuple[bytes, bytes]:
    """Remove unreadable compressions from the request's headers."""
    if name != b"accept-encoding":
        return name, value
    names = [one.strip() for one in value.decode("latin-1").split(",")]
    kept = [one for one in names if one.partition(";")[0].strip().lower() in encodings]
    return name, ", ".join(kept or ["identity"]).encode()
