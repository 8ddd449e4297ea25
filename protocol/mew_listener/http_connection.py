"""One HTTP/1.1 connection: reads requests, runs the ASGI application, writes responses.

Owns the limits of each phase of a connection, and the answers to clients that exceed them. h11 owns the syntax of HTTP.
Invalid requests get a short answer, and log lines only within `log_budget`.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import h11
from starlette.datastructures import Headers as StarletteHeaders

from mew_listener.connection_limits import TLS_BYTES
from mew_listener.listener_options import ListenerOptions
from mew_listener.proxies import Headers
from mew_listener.request_guard import UNAUTHORIZED, RequestGuard
from mew_listener.server_connections import ServerConnections, end_writing
from mew_listener.websocket_connection import WebSocketConnection, WebSocketRequest

log = logging.getLogger("mew_listener")

AUTHENTICATED = "mew.is_authenticated"
"""Key of a request's `state`: its client has shown a valid token, so the connection does not count as a stranger's."""

STREAMING = "mew.is_streaming"
"""Key of a request's `state`: its response may take any time."""

BREAK_OFF = "mew.break_off"
"""Key of a request's `extensions`: a function that closes the connection in the middle of a response."""

_NOTE_CLIENT = "mew.note_client"
"""Key of a request's `extensions`: a function that counts the rest of an unfinished request for its client."""

MAX_HEADER_BYTES = 32 * 1024

KEEP_ALIVE_SECONDS = 5.0
"""How long a connection stays open without a further request."""

LAST_READ_SECONDS = 0.1
"""How long an idle connection stays open afterwards: when a process was delayed, timers run before arrived data."""

CLOSE_SECONDS = 5.0
"""How long a client may take to read the end of the last response."""

PAUSE_BYTES = 64 * 1024
"""Nothing is read while the application has this many bytes of a body waiting."""

MAX_EVENTS_A_TURN = 64
"""How many parts of requests of one connection are read before other connections get a turn."""

SMALL_CHUNK_BYTES = 64
MAX_SMALL_CHUNKS = 1_000
"""How many smaller chunks a body may have: each costs as much as a large one."""

Message = MutableMapping[str, Any]


def authenticate(scope: MutableMapping[str, Any], client: str) -> None:
    """Mark the client of a request as authenticated, under the name `client`."""
    scope.setdefault("state", {})[AUTHENTICATED] = True
    if (note := scope.get("extensions", {}).get(_NOTE_CLIENT)) is not None:
        note(client)


def admit(scope: MutableMapping[str, Any], client: str) -> None:
    """Mark the client of a request as authenticated, and lift its time limit."""
    scope.setdefault("state", {})[STREAMING] = True
    authenticate(scope, client)


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in an `Authorization: Bearer` header, None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


class HttpConnection(asyncio.Protocol):
    """One HTTP connection."""

    def __init__(self, connections: ServerConnections, guard: RequestGuard, options: ListenerOptions) -> None:
        """`guard` contains the application."""
        self.connections, self.guard, self.options = connections, guard, options
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.client: tuple[str, int] | None = None
        self.address = ""
        """The address that the connection counts for: the client's behind a trusted proxy."""
        self.scheme = "http"
        self._h11 = h11.Connection(h11.SERVER, MAX_HEADER_BYTES)
        self._exchange: HttpExchange | None = None
        """The request that is being answered."""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._has_answered = False
        self._is_refused = False
        """Whether nothing that arrives is read any more."""
        self._is_read_paused = False
        """Whether the application or the client's next request waits."""
        self._has_unread = False
        """Whether data that has arrived waits for the next turn of the event loop."""
        self._small_chunks = 0
        self._is_head = False
        self.writable = asyncio.Event()
        self.writable.set()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.client = (peer[0], peer[1])
            self.address = peer[0]
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"
        self.connections.add(self, self.address)
        self._set_deadline(self.options.header_seconds)
        self._hold()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._exchange is None:
            if not self._header_bytes and self._has_answered:
                self._set_deadline(self.options.header_seconds)
            self._header_bytes += len(data)
        self._h11.receive_data(data)
        if not self._has_unread:
            self._read_events()
            self._hold()

    def eof_received(self) -> bool:
        return False  # the transport closes: a client that has sent its end reads no more

    def pause_writing(self) -> None:
        self.writable.clear()
        self._watch_reader()

    def resume_writing(self) -> None:
        self.writable.set()
        self._ignore_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._ignore_reader()
        self.connections.remove(self)
        self.writable.set()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()

    # Called by the server

    def evict(self) -> bool:
        """Close the connection at once, unless it carries an authenticated request that has arrived."""
        exchange = self._exchange
        if exchange is not None and exchange.has(AUTHENTICATED) and not exchange.more_body:
            return False
        self._is_refused = True
        self.transport.abort()
        return True

    def shutdown(self) -> None:
        """Close the connection once the running response has ended."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keeps_alive = False
            if self._exchange.has(STREAMING):
                self._abort_after(CLOSE_SECONDS)

    # Reading

    def _read_events(self) -> None:
        for _ in range(MAX_EVENTS_A_TURN):
            if self._is_refused or not self._read_event():
                return
        self._has_unread = True
        self.transport.pause_reading()
        self.connections.loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._has_unread = False
        if self.transport.is_closing():
            return
        self._read_events()
        self._hold()
        if not (self._has_unread or self._is_read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _read_event(self) -> bool:
        """Handle the next part of a request. Returns False if there is none or it must wait."""
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            log.warning("invalid HTTP request: %s", error)
            self._refuse(error.error_status_hint, "invalid_request", "invalid HTTP request")
            return False
        if event is h11.PAUSED:  # further requests wait for the end of this one
            self._header_bytes = len(self._h11.trailing_data[0])
            self.pause_reading()
        elif isinstance(event, h11.Request):
            self._begin(event)
        elif isinstance(event, h11.Data):
            self._add_body(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            self._end_body()
        return isinstance(event, h11.Request | h11.Data | h11.EndOfMessage)

    def _add_body(self, data: bytes) -> None:
        self._small_chunks += len(data) < SMALL_CHUNK_BYTES
        if self._small_chunks > MAX_SMALL_CHUNKS:
            self._refuse(HTTPStatus.BAD_REQUEST, "invalid_request", "body: too many small chunks")
        elif self._exchange is not None:
            self._exchange.add_body(data)
            self._check_size(self._exchange.body_bytes)

    def _end_body(self) -> None:
        self.connections.unfinished.leave(self)
        if self._exchange is not None:
            self._exchange.end_body()
        elif self._h11.our_state is h11.DONE:  # the rest of an answered request
            self._start_next()

    def _begin(self, event: h11.Request) -> None:
        headers = [(name, value) for name, value in event.headers]
        self._count_for(self.connections.client_of(self.client, headers))
        self._header_bytes, self._small_chunks, self._is_head = 0, 0, event.method == b"HEAD"
        raw_path, _, query = event.target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": event.http_version.decode("ascii"),
            "server": self.transport.get_extra_info("sockname", (None, None))[:2],
            "client": self.client,
            "scheme": self.scheme,
            "method": event.method.decode("ascii"),
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "state": {},
            "extensions": {BREAK_OFF: self.transport.close, _NOTE_CLIENT: self._note_client},
        }
        if self._is_upgrade(event.method, headers):
            self._become_websocket(event, headers)
            return
        length = next((int(value) for name, value in headers if name == b"content-length"), 0)
        if not self._check_size(length):
            return
        self._exchange = HttpExchange(self, scope)
        self._set_deadline(self.options.request_seconds)
        self.connections.start(self._exchange.run())

    def _is_upgrade(self, method: bytes, headers: Headers) -> bool:
        if self.options.websocket is None or method != b"GET":
            return False
        named = {name: value.lower() for name, value in headers if name in (b"upgrade", b"connection")}
        tokens = [one.strip() for one in named.get(b"connection", b"").split(b",")]
        return named.get(b"upgrade") == b"websocket" and b"upgrade" in tokens

    def _become_websocket(self, event: h11.Request, headers: Headers) -> None:
        """Hand the connection over to the WebSocket protocol, or refuse the handshake."""
        options = self.options.websocket
        assert options is not None
        problem, _ = self.guard.examine(self.client[0] if self.client else "", headers)
        if problem is not None:
            self._refuse(HTTPStatus.FORBIDDEN, UNAUTHORIZED, problem)
            return
        lines = (b"%s: %s\r\n" % one for one in headers)
        raw = b"GET %s HTTP/1.1\r\n%s\r\n" % (event.target, b"".join(lines))
        is_secure, rest = self.scheme == "https", self._h11.trailing_data[0]
        connection = WebSocketConnection(
            self.transport, self.connections, options, address=self.address, is_secure=is_secure
        )
        query = event.target.partition(b"?")[2].decode("ascii")
        request = WebSocketRequest(query, StarletteHeaders(raw=list(headers)), self.address)
        self.connections.unjoined.leave(self)
        self.transport.set_protocol(connection)
        if not raw.isascii() or not connection.shake_hands(raw, request):  # older versions of websockets log the first
            self.transport.set_protocol(self)
            self._refuse(HTTPStatus.BAD_REQUEST, "invalid_request", "invalid WebSocket handshake")
            return
        self._is_refused = True
        self._cancel_deadline()
        self.connections.open.discard(self)
        if rest:
            connection.data_received(rest)

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        if not self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = True
            if not self._has_unread:
                self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._is_read_paused:
            self._is_read_paused = False
            if not (self._has_unread or self.transport.is_closing()):
                self.transport.resume_reading()

    # Writing

    @property
    def waits_for_continue(self) -> bool:
        """True if the client waits for `100 Continue` before it sends the body."""
        return self._h11.they_are_waiting_for_100_continue

    def write(self, event: h11.Event) -> None:
        """Write a part of the response."""
        data = self._h11.send(event)
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def end_response(self, *, keeps_alive: bool) -> None:
        """Wait for the next request, or close the connection."""
        self._exchange, self._has_answered = None, True
        if self.transport.is_closing():
            return
        if not keeps_alive or self._h11.our_state is h11.MUST_CLOSE:
            self._close()
            return
        self.connections.count(self, self.address)  # its next request may come from another client
        self._set_deadline(KEEP_ALIVE_SECONDS)
        self.resume_reading()
        if self._h11.their_state is h11.DONE:
            self._start_next()
        self._hold()

    def _start_next(self) -> None:
        self._h11.start_next_cycle()
        if not self._has_unread:
            self._read_events()  # a client may send several requests at once

    def fail(self) -> None:
        """Close the connection after the application failed or ended its response early."""
        self._exchange = None
        self.transport.abort()

    # Limits

    def _hold(self) -> None:
        """Count the buffered bytes of an unauthenticated connection."""
        exchange = self._exchange
        held = TLS_BYTES if self.scheme == "https" else 0
        held += self._header_bytes
        if exchange is not None and not exchange.has(AUTHENTICATED):
            held += exchange.held_bytes + self.transport.get_write_buffer_size()
        self.connections.unjoined.hold(self, held)
        if exchange is not None:
            self.connections.unfinished.hold(self, exchange.held_bytes)

    def _note_client(self, client: str) -> None:
        """Count the connection for its authenticated client until the body has ended."""
        if self._exchange is not None and self._exchange.more_body:
            self.connections.unjoined.leave(self)
            self.connections.unfinished.enter(self, client)
            self._hold()

    def _count_for(self, address: str) -> None:
        """Count the connection for the client that a proxy names."""
        if address != self.address:
            self.connections.unjoined.leave(self)
            self.address = address
            self.connections.count(self, address)

    def _check_size(self, body_bytes: int) -> bool:
        limit = self.options.body_bytes
        if limit is not None and body_bytes > limit:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"body: exceeds {limit:,} bytes")
            return False
        return True

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error unless the application has started its response, and close the connection."""
        exchange, self._exchange = self._exchange, None
        self._is_refused = True
        if exchange is not None:
            exchange.disconnect()
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = self.options.describe_error(code, message)
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        self.write(h11.Response(status_code=status, headers=headers, reason=_phrase(status)))
        if not self._is_head:
            self.write(h11.Data(data=body))
        self._close()

    def _close(self) -> None:
        """Close the connection once the client has read everything. Discards bytes that it still sends."""
        self._is_refused = True
        self._abort_after(CLOSE_SECONDS)
        if self._h11.our_state is h11.IDLE:
            self.transport.close()
        else:
            self.resume_reading()
            end_writing(self.transport)

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.connections.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        exchange = self._exchange
        if exchange is not None:
            if exchange.more_body:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "timeout", "the body took too long")
            elif not exchange.has(STREAMING):
                self.transport.abort()
        elif self._has_answered and not self._header_bytes:
            self._deadline = self.connections.loop.call_later(LAST_READ_SECONDS, self._close)
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "timeout", "the request took too long")

    def _watch_reader(self) -> None:
        """Close the connection if the client reads nothing for long. One that reads slowly stays."""
        unread_bytes = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unread_bytes:
                self._watch_reader()
            else:
                self.transport.abort()

        self._stalled = self.connections.loop.call_later(self.options.stalled_seconds, check)

    def _ignore_reader(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _abort_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.connections.loop.call_later(seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class HttpExchange:
    """One request and its response: `receive` and `send` of the ASGI application."""

    def __init__(self, connection: HttpConnection, scope: dict[str, Any]) -> None:
        self._connection = connection
        self._scope = scope
        self._changed = asyncio.Event()
        self._body = bytearray()
        self._is_disconnected = False
        self._has_started = False
        self._is_complete = False
        self._is_body_read = False
        self.more_body = True
        self.body_bytes = 0
        """How much of the body has arrived."""
        self.keeps_alive = True

    def has(self, key: str) -> bool:
        """Return True if the application has set a key of the request's state."""
        return bool(self._scope["state"].get(key))

    @property
    def held_bytes(self) -> int:
        """The bytes of the body in memory; if the application collects or copies it, all that arrived."""
        options = self._connection.options
        is_kept = options.body_bytes is not None or self.body_bytes <= options.copied_bytes
        return self.body_bytes if is_kept else len(self._body)

    async def run(self) -> None:
        """Run the application."""
        try:
            await self._connection.guard(self._scope, self._receive, self._send)
        except asyncio.CancelledError:  # the server stops
            self._end_early()
            raise
        except Exception as error:  # one request must not end the server
            log.error("a request failed", exc_info=error)
            if not self._has_started:
                headers = [(b"content-type", b"application/json")]
                await self._send({"type": "http.response.start", "status": 500, "headers": headers})
                body = self._connection.options.describe_error("internal_error", "the request failed")
                await self._send({"type": "http.response.body", "body": body})
        self._end_early()

    def _end_early(self) -> None:
        if not self._is_complete and not self._is_disconnected:
            self._is_disconnected = True
            self._connection.fail()

    def add_body(self, data: bytes) -> None:
        """Add bytes of the body."""
        self._body += data
        self.body_bytes += len(data)
        if len(self._body) > PAUSE_BYTES:
            self._connection.pause_reading()
        self._changed.set()

    def end_body(self) -> None:
        """Note that the whole body has arrived."""
        self.more_body = False
        if self._connection.options.is_open:
            admit(self._scope, "")
        self._changed.set()

    def disconnect(self) -> None:
        """Notify the application that the client has disconnected."""
        self._is_disconnected = True
        self._changed.set()

    async def _receive(self) -> Message:
        connection = self._connection
        if connection.waits_for_continue and not (self._has_started or self._is_over):
            connection.write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        while not self._is_over:
            if self._body or not (self.more_body or self._is_body_read):
                body, self._body = bytes(self._body), bytearray()
                self._is_body_read = not self.more_body
                return {"type": "http.request", "body": body, "more_body": self.more_body}
            self._changed.clear()
            connection.resume_reading()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    @property
    def _is_over(self) -> bool:
        return self._is_disconnected or self._is_complete

    async def _send(self, message: Message) -> None:
        connection = self._connection
        if not connection.writable.is_set():
            await connection.writable.wait()
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start" and not self._has_started:
            self._has_started = True
            status = message["status"]
            headers = [(b"date", _date(int(time.time()))), *message.get("headers", ())]
            connection.write(h11.Response(status_code=status, headers=headers, reason=_phrase(status)))
        elif message["type"] == "http.response.body" and self._has_started and not self._is_complete:
            data = message.get("body", b"")
            if data and self._scope["method"] != "HEAD":
                connection.write(h11.Data(data=data))
            if not message.get("more_body", False):
                self._is_complete = True
                connection.write(h11.EndOfMessage())
                self._changed.set()
                connection.end_response(keeps_alive=self.keeps_alive)
        else:
            raise RuntimeError(f"unexpected ASGI message: {message['type']}")


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
