"""Stream frames between the gateways of one space: at most once, outside the order of events.

A frame waits until this gateway has applied what its sender's gateway had, so that no member gets frames of a stream
that it does not know yet. Each gateway numbers what it sends of each stream, which shows what was lost. Does not know
who may write to a stream; the gateway of the sender has checked that.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

import anyio
from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.codec import StreamFrame
from pydantic_core import from_json, to_json

from mew_spaces.backplane.interface import Backplane, BackplaneError

MAX_WAITING_FRAMES = 10_000
"""What may wait to be sent or to be delivered; further frames are lost."""

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
        self._wake = anyio.Event()
        self._applied = 0

    def send(self, frame: StreamFrame, targets: tuple[str, ...]) -> None:
        """Send a frame to the other gateways, soon."""
        number = self._sent[frame.stream_id] = self._sent.get(frame.stream_id, 0) + 1
        raw = frame.raw
        if len(self._outgoing) < MAX_WAITING_FRAMES:
            data = raw if isinstance(raw, bytes) else raw.encode()
            self._outgoing.append(_Outgoing(frame.stream_id, number, targets, isinstance(raw, str), data))
            self._wake.set()

    def follow(self, batch: int) -> None:
        """Deliver what waited for this batch, which was applied."""
        self._applied = batch
        while self._early and self._early[0][0] <= batch:
            self._deliver(self._early.popleft()[1])

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
                except BackplaneError as error:  # lost: the next frame's number shows it
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
        head, _, rest = message.partition(b"\n")
        origin, applied, frames = from_json(head)
        if origin == self._origin:
            return
        start = 0
        for stream_id, number, targets, is_text, size in frames:
            data = rest[start : start + size]
            start += size
            if len(self._early) >= MAX_WAITING_FRAMES:
                continue  # lost: the next frame's number shows it
            last = self._received.get((origin, stream_id))
            self._received[origin, stream_id] = number
            frame = StreamFrame(stream_id, data.decode() if is_text else data)
            # Of a stream whose first frames this gateway did not see, it began to listen in the middle.
            missed = 0 if last is None else number - last - 1
            self._early.append((applied, RemoteFrame(frame, tuple(targets), missed)))
        self.follow(self._applied)
