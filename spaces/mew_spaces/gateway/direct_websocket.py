"""uvicorn's sans-I/O WebSocket protocol, with its transport in the application's hands.

Puts a `DirectChannel` into the scope's extensions. Frames go straight to the transport and messages straight from the
received bytes to the application, one call each, without a queue or a task in between. That is what makes fan-out
cheap (`python -m benchmarks.fanout`).

A whole message in one frame, which nearly every message is, is unmasked and delivered at once. Every other frame (a
fragment, a control frame, a protocol error) goes to the `websockets` parser, which owns those rules. Nothing is
written after a close frame, whichever side sent it, and no peer can delay a close.

Builds on private parts of uvicorn. `protocol_choice` checks them when the server starts.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import State

from mew_spaces.gateway.outbound import CLOSE_TIMEOUT_SECONDS, EXTENSION, Callback, DirectChannel, OnMessage

try:
    from websockets.speedups import apply_mask
except ImportError:  # websockets was built without its C extension
    from websockets.utils import apply_mask

SHUTDOWN_TIMEOUT_SECONDS = 1.0

DEAD_LINK_SECONDS = 0.5
"""How long a peer that answers no pings may take to read what is waiting for it."""

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


class DirectWebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. Its `channel` writes to the transport, as uvicorn's own code does."""

    channel: DirectChannel | None = None

    _partial_header = b""
    """The start of a frame header whose remaining bytes have not arrived."""
    _parser_bytes = 0
    """How many bytes are still to come of a frame that was handed to the parser."""
    _is_fragmented = False
    """Whether the parser waits for the next fragment of a message."""
    _later = b""
    """Data that waits for the next turn of the event loop. Reading is paused meanwhile."""
    _small_frames = 0
    _small_frames_since = 0.0

    def data_received(self, data: bytes) -> None:
        channel = self.channel
        if channel is None:
            super().data_received(data)  # the handshake; clients send nothing behind it before the answer
            return
        if self._later:
            self._later += data
            return
        if self._parser_bytes:
            head = data[: self._parser_bytes]
            self._parser_bytes -= len(head)
            super().data_received(head)
            if len(head) == len(data):
                return
            data = data[len(head) :]
        if self._partial_header:
            data, self._partial_header = self._partial_header + data, b""
        offset, size, frames = 0, len(data), 0
        while offset < size:
            if frames == MAX_FRAMES_A_TURN:
                self._later = data[offset:]
                self.transport.pause_reading()
                self.loop.call_soon(self._handle_rest)
                return
            frames += 1
            on_message = channel.on_message
            # The fast path: a whole, masked message of up to 64 KiB, recognised here because each further call would
            # cost about as much as the rest of a delivery.
            if (
                on_message is not None
                and channel.is_open
                and size - offset >= _SHORT_HEADER
                and not self._is_fragmented
            ):
                first, second = data[offset], data[offset + 1]
                if _MASKED <= second < _MASKED | 127 and first in _WHOLE_MESSAGES:
                    start, length = offset + 6, second - _MASKED
                    if length == 126:
                        start, length = offset + 8, data[offset + 2] << 8 | data[offset + 3]
                    end = start + length
                    if end <= size and length <= channel.max_bytes:
                        on_message(apply_mask(data[start:end], data[start - 4 : start]), first == _FINAL | _TEXT)
                        offset = end
                        continue
            offset = self._parse_frame(data, offset, size)

    def _handle_rest(self) -> None:
        data, self._later = self._later, b""
        if self.disconnected or self.transport.is_closing():
            return
        self.data_received(data)
        if not self._later and not self.read_paused:
            self.transport.resume_reading()

    def _parse_frame(self, data: bytes, offset: int, size: int) -> int:
        """Hand the frame that starts at `offset` to the parser. Returns the offset behind it."""
        header, length = _header_of(data, offset, size)
        if size - offset < header:
            self._partial_header = data[offset:]
            return size
        # The parser gets exactly one frame at a time: what follows it may take the fast path again.
        first, end = data[offset], offset + header + length
        if first & _OPCODE in (_TEXT, _BINARY):
            self._is_fragmented = not first & _FINAL
        elif first & _OPCODE == _CONTINUATION and first & _FINAL:
            self._is_fragmented = False
        if length < _SMALL_BYTES and first not in _WHOLE_MESSAGES and self._is_flooded():
            return size
        self._parser_bytes = max(0, end - size)
        super().data_received(data[offset:end])
        return end

    def _is_flooded(self) -> bool:
        """Count a small frame. After too many of them, close the connection without waiting for the peer."""
        self._small_frames += 1
        if self._small_frames <= MAX_SMALL_FRAMES:
            return False
        now = self.loop.time()
        if now - self._small_frames_since >= 1.0:
            self._small_frames, self._small_frames_since = 0, now
            return False
        if not self.is_closing:
            self._stop_writing()
            self.conn.send_close(CloseCode.POLICY_VIOLATION, "too many small frames")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            self._abort_after(CLOSE_TIMEOUT_SECONDS)
        return True

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            socket = _find_socket(self.transport)
            self.channel = DirectChannel(self, self.transport, socket, max_bytes=self.config.ws_max_size)
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions[EXTENSION] = self.channel

    async def run_asgi(self) -> None:
        """Run the application. It may return while the connection stays open, once it called `attach`."""
        failed = False
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            failed = True
        except BaseException:
            failed = True
            self.logger.exception("WebSocket connection failed")
            self.send_500_response()
        if failed or self.channel is None or self.channel.on_disconnect is None:
            if not self.handshake_complete:
                self.send_500_response()
            if self.close_timer is None:
                self.transport.close()
        if self.disconnected:
            self._break_cycles()

    # Called by the channel

    @property
    def is_closing(self) -> bool:
        """Whether a close frame was sent or received, or the connection is lost."""
        return self.close_sent or self.disconnected or self.transport.is_closing()

    def take_over(self, on_message: OnMessage, on_disconnect: Callback) -> None:
        """Deliver what is queued, then every further message, to these functions."""
        assert self.channel is not None
        queue, events = self.queue, _DisconnectOnly(self.loop, on_disconnect)
        self.queue = cast("asyncio.Queue[Any]", events)
        self.writable = cast("asyncio.Event", _UNUSED_EVENT)
        # An idle connection costs mostly what its handshake left behind, so that goes.
        del self.request, self.response, self.scope
        self.channel.on_disconnect = on_disconnect
        while not queue.empty():
            event = queue.get_nowait()
            if event["type"] == "websocket.receive":
                text, data = event.get("text"), event.get("bytes")
                on_message(text.encode() if text is not None else data or b"", text is not None)
            else:
                events.put_nowait(event)
        self.channel.on_message = on_message
        self._resume_reading()

    def close_with(self, code: int, reason: str) -> None:
        """Close from our side: the application is notified at once, the peer has `CLOSE_TIMEOUT_SECONDS` to answer."""
        self._stop_writing()
        if self.is_closing:
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._resume_reading()  # the peer's close frame must get through
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    # Called by uvicorn

    def send_receive_event_to_app(self) -> None:
        channel = self.channel
        if channel is None or channel.on_message is None:
            try:
                if self.curr_msg_data_type == "text":
                    b"".join(self.frames).decode()
            except UnicodeDecodeError:  # uvicorn would log a traceback for what is the client's mistake
                self.frames = []
                if self.conn.state is State.OPEN:
                    self.conn.send_close(CloseCode.INVALID_DATA)
                    self.handle_parser_exception()
                return
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if not self.close_sent:
            channel.on_message(bytes(data), self.curr_msg_data_type == "text")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.channel is not None:
            self.channel.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.channel is not None:
            self.channel.resume()

    # Each way in which a connection can end. Nothing may be written from here on.

    def handle_close(self, event: Any) -> None:
        self._stop_writing()
        super().handle_close(event)
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    def handle_parser_exception(self) -> None:
        channel = self.channel
        close = self.conn.close_sent
        is_too_large = close is not None and close.code == CloseCode.MESSAGE_TOO_BIG
        if is_too_large and channel is not None and channel.is_open and channel.on_too_large is not None:
            # The close frame is prepared but not written yet, so an error that explains it can still go first.
            channel.on_too_large()
        self._stop_writing()
        super().handle_parser_exception()
        self._abort_after(CLOSE_TIMEOUT_SECONDS)

    def keepalive_timeout(self) -> None:
        self._stop_writing()
        super().keepalive_timeout()
        self._abort_after(DEAD_LINK_SECONDS)

    def eof_received(self) -> None:
        self._stop_writing()
        super().eof_received()

    def shutdown(self) -> None:
        self._stop_writing()
        if not self.transport.is_closing():
            super().shutdown()
        self._abort_after(SHUTDOWN_TIMEOUT_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_writing()
        super().connection_lost(exc)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Drop the references that lead back here, so that the memory returns without the garbage collector."""
        if self.channel is not None and self.channel.on_disconnect is not None:
            # The endpoint has returned or is about to: nothing uses the channel any more.
            self.channel.forget_application()
            self.queue = cast("asyncio.Queue[Any]", _UNUSED_EVENT)
            self.channel = None
        self.conn.parser_exc = None  # its traceback holds the parser's frames
        self.conn.parser.close()  # a generator whose frame holds the parser

    def _stop_writing(self) -> None:
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.stop_writing()

    def _resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def _abort_after(self, seconds: float) -> None:
        """Abort the connection after a while: closing a transport waits for the peer to read everything."""
        if self.disconnected:
            return
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(seconds, self.transport.abort)


class _DisconnectOnly:
    """Replaces the queue of events for the application once it only waits for the disconnect."""

    __slots__ = ("_loop", "_on_disconnect")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_disconnect: Callback) -> None:
        self._loop = loop
        self._on_disconnect = on_disconnect

    def put_nowait(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "websocket.disconnect":
            # Not at once: the caller that closes a connection may be in the middle of a broadcast.
            self._loop.call_soon(self._on_disconnect)


class _UnusedEvent:
    """Replaces the event on which `send` waits, and the queue of a lost connection: nothing uses them any more."""

    __slots__ = ()

    def set(self) -> None:
        """Do nothing."""

    def clear(self) -> None:
        """Do nothing."""

    def put_nowait(self, _event: object) -> None:
        """Do nothing: the connection is lost, and its events are not read."""


_UNUSED_EVENT = _UnusedEvent()
"""Shared by all connections, because an event for each would take memory."""


def _find_socket(transport: asyncio.Transport) -> int | None:
    """Return the descriptor of the socket that carries the frames as they are; None if there is none.

    It is open until `connection_lost` has returned, so it can never be that of another connection.
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
