"""One WebSocket connection whose transport the application uses directly.

Frames go directly to the transport, and messages directly from the received bytes to the application, one call each,
without a queue or a task. This makes fan-out cheap (`python -m benchmarks.fanout`).

A message in one frame (nearly all are) is unmasked and delivered at once. All other frames (fragments, control frames,
protocol errors) go to the sans-I/O protocol of `websockets`, which owns those rules. Nothing is written after a close
frame of either side, and no peer can delay a close. Compression is off.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from mew_listener.connection_limits import TLS_BYTES
from mew_listener.server_connections import ServerConnections, end_writing

try:
    from websockets.speedups import apply_mask
except ImportError:  # websockets was built without its C extension
    from websockets.utils import apply_mask

log = logging.getLogger("mew_listener")

CLOSE_TIMEOUT_SECONDS = 5.0
"""Timeout for a peer to answer a close frame, or to read the data sent before it."""

SHUTDOWN_TIMEOUT_SECONDS = 1.0

DEAD_LINK_SECONDS = 0.5
"""Timeout for a peer that answers no pings to read the waiting data."""

MAX_SMALL_FRAMES = 5_000
"""Control frames and small fragments that a peer may send in a second: each costs as much as a message."""
_SMALL_BYTES = 512

MAX_FRAMES_A_TURN = 64
"""How many frames of one connection are handled before other connections get a turn."""

_FINAL = 0x80
_OPCODE = 0x0F
_CONTINUATION, _TEXT, _BINARY = 0, 1, 2
_MASKED = 0x80
_WHOLE_MESSAGES = (_FINAL | _TEXT, _FINAL | _BINARY)
_SHORT_HEADER = 8
"""Bytes of header and mask of a frame of up to 64 KiB."""


class WebSocketChannel(Protocol):
    """The application's side of a connection."""

    is_open: bool
    """Whether it may write."""
    on_message: Callable[[bytes, bool], object] | None
    """Receives each message's bytes, and whether it is text. The UTF-8 of text is not validated yet."""

    def pause(self) -> None:
        """Note that bytes wait in the transport."""

    def resume(self) -> None:
        """Note that no bytes wait in the transport."""

    def stop_writing(self) -> None:
        """Stop writing: nothing more may be written."""

    def too_large(self) -> None:
        """Notify the peer that its message is too large; a close frame follows."""

    def disconnected(self) -> None:
        """Note that the connection is over. Called once, from the event loop."""


@dataclass(frozen=True)
class WebSocketRequest:
    """The handshake of a connection. `headers` have names in lower case; `client` is the address named by a proxy."""

    query: str
    headers: Mapping[str, str]
    client: str


@dataclass(frozen=True)
class WebSocketOptions:
    """How a server serves WebSocket connections, at any path."""

    open: Callable[["WebSocketConnection", WebSocketRequest], WebSocketChannel]
    """Returns the application's side of a new connection."""
    max_bytes: int
    """The largest message."""
    unjoined_bytes: int
    """How much a client may send until `WebSocketConnection.admit`."""
    ping_seconds: float
    """Pause between a pong and the next ping; 0 sends none."""
    ping_timeout_seconds: float


class WebSocketConnection(asyncio.Protocol):
    """One connection. It counts as unauthenticated until `admit`."""

    def __init__(
        self,
        transport: asyncio.Transport,
        connections: ServerConnections,
        options: WebSocketOptions,
        *,
        address: str,
        is_secure: bool,
    ) -> None:
        """Take over the transport of an HTTP connection; its limits are counted for `address`."""
        self.transport = transport
        self.socket = _find_socket(self.transport)
        """The descriptor of the socket that carries the frames as they are; None if there is none."""
        self.max_bytes = options.max_bytes
        self._connections, self._options = connections, options
        self._loop = connections.loop
        self.address, self._is_secure = address, is_secure
        self._protocol = ServerProtocol(max_size=options.max_bytes, logger=log)
        self.channel: Any = None  # a `WebSocketChannel` from the handshake until the connection is lost
        self._client: str | None = None
        """Who has joined."""
        self._is_resting = False
        """Whether nothing is read because the client has spent its part of the time."""
        self._unjoined_bytes = 0
        self._is_over = False
        """Whether the application knows that the connection is over."""
        self._fragments: list[bytes] = []
        self._is_text = False
        self._partial_header = b""
        """The start of an incomplete frame header."""
        self._parser_bytes = 0
        """How many bytes are still to come of a frame that was handed to the parser."""
        self._is_fragmented = False
        """Whether the parser waits for the next fragment of a message."""
        self._later = b""
        """Data for the next turn of the event loop. Reading is paused until then."""
        self._small_frames = 0
        self._small_frames_since = 0.0
        self._abortion: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        """When the next ping is due, or the pong of the last one."""
        self._ping_data = b""

    def shake_hands(self, raw: bytes, request: WebSocketRequest) -> bool:
        """Answer the handshake and open the application's side. Returns False if the handshake is refused."""
        protocol = self._protocol
        protocol.receive_data(raw)
        found = protocol.events_received()
        if protocol.parser_exc is not None or not found or not isinstance(found[0], Request):
            return False
        response = protocol.accept(found[0])
        protocol.send_response(response)
        self._write()
        if response.status_code != 101:
            self._is_over = True
            self.transport.close()
            return True
        self._connections.add(self, self.address)
        self._hold()
        self.channel = self._options.open(self, request)
        self._schedule_ping()
        return True

    # Called by the application

    @property
    def is_closing(self) -> bool:
        """True after a close frame was sent or received, or the connection was lost."""
        return self._is_over or self.transport.is_closing()

    def admit(self, client: str) -> None:
        """Lift the limits for unjoined clients. All connections of this client share its time."""
        self._client = client
        self._connections.unjoined.leave(self)

    def close_with(self, code: int, reason: str) -> None:
        """Close from our side: notify the application at once, and give the peer `CLOSE_TIMEOUT_SECONDS` to answer."""
        self._stop_writing()
        if self.is_closing:
            return
        self._end()
        self._protocol.send_close(code, reason)
        self._write()
        self.transport.resume_reading()  # so that the peer's close frame arrives
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    # Called by the transport

    def data_received(self, data: bytes) -> None:
        if self._client is None:
            self._receive_unjoined(data)
        else:
            self._receive_joined(data, self._client)

    def pause_writing(self) -> None:
        if self.channel is not None:
            self.channel.pause()

    def resume_writing(self) -> None:
        if self.channel is not None:
            self.channel.resume()

    def eof_received(self) -> None:
        self._stop_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_writing()
        self._end()
        if self._abortion is not None:
            self._abortion.cancel()
        self._connections.remove(self)
        self._protocol.receive_eof()  # ends the parser, which has a reference to itself
        self.channel = None

    # Called by the server

    def evict(self) -> bool:
        """Close the connection at once."""
        self._stop_writing()
        self.transport.abort()
        return True

    def shutdown(self) -> None:
        """Close the connection because the server stops."""
        if not self.is_closing:
            self._protocol.send_close(CloseCode.SERVICE_RESTART)
        self._finish(SHUTDOWN_TIMEOUT_SECONDS)

    # Reading

    def _receive_unjoined(self, data: bytes) -> None:
        """Handle bytes within the limits for an unjoined client."""
        if self.channel is None:  # the handshake was refused
            return
        room = max(0, self._options.unjoined_bytes - self._unjoined_bytes)
        self._unjoined_bytes += len(data)
        self._receive(data[:room])
        if self.transport.is_closing():
            return
        rest = data[room:]
        if self._client is not None:
            if rest:
                self._receive_joined(rest, self._client)
        elif not rest:
            self._hold()
        elif self._is_over:
            self.transport.abort()
        else:
            self.channel.too_large()
            self.close_with(CloseCode.MESSAGE_TOO_BIG, "")

    def _receive_joined(self, data: bytes, client: str, size_bytes: int | None = None) -> None:
        """Handle bytes of a joined client, and pause if it has spent its time.

        `size_bytes` is the part that counts as new (default: all).
        """
        began = time.thread_time()
        self._receive(data)
        seconds = time.thread_time() - began
        size_bytes = len(data) if size_bytes is None else size_bytes
        pause_seconds = self._connections.allowances.spend(client, seconds, size_bytes, self._loop.time())
        if pause_seconds > 0 and not (self._is_resting or self.is_closing):
            self._is_resting = True
            self.transport.pause_reading()
            self._loop.call_later(pause_seconds, self._wake)

    def _wake(self) -> None:
        self._is_resting = False
        if self._later:
            self._handle_rest()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        if self._protocol.parser_exc is not None:  # after a violation, only wait until the peer closes
            return
        if self._later:
            self._later += data
            return
        if self._parser_bytes:
            head = data[: self._parser_bytes]
            self._parser_bytes -= len(head)
            self._parse(head)
            if len(head) == len(data):
                return
            data = data[len(head) :]
        if self._partial_header:
            data, self._partial_header = self._partial_header + data, b""
        offset, size, frames, channel = 0, len(data), 0, self.channel
        while offset < size:
            if frames == MAX_FRAMES_A_TURN:
                self._later = data[offset:]
                self.transport.pause_reading()
                self._loop.call_soon(self._handle_rest)
                return
            frames += 1
            # The fast path: a whole, masked message of up to 64 KiB, recognised here because each further call would
            # cost about as much as the rest of a delivery.
            if channel.is_open and size - offset >= _SHORT_HEADER and not self._is_fragmented:
                first, second = data[offset], data[offset + 1]
                if _MASKED <= second < _MASKED | 127 and first in _WHOLE_MESSAGES:
                    start, length = offset + 6, second - _MASKED
                    if length == 126:
                        start, length = offset + 8, data[offset + 2] << 8 | data[offset + 3]
                    end = start + length
                    if end <= size and length <= self.max_bytes and channel.on_message is not None:
                        channel.on_message(
                            apply_mask(data[start:end], data[start - 4 : start]), first == _FINAL | _TEXT
                        )
                        offset = end
                        continue
            offset = self._parse_frame(data, offset, size)

    def _handle_rest(self) -> None:
        if self._is_resting:
            return
        data, self._later = self._later, b""
        if self.transport.is_closing():
            return
        if self._client is None:
            self._receive(data)
        else:
            self._receive_joined(data, self._client, 0)
        waits = bool(self._later) or self._is_resting
        if not waits and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse_frame(self, data: bytes, offset: int, size: int) -> int:
        """Pass the frame at `offset` to the parser. Returns the offset of the next one."""
        header, length = _header_of(data, offset, size)
        if size - offset < header:
            self._partial_header = data[offset:]
            return size
        # The parser gets exactly one frame at a time, so that the next frame may take the fast path.
        first, end = data[offset], offset + header + length
        if first & _OPCODE in (_TEXT, _BINARY):
            self._is_fragmented = not first & _FINAL
        elif first & _OPCODE == _CONTINUATION and first & _FINAL:
            self._is_fragmented = False
        if length < _SMALL_BYTES and first not in _WHOLE_MESSAGES and self._is_flooded():
            return size
        self._parser_bytes = max(0, end - size)
        self._parse(data[offset:end])
        return end

    def _parse(self, data: bytes) -> None:
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            self._handle(event)
        if protocol.parser_exc is not None:
            self._fail()
        else:
            self._write()  # an answer to a ping

    def _handle(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._is_text = frame.opcode is Opcode.TEXT
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                message, self._fragments = b"".join(self._fragments), []
                if not self._is_over and self.channel.on_message is not None:
                    self.channel.on_message(message, self._is_text)
        elif frame.opcode is Opcode.PONG:
            if self._ping_data and bytes(frame.data) == self._ping_data:
                self._schedule_ping()
        elif frame.opcode is Opcode.CLOSE:
            self._finish(CLOSE_TIMEOUT_SECONDS)  # with the answer, unless we closed first

    def _is_flooded(self) -> bool:
        """Count a small frame. After too many of them, close the connection without waiting for the peer."""
        self._small_frames += 1
        if self._small_frames <= MAX_SMALL_FRAMES:
            return False
        now = self._loop.time()
        if now - self._small_frames_since >= 1.0:
            self._small_frames, self._small_frames_since = 0, now
            return False
        if not self.is_closing:
            self.close_with(CloseCode.POLICY_VIOLATION, "too many small frames")
            self.transport.close()
        return True

    # Closing

    def _fail(self) -> None:
        """Close the connection after a violation of the protocol. Prepares the close frame, but does not write it
        yet.
        """
        closed = self._protocol.close_sent
        if closed is not None and closed.code == CloseCode.MESSAGE_TOO_BIG and self.channel.is_open:
            self.channel.too_large()
        self._finish(CLOSE_TIMEOUT_SECONDS, reads_on=True)

    def _finish(self, seconds: float, *, reads_on: bool = False) -> None:
        """Write the prepared close frame as the last one. The peer has this time to read the waiting bytes.

        `reads_on`: the peer may be in the middle of a message; see `end_writing`.
        """
        self._stop_writing()
        self._end()
        self._write()
        if reads_on:
            if not self.transport.is_closing():
                self.transport.resume_reading()
            end_writing(self.transport)
        else:
            self.transport.close()
        self._abort_after(seconds)

    def _stop_writing(self) -> None:
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.stop_writing()

    def _end(self) -> None:
        """Notify the application, once, that the connection has ended."""
        if self._ping is not None:
            self._ping.cancel()
        if not self._is_over:
            self._is_over = True
            # Later: the caller that closes a connection may be in the middle of a broadcast.
            self._loop.call_soon(self.channel.disconnected)

    def _write(self) -> None:
        """Write the bytes that the protocol has prepared."""
        data = b"".join(self._protocol.data_to_send())
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _abort_after(self, seconds: float) -> None:
        """Abort the connection after a while: closing a transport would wait until the peer has read everything."""
        if self._abortion is not None:
            self._abortion.cancel()
        self._abortion = self._loop.call_later(seconds, self.transport.abort)

    # Pings

    def _schedule_ping(self) -> None:
        self._ping_data = b""
        if self._ping is not None:
            self._ping.cancel()
        if self._options.ping_seconds > 0:
            self._ping = self._loop.call_later(self._options.ping_seconds, self._send_ping)

    def _send_ping(self) -> None:
        self._ping_data = os.urandom(4)
        self._protocol.send_ping(self._ping_data)
        self._write()
        self._ping = self._loop.call_later(self._options.ping_timeout_seconds, self._end_dead_link)

    def _end_dead_link(self) -> None:
        self._protocol.fail(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
        self._finish(DEAD_LINK_SECONDS)

    def _hold(self) -> None:
        """Count the bytes buffered for an unjoined client."""
        size = self._unjoined_bytes + self.transport.get_write_buffer_size() + (TLS_BYTES if self._is_secure else 0)
        self._connections.unjoined.hold(self, size)


def _find_socket(transport: asyncio.Transport) -> int | None:
    """Return the descriptor of the socket that carries the unencrypted frames; None if there is none.

    It stays open until `connection_lost` has returned, so it never belongs to another connection.
    """
    found = transport.get_extra_info("socket")
    if found is None or sys.platform == "win32" or transport.get_extra_info("sslcontext") is not None:
        return None
    descriptor: int = found.fileno()
    return None if os.get_blocking(descriptor) else descriptor


def _header_of(data: bytes, offset: int, size: int) -> tuple[int, int]:
    """Return the bytes of a frame's header and mask, and of its payload. A partial header counts as its minimum."""
    if size - offset < 2:
        return 2, 0
    second = data[offset + 1]
    mask = 4 if second & _MASKED else 0
    length = second & 0x7F
    if length < 126:
        return 2 + mask, length
    extra = 2 if length == 126 else 8
    header = 2 + extra + mask
    return header, int.from_bytes(data[offset + 2 : offset + 2 + extra]) if size - offset >= header else 0
