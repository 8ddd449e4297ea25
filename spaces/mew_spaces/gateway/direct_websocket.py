"""The WebSocket protocol our server runs: uvicorn's sans-I/O one, with its transport in the application's hands.

It hands a `DirectChannel` to the application in the scope's extensions: framed bytes go straight to the transport,
messages come straight from the bytes, one call each, with no queue and no task between. A whole message in one frame,
which nearly every one is, is unmasked and handed over at once; whatever else a frame may be (a part, a control frame,
a mistake) goes to the library's parser. It keeps the promise that nothing is written after a close frame, whoever
sent it, and that no peer can delay an ending.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request

from mew_spaces.gateway.outbound import OutboundChannel

try:
    from websockets.speedups import apply_mask
except ImportError:  # the library was built without its compiled part
    from websockets.utils import apply_mask

EXTENSION = "mew.direct_channel"
"""Where the application finds the channel in `scope["extensions"]`."""

CLOSE_GRACE_SECONDS = 5.0
"""How long a peer may take to answer a close frame or to read what is on its way, before it is cut off."""

SHUTDOWN_GRACE_SECONDS = 1.0

_FINAL = 0x80
_OPCODE = 0x0F
_TEXT, _BINARY, _CONTINUATION = 1, 2, 0
_MASKED = 0x80
_WHOLE_MESSAGES = (_FINAL | _TEXT, _FINAL | _BINARY)
_SHORT_HEAD = 8
"""Bytes of the head and mask of a frame of up to 64 KiB."""


class OnMessage(Protocol):
    """Called with each message's bytes and whether it came as text (then its UTF-8 is not checked yet)."""

    def __call__(self, data: bytes, is_text: bool, /) -> None: ...


class DirectChannel(OutboundChannel):
    """The way out to one connection, and the way in once it is attached (`fanout.OutboundChannel`)."""

    __slots__ = ("_protocol", "max_bytes", "on_gone", "on_message", "on_slow", "on_too_large", "write")

    def __init__(self, protocol: "DirectWebSocketProtocol") -> None:
        super().__init__()
        self._protocol = protocol
        self.max_bytes = protocol.config.ws_max_size
        self.write: Callable[[bytes], object] = protocol.transport.write
        self.on_message: OnMessage | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_slow: Callable[[], None] | None = None
        self.on_too_large: Callable[[], None] | None = None

    def tell(self, *, on_slow: Callable[[], None], on_too_large: Callable[[], None]) -> None:
        """Be told once when more waits for the peer than may, and when it sends a message above the size limit."""
        self.on_slow = on_slow
        self.on_too_large = on_too_large

    @property
    def waiting_bytes(self) -> int:
        return self._protocol.transport.get_write_buffer_size()

    def limit_buffer(self, max_bytes: int) -> None:
        """Say how much may wait for the peer."""
        self._protocol.transport.set_write_buffer_limits(high=max_bytes)

    def attach(self, on_message: OnMessage, on_gone: Callable[[], None]) -> None:
        """Take messages directly from now on; those that already wait come first, in order.

        The application may return then: the connection goes on, and its end is told by `on_gone`, in a turn of the
        event loop of its own.
        """
        self._protocol.take_over(on_message, on_gone)

    def close(self, code: int, reason: str) -> None:
        """Send a close frame behind everything written; cut the peer off if it does not answer."""
        if self.is_open:
            self._protocol.close_with(code, reason)

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Say one last thing and close, though the channel counts as closed already."""
        if not self._protocol.is_ending:
            self.write(last)
            self._protocol.close_with(code, reason)


class DirectWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, its outgoing side shared with a `DirectChannel`."""

    channel: DirectChannel | None = None

    _begun = b""
    """The beginning of a frame's head, when the rest of the head has not come yet."""
    _owed = 0
    """How many bytes are still to come of a frame that the parser has begun with."""
    _is_in_parts = False
    """Whether the parser waits for the next part of a message."""

    def data_received(self, data: bytes) -> None:
        if self.channel is None:
            super().data_received(data)  # the handshake, and nothing behind it
            return
        if self._owed:
            due = data[: self._owed]
            self._owed -= len(due)
            super().data_received(due)
            if len(due) == len(data):
                return
            data = data[len(due) :]
        if self._begun:
            data, self._begun = self._begun + data, b""
        place, size = 0, len(data)
        while place < size:
            place = self._read_frame(data, place, size)

    def _read_frame(self, data: bytes, place: int, size: int) -> int:
        """Read the frame that begins at a place. Returns the place behind it."""
        channel = self.channel
        assert channel is not None
        on_message = channel.on_message
        # What nearly all of them are, decided without another call: a whole message, masked, not very long.
        if on_message is not None and channel.is_open and size - place >= _SHORT_HEAD and not self._is_in_parts:
            first, second = data[place], data[place + 1]
            if _MASKED <= second < _MASKED | 127 and first in _WHOLE_MESSAGES:
                start, length = place + 6, second - _MASKED
                if length == 126:
                    start, length = place + 8, data[place + 2] << 8 | data[place + 3]
                end = start + length
                if end <= size and length <= channel.max_bytes:
                    on_message(apply_mask(data[start:end], data[start - 4 : start]), first == _FINAL | _TEXT)
                    return end
        head, length = _head_of(data, place, size)
        if size - place < head:
            self._begun = data[place:]
            return size
        first, start = data[place], place + head
        end = start + length
        if first & _OPCODE in (_TEXT, _BINARY):
            self._is_in_parts = not first & _FINAL
        elif first & _OPCODE == _CONTINUATION and first & _FINAL:
            self._is_in_parts = False
        self._owed = max(0, end - size)
        super().data_received(data[place:end])
        return end

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.channel = DirectChannel(self)
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions[EXTENSION] = self.channel

    async def run_asgi(self) -> None:
        """Let the application serve the connection, or hand it over to the channel and return."""
        failed = False
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            failed = True
        except BaseException:
            failed = True
            self.logger.exception("a connection could not be served")
            self.send_500_response()
        if failed or self.channel is None or self.channel.on_gone is None:
            if not self.handshake_complete:
                self.send_500_response()
            if self.close_timer is None:
                self.transport.close()

    @property
    def is_ending(self) -> bool:
        """Whether a close frame went out or came in, or the connection is lost."""
        return self.close_sent or self.disconnected or self.transport.is_closing()

    def take_over(self, on_message: OnMessage, on_gone: Callable[[], None]) -> None:
        """Deliver what is queued, then every further message, to these functions, and let go what served the rest."""
        assert self.channel is not None
        queue, ending = self.queue, _EndingOnly(self.loop, on_gone)
        self.queue = cast("asyncio.Queue[Any]", ending)
        self.writable = cast("asyncio.Event", _NOBODY_WAITS)
        del self.request, self.response, self.scope
        self.channel.on_gone = on_gone
        while not queue.empty():
            event = queue.get_nowait()
            if event["type"] == "websocket.receive":
                text, data = event.get("text"), event.get("bytes")
                on_message(text.encode() if text is not None else data or b"", text is not None)
            else:
                ending.put_nowait(event)
        self.channel.on_message = on_message
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        channel = self.channel
        if channel is None or channel.on_message is None:
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if not self.close_sent:
            channel.on_message(bytes(data), self.curr_msg_data_type == "text")

    def close_with(self, code: int, reason: str) -> None:
        """Close from our side: the application is told at once, the peer has `CLOSE_GRACE_SECONDS`."""
        self._stop_writing()
        if self.is_ending:
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self._cut_off_after(CLOSE_GRACE_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        channel = self.channel
        if channel is not None and channel.is_open and channel.on_slow is not None:
            channel.stop_writing()
            channel.on_slow()

    # Every way a connection can end: from here on nobody may write.

    def handle_close(self, event: Any) -> None:
        self._stop_writing()
        super().handle_close(event)
        self._cut_off_after(CLOSE_GRACE_SECONDS)

    def handle_parser_exception(self) -> None:
        channel = self.channel
        close = self.conn.close_sent
        is_too_big = close is not None and close.code == CloseCode.MESSAGE_TOO_BIG
        if is_too_big and channel is not None and channel.is_open and channel.on_too_large is not None:
            # The close frame is made but not yet written, so there is still room for a word of why.
            channel.on_too_large()
        self._stop_writing()
        super().handle_parser_exception()
        self._cut_off_after(CLOSE_GRACE_SECONDS)

    def keepalive_timeout(self) -> None:
        self._stop_writing()
        super().keepalive_timeout()
        self._cut_off_after(CLOSE_GRACE_SECONDS)

    def eof_received(self) -> None:
        self._stop_writing()
        super().eof_received()

    def shutdown(self) -> None:
        self._stop_writing()
        if not self.transport.is_closing():
            super().shutdown()
        self._cut_off_after(SHUTDOWN_GRACE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_writing()
        super().connection_lost(exc)

    def _stop_writing(self) -> None:
        channel = self.channel
        if channel is not None and channel.is_open:
            channel.stop_writing()

    def _cut_off_after(self, seconds: float) -> None:
        """Closing a transport waits until the peer has read everything; a peer that never reads is cut off."""
        if self.disconnected:
            return
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(seconds, self.transport.abort)


class _EndingOnly:
    """Stands where events for the application were queued, once only the last of them matters."""

    __slots__ = ("_loop", "_on_gone")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[], None]) -> None:
        self._loop = loop
        self._on_gone = on_gone

    def put_nowait(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "websocket.disconnect":
            # Not at once: whoever closes a connection is in the middle of something.
            self._loop.call_soon(self._on_gone)


class _NobodyWaits:
    """Stands where the application waited until it could write."""

    __slots__ = ()

    def set(self) -> None:
        """Nothing waits for it."""

    def clear(self) -> None:
        """Nothing will wait for it."""


_NOBODY_WAITS = _NobodyWaits()


def _head_of(data: bytes, place: int, size: int) -> tuple[int, int]:
    """How long a frame's head is with its mask, and what follows it. Of a head cut short the least it may have."""
    if size - place < 2:
        return 2, 0
    second = data[place + 1]
    mask = 4 if second & _MASKED else 0
    length = second & 0x7F
    if length < 126:
        return 2 + mask, length
    extra = 2 if length == 126 else 8
    head = 2 + extra + mask
    return head, int.from_bytes(data[place + 2 : place + 2 + extra]) if size - place >= head else 0
