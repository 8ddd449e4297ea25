"""Outgoing bytes: a message is framed once, and the same bytes are written to many connections.

Owns WebSocket framing, the channels (one per connection, in order) and the fan-out loop. `DirectChannel` writes to the
connection's transport. A broadcast bypasses the transport and goes directly to the socket if nothing waits in the
transport. Broadcasts of one turn of the event loop leave in one write. Detects slow consumers and never waits for them.
Does not choose the receivers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from os import write

from mew_listener.websocket_connection import WebSocketConnection

from mew_spaces.core.events import ConnectionId

MAX_JOINED_BYTES = 64 * 1024
"""How many bytes of broadcasts are collected in one turn of the event loop before they are written."""

_FINAL_TEXT = 0x81
_FINAL_BINARY = 0x82

Callback = Callable[[], object]

OnMessage = Callable[[bytes, bool], object]
"""Receives each message's bytes, and whether it is text. The UTF-8 of text is not validated yet."""


def frame_message(message: bytes | str) -> bytes:
    """Return a message as one WebSocket frame, unmasked and uncompressed: text for str, binary for bytes."""
    return frame_json(message.encode()) if isinstance(message, str) else _header(_FINAL_BINARY, len(message)) + message


def frame_json(data: bytes) -> bytes:
    """Return JSON, or other text in UTF-8, as one text frame."""
    size = len(data)
    if 126 <= size < 65_536:  # the usual case; saves a call
        return b"\x81\x7e" + size.to_bytes(2) + data
    if size < 126:
        return b"\x81%c" % size + data
    return _header(_FINAL_TEXT, size) + data


def unframe(framed: bytes) -> bytes | str:
    """Return the message in a frame made by this module."""
    start = {126: 4, 127: 10}.get(framed[1], 2)
    return framed[start:].decode() if framed[0] == _FINAL_TEXT else framed[start:]


def _header(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 65_536:
        return bytes((first, 126)) + size.to_bytes(2)
    return bytes((first, 127)) + size.to_bytes(8)


class OutboundChannel(ABC):
    """The only way to write to a connection.

    Use `write` only while `is_open`; afterwards a close frame was sent or received, or the connection is lost.
    """

    __slots__ = ("descriptor", "is_open", "on_changed", "on_joined")

    def __init__(self) -> None:
        self.is_open = True
        self.descriptor: int | None = None
        """The socket that accepts frames directly. None if there is none, or while `write` has bytes waiting."""
        self.on_joined: Callable[[str], None] | None = None
        self.on_changed: Callback | None = None
        """Called when `is_open` or `descriptor` has changed."""

    write: Callable[[bytes], object]
    """Queue a frame after everything written before; never waits."""

    @abstractmethod
    def write_frames(self, frames: Iterable[bytes], joined: bytes) -> None:
        """Queue several frames; `joined` has them concatenated, for channels that need no frame boundaries."""

    @property
    def waiting_bytes(self) -> int:
        """The number of written bytes that have not left yet; 0 for channels without a buffer."""
        return 0

    @abstractmethod
    def limit_buffer(self, max_bytes: int) -> None:
        """Set the limit of bytes waiting for the peer. A peer above it is reported as a slow consumer."""

    @abstractmethod
    def close(self, code: int, reason: str) -> None:
        """Send a close frame after everything written, then wait a limited time for the peer."""

    @abstractmethod
    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Send a last frame and close, even after `stop_writing`, to notify a slow consumer."""

    def stop_writing(self) -> None:
        """Mark the channel closed for writing and notify the fan-out."""
        self.is_open, self.descriptor = False, None
        if self.on_changed is not None:
            self.on_changed()


def admit(channel: OutboundChannel, client: str, *, buffer_bytes: int) -> None:
    """Lift the limits for unjoined clients. `client` identifies the client among all spaces."""
    channel.limit_buffer(buffer_bytes)
    on_joined, channel.on_joined = channel.on_joined, None
    if on_joined is not None:
        on_joined(client)


class Fanout:
    """The channels of one space's members, in join order. Sessions among them get numbered broadcasts."""

    def __init__(self) -> None:
        self._channels: dict[ConnectionId, OutboundChannel] = {}
        self.numbered: set[ConnectionId] = set()
        """The connections that get numbers."""
        self._targets: tuple[_Targets, _Targets] | None = None
        """Where broadcasts go: without numbers, with numbers. None until it is known."""
        self._collected: list[bytes] = []
        self._collected_numbered: list[bytes] = []
        """Broadcasts that wait for `flush`, without and with their numbers."""
        self._collected_bytes = 0
        self.request_flush: Callback | None = None
        """Arranges a call of `flush` at the end of the event loop's turn. None: each broadcast is written at once."""
        self.deliveries = 0
        """How many messages were written, one for each member."""

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, connection: ConnectionId, channel: OutboundChannel, *, numbered: bool = False) -> None:
        """Include a channel in every broadcast from now on while it is open."""
        self.flush()
        self._channels[connection] = channel
        if numbered:
            self.numbered.add(connection)
        channel.on_changed = self._forget_targets
        self._targets = None

    def remove(self, connection: ConnectionId) -> None:
        """Exclude a channel from further broadcasts."""
        self.flush()
        channel = self._channels.pop(connection, None)
        if channel is not None:
            self.numbered.discard(connection)
            channel.on_changed = None
            self._targets = None

    def write_to_all(
        self, framed: bytes, *, numbered: bytes | None = None, without: Collection[ConnectionId] = ()
    ) -> None:
        """Write one frame to every open channel except `without`; sessions receive `numbered`.

        A frame for all channels is written with the next `flush`, if one can be scheduled.
        """
        if without:
            self._write_to_others(framed, numbered or framed, without)
            return
        collected = self._collected
        collected.append(framed)
        if self.numbered:
            self._collected_numbered.append(numbered or framed)
        self._collected_bytes += len(framed)
        if self.request_flush is None or self._collected_bytes > MAX_JOINED_BYTES:
            self.flush()
        elif len(collected) == 1:
            self.request_flush()

    def _write_to_others(self, framed: bytes, numbered: bytes, without: Collection[ConnectionId]) -> None:
        self.flush()
        for connection, channel in self._channels.items():
            if connection not in without and channel.is_open:
                self.deliveries += 1
                channel.write(numbered if connection in self.numbered else framed)

    def flush(self) -> None:
        """Write the collected broadcasts: in one write per channel, which costs little more than a single broadcast.

        Call this before writing to a member in another way, to keep the order.
        """
        frames, numbered = self._collected, self._collected_numbered
        if not frames:
            return
        self._collected, self._collected_bytes = [], 0
        plain, counting = self._targets or self._find_targets()
        written = plain.write(frames)
        if numbered:
            self._collected_numbered = []
            written += counting.write(numbered)
        self.deliveries += written

    def write_to(self, framed: bytes, connections: Iterable[ConnectionId]) -> None:
        """Write one frame to these connections if they are open."""
        self.flush()
        for connection in connections:
            channel = self._channels.get(connection)
            if channel is not None and channel.is_open:
                self.deliveries += 1
                channel.write(framed)

    def _forget_targets(self) -> None:
        self._targets = None

    def _find_targets(self) -> "tuple[_Targets, _Targets]":
        open_channels = [
            (name in self.numbered, channel) for name, channel in self._channels.items() if channel.is_open
        ]
        self._targets = (
            _Targets(channel for is_numbered, channel in open_channels if not is_numbered),
            _Targets(channel for is_numbered, channel in open_channels if is_numbered),
        )
        return self._targets


class _Targets:
    """Channels that get the same bytes. Invalid once the channels have changed."""

    __slots__ = ("_by_descriptor", "_descriptors", "_others")

    def __init__(self, channels: Iterable[OutboundChannel]) -> None:
        self._by_descriptor: dict[int, OutboundChannel] = {}
        self._others: list[OutboundChannel] = []
        for channel in channels:
            if channel.descriptor is None:
                self._others.append(channel)
            else:
                self._by_descriptor[channel.descriptor] = channel
        self._descriptors = list(self._by_descriptor)

    def write(self, frames: Sequence[bytes]) -> int:
        """Write these frames to each channel. Returns the number of written frames, summed over the channels."""
        # The gateway's hot loop: one system call a member. A write through the transport costs half a microsecond more,
        # mostly because the kernel's work for each socket empties the CPU's caches: each object that the loop touches
        # for a member, such as its channel or transport, is loaded again. A channel that a write closes is not written
        # to again, because each appears once.
        joined = b"".join(frames)
        size = len(joined)
        for descriptor in self._descriptors:
            try:
                written = write(descriptor, joined)
            except OSError:  # the socket is full or lost; the transport handles both
                written = 0
            if written != size:
                self._by_descriptor[descriptor].write(joined[written:])
        for channel in self._others:
            channel.write_frames(frames, joined)
        return len(frames) * (len(self._descriptors) + len(self._others))


class DirectChannel(OutboundChannel):
    """Writes straight to a connection's transport; once attached, it also receives messages.

    The fan-out may write to the socket (`descriptor`) while nothing waits in the transport, which reports this by
    `pause` and `resume` with a limit of zero bytes. With TLS there is no `descriptor`, and the transport calls `pause`
    at the channel's limit.
    """

    __slots__ = (
        "_connection",
        "_max_waiting_bytes",
        "_socket",
        "_transport",
        "on_disconnect",
        "on_message",
        "on_slow",
        "on_too_large",
    )

    def __init__(self, connection: WebSocketConnection) -> None:
        super().__init__()
        self._connection = connection
        self._transport = connection.transport
        self._socket = self.descriptor = connection.socket
        self._max_waiting_bytes = 0
        self.on_message: OnMessage | None = None
        self.on_disconnect: Callback | None = None
        self.on_slow: Callback | None = None
        self.on_too_large: Callback | None = None

    def write(self, framed: bytes) -> None:
        """Write a frame to the transport."""
        self._transport.write(framed)
        if self.descriptor is None and self._socket is not None:
            self._check_buffer()

    def write_frames(self, _frames: Iterable[bytes], joined: bytes) -> None:
        """Write several frames to the transport at once."""
        self.write(joined)

    @property
    def waiting_bytes(self) -> int:
        """How many written bytes have not left yet."""
        return self._transport.get_write_buffer_size()

    def limit_buffer(self, max_bytes: int) -> None:
        """Set how many bytes may wait for the peer."""
        self._max_waiting_bytes = max_bytes
        self._transport.set_write_buffer_limits(high=max_bytes if self._socket is None else 0)

    def pause(self) -> None:
        """Use only the transport until `resume`, because bytes wait in it that direct writes would overtake."""
        self.descriptor = None
        if self.on_changed is not None:
            self.on_changed()
        self._check_buffer()

    def resume(self) -> None:
        """Use the socket again: nothing waits in the transport."""
        if self.is_open:
            self.descriptor = self._socket
            if self.on_changed is not None:
                self.on_changed()

    def _check_buffer(self) -> None:
        is_full = self._socket is None or self.waiting_bytes > self._max_waiting_bytes
        if is_full and self.is_open and self.on_slow is not None:
            self.stop_writing()
            self.on_slow()

    def too_large(self) -> None:
        """Notify the peer that its message is too large, if writing is still possible."""
        if self.is_open and self.on_too_large is not None:
            self.on_too_large()

    def disconnected(self) -> None:
        """Notify the application that the connection has ended, and drop its callbacks."""
        on_disconnect = self.on_disconnect
        self.on_message = self.on_disconnect = self.on_slow = self.on_too_large = self.on_joined = None
        if on_disconnect is not None:
            on_disconnect()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame after everything written; abort the connection if the peer does not respond."""
        if self.is_open:
            self._connection.close_with(code, reason)

    def close_with_message(self, last: bytes, code: int, reason: str) -> None:
        """Send a last frame and close, even after `stop_writing`."""
        if not self._connection.is_closing:
            self.write(last)
            self._connection.close_with(code, reason)
