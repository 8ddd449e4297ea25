"""uvicorn's HTTP protocol with the time and memory limits that it lacks.

Owns how long a client may take for a request, from the first byte of the connection on, and what malformed input
does: one line in the log and a closed connection. Counts each connection among those that have not joined. A WebSocket
connection stays behind this protocol until it has joined, whichever protocol reads its frames. Does not know spaces.
"""

import asyncio
import ssl
from typing import Any

import uvicorn
from mew_listener.proxies import Headers, TrustedProxies
from mew_listener.unjoined import JOIN_GATE, TLS_BYTES, JoinGate, UnjoinedConnections, UnjoinedPeer
from uvicorn.protocols.http.h11_impl import H11Protocol

from mew_spaces.gateway.outbound import CLOSE_TIMEOUT_SECONDS

REQUEST_SECONDS = 60.0
"""How long a request may take from its headers to the end of its response."""

AUTHENTICATED = "mew.is_authenticated"
"""Key of a request's `state`: its token was checked, so what waits for its client is no stranger's memory."""

STREAMING = "mew.is_streaming"
"""Key of a request's `state`: an authenticated client reads a stream, so the request has no time limit."""

JOIN_TURNS = 8
"""Iterations of the event loop for the application to read a join frame with data behind it. It needs one or two."""

MAX_HEADER_BYTES = 32 * 1024

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class GatewayConfig(uvicorn.Config):
    """uvicorn's configuration with what our protocols need besides."""

    unjoined: UnjoinedConnections
    proxies: TrustedProxies = TrustedProxies()
    tls: ssl.SSLContext | None = None
    header_timeout_seconds: float
    unjoined_message_bytes: int

    def client_of(self, peer: tuple[str, int] | None, headers: Headers) -> str:
        """Return the address that a request counts for: the client's behind a trusted proxy, else the peer's."""
        address = peer[0] if peer else ""
        forwarded = self.proxies.read(address, headers)
        return address if forwarded is None else forwarded.client

    def count(self, connection: UnjoinedPeer, address: str) -> None:
        """Count a connection that has not joined."""
        self.unjoined.enter(connection, address, is_shared=self.proxies.trusts(address))


class BoundedHttpProtocol(H11Protocol):
    """One HTTP connection."""

    config: GatewayConfig
    cycle: Any  # None before the first request, whatever uvicorn's annotation says
    scope: Any

    _deadline: asyncio.Handle | None = None
    _timed_cycle: Any = None
    """The request that the deadline is for; None while the connection waits for a request."""
    _header_bytes = 0
    _address = ""
    """The address that the connection counts for."""
    _is_refused = False

    _websocket: Any = None
    """The protocol of a WebSocket connection that has not joined."""
    _gate: JoinGate | None = None
    _unjoined_bytes = 0
    _waiting_bytes = b""
    """Bytes beyond the limit before a join, until it is known whether the client has joined."""
    _is_too_large = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.config.count(self, self._address)
        self._set_deadline(self.config.header_timeout_seconds)
        self._hold(0)

    def data_received(self, data: bytes) -> None:
        if self._websocket is not None:
            self._relay(data)
        elif not self._is_refused:
            self._header_bytes += len(data)
            super().data_received(data)
            if self._gate is None:
                self._check_progress()

    def handle_events(self) -> None:
        known = self.scope
        try:
            super().handle_events()
            if self.scope is not known:
                self._count_for(self.config.client_of(self.client, self.headers))
        except Exception as error:  # whatever a client sends, it gets no traceback into the log
            self.logger.warning("Invalid HTTP request received: %s", type(error).__name__)
            self._is_refused = True
            self.transport.abort()

    def handle_websocket_upgrade(self, event: Any) -> None:
        if not all(value.isascii() for name, value in self.headers if name.startswith(b"sec-websocket-")):
            self.send_400_response("Invalid WebSocket handshake.")  # older versions of websockets log a traceback
            return
        self._cancel_deadline()
        self._gate = JoinGate(on_joined=self._admit)
        self.app_state = {**self.app_state, JOIN_GATE: self._gate}
        super().handle_websocket_upgrade(event)
        self._websocket = self.transport.get_protocol()
        self.transport.set_protocol(self)

    def send_400_response(self, msg: str) -> None:
        self._is_refused = True
        self._abort_after(CLOSE_TIMEOUT_SECONDS)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
            return
        # The body of a request that is being answered: the application sees a client that went away.
        cycle.disconnected = True
        cycle.message_event.set()
        self.transport.abort()

    def on_response_complete(self) -> None:
        self.cycle.body = bytearray()  # what the application did not read
        super().on_response_complete()
        if not self.transport.is_closing():
            self.config.count(self, self._address)  # its next request may be another client's
        self._check_progress()

    def timeout_keep_alive_handler(self) -> None:
        self._end(b"")

    def shutdown(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._end(b"")
        else:
            super().shutdown()
            if self._is_streaming:
                self._abort_after(CLOSE_TIMEOUT_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.config.unjoined.leave(self, self._address)
        websocket = self._release_websocket()
        if websocket is not None:
            websocket.connection_lost(exc)
            return
        super().connection_lost(exc)
        self._timed_cycle = None

    def eof_received(self) -> None:
        if self._websocket is not None:
            self._websocket.eof_received()

    def pause_writing(self) -> None:
        if self._websocket is None:
            super().pause_writing()
        else:
            self._websocket.pause_writing()

    def resume_writing(self) -> None:
        if self._websocket is None:
            super().resume_writing()
        else:
            self._websocket.resume_writing()

    def evict(self) -> bool:
        """Close the connection at once, unless it carries an authenticated request."""
        if self._timed_cycle is not None and self._request_is(AUTHENTICATED):
            return False
        self._is_refused = True
        if self._gate is not None and self._gate.on_evicted is not None:
            self._gate.on_evicted()
        self.transport.abort()
        return True

    # A WebSocket connection until it has joined

    def _relay(self, data: bytes) -> None:
        """Pass bytes on to the WebSocket protocol, within the bounds of a client that has not joined."""
        if self._is_too_large:
            self.transport.abort()
            return
        websocket, room = self._websocket, self.config.unjoined_message_bytes - self._unjoined_bytes
        self._unjoined_bytes += len(data)
        websocket.data_received(data[:room] if room > 0 else b"")
        rest = data[max(room, 0) :]
        if self.transport.is_closing():
            return
        if self._websocket is None:  # it has joined
            websocket.data_received(rest)
            return
        self._hold(self._unjoined_bytes)
        if rest:
            # Its join may be among the bytes before, still unread. Nothing more is read until that is known.
            self._waiting_bytes += rest
            self.transport.pause_reading()
            self._deadline = self._deadline or self.loop.call_soon(self._refuse_size, JOIN_TURNS)

    def _refuse_size(self, turns: int) -> None:
        if turns:
            self._deadline = self.loop.call_soon(self._refuse_size, turns - 1)
            return
        self._is_too_large, self._waiting_bytes = True, b""
        self.transport.resume_reading()  # the peer's close frame must get through
        if self._gate is not None and self._gate.on_too_large is not None:
            self._gate.on_too_large()
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    def _admit(self) -> None:
        """Leave the connection to its WebSocket protocol."""
        self.config.unjoined.leave(self, self._address)
        if self._deadline is not None:
            self._cancel_deadline()
            self.transport.resume_reading()
        websocket, waiting = self._release_websocket(), self._waiting_bytes
        self.transport.set_protocol(websocket)
        if waiting:
            websocket.data_received(waiting)

    def _release_websocket(self) -> Any:
        websocket, self._websocket = self._websocket, None
        if self._gate is not None:
            self._gate.release()
        return websocket

    @property
    def _is_streaming(self) -> bool:
        return self._request_is(STREAMING)

    def _request_is(self, key: str) -> bool:
        return bool(self.scope and self.scope["state"].get(key))

    def _check_progress(self) -> None:
        """Set the deadline of the phase that the connection is in, and count what it holds."""
        if self.transport.is_closing():
            return
        cycle = self.cycle if self.cycle is not None and not self.cycle.response_complete else None
        if cycle is not None:
            self._header_bytes = 0
        if cycle is not self._timed_cycle:
            self._timed_cycle = cycle
            self._set_deadline(REQUEST_SECONDS if cycle is not None else self.config.header_timeout_seconds)
        held = self._header_bytes + (len(cycle.body) if cycle is not None else 0)
        self._hold(held)

    def _hold(self, size: int) -> None:
        """Count the bytes that a connection that has not joined holds: `size`, and what waits for a stranger."""
        tls = TLS_BYTES if self.scheme == "https" else 0
        waiting = 0 if self._request_is(AUTHENTICATED) else self.transport.get_write_buffer_size()
        self.config.unjoined.hold(self, self._address, size + waiting + tls)

    def _count_for(self, address: str) -> None:
        """Count the connection for the client whose request a proxy forwards."""
        if address != self._address:
            self.config.unjoined.leave(self, self._address)
            self._address = address
            self.config.count(self, address)

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._deadline = None
        if self._timed_cycle is None:
            self._end(_TOO_SLOW)
        elif not self._is_streaming:
            self.transport.abort()
        else:  # its token limits its streams, so unauthenticated connections must not evict it
            self.config.unjoined.leave(self, self._address)

    def _end(self, answer: bytes) -> None:
        """Close the connection after a last answer; a client that does not read it cannot keep it open."""
        self._is_refused = True
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
