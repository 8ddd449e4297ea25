"""WebSocket frames that the fast path does not take, floods of them, and fairness between connections."""

import asyncio
import json
import os
import socket
import struct
import sys
from collections import Counter
from typing import Any

import anyio
import pytest
from mew_listener.websocket_connection import MAX_FRAMES_A_TURN, MAX_SMALL_FRAMES
from mew_protocol.ids import ParticipantId
from mew_spaces.gateway.gateway import RunningGateway
from websockets.frames import Frame, Opcode

from tests.support.channels import RecordingChannel
from tests.support.gateway_client import joined, opened
from tests.support.waiting import PATIENCE_SECONDS


async def test_a_message_above_the_limit_gets_an_error_before_the_close(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        await bob.chat("x" * 70_000)
        assert (await bob.error())["error"] == "too_large"
        assert (await bob.closing())[0] == 1009


async def test_compression_is_not_offered(gateway: RunningGateway) -> None:
    async with opened(gateway) as client:
        assert client.socket.response is not None
        assert "Sec-WebSocket-Extensions" not in client.socket.response.headers


@pytest.mark.parametrize("frame", [Frame(Opcode.CONT, b"", fin=False), Frame(Opcode.PING, b"x")])
async def test_a_flood_of_small_frames_ends_the_connection(gateway: RunningGateway, frame: Frame) -> None:
    flood = frame.serialize(mask=True) * (2 * MAX_SMALL_FRAMES + 1)
    async with joined(gateway, "bob") as bob:
        transport = bob.socket.transport
        transport.write(Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True))
        with anyio.fail_after(PATIENCE_SECONDS):
            while not transport.is_closing():  # a slow machine may read one flood in more than a second
                transport.write(flood)
                await anyio.sleep(0.1)
        # What the gateway leaves unread makes TCP reset the connection, which may overtake the reason.
        assert (await bob.closing())[1] in {"too many small frames", ""}
    async with joined(gateway, "ada"):
        pass


async def test_a_flood_of_messages_leaves_other_connections_their_turn(gateway: RunningGateway) -> None:
    handled: Counter[int] = Counter()
    turn, count = 0, 50 * MAX_FRAMES_A_TURN
    async with joined(gateway, "bob") as bob, anyio.create_task_group() as tasks:
        (connection,) = gateway.server.connections.open
        connection.channel.on_message = lambda _data, _is_text: handled.update([turn])

        async def count_turns() -> None:
            nonlocal turn
            while handled.total() < count:
                turn += 1
                await anyio.sleep(0)

        tasks.start_soon(count_turns)
        bob.socket.transport.write(Frame(Opcode.TEXT, b"x").serialize(mask=True) * count)
        with anyio.fail_after(PATIENCE_SECONDS):
            while handled.total() < count:
                await anyio.sleep(0.01)
    assert max(handled.values()) <= 2 * MAX_FRAMES_A_TURN


@pytest.mark.parametrize("path", ["/", "/ws", "/any/path?space=demo"])
async def test_connections_are_accepted_at_any_path(gateway: RunningGateway, path: str) -> None:
    from websockets.asyncio.client import connect

    async with connect(gateway.ws_url + path) as socket:
        await socket.send('{"type":"join","token":"token-of-coder"}')
        with anyio.fail_after(PATIENCE_SECONDS):
            assert '"system/welcome"' in await socket.recv()


async def test_a_broken_handshake_is_refused(gateway: RunningGateway) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        stream = await anyio.connect_tcp(gateway.host, gateway.port)
        async with stream:
            await stream.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 4")
    async with joined(gateway, "ada"):
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"\x83\x80\0\0\0\0",
        b"\x81\x05hello",
        b"\xff" * 64,
        b"\x80\x80\0\0\0\0",
        b"\x88\x81\0\0\0\0x",
        b"\x81\xff" + struct.pack("!Q", 2**62) + b"\0\0\0\0",
    ],
    ids=["unknown opcode", "unmasked", "noise", "continuation of nothing", "crooked close", "endless"],
)
async def test_invalid_frames_end_one_connection_only(gateway: RunningGateway, data: bytes) -> None:
    handshake = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with anyio.fail_after(PATIENCE_SECONDS):
        stream = await anyio.connect_tcp(gateway.host, gateway.port)
        async with stream:
            await stream.send(handshake)
            assert (await stream.receive()).startswith(b"HTTP/1.1 101")
            await stream.send(data)
            async for _ in stream:
                pass
    async with joined(gateway, "ada") as ada:
        await ada.chat("alive")
        assert (await ada.next())["payload"]["text"] == "alive"


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset by the peer", "aborted by us"])
async def test_a_socket_stays_open_until_connection_lost_returns(is_reset: bool) -> None:
    """The fan-out writes to descriptors; one that was closed earlier could be another connection's by then."""
    transports: list[asyncio.Transport] = []
    lost = anyio.Event()

    class Probe(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.descriptor = transport.get_extra_info("socket").fileno()
            transports.append(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            os.fstat(self.descriptor)
            lost.set()

    server = await asyncio.get_running_loop().create_server(Probe, "127.0.0.1", 0)
    async with server:
        with anyio.fail_after(PATIENCE_SECONDS), socket.create_connection(server.sockets[0].getsockname()) as peer:
            while not transports:
                await anyio.lowlevel.checkpoint()
            if is_reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
            else:
                transports[0].abort()
            await lost.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")
async def test_envelopes_that_arrive_together_leave_in_one_write(gateway: RunningGateway) -> None:
    chats = [json.dumps({"kind": "chat", "payload": {"text": text}}).encode() for text in ("one", "two", "three")]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps writes apart
    with ours, theirs:
        theirs.setblocking(False)
        service, channel = gateway.service, RecordingChannel()
        channel.descriptor = ours.fileno()
        connection = service.new_connection()
        service.attach(connection, channel)
        service.join(connection, ParticipantId("bob"))
        async with joined(gateway, "ada") as ada:
            ada.socket.transport.write(b"".join(Frame(Opcode.TEXT, chat).serialize(mask=True) for chat in chats))
            together = await written(theirs)
            assert [together.count(text) for text in (b'"one"', b'"two"', b'"three"')] == [1, 1, 1]
            await ada.chat("alone")
            assert b'"alone"' in await written(theirs)
        service.leave(connection)


async def written(reader: socket.socket) -> bytes:
    """The payload of one write, which begins with a frame of at most 64 KiB."""
    with anyio.fail_after(PATIENCE_SECONDS):
        await anyio.wait_readable(reader)
        return reader.recv(1 << 16)[4:]
