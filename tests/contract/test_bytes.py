"""How received bytes are parsed."""

import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

import anyio
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.support.gateway_client import joined
from tests.support.raw_socket import HANDSHAKE, frame, messages, raw_socket, shake_hands

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {command: mew, capabilities: [{kind: chat}, {kind: "stream/*"}]}
limits: {message_bytes: 65536, write_buffer_bytes: 65536}
"""


@pytest.fixture
def config() -> SpaceConfig:
    return parse_space(SPACE)


@pytest.fixture
async def gateway(config: SpaceConfig) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(config) as running:
        yield running


def chat(text: str) -> bytes:
    return json.dumps({"kind": "chat", "payload": {"text": text}}).encode()


def talk(gateway: RunningGateway, pieces: list[bytes], last: str) -> list[str]:
    """Join, send these pieces each in a segment of its own, and read texts of chats up to the last."""
    heard = []
    with raw_socket(gateway) as connection:
        shake_hands(connection)
        connection.sendall(frame(json.dumps({"type": "join", "token": gateway.token_of("coder")}).encode()))
        received = messages(connection)
        assert json.loads(next(received)[1])["kind"] == "system/welcome"
        for piece in pieces:
            connection.sendall(piece)
        for opcode, data in received:
            if opcode == 1 and json.loads(data)["kind"] == "chat":
                heard.append(json.loads(data)["payload"]["text"])
                if heard[-1] == last:
                    break
    return heard


def in_pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[place : place + size] for place in range(0, len(stream), size)]


TEXTS = ["a", "x" * 100, "y" * 500, "z" * 60_000, "", "ü" * 70, "end"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000, 10**9])
async def test_messages_are_the_same_however_their_bytes_are_split(gateway: RunningGateway, size: int) -> None:
    texts = [text for text in TEXTS if text and (size > 7 or len(text) < 1_000)]
    stream = b"".join(frame(chat(text)) for text in texts)
    assert await anyio.to_thread.run_sync(talk, gateway, in_pieces(stream, size), "end") == texts


@pytest.mark.parametrize("size", [1, 5, 10**9])
async def test_fragments_with_pings_between_them_keep_their_order(gateway: RunningGateway, size: int) -> None:
    one = chat("in parts")
    stream = b"".join(
        (
            frame(chat("before")),
            frame(one[:5], final=False),
            frame(b"ping", opcode=9),
            frame(one[5:9], opcode=0, final=False),
            frame(b"pong", opcode=10),
            frame(one[9:], opcode=0),
            frame(chat("binary"), opcode=2),
            frame(b"#no-stream#x", opcode=2),
            frame(chat("end")),
        )
    )
    heard = await anyio.to_thread.run_sync(talk, gateway, in_pieces(stream, size), "end")
    assert heard == ["before", "in parts", "binary", "end"]


def provoke(gateway: RunningGateway, wrong: bytes) -> int | None:
    """Join, send a wrong frame and a right one; say with what code the connection closes."""
    with raw_socket(gateway) as connection:
        shake_hands(connection)
        connection.sendall(frame(json.dumps({"type": "join", "token": gateway.token_of("coder")}).encode()))
        received = messages(connection)
        assert json.loads(next(received)[1])["kind"] == "system/welcome"
        with suppress(ConnectionError):
            connection.sendall(wrong + frame(chat("must not be heard")))
        for opcode, data in received:
            if opcode == 8:
                return int.from_bytes(data[:2])
    return None


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(chat("unmasked"), mask=None), 1002),
        (bytes((0xF1, 0x80)) + b"mask", 1002),
        (frame(b"unknown opcode", opcode=3), 1002),
        (frame(b"long control" * 20, opcode=9), 1002),
        (frame(b"ping in parts", opcode=9, final=False), 1002),
        (frame(b"a part of nothing", opcode=0), 1002),
        (frame(b"half", final=False) + frame(chat("another begins")), 1002),
        (b"\x81\xff" + b"\xff" * 8 + b"mask", 1009),
        (b"\x81\xff" + (1 << 40).to_bytes(8) + b"mask", 1009),
        (frame(b"x" * 40_000, final=False) + frame(b"x" * 40_000, opcode=0), 1009),
    ],
)
async def test_an_invalid_frame_closes_its_connection_and_later_frames_are_ignored(
    gateway: RunningGateway, wrong: bytes, code: int
) -> None:
    async with joined(gateway, "ada") as ada:
        assert await anyio.to_thread.run_sync(provoke, gateway, wrong) == code
        heard = [(await ada.next())["payload"]["event"] for _ in range(2)]
        assert heard == ["join", "leave"]
        await ada.chat("still here")
        assert (await ada.next())["payload"]["text"] == "still here"


def send_too_much(gateway: RunningGateway) -> int | None:
    """Join and send far more than sockets buffer. Returns the code with which the connection closes."""
    with raw_socket(gateway) as connection:
        shake_hands(connection)
        connection.sendall(frame(json.dumps({"type": "join", "token": gateway.token_of("coder")}).encode()))
        received = messages(connection)
        assert json.loads(next(received)[1])["kind"] == "system/welcome"
        connection.sendall(frame(b"x" * 30_000_000))  # raises an error if the connection is reset
        return next((int.from_bytes(data[:2]) for opcode, data in received if opcode == 8), None)


async def test_the_sender_of_a_much_too_large_message_gets_the_close_code(gateway: RunningGateway) -> None:
    assert await anyio.to_thread.run_sync(send_too_much, gateway) == 1009


async def test_a_reset_after_a_much_too_large_message_logs_no_error(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(gateway, "ada") as ada:
        with raw_socket(gateway) as connection:
            await anyio.to_thread.run_sync(shake_hands, connection)
            connection.sendall(frame(json.dumps({"type": "join", "token": gateway.token_of("coder")}).encode()))
            await ada.until("system/presence")
            # The gateway shares this thread, so it reads the start of the message after the reset.
            connection.sendall(b"\x81\xff" + (30_000_000).to_bytes(8) + b"mask" + b"x" * 10_000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert (await ada.until("system/presence"))["payload"]["event"] == "leave"
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def noise(random_: random.Random) -> bytes:
    """Bytes that are nearly right, or nothing at all."""
    kinds = [
        lambda: random_.randbytes(random_.randrange(1, 200)),
        lambda: frame(random_.randbytes(random_.randrange(0, 200)), opcode=random_.randrange(16)),
        lambda: frame(b"#" + random_.randbytes(20)),
        lambda: frame(b"[" * random_.randrange(1, 5_000)),
        lambda: frame(json.dumps({"kind": random_.choice(["chat", "stream/request", 5, None, []])}).encode()),
        lambda: frame(chat("x"), final=random_.random() < 0.5),
        lambda: frame(b'{"type":"join","token":"' + random_.randbytes(4).hex().encode() + b'"}'),
        lambda: HANDSHAKE[: random_.randrange(len(HANDSHAKE))],
    ]
    return random_.choice(kinds)()


def disturb(gateway: RunningGateway, seed: int) -> None:
    """One connection that misbehaves in its own way, then hangs up."""
    random_ = random.Random(seed)
    with raw_socket(gateway) as connection, suppress(OSError):
        if random_.random() < 0.8:
            shake_hands(connection)
            if random_.random() < 0.5:
                connection.sendall(frame(json.dumps({"type": "join", "token": gateway.token_of("coder")}).encode()))
        for _ in range(random_.randrange(1, 12)):
            data = noise(random_)
            cut = random_.randrange(len(data) + 1)
            connection.sendall(data[:cut])
            connection.sendall(data[cut:])
        if random_.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)


async def test_no_bytes_stop_the_gateway(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        for start in range(0, 120, 8):
            async with anyio.create_task_group() as tasks:
                for seed in range(start, start + 8):
                    work: Callable[[], None] = partial(disturb, gateway, seed)
                    tasks.start_soon(anyio.to_thread.run_sync, work)
            await ada.chat(f"after {start}")
            while (heard := await ada.until("chat"))["payload"]["text"] != f"after {start}":
                assert heard["from"] == "coder"
