"""Attacks by clients without a token: memory, silent connections, malformed input."""

import asyncio
import gc
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest
from anyio import to_thread
from mew_listener.connection_limits import CONNECTION_BYTES, CountedPeers, UnjoinedLimits
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.connection import MAX_UNJOINED_ERRORS, Connection
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.support.gateway_client import joined, opened
from tests.support.raw_socket import HANDSHAKE, frame, messages, raw_socket, read_until_closed, shake_hands
from tests.support.waiting import PATIENCE_SECONDS, until

MEBIBYTE = 1024 * 1024

IMPATIENT = """
space: {id: demo}
participants: {ada: {capabilities: [{kind: "*"}]}}
limits: {header_timeout_seconds: 0.5, join_timeout_seconds: 0.5, unjoined_connections: 50,
  unjoined_connections_per_address: 40}
"""

PROGRAM = """
import sys
from pathlib import Path
import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import has_uvloop, serve_gateway

config = parse_space("space: {id: demo}\\nparticipants: {ada: {}}")

async def main():
    async with serve_gateway(config, state=Path(sys.argv[1])) as gateway:
        print(gateway.port, flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend_options={"use_uvloop": has_uvloop()})
"""


@pytest.fixture
async def small() -> AsyncIterator[RunningGateway]:
    config = parse_space('space: {id: demo}\nparticipants: {ada: {capabilities: [{kind: "*"}]}}')
    async with serve_gateway(config) as running:
        yield running


@contextmanager
def gateway_process(state: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A gateway in a process of its own, and its port."""
    command = [sys.executable, "-c", PROGRAM, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield psutil.Process(process.pid), port
        finally:
            process.terminate()


def try_to_send(port: int, data: bytes, *, handshake: bool) -> socket.socket:
    """Open a connection and send as much as the gateway takes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    try:
        if handshake:
            connection.sendall(HANDSHAKE)
            connection.recv(4096)
        connection.sendall(data)
    except OSError:
        pass  # the gateway closed the connection
    return connection


POST = b"POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\n"
FLOODS: dict[str, tuple[int, Callable[[], bytes], bool]] = {
    "one large message": (100, lambda: frame(b"x" * (15 * MEBIBYTE))[:-1], True),
    "many small messages": (25, lambda: frame(b"x" * 20) * 4_000, True),  # each connection costs the gateway 0.1 s
    "half a header": (100, lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 30_000, False),
    "a large body": (
        100,
        lambda: (
            b"POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
            + b"a" * 800_000
        ),
        False,
    ),
}
"""Each attack: how many connections, what each sends, and whether it becomes a WebSocket first."""


@pytest.mark.skipif(not Path("/proc").exists(), reason="resident memory is measured on Linux")
@pytest.mark.parametrize("flood", FLOODS)
def test_a_hundred_unauthenticated_peers_cost_at_most_64_mebibytes(flood: str, tmp_path: Path) -> None:
    peers, make_data, handshake = FLOODS[flood]
    with gateway_process(tmp_path) as (process, port), ExitStack() as connections:
        data, before, peak = make_data(), process.memory_info().rss, 0
        for _ in range(peers):
            connections.enter_context(try_to_send(port, data, handshake=handshake))
            peak = max(peak, process.memory_info().rss)
        assert peak - before < 64 * MEBIBYTE * peers // 100


@contextmanager
def silent_connections(gateway: RunningGateway, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(raw_socket(gateway)) for _ in range(count)]


def until_closing(connection: socket.socket) -> list[tuple[int, bytes]]:
    """The gateway's frames up to its close frame, without pings. The peer does not answer the close frame."""
    received = []
    for opcode, data in messages(connection):
        if opcode != 9:
            received.append((opcode, data))
        if opcode == 8:
            break
    return received


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        HANDSHAKE,
        HANDSHAKE + frame(b"half", final=False),
    ],
)
async def test_a_connection_that_sends_too_little_is_closed(start: bytes) -> None:
    """By the timeout of its phase; the other one is an hour, which the test would not wait for."""

    def attack(gateway: RunningGateway) -> None:
        with raw_socket(gateway) as connection:
            if start.startswith(HANDSHAKE):
                shake_hands(connection)
                connection.sendall(start.removeprefix(HANDSHAKE))
                assert [opcode for opcode, _ in until_closing(connection)] == [1, 8]
            else:
                connection.sendall(start)
                read_until_closed(connection)

    other = "header_timeout_seconds" if start.startswith(HANDSHAKE) else "join_timeout_seconds"
    async with serve_gateway(parse_space(IMPATIENT.replace(f"{other}: 0.5", f"{other}: 3600"))) as gateway:
        await to_thread.run_sync(attack, gateway)


async def test_a_slow_drip_of_header_bytes_does_not_extend_the_time() -> None:
    def attack(gateway: RunningGateway) -> bool:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with raw_socket(gateway) as connection:
            connection.settimeout(0.05)
            connection.sendall(b"GET / HTTP/1.1\r\n")
            while time.monotonic() < deadline:
                try:
                    connection.sendall(b"X")
                    if not connection.recv(100):
                        return True
                except TimeoutError:
                    continue
                except ConnectionError:
                    return True
        return False

    async with serve_gateway(parse_space(IMPATIENT)) as gateway:
        assert await to_thread.run_sync(attack, gateway)


@pytest.mark.parametrize("start", [False, True], ids=["silent", "websocket"])
async def test_an_address_with_too_many_connections_loses_its_oldest(start: bool) -> None:
    def attack(gateway: RunningGateway) -> None:
        with silent_connections(gateway, 40) as connections:
            for connection in connections:
                if start:
                    shake_hands(connection)
            with raw_socket(gateway) as one_more:
                read_until_closed(connections[0])
                one_more.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert one_more.recv(100).startswith(b"HTTP/1.1 200")
            for connection in connections[2:]:
                connection.setblocking(False)
                with pytest.raises(BlockingIOError):
                    connection.recv(1)

    patient = IMPATIENT.replace("0.5", "50")  # all 40 have to be there at the same time
    async with serve_gateway(parse_space(patient)) as gateway:
        await to_thread.run_sync(attack, gateway)


async def test_joined_connections_do_not_count_as_unjoined() -> None:
    async with serve_gateway(parse_space(IMPATIENT)) as gateway, anyio.create_task_group() as tasks:
        everybody_joined = anyio.Event()
        count = 0

        async def stay() -> None:
            nonlocal count
            async with joined(gateway, "ada"):
                count += 1
                await everybody_joined.wait()

        for number in range(45):
            tasks.start_soon(stay)
            await until(lambda expected=number: count > expected)  # type: ignore[misc]
        everybody_joined.set()


class Peer:
    """A connection that has not joined."""

    def __init__(self, *, is_authenticated: bool = False) -> None:
        self.is_evicted = False
        self._is_authenticated = is_authenticated

    def evict(self) -> bool:
        self.is_evicted = not self._is_authenticated
        return self.is_evicted


def test_a_flood_from_one_address_evicts_its_own_connections() -> None:
    unjoined = CountedPeers(UnjoinedLimits(10, 100, 100 * CONNECTION_BYTES))
    flood = [Peer() for _ in range(10)]
    newcomer = Peer()
    for one in flood:
        unjoined.enter(one, "192.0.2.1")
    unjoined.enter(newcomer, "192.0.2.2")
    assert [one.is_evicted for one in flood] == [True] + [False] * 9
    assert not newcomer.is_evicted
    assert len(unjoined) == 10


def test_peers_that_hold_too_much_together_are_evicted() -> None:
    unjoined = CountedPeers(UnjoinedLimits(10, 10, 10 * CONNECTION_BYTES))
    small, large = Peer(), Peer()
    unjoined.enter(small, "192.0.2.1")
    unjoined.enter(large, "192.0.2.2")
    unjoined.hold(large, 20 * CONNECTION_BYTES)
    assert (small.is_evicted, large.is_evicted) == (False, True)
    unjoined.leave(large)
    unjoined.leave(small)
    others = [Peer() for _ in range(10)]
    for one in others:
        unjoined.enter(one, "192.0.2.3")
        unjoined.hold(one, 0)
    assert (len(unjoined), any(one.is_evicted for one in others)) == (10, False)


def test_a_client_that_has_authenticated_is_not_evicted() -> None:
    unjoined = CountedPeers(UnjoinedLimits(100, 2, 100 * CONNECTION_BYTES))
    reader, strangers = Peer(is_authenticated=True), [Peer() for _ in range(3)]
    for one in (reader, *strangers):
        unjoined.enter(one, "192.0.2.1")
    assert [one.is_evicted for one in (reader, *strangers)] == [False, True, False, False]


async def test_a_message_before_the_join_has_a_small_limit(small: RunningGateway) -> None:
    async with opened(small) as stranger:
        await stranger.send("x" * 70_000)
        assert (await stranger.error())["error"] == "too_large"
        assert (await stranger.closing())[0] in (1009, 4401)


async def test_an_unfinished_message_before_the_join_has_the_same_limit(small: RunningGateway) -> None:
    def attack() -> list[tuple[int, bytes]]:
        with raw_socket(small) as connection:
            shake_hands(connection)
            connection.sendall(frame(b"x" * (4 * MEBIBYTE))[:70_000])
            return until_closing(connection)

    answers = await to_thread.run_sync(attack)
    assert [opcode for opcode, _ in answers] == [1, 8]
    assert b"the limit is 65,536 bytes before the join" in answers[0][1]
    assert answers[1][1][:2] == (1009).to_bytes(2)


async def test_a_join_followed_by_many_bytes_at_once_is_accepted(small: RunningGateway) -> None:
    token = small.token_of("ada")
    chat = frame(json.dumps({"kind": "chat", "payload": {"text": "x" * 30_000}}).encode())
    join = frame(json.dumps({"type": "join", "participantId": "ada", "token": token}).encode())

    def send_all() -> list[bytes]:
        with raw_socket(small) as connection:
            shake_hands(connection)
            connection.sendall(join + chat * 10)
            return list(itertools.islice((data for opcode, data in messages(connection) if opcode == 1), 11))

    answers = [json.loads(one) for one in await to_thread.run_sync(send_all)]
    assert [one["kind"] for one in answers] == ["system/welcome"] + ["chat"] * 10


async def test_bad_messages_before_the_join_end_the_connection(small: RunningGateway) -> None:
    async with opened(small) as stranger:
        for _ in range(MAX_UNJOINED_ERRORS):
            await stranger.send("{")
        assert (await stranger.closing())[0] == 4401


@pytest.mark.parametrize("start", ["joined", "refused", "lost"])
async def test_a_closed_connection_leaves_no_reference_cycle(start: str) -> None:
    remembered: list[weakref.ref[object]] = []
    create = Connection.__init__

    def remember(self: Connection, *args: object, **options: object) -> None:
        create(self, *args, **options)  # type: ignore[arg-type]
        remembered.append(weakref.ref(self))

    async def connect_once(gateway: RunningGateway) -> None:
        if start == "joined":
            async with joined(gateway, "ada") as ada:
                await ada.chat("hello")
        elif start == "refused":
            async with opened(gateway, "ada") as stranger:
                await stranger.join("wrong")
                await stranger.closing()
        else:
            async with opened(gateway):
                pass

    async with serve_gateway(parse_space(IMPATIENT)) as gateway:
        Connection.__init__ = remember  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            await connect_once(gateway)
            assert remembered
            await until(lambda: all(one() is None for one in remembered))
        finally:
            gc.enable()
            Connection.__init__ = create  # type: ignore[method-assign]


MALFORMED = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\x00\x00",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    HANDSHAKE.replace(b"GET / ", b"GET /\xe9 "),
    HANDSHAKE.replace(b"Version: 13", b"Version: 99"),
    HANDSHAKE.replace(b"Host: localhost", b"Host: localhost\r\nSec-WebSocket-Protocol: \xff"),
    HANDSHAKE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"AAAAAAAAA\x9bAAAAAAAAAAAA=="),
    HANDSHAKE + b"\xff" * 100,
    b"POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab",
    os.urandom(2000),
)


async def test_malformed_input_writes_few_lines_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[dict[str, object]] = []

    def attack(gateway: RunningGateway) -> None:
        for _ in range(20):
            for data in MALFORMED:
                with raw_socket(gateway) as connection:
                    connection.settimeout(0.02)
                    try:
                        connection.sendall(data)
                        connection.recv(100)
                    except (TimeoutError, ConnectionError):
                        pass

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with serve_gateway(parse_space(IMPATIENT)) as gateway:
        await to_thread.run_sync(attack, gateway)
        async with joined(gateway, "ada") as ada:
            await ada.chat("still serving")
            assert (await ada.until("chat"))["payload"]["text"] == "still serving"
    assert failures == []
    written = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert [one for one in written if one.exc_info] == []
    assert len(written) < 60


async def test_a_request_body_that_never_comes_is_refused() -> None:
    def attack(gateway: RunningGateway) -> bytes:
        with raw_socket(gateway) as connection:
            token = gateway.token_of("ada").encode()
            connection.sendall(
                b"POST /participants/ada/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                b"Authorization: Bearer " + token + b"\r\n\r\nab"
            )
            return connection.recv(1000)

    async with serve_gateway(parse_space(IMPATIENT)) as gateway:
        assert (await to_thread.run_sync(attack, gateway)).startswith(b"HTTP/1.1 408")


async def test_an_event_stream_does_not_count_as_unjoined() -> None:
    config = parse_space(IMPATIENT.replace("per_address: 40", "per_address: 1"))
    async with (
        serve_gateway(config) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, trust_env=False, verify=False) as http,
        http.stream(
            "GET", "/spaces/demo/events", headers={"authorization": f"Bearer {gateway.token_of('ada')}"}
        ) as one,
    ):
        events = one.aiter_bytes()
        await anext(events)
        assert (await http.get("/health")).status_code == 200
        async with joined(gateway, "ada") as ada:
            await ada.send({"kind": "chat", "payload": {"text": "still there"}})
            while b"still there" not in await anext(events):
                pass


async def test_pipelined_requests_are_answered(gateway: RunningGateway) -> None:
    def attack() -> bytes:
        with raw_socket(gateway) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            answer = b""
            while answer.count(b'"status":"ok"') < 3:
                answer += connection.recv(4096)
            return answer

    assert (await to_thread.run_sync(attack)).count(b"HTTP/1.1 200") == 3


async def test_a_refused_flood_of_messages_is_cut_off(small: RunningGateway) -> None:
    def attack() -> int:
        with raw_socket(small) as connection:
            shake_hands(connection)
            try:
                for _ in range(1000):
                    connection.sendall(frame(b"{"))
            except ConnectionError:
                pass
            return len(until_closing(connection))

    assert await to_thread.run_sync(attack) <= MAX_UNJOINED_ERRORS + 2
