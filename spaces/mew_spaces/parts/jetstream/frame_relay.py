"""Stream frames between the gateways of one space: at most once, outside the order of events.

A frame waits until this gateway has applied the same events as its sender's gateway, so that members never get frames
of an unknown stream. Each gateway numbers its frames per stream, to reveal losses. The sender's gateway has checked the
right to write.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated, Final, NamedTuple

import anyio
from mew_listener.bounded_dict import BoundedDict
from mew_protocol.codec import StreamFrame
from pydantic import Field, TypeAdapter
from pydantic_core import to_json

from mew_spaces.parts.jetstream.backplane import Backplane, BackplaneError, report_foreign

MAX_WAITING_FRAMES = 10_000
"""How many frames may wait to be sent or to be delivered; further frames are lost."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""How large the frames may be that wait to be delivered."""

MAX_COUNTED_STREAMS = 10_000
MESSAGE_BYTES = 128 * 1024
"""A message to the other gateways takes no further frames above this size."""

log = logging.getLogger("mew_spaces")


class RemoteFrame(NamedTuple):
    """A frame from another gateway. `missed` frames of its stream were lost before it."""

    frame: StreamFrame
    targets: tuple[str, ...]
    """The participants that it is for; empty means every member."""
    missed: int


class _Outgoing(NamedTuple):
    stream_id: str
    number: int
    targets: tuple[str, ...]
    is_text: bool
    data: bytes


_Number = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]


class _Head(NamedTuple):
    """The first line of a message: its origin, the batch applied there, and the headers of its frames."""

    origin: str
    applied: _Number
    frames: list[tuple[str, _Number, tuple[str, ...], bool, _Number]]


_HEAD: Final = TypeAdapter(_Head)


class FrameRelay:
    """The frames that one gateway sends to the others and receives from them."""

    def __init__(self, backplane: Backplane, deliver: Callable[[RemoteFrame], None]) -> None:
        self._backplane = backplane
        self._deliver = deliver
        self._origin = secrets.token_hex(8)
        self._sent: BoundedDict[str, int] = BoundedDict(MAX_COUNTED_STREAMS)
        self._received: BoundedDict[tuple[str, str], int] = BoundedDict(MAX_COUNTED_STREAMS)
        self._outgoing: deque[_Outgoing] = deque()
        self._early: deque[tuple[int, RemoteFrame]] = deque()
        self._early_bytes = 0
        self._wake = anyio.Event()
        self._applied = 0

    def send(self, frame: StreamFrame, targets: tuple[str, ...]) -> None:
        """Queue a frame for the other gateways."""
        number = self._sent[frame.stream_id] = self._sent.get(frame.stream_id, 0) + 1
        raw = frame.raw
        if len(self._outgoing) < MAX_WAITING_FRAMES:
            data = raw if isinstance(raw, bytes) else raw.encode()
            self._outgoing.append(_Outgoing(frame.stream_id, number, targets, isinstance(raw, str), data))
            self._wake.set()

    def batch_applied(self, batch: int) -> None:
        """Deliver the frames that waited for this applied batch."""
        self._applied = batch
        while self._early and self._early[0][0] <= batch:
            frame = self._early.popleft()[1]
            self._early_bytes -= len(frame.frame.raw)
            self._deliver(frame)

    async def run(self) -> None:
        """Send and receive until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_all)
            async with aclosing(self._backplane.frames()) as messages:
                async for message in messages:
                    self._receive(message)

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._outgoing:
                try:
                    await self._backplane.publish(self._pack())
                except BackplaneError as error:  # the frame is lost; the number of the next one shows it
                    log.debug("frames not sent to other gateways: %s", error)

    def _pack(self) -> bytes:
        packed: list[_Outgoing] = []
        size = 0
        while self._outgoing and size < MESSAGE_BYTES:
            packed.append(self._outgoing.popleft())
            size += len(packed[-1].data)
        frames = [(*one[:-1], len(one.data)) for one in packed]
        return b"".join((to_json((self._origin, self._applied, frames)), b"\n", *(one.data for one in packed)))

    def _receive(self, message: bytes) -> None:
        try:
            origin, applied, frames = _read(message)
        except ValueError:
            report_foreign("a message with stream frames")
            return
        if origin == self._origin:
            return
        for stream_id, number, targets, data in frames:
            if len(self._early) >= MAX_WAITING_FRAMES or self._early_bytes + len(data) > MAX_WAITING_BYTES:
                continue  # the frame is lost; the number of the next one shows it
            last = self._received.get((origin, stream_id))
            self._received[origin, stream_id] = number
            # Without a known number, this gateway began to listen in the middle of the stream.
            missed = 0 if last is None else max(0, number - last - 1)
            self._early.append((applied, RemoteFrame(StreamFrame(stream_id, data), targets, missed)))
            self._early_bytes += len(data)
        self.batch_applied(self._applied)


def _read(message: bytes) -> tuple[str, int, list[tuple[str, int, tuple[str, ...], str | bytes]]]:
    """Return the origin of a message, the batch applied there, and its frames.

    Raises `ValueError` if no gateway wrote it.
    """
    line, _, rest = message.partition(b"\n")
    head = _HEAD.validate_json(line)
    found: list[tuple[str, int, tuple[str, ...], str | bytes]] = []
    start = 0
    for stream_id, number, targets, is_text, size in head.frames:
        data = rest[start : start + size]
        start += size
        if not data.startswith(f"#{stream_id}#".encode()):
            raise ValueError("a frame without its stream")
        found.append((stream_id, number, targets, data.decode() if is_text else data))
    return head.origin, head.applied, found
