"""A TCP relay between clients and a gateway whose connections can be cut, reset or silenced at any byte."""

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio
import anyio.abc

Fault = Literal["close", "reset", "stall"]


class FaultyLink:
    """Relays to one port. Faults hit the connections of the moment; later ones are whole until the next fault."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._pairs: set[tuple[anyio.abc.SocketStream, anyio.abc.SocketStream]] = set()
        self._dark: set[anyio.abc.SocketStream] = set()
        self._is_dark = False
        self._is_stalled = False
        self._released = anyio.Event()
        self.latency_seconds = 0.0
        """How long each piece of data takes."""
        self.cut_after_bytes: int | None = None
        """Cut each connection once this many more bytes have passed in either direction."""

    @property
    def url(self) -> str:
        """Where a client connects."""
        return f"ws://127.0.0.1:{self.port}"

    def stall(self) -> None:
        """Let no byte through, in either direction, without closing anything."""
        self._is_stalled, self._released = True, anyio.Event()

    def go_dark(self) -> None:
        """Drop every byte, of present connections for good and of new ones until `release`, unnoticed at first."""
        self._is_dark = True
        self._dark |= {stream for pair in self._pairs for stream in pair}

    def release(self) -> None:
        """End a stall, and let new connections through again."""
        self._is_stalled = self._is_dark = False
        self._released.set()

    async def cut(self, how: Fault = "close") -> None:
        """Break all connections: with FIN, or with RST and whatever was under way lost."""
        for pair in tuple(self._pairs):
            await _break(pair, how)

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        try:
            gateway = await anyio.connect_tcp("127.0.0.1", self.target_port)
        except OSError:
            await client.aclose()
            return
        pair = (client, gateway)
        self._pairs.add(pair)
        if self._is_dark:
            self._dark.update(pair)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._relay, client, gateway, tasks.cancel_scope)
                tasks.start_soon(self._relay, gateway, client, tasks.cancel_scope)
        finally:
            self._pairs.discard(pair)
            self._dark.difference_update(pair)
            with anyio.CancelScope(shield=True):
                await _break(pair, "close")

    async def _relay(
        self, source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await source.receive(4096)
                if self.latency_seconds:
                    await anyio.sleep(self.latency_seconds)
                while self._is_stalled:
                    await self._released.wait()
                if source in self._dark:
                    continue
                if self.cut_after_bytes is not None:
                    data, left = data[: self.cut_after_bytes], self.cut_after_bytes - len(data)
                    if left <= 0:
                        self.cut_after_bytes = None
                        await target.send(data)
                        await self.cut("reset")
                        return
                    self.cut_after_bytes = left
                await target.send(data)
        scope.cancel()


async def _break(pair: tuple[anyio.abc.SocketStream, anyio.abc.SocketStream], how: Fault) -> None:
    for stream in pair:
        if how == "reset":
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()


@asynccontextmanager
async def faulty_link(target_port: int) -> AsyncIterator[FaultyLink]:
    """A relay on a free port while the block runs."""
    link = FaultyLink(target_port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    link.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, link._serve)
        try:
            yield link
        finally:
            link.release()
            tasks.cancel_scope.cancel()
