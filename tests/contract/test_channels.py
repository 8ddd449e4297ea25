"""What a connection can rely on."""

import json
import socket as sockets
import struct
from collections.abc import AsyncIterator

import anyio
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.support.gateway_client import Client, joined, opened
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: chat}]}
  coder: {command: mew, capabilities: [{kind: chat}, {kind: "stream/*"}]}
limits: {message_bytes: 65536, write_buffer_bytes: BUFFER, join_timeout_seconds: 1.0,
  ping_interval_seconds: 0}
"""


@pytest.fixture
def buffer_bytes() -> int:
    return 65_536


@pytest.fixture
def config(buffer_bytes: int) -> SpaceConfig:
    return parse_space(SPACE.replace("BUFFER", str(buffer_bytes)))


@pytest.fixture
async def gateway(config: SpaceConfig) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(config) as running:
        yield running


async def test_every_member_receives_the_same_text_including_the_sender(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.until("system/presence")
        await bob.chat("Grüße")
        received = [await one.raw() for one in (ada, bob)]
    assert received[0] == received[1]
    assert isinstance(received[0], str)
    assert json.loads(received[0])["payload"] == {"text": "Grüße"}


async def test_stream_frames_keep_their_form_and_order(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "coder") as coder:
        await coder.send_envelope("stream/request", {"direction": "upload"})
        for number in range(20):
            await coder.chat(f"e{number}")
            await coder.send(f"#stream-1#f{number}" if number % 2 else f"#stream-1#f{number}".encode())
        await ada.until("stream/request")
        got = [await ada.raw() for _ in range(40)]
    for number in range(20):
        envelope, frame = got[2 * number], got[2 * number + 1]
        assert isinstance(envelope, str)
        assert json.loads(envelope)["payload"]["text"] == f"e{number}"
        assert frame == (f"#stream-1#f{number}" if number % 2 else f"#stream-1#f{number}".encode())


async def test_messages_right_after_the_join_arrive_in_order(gateway: RunningGateway) -> None:
    async with opened(gateway, "coder") as coder:
        await coder.join(gateway.token_of("coder"))
        for number in range(50):
            await coder.chat(str(number))
        kinds = [await coder.next() for _ in range(51)]
    assert kinds[0]["kind"] == "system/welcome"
    assert [one["payload"]["text"] for one in kinds[1:]] == [str(number) for number in range(50)]


async def test_a_bearer_header_joins_and_a_later_join_frame_is_accepted(gateway: RunningGateway) -> None:
    header = {"Authorization": f"Bearer {gateway.token_of('coder')}"}
    async with opened(gateway, "coder", additional_headers=header) as coder:
        assert (await coder.next())["kind"] == "system/welcome"
        await coder.join(None)
        assert (await coder.next())["kind"] == "system/welcome"


@pytest.mark.parametrize(("token", "participant"), [("wrong", "bob"), (None, "bob")])
async def test_a_wrong_token_gets_an_error_and_is_closed(
    gateway: RunningGateway, token: str | None, participant: str
) -> None:
    async with opened(gateway, "bob") as bob:
        await bob.join(token, participant=participant)
        refusal = await bob.next()
        assert (refusal["kind"], refusal["payload"]["error"]) == ("system/error", "unauthorized")
        assert await bob.closing() == (4401, "unauthorized")


async def test_a_connection_that_never_joins_is_closed(gateway: RunningGateway) -> None:
    async with opened(gateway) as silent:
        assert (await silent.error())["error"] == "not_joined"
        assert (await silent.closing())[0] == 4401


@pytest.mark.parametrize(
    "garbage", ["garbage", "", "{", "null", "[]", '"x"', "#", "#x", b"\x00\xff", b"#\xff#x", '{"kind":5}', '{"to":[1]}']
)
async def test_an_invalid_message_gets_one_error(gateway: RunningGateway, garbage: str | bytes) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.until("system/presence")
        await bob.send(garbage)
        await bob.chat("still here")
        assert (await bob.next())["kind"] == "system/error"
        assert (await bob.next())["kind"] == "chat"
        assert (await ada.next())["kind"] == "chat"


async def test_a_message_above_the_limit_closes_only_its_sender(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        await ada.until("system/presence")
        await bob.chat("x" * 70_000)
        assert (await bob.closing())[0] == 1009
        assert (await ada.next())["payload"]["event"] == "leave"


async def test_a_message_at_the_size_limit_is_delivered(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        await bob.chat("x" * 65_000)
        assert len((await bob.next())["payload"]["text"]) == 65_000


async def test_a_newer_agent_connection_supersedes_the_older(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "coder") as older:
        async with joined(gateway, "coder") as newer:
            assert (await older.error())["error"] == "superseded"
            await newer.chat("new")
            assert (await newer.next())["payload"]["text"] == "new"
            await older.chat("old")
            assert (await older.error())["error"] == "superseded"
            await older.socket.close()
            await newer.chat("still here")
            assert (await newer.next())["payload"]["text"] == "still here"
        received = [(await ada.until("system/presence"))["payload"]["event"] for _ in range(3)]
    assert received == ["join", "join", "leave"]


async def test_a_person_may_have_two_connections(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        async with joined(gateway, "ada") as first:
            async with joined(gateway, "ada") as second:
                await bob.chat("both")
                assert (await first.next())["payload"] == (await second.next())["payload"] == {"text": "both"}
            await first.chat("still here")
            assert (await first.next())["payload"]["text"] == "still here"
        kinds = [one["kind"] for one in await bob.seen_so_far()]
        assert kinds == [
            "system/presence",
            "chat",
            "chat",
            "system/presence",
        ]


async def raw_socket(gateway: RunningGateway) -> sockets.socket:
    """A socket that shakes hands and then does only what the test does."""
    return await anyio.to_thread.run_sync(_shake_hands, gateway)


def _shake_hands(gateway: RunningGateway) -> sockets.socket:
    connection = sockets.create_connection((gateway.host, gateway.port))
    connection.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return connection


def masked(opcode: int, data: bytes) -> bytes:
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0xFE]) + struct.pack("!H", len(data))
    return bytes([0x80 | opcode]) + size + b"\0\0\0\0" + data


def frames_of(stream: bytes) -> list[tuple[int, bytes]]:
    """The server's frames."""
    rest = stream
    frames: list[tuple[int, bytes]] = []
    while rest:
        size, start = rest[1], 2
        if size == 126:
            size, start = struct.unpack("!H", rest[2:4])[0], 4
        elif size == 127:
            size, start = struct.unpack("!Q", rest[2:10])[0], 10
        frames.append((rest[0] & 0x0F, rest[start : start + size]))
        rest = rest[start + size :]
    return frames


def read_to_the_end(connection: sockets.socket) -> bytes:
    """Everything up to the end of the connection or the goodbye to a slow consumer."""
    connection.settimeout(PATIENCE_SECONDS)
    got = bytearray()
    goodbye = struct.pack("!H", 4408) + b"slow_consumer"
    while not got.endswith(goodbye) and (chunk := connection.recv(1 << 16)):
        got += chunk
    return bytes(got)


async def test_nothing_follows_a_close_frame(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        with await raw_socket(gateway) as connection:
            token = gateway.token_of("bob").encode()
            connection.sendall(masked(1, b'{"type":"join","token":"' + token + b'"}'))
            await ada.until("system/presence")
            # Its close frame and the chats of others cross on the way.
            connection.sendall(masked(8, struct.pack("!H", 1000)))
            for number in range(200):
                await ada.chat(str(number))
            stream = await anyio.to_thread.run_sync(read_to_the_end, connection)
        while (await ada.next())["payload"].get("text") != "199":
            pass
    opcodes = [opcode for opcode, _ in frames_of(stream)]
    assert opcodes.count(8) == 1
    assert opcodes[-1] == 8


async def test_a_slow_consumer_is_disconnected_and_delays_no_other(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada, joined(gateway, "bob") as bob:
        with await raw_socket(gateway) as connection:
            token = gateway.token_of("coder").encode()
            connection.sendall(masked(1, b'{"type":"join","token":"' + token + b'"}'))
            assert (await bob.until("system/presence"))["payload"]["participant"]["id"] == "coder"
            left = False
            for number in range(2_000):
                await ada.chat(f"{number:05d}" + "x" * 60_000)
                while (received := await bob.next())["kind"] != "chat":
                    left = left or received["payload"]["event"] == "leave"
                assert received["payload"]["text"].startswith(f"{number:05d}")
                while (await ada.next())["kind"] != "chat":
                    pass
                if left:
                    break
            assert left
            stream = await anyio.to_thread.run_sync(read_to_the_end, connection)
    *_, (kind, said), (last, closing) = frames_of(stream)
    assert (kind, last) == (1, 8)
    assert json.loads(said)["payload"]["error"] == "slow_consumer"
    assert struct.unpack("!H", closing[:2])[0] == 4408


@pytest.mark.parametrize("buffer_bytes", [64_000_000])
async def test_a_member_that_pauses_gets_every_frame_in_order(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        with await raw_socket(gateway) as connection:
            token = gateway.token_of("coder").encode()
            connection.sendall(masked(1, b'{"type":"join","token":"' + token + b'"}'))
            await ada.until("system/presence")

            async def chat(numbers: range) -> None:
                for number in numbers:
                    await ada.chat(f"{number:03d}" + "x" * 60_000)
                    if number % 10 == 0:  # its answer does not take the way of the chats
                        connection.sendall(masked(9, b"%03d" % number))
                    assert (await ada.until("chat"))["payload"]["text"].startswith(f"{number:03d}")

            await chat(range(200))  # 12 MB, more than the kernel holds for a reader that pauses
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(chat, range(200, 300))
                stream = await anyio.to_thread.run_sync(read_until_text, connection, b'"text":"299')
    frames = frames_of(stream)
    texts = [json.loads(data) for opcode, data in frames if opcode == 1]
    assert [one["payload"]["text"][:3] for one in texts if one["kind"] == "chat"] == [f"{n:03d}" for n in range(300)]
    assert [data for opcode, data in frames if opcode == 10] == [b"%03d" % number for number in range(0, 300, 10)]


def read_until_text(connection: sockets.socket, text: bytes) -> bytes:
    """Everything up to the end of the chat that contains this text near its start."""
    connection.settimeout(PATIENCE_SECONDS)
    got = bytearray()
    while (found := got.find(text, max(0, len(got) - 200_000))) < 0 or not got.endswith(b"}", found + 60_000):
        chunk = connection.recv(1 << 16)
        assert chunk, "closed"
        got += chunk
    return bytes(got)


async def test_a_lost_connection_causes_a_leave(gateway: RunningGateway) -> None:
    async with joined(gateway, "ada") as ada:
        connection = await raw_socket(gateway)
        token = gateway.token_of("bob").encode()
        connection.sendall(masked(1, b'{"type":"join","token":"' + token + b'"}'))
        await ada.until("system/presence")
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        assert (await ada.next())["payload"] == {"event": "leave", "participant": {"id": "bob"}}


async def test_a_fragmented_message_is_delivered_whole(gateway: RunningGateway) -> None:
    async with joined(gateway, "bob") as bob:
        text = json.dumps({"kind": "chat", "payload": {"text": "in pieces"}})
        await bob.socket.send(iter([text[:5], text[5:20], text[20:]]))
        assert (await bob.next())["payload"] == {"text": "in pieces"}


async def test_a_stopping_gateway_closes_open_connections(config: SpaceConfig) -> None:
    clients: list[Client] = []
    with anyio.fail_after(PATIENCE_SECONDS):
        async with serve_gateway(config) as gateway:
            ada = joined(gateway, "ada")
            clients.append(await ada.__aenter__())
        assert (await clients[0].closing())[0] == 1012
        await ada.__aexit__(None, None, None)
