"""The connection to a gateway: joining, reconnecting, giving up, and everything a gateway may send."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskStatus
from mew_protocol.codec import DEFAULT_MAX_BYTES
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from mew_agent.errors import ConfigError, GatewayError, NotConnected, Superseded, TooLarge, Unauthorized
from mew_agent.participant.client import (
    Client,
    Credentials,
)
from mew_agent.participant.confirmed_delivery import Message
from tests.support.waiting import PATIENCE_SECONDS, until

WELCOME = (
    '{"protocol":"mew/v0.4","id":"w","ts":"2026-01-01T00:00:00Z","from":"system:gateway","to":["ada"],'
    '"kind":"system/welcome","payload":{"you":{"id":"ada","capabilities":[{"kind":"*"}]},"participants":[]}}'
)


class Inbox:
    """What a client received."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._changed = anyio.Event()

    async def receive(self, message: Message) -> None:
        self.messages.append(message)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @property
    def kinds(self) -> list[str]:
        return [m.kind if isinstance(m, Envelope) else "frame" for m in self.messages]

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # which may be on something that no message announces
                with anyio.move_on_after(0.05):
                    await self._changed.wait()


def address(url: str, token: str = "t", participant: str = "ada") -> Credentials:
    return Credentials(url, "demo", participant, token)


def chat(text: str, number: int = 1) -> Envelope:
    return Envelope.write("chat", id=f"c{number}", ts="2026-01-01T00:00:00Z", sender="ada", payload={"text": text})


@asynccontextmanager
async def running(client: Client, inbox: Inbox) -> AsyncIterator[None]:
    """Run a client while the block runs. It must end after it is closed."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, inbox.receive)
            yield
            await client.aclose()


async def host(
    space: SpaceConfig, tokens: TokenBook, port: int, stop: anyio.Event, *, task_status: TaskStatus[RunningGateway]
) -> None:
    """A gateway that can be stopped before others that were started earlier."""
    async with serve_gateway(space, tokens=tokens, port=port) as gateway:
        task_status.started(gateway)
        await stop.wait()


@asynccontextmanager
async def foreign_gateway(serve_socket: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """A gateway of another implementation: `serve_socket` handles each connection after its join frame."""

    async def handle(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await connection.recv()
            await serve_socket(connection)
            await connection.wait_closed()

    async with serve(handle, "127.0.0.1", 0, close_timeout=1, ping_interval=None) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}"


async def test_client_joins_then_receives_and_sends(gateway: RunningGateway) -> None:
    inbox = Inbox()
    client = Client(address(gateway.ws_url, gateway.token_of("ada")))
    async with running(client, inbox):
        await client.send(chat("hello"))
        await inbox.until(lambda: "chat" in inbox.kinds)
        assert client.is_joined
        assert inbox.kinds == ["system/welcome", "chat"]
    assert client.joins == 1
    assert not client.is_joined


async def test_wrong_token_is_refused_without_a_retry(gateway: RunningGateway) -> None:
    client = Client(address(gateway.ws_url, "wrong"))
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized, match="refused this token for 'ada'"):
        await client.run(Inbox().receive)
    assert client.joins == 0


async def test_refusal_by_close_code_alone_is_not_retried() -> None:
    connections = 0

    async def refuse(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await connection.close(4401, "unauthorized")

    async with foreign_gateway(refuse) as url:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized):
            await Client(address(url)).run(Inbox().receive)
    assert connections == 1


async def test_refusal_at_the_upgrade_counts_as_a_refused_token() -> None:
    def refuse(connection: ServerConnection, _request: Request) -> Response:
        return connection.respond(401, "no\n")

    async def handle(_connection: ServerConnection) -> None:
        raise AssertionError("never joined")

    async with serve(handle, "127.0.0.1", 0, process_request=refuse) as server:
        port = server.sockets[0].getsockname()[1]
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Unauthorized):
            await Client(address(f"ws://127.0.0.1:{port}")).run(Inbox().receive)


async def test_program_that_is_busy_with_a_backlog_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of the loop takes long, as with many agents in one process; answers to pings do not wait for all."""
    monkeypatch.setattr("mew_agent.participant.client.HEARTBEAT_SECONDS", 0.5)

    is_busy = anyio.Event()

    async def send_many(connection: ServerConnection) -> None:
        await connection.send(WELCOME)
        await is_busy.wait()
        for number in range(150):
            await connection.send(chat("hello", number).encode().decode())

    async def hog() -> None:
        is_busy.set()
        while True:
            time.sleep(0.02)
            await anyio.sleep(0)

    inbox = Inbox()
    async with foreign_gateway(send_many) as url, anyio.create_task_group() as tasks:
        client = Client(address(url))
        async with running(client, inbox):
            tasks.start_soon(hog)
            await inbox.until(lambda: inbox.kinds.count("chat") == 150)
            assert client.joins == 1
        tasks.cancel_scope.cancel()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot bound the time of a write")
async def test_gateway_that_stops_reading_is_noticed_although_much_is_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.participant.client.HEARTBEAT_SECONDS", 0.5)

    async def stop_reading(connection: ServerConnection) -> None:
        await connection.send(WELCOME)
        connection.transport.pause_reading()
        await is_noticed.wait()
        connection.transport.abort()

    async def send_large(number: int) -> None:
        with contextlib.suppress(GatewayError):
            await client.send(chat("x" * 1_000_000, number))

    lost: list[str] = []
    is_noticed = anyio.Event()
    async with foreign_gateway(stop_reading) as url:
        client, inbox = Client(address(url)), Inbox()
        client.on_lost = lost.append
        async with running(client, inbox), anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(send_large, number)
            await inbox.until(lambda: bool(lost))
            is_noticed.set()
            tasks.cancel_scope.cancel()


async def test_unknown_space_ends_the_client_with_the_gateways_message(gateway: RunningGateway) -> None:
    client = Client(Credentials(gateway.ws_url, "elsewhere", "ada", gateway.token_of("ada")))
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(GatewayError, match="no space 'elsewhere'"):
        await client.run(Inbox().receive)


async def test_older_of_two_connections_of_an_agent_ends(gateway: RunningGateway) -> None:
    older, newer = (Client(address(gateway.ws_url, gateway.token_of("coder"), "coder")) for _ in range(2))
    inbox, stopped = Inbox(), anyio.Event()

    async def be_pushed_out() -> None:
        with pytest.raises(Superseded, match="another connection joined as 'coder'"):
            await older.run(inbox.receive)
        stopped.set()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_pushed_out)
            await inbox.until(lambda: older.is_joined)
            async with running(newer, Inbox()):
                await stopped.wait()
                assert newer.is_joined
    assert (older.joins, newer.joins) == (1, 1)


async def test_missing_gateway_raises_not_connected_in_time(free_port: int) -> None:
    client = Client(address(f"ws://127.0.0.1:{free_port}"), first_connect_seconds=0.4)
    with (
        anyio.fail_after(PATIENCE_SECONDS),
        pytest.raises(NotConnected, match=r"not connected .*\(connection refused\)"),
    ):
        await client.run(Inbox().receive)


async def test_gateway_that_never_answers_is_given_up_in_time() -> None:
    left = anyio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = Client(address(url), first_connect_seconds=0.4)
        with anyio.fail_after(PATIENCE_SECONDS):
            with pytest.raises(NotConnected, match="no answer in time"):
                await client.run(Inbox().receive)
            await left.wait()


async def test_the_last_short_attempt_does_not_hide_the_cause() -> None:
    attempts = 0

    async def refuse_then_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 5:  # the delays between them take more than half of the time
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 21\r\n\r\n" + b'{"message": "closed"}')
        await reader.read()
        writer.close()

    async with await asyncio.start_server(refuse_then_say_nothing, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = Client(address(url), first_connect_seconds=2)
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(NotConnected, match="closed"):
            await client.run(Inbox().receive)


async def test_gateway_that_never_welcomes_is_given_up_in_time() -> None:
    async def chatter(connection: ServerConnection) -> None:
        while True:
            await connection.send('{"kind":"chat","payload":{"text":"hi"}}')

    async with foreign_gateway(chatter) as url:
        client = Client(address(url), first_connect_seconds=0.4)
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(NotConnected, match="no answer in time"):
            await client.run(Inbox().receive)


async def test_messages_before_the_welcome_are_passed_on_in_order() -> None:
    async def early(connection: ServerConnection) -> None:
        await connection.send('{"kind":"chat","id":"e","ts":"t","from":"bob","payload":{"text":"early"}}')
        await connection.send(WELCOME.replace('"to":["ada"]', '"to":["bob"]'))
        await connection.send(b"#s1#frame")
        await connection.send(WELCOME)

    inbox = Inbox()
    async with foreign_gateway(early) as url:
        client = Client(address(url))
        async with running(client, inbox):
            await inbox.until(lambda: client.is_joined and len(inbox.messages) == 4)
            assert client.joins == 1, "a welcome of somebody else is none of ours"
    assert inbox.kinds == ["chat", "system/welcome", "frame", "system/welcome"]


async def test_invalid_messages_do_not_end_the_connection() -> None:
    garbage: list[str | bytes] = [
        "", b"", "nonsense", "null", "[]", "7", '"text"', "{", "##", "#", b"\xff\xfe", b"#\xff#x", os.urandom(64),
        '{"kind":5}', '{"kind":"chat","to":{}}', '{"kind":"chat","payload":[]}', '{"protocol":"mew/v9","kind":"chat"}',
        '{"kind":"chat","payload":{"n":NaN}}', '{"payload":{"text":"\\ud800"}}', "{" * 100_000,
    ]  # fmt: skip

    async def rant(connection: ServerConnection) -> None:
        for piece in garbage:
            await connection.send(piece)
        await connection.send(WELCOME)
        for piece in garbage:
            await connection.send(piece)
        await connection.send('{"kind":"chat","id":"last","ts":"t","from":"bob","payload":{"text":"still here?"}}')

    inbox = Inbox()
    async with foreign_gateway(rant) as url:
        client = Client(address(url))
        async with running(client, inbox):
            await inbox.until(lambda: bool(inbox.messages) and getattr(inbox.messages[-1], "id", "") == "last")
    assert client.joins == 1


async def test_client_reconnects_when_the_gateway_returns(space: SpaceConfig, tokens: TokenBook) -> None:
    inbox = Inbox()
    async with anyio.create_task_group() as gateways, anyio.create_task_group() as sending:
        stop = anyio.Event()
        first: RunningGateway = await gateways.start(host, space, tokens, 0, stop)
        client = Client(address(first.ws_url, first.token_of("ada")))
        async with running(client, inbox):
            await inbox.until(lambda: client.is_joined)
            stop.set()
            await until(lambda: not client.is_joined)
            # Sent without a gateway; it waits for the connection.
            sending.start_soon(client.send, chat("said in between"))
            again = anyio.Event()
            await gateways.start(host, space, tokens, first.port, again)
            await inbox.until(lambda: "chat" in inbox.kinds)
            assert client.joins == 2
        again.set()
    assert inbox.kinds == ["system/welcome", "system/welcome", "chat"]


async def test_client_moves_to_another_gateway_when_its_own_ends(space: SpaceConfig, tokens: TokenBook) -> None:
    async with anyio.create_task_group() as gateways:
        stops = [anyio.Event(), anyio.Event()]
        hosts = [await gateways.start(host, space, tokens, 0, stop) for stop in stops]
        client = Client(address(",".join(one.ws_url for one in hosts), hosts[0].token_of("ada")))
        inbox = Inbox()
        async with running(client, inbox):
            await inbox.until(lambda: client.is_joined)
            used = 0 if hosts[0].service.connections else 1
            stops[used].set()
            await inbox.until(lambda: client.joins == 2 and client.is_joined)
            assert hosts[1 - used].service.connections == 1
        stops[1 - used].set()


async def test_sending_without_a_connection_waits_and_then_fails(free_port: int) -> None:
    client = Client(address(f"ws://127.0.0.1:{free_port}"), first_connect_seconds=30)
    async with running(client, Inbox()):
        with pytest.raises(NotConnected):
            await client.send(chat("nobody hears this"), wait_seconds=0.05)


async def test_message_above_the_protocol_limit_is_not_sent(free_port: int) -> None:
    client = Client(address(f"ws://127.0.0.1:{free_port}"))
    with pytest.raises(TooLarge, match=r"a message of 16,777,217 bytes exceeds the limit of 16,777,216"):
        await client.send_unconfirmed(bytes(DEFAULT_MAX_BYTES + 1))


async def test_message_that_the_gateway_finds_too_large_is_not_resent_forever(
    space: SpaceConfig, tokens: TokenBook
) -> None:
    narrow = space.model_copy(update={"limits": space.limits.model_copy(update={"message_bytes": 40_000})})
    async with serve_gateway(narrow, tokens=tokens, port=0) as gateway:
        client, inbox = Client(address(gateway.ws_url, gateway.token_of("ada"))), Inbox()
        async with running(client, inbox):
            await inbox.until(lambda: "system/welcome" in inbox.kinds)
            with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(TooLarge, match="exceeds the gateway's limit"):
                await client.send(chat("x" * 15_000_000))  # more than the buffers of the sockets hold
            await client.send(chat("shorter"))
            await inbox.until(lambda: "chat" in inbox.kinds)


async def test_waiting_senders_fail_at_once_when_the_client_ends(gateway: RunningGateway) -> None:
    client = Client(address(gateway.ws_url, "wrong"))
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def be_refused() -> None:
                with pytest.raises(Unauthorized):
                    await client.run(Inbox().receive)

            async def send() -> None:
                with pytest.raises(NotConnected):
                    await client.send(chat("hello"), wait_seconds=600)

            tasks.start_soon(send)
            tasks.start_soon(be_refused)


async def test_closing_while_connecting_ends_the_client(free_port: int) -> None:
    client = Client(address(f"ws://127.0.0.1:{free_port}"), first_connect_seconds=600)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, Inbox().receive)
            await anyio.wait_all_tasks_blocked()
            await client.aclose()


async def test_closing_before_the_welcome_ends_the_client() -> None:
    connected = anyio.Event()

    async def wait(_connection: ServerConnection) -> None:
        connected.set()

    async with foreign_gateway(wait) as url:
        client = Client(address(url))
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, Inbox().receive)
                await connected.wait()
                await client.aclose()


@pytest.mark.parametrize("moment", ["before the welcome", "joined"])
async def test_cancelling_leaves_no_task_and_no_socket(moment: str) -> None:
    arrived, gone = anyio.Event(), anyio.Event()

    async def serve_socket(connection: ServerConnection) -> None:
        if moment == "joined":
            await connection.send(WELCOME)
        arrived.set()
        await connection.wait_closed()
        gone.set()

    inbox = Inbox()
    async with foreign_gateway(serve_socket) as url:
        client = Client(address(url))
        before = asyncio.all_tasks()
        ours: set[asyncio.Task[object]] = set()
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, inbox.receive)
                await arrived.wait()
                if moment == "joined":
                    await inbox.until(lambda: client.is_joined)
                ours = {task for task in asyncio.all_tasks() - before if "keepalive" in repr(task.get_coro())}
                tasks.cancel_scope.cancel()
            await gone.wait()
    assert ours, "the connection has a heartbeat of its own"
    assert all(task.done() for task in ours)


def test_invalid_gateway_url_raises_config_error() -> None:
    for url in ("localhost:8080", "ftp://localhost", "ws://", "ws://h:99999999", "ws://[::1", "ws://h/#part"):
        with pytest.raises(ConfigError, match="a URL like ws://"):
            address(url)


async def test_unknown_host_is_given_up_in_time() -> None:
    client = Client(address(f"ws://{'a' * 70}.invalid"), first_connect_seconds=0.2)
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(NotConnected):
        await client.run(Inbox().receive)


def test_token_is_not_part_of_any_representation() -> None:
    assert "secret" not in repr(address("ws://h", "secret"))
