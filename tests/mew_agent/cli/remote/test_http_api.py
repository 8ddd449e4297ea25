"""The client of the gateway's HTTP interface, and every way it can fail."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio.to_thread
import pytest
from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.log.memory import Batch, OutcomeUnknown, SpaceLog

from mew_agent.cli.remote.http_api import GatewayApi, SpaceEvents
from mew_agent.errors import ConfigError, GatewayError, NotConnected, NotPermitted, Unauthorized
from tests.support.ports import unused_ports


def api_of(gateway: RunningGateway, participant: str = "ada", token: str | None = None) -> GatewayApi:
    return GatewayApi(
        gateway.ws_url,
        space=gateway.config.space.id,
        participant=participant,
        token=token or gateway.token_of(participant),
    )


def api_at(port: int) -> GatewayApi:
    return GatewayApi(f"http://127.0.0.1:{port}", space="s", participant="p", token="t")


@contextmanager
def server_that_says(*pieces: bytes) -> Iterator[int]:
    """Takes one connection, reads a request, sends these bytes, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                for piece in pieces:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


def stream_of(*events: bytes) -> tuple[bytes, ...]:
    return (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", *events)


async def test_board_is_read(gateway: RunningGateway) -> None:
    api = api_of(gateway)
    board = await anyio.to_thread.run_sync(api.board)
    assert {entry.id for entry in board.participants} == {"ada", "guest", "coder"}


async def test_sent_envelope_appears_in_the_open_stream(gateway: RunningGateway) -> None:
    api = api_of(gateway)

    def send_and_see() -> tuple[str, list[str], str]:
        with api.events() as events:
            first = events.next()
            sent = api.send({"id": "e1", "kind": "chat", "payload": {"text": "héllo"}})
            second = events.next()
            return sent, [first.name, second.name], second.body["payload"]["text"]

    assert await anyio.to_thread.run_sync(send_and_see) == ("e1", ["board", "envelope"], "héllo")


async def test_an_envelope_with_an_unknown_outcome_is_sent_once_more(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = SpaceLog.write, [OutcomeUnknown("disk I/O error")]

    def fail_once(log: SpaceLog, batch: Batch) -> None:
        write(log, batch)
        if batch.entries and failures:
            raise failures.pop()

    monkeypatch.setattr(SpaceLog, "write", fail_once)
    api = api_of(gateway)
    sent = await anyio.to_thread.run_sync(api.send, {"kind": "chat", "payload": {"text": "hello"}})
    assert failures == []
    assert [one.id for one in gateway.service.log.last(9) if b"hello" in one.data] == [sent]


async def test_gateway_that_does_not_answer_is_passed_over(gateway: RunningGateway) -> None:
    silent = f"http://127.0.0.1:{unused_ports()[0]}"
    api = GatewayApi(
        f"{silent}, {gateway.ws_url}", space=gateway.config.space.id, participant="ada", token=gateway.token_of("ada")
    )
    board = await anyio.to_thread.run_sync(api.board)
    assert (board.space, api.gateway) == (gateway.config.space.id, gateway.url)


async def test_participants_are_listed_with_capabilities(gateway: RunningGateway) -> None:
    listed = {one["id"]: one for one in await anyio.to_thread.run_sync(api_of(gateway).participants)}
    assert set(listed) == {"ada", "guest", "coder"}
    assert {"kind": "chat"} in listed["guest"]["capabilities"]
    assert listed["guest"]["connected"] is False


async def test_refusals_raise_different_errors(gateway: RunningGateway) -> None:
    def attempt(api: GatewayApi, kind: str, payload: dict[str, str]) -> None:
        api.send({"kind": kind, "payload": payload})

    with pytest.raises(Unauthorized, match="'ada'"):
        await anyio.to_thread.run_sync(attempt, api_of(gateway, token="wrong"), "chat", {"text": "x"})
    with pytest.raises(NotPermitted, match="'guest' has no capability that covers 'participant/clear'"):
        await anyio.to_thread.run_sync(attempt, api_of(gateway, "guest"), "participant/clear", {})
    with pytest.raises(GatewayError, match="the gateway refused the request"):
        await anyio.to_thread.run_sync(attempt, api_of(gateway), "chat", {"text": ""})


async def test_deadline_ends_the_wait(gateway: RunningGateway) -> None:
    def wait() -> None:
        with api_of(gateway).events() as events:
            events.next()
            events.next(deadline=time.monotonic() + 0.05)

    with pytest.raises(TimeoutError):
        await anyio.to_thread.run_sync(wait)


async def test_past_deadline_does_not_wait(gateway: RunningGateway) -> None:
    def wait(events_deadline: float) -> None:
        with api_of(gateway).events() as events:
            events.next(deadline=events_deadline)

    with pytest.raises(TimeoutError):
        await anyio.to_thread.run_sync(wait, time.monotonic() - 1)


def test_closed_port_is_a_refused_connection() -> None:
    with pytest.raises(NotConnected, match="connection refused"):
        api_at(1).board()


def test_unknown_host_is_reported() -> None:
    with pytest.raises(NotConnected, match="host name not found"):
        GatewayApi("ws://no-such-host.invalid", space="s", participant="p", token="t").board()


@pytest.mark.parametrize("token", ["line\nbreak", "snowman ☃"])
def test_token_with_invalid_characters_is_refused(token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        api = GatewayApi(url, space="s", participant="p", token=token)
        with pytest.raises(ConfigError, match="MEW_TOKEN"):
            api.board()


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"],
    ids=["nothing", "another protocol", "half an answer"],
)
def test_broken_answer_is_a_lost_connection(said: bytes) -> None:
    with server_that_says(said) as port, pytest.raises(NotConnected):
        api_at(port).board()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff\xfe"])
def test_foreign_server_is_recognised(body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with server_that_says(head, body) as port, pytest.raises(GatewayError, match="is not a MEW gateway"):
        api_at(port).board()


def test_refusal_without_text_shows_its_status() -> None:
    with (
        server_that_says(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad") as port,
        pytest.raises(GatewayError, match="HTTP 502 Bad Gateway"),
    ):
        api_at(port).board()


def test_events_with_comments_and_several_data_lines_are_read() -> None:
    said = stream_of(
        b": keep-alive\n\n",
        b"id: a-1\nevent: board\ndata: {\ndata: }\n\n",
        b"event: nothing\n\ndata:1\n\n",
        b"retry: 3\r\nevent: reset\r\ndata: [2]\r\n\r\n",
    )
    with server_that_says(*said) as port, api_at(port).events() as events:
        seen = [events.next() for _ in range(3)]
    assert [(event.name, event.body, event.id) for event in seen] == [
        ("board", {}, "a-1"),
        ("message", 1, "a-1"),
        ("reset", [2], "a-1"),
    ]


def test_end_of_a_stream_is_a_lost_connection() -> None:
    with (
        server_that_says(*stream_of(b"event: board\ndata: {}\n")) as port,
        api_at(port).events() as events,
        pytest.raises(NotConnected, match="the gateway closed the connection"),
    ):
        read_all(events)


def test_event_without_json_is_a_lost_connection() -> None:
    with (
        server_that_says(*stream_of(b"event: board\ndata: {\n\n")) as port,
        api_at(port).events() as events,
        pytest.raises(NotConnected, match="cannot be read"),
    ):
        read_all(events)


def read_all(events: SpaceEvents) -> None:
    while True:
        events.next()
