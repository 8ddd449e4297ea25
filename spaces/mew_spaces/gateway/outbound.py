"""Bytes out: one message, framed once, written to many connections.

A `OutboundChannel` is the way out to one connection, and its only one, so what is written first leaves first. Two kinds
exist: the direct channel hands the same framed bytes to each connection's transport (`websocket.py`, the fast path
under our own server); `AsgiChannel` goes through the ASGI `send` of any other server. Who receives what is decided
elsewhere; a slow reader is noticed here and never waited for.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import anyio

from mew_spaces.core.effects import ConnectionId

_FINAL_TEXT = 0x81
_FINAL_BINARY = 0x82

OnSlow = Callable[[], None]


def frame_message(message: bytes | str) -> bytes:
    """A message as a whole WebSocket frame, unmasked and uncompressed: text for text, binary for bytes."""
    if isinstance(message, str):
        return _head(_FINAL_TEXT, len(data := message.encode())) + data
    return _head(_FINAL_BINARY, len(message)) + message


def frame_json(data: bytes) -> bytes:
    """UTF-8 JSON as a text frame."""
    size = len(data)
    if 126 <= size < 65_536:  # what nearly every envelope is
        return b"\x81\x7e" + size.to_bytes(2) + data
    return _head(_FINAL_TEXT, size) + data


def unframe(framed: bytes) -> bytes | str:
    """The message in a frame of ours."""
    start = {126: 4, 127: 10}.get(framed[1], 2)
    return framed[start:].decode() if framed[0] == _FINAL_TEXT else framed[start:]


def _head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return bytes((first, 126)) + size.to_bytes(2)
    return bytes((first, 127)) + size.to_bytes(8)


class OutboundChannel(ABC):
    """The way out to one connection.

    `write` must not be called once `is_open` is false: then a close frame was sent or received, or it is lost.
    """

    __slots__ = ("is_open", "on_stopped")

    def __init__(self) -> None:
        self.is_open = True
        self.on_stopped: Callable[[], None] | None = None

    write: Callable[[bytes], object]
    """Put a frame behind everything written before; never waits."""

    @property
    def waiting_bytes(self) -> int:
        """How much is written and has not left yet; 0 for channels without a buffer of their own."""
        return 0

    @abstractmethod
    def limit_buffer(self, max_bytes: int) -> None:
        """Say how much may wait for the peer; beyond that it counts as a slow reader and is told on."""

    @abstractmethod
    def close(self, code: int, reason: str) -> None:
        """Send a close frame behind everything written, then wait a bounded time for the peer."""

    @abstractmethod
    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Say one last thing to a slow reader whose channel was shut already, and close."""

    def stop_writing(self) -> None:
        """From this moment on nobody may write; who keeps the channel is told."""
        self.is_open = False
        if self.on_stopped is not None:
            self.on_stopped()


class Fanout:
    """The channels of one space's members, in join order. Some of them get every broadcast with its number."""

    def __init__(self) -> None:
        self._channels: dict[ConnectionId, OutboundChannel] = {}
        self._numbered: set[ConnectionId] = set()
        self._writes: _Writes | None = ((), ())

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def has_numbered(self) -> bool:
        """Whether a channel gets numbers."""
        return bool(self._numbered)

    def add(self, connection: ConnectionId, channel: OutboundChannel, *, numbered: bool = False) -> None:
        """From now on this channel gets what everybody gets, while it is open."""
        self._channels[connection] = channel
        if numbered:
            self._numbered.add(connection)
        channel.on_stopped = self._forget_writes
        self._writes = None

    def remove(self, connection: ConnectionId) -> None:
        """From now on this channel gets nothing."""
        channel = self._channels.pop(connection, None)
        if channel is not None:
            self._numbered.discard(connection)
            channel.on_stopped = None
            self._writes = None

    def write_to_all(
        self, framed: bytes, *, numbered: bytes | None = None, without: frozenset[ConnectionId] = frozenset()
    ) -> None:
        """Write one frame to every channel that is open; `numbered` to those that get numbers."""
        if without:
            for connection in self._channels:
                if connection not in without:
                    self.write_to(numbered if numbered and connection in self._numbered else framed, (connection,))
            return
        # The hot loop of the gateway: per member one write of the very same bytes and nothing else. A channel that a
        # write shuts was written to for the last time by it.
        plain, counting = self._writes if self._writes is not None else self._open_writes()
        for write in plain:
            write(framed)
        if counting:
            framed = framed if numbered is None else numbered
            for write in counting:
                write(framed)

    def write_to(self, framed: bytes, connections: Iterable[ConnectionId]) -> None:
        """Write one frame to these channels, where they are open."""
        for connection in connections:
            channel = self._channels.get(connection)
            if channel is not None and channel.is_open:
                channel.write(framed)

    def _forget_writes(self) -> None:
        self._writes = None

    def _open_writes(self) -> "_Writes":
        numbered = self._numbered
        channels = [(name in numbered, channel.write) for name, channel in self._channels.items() if channel.is_open]
        self._writes = (
            tuple(write for counts, write in channels if not counts),
            tuple(write for counts, write in channels if counts),
        )
        return self._writes


_Writes = tuple[tuple[Callable[[bytes], object], ...], tuple[Callable[[bytes], object], ...]]


class AsgiChannel(OutboundChannel):
    """A channel through ASGI `send`: a bounded outbox and one task, `run`, that empties it in order."""

    def __init__(self, *, on_slow: OnSlow) -> None:
        super().__init__()
        self._outbox: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._max_bytes = 0
        self._on_slow = on_slow
        self._closing: tuple[int, str] | None = None
        self._filled = anyio.Event()
        self.closing = anyio.Event()
        """Set when a close frame is due."""

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def limit_buffer(self, max_bytes: int) -> None:
        """Say how much may wait; until then nothing may."""
        self._max_bytes = max_bytes

    def write(self, framed: bytes) -> None:
        """Put a frame behind what waits already."""
        self._outbox.append(framed)
        self._waiting_bytes += len(framed)
        self._filled.set()
        if self._waiting_bytes > self._max_bytes:
            self.stop_writing()
            self._on_slow()

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Drop what waits; say one last thing and close."""
        self._outbox.clear()
        self._outbox.append(last)
        self._end(code, reason)

    def close(self, code: int, reason: str) -> None:
        """Close behind what waits."""
        if self.is_open:
            self._end(code, reason)

    def _end(self, code: int, reason: str) -> None:
        self.stop_writing()
        self._closing = (code, reason)
        self._filled.set()
        self.closing.set()

    async def run(self, send: Callable[[dict[str, Any]], Any]) -> None:
        """Send what is written, in order, until the channel is closed."""
        while True:
            while self._outbox:
                framed = self._outbox.popleft()
                self._waiting_bytes -= len(framed)
                await send(_asgi_message(framed))
            if self._closing is not None:
                code, reason = self._closing
                await send({"type": "websocket.close", "code": code, "reason": reason})
                return
            self._filled = anyio.Event()
            await self._filled.wait()


def _asgi_message(framed: bytes) -> dict[str, Any]:
    message = unframe(framed)
    return {"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message}
