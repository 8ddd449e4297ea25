"""One socket's life, without a socket."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.connection import Connection
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import SpaceService

from tests.support.channels import RecordingChannel

JOIN = {"type": "join", "space": "demo", "participantId": "coder", "token": "token-of-coder"}


class Socket:
    """A connection and what it received."""

    def __init__(self, service: SpaceService, **options: Any) -> None:
        self.channel = RecordingChannel()
        self.connection = Connection(SpaceRegistry([service]), **options)
        self.connection.attach(self.channel)

    def send(self, message: dict[str, Any] | bytes | str) -> None:
        raw = json.dumps(message) if isinstance(message, dict) else message
        self.connection.receive(raw.encode() if isinstance(raw, str) else raw, is_text=not isinstance(raw, bytes))

    def reported(self) -> list[str]:
        written, self.channel.written = self.channel.written, []
        envelopes = [json.loads(one) for one in written]
        return [one.get("payload", {}).get("error", one["kind"]) for one in envelopes]


@pytest.fixture
def service(config: SpaceConfig) -> SpaceService:
    return SpaceService(config, TokenBook.generate(config))


@pytest.mark.parametrize(
    "join",
    [
        JOIN,
        {"type": "join", "token": "token-of-coder"},
        {"type": "join", "space": "default", "token": "token-of-coder"},
        {"kind": "system/join", "payload": {"space": "demo", "participant": "coder", "token": "token-of-coder"}},
        {"kind": "system/join", "from": "coder", "token": "token-of-coder"},
    ],
)
def test_every_form_of_join_is_accepted(service: SpaceService, join: dict[str, Any]) -> None:
    socket = Socket(service)
    socket.send(join)
    assert socket.reported() == ["system/welcome"]
    assert socket.connection.is_joined


def test_a_large_message_before_the_join_ends_the_connection(service: SpaceService) -> None:
    socket = Socket(service)
    socket.send(b" " * (service.config.limits.unjoined_message_bytes + 1))
    assert socket.reported() == ["too_large", "not_joined"]
    assert not socket.channel.is_open


def test_the_buffer_limit_is_that_of_the_joined_space(service: SpaceService) -> None:
    generous = parse_space(
        "space: {id: generous}\nparticipants: {eve: {tokens: [of-eve]}}\n"
        "limits: {write_buffer_bytes: 8000000, message_bytes: 2000000}"
    )
    connection = Connection(SpaceRegistry([service, SpaceService(generous, TokenBook.generate(generous))]))
    channel = RecordingChannel()
    connection.attach(channel)
    assert channel.max_waiting_bytes == 65_536  # before the join, whatever the space allows
    connection.receive(b'{"type":"join","space":"generous","token":"of-eve"}', is_text=True)
    assert channel.max_waiting_bytes == 10_000_000


@pytest.mark.parametrize(
    ("join", "error", "code"),
    [
        ({**JOIN, "token": "wrong"}, "unauthorized", 4401),
        ({**JOIN, "token": None}, "unauthorized", 4401),
        ({**JOIN, "participantId": "ada"}, "unauthorized", 4401),
        ({**JOIN, "participantId": "stranger"}, "unauthorized", 4401),
        ({"type": "join"}, "unauthorized", 4401),
        ({**JOIN, "space": "elsewhere"}, "space_not_found", 4404),
    ],
)
def test_a_wrong_join_gets_an_error_and_is_closed(
    service: SpaceService, join: dict[str, Any], error: str, code: int
) -> None:
    socket = Socket(service)
    socket.send(join)
    assert socket.reported() == [error]
    assert socket.channel.closed == (code, error)
    assert not socket.connection.is_joined
    socket.send(JOIN)
    assert socket.reported() == []


def test_a_bearer_header_joins_without_a_join_frame(service: SpaceService) -> None:
    socket = Socket(service, bearer="token-of-coder")
    assert socket.connection.has_bearer
    assert socket.reported() == []
    socket.connection.join_by_header()
    socket.connection.join_by_header()
    assert socket.reported() == ["system/welcome"]
    socket.send({"type": "join", "participantId": "coder"})
    assert socket.reported() == ["system/welcome"]


def test_a_bearer_header_joins_with_the_first_message(service: SpaceService) -> None:
    socket = Socket(service, bearer="token-of-coder", space="demo")
    socket.send({"kind": "chat", "payload": {"text": "hi"}})
    assert socket.reported() == ["system/welcome", "chat"]


def test_a_wrong_header_or_space_is_refused(service: SpaceService) -> None:
    wrong, elsewhere = Socket(service, bearer="wrong"), Socket(service, bearer="token-of-coder", space="x")
    wrong.connection.join_by_header()
    elsewhere.connection.join_by_header()
    assert (wrong.reported(), elsewhere.reported()) == (["unauthorized"], ["space_not_found"])


def test_a_joined_connection_cannot_change_its_participant(service: SpaceService) -> None:
    socket = Socket(service)
    socket.send(JOIN)
    socket.send({"type": "join", "token": service.tokens.token_of("ada")})
    assert socket.reported() == ["system/welcome", "unauthorized"]
    socket.connection.disconnected()
    assert "coder" not in service.space.members
    assert "ada" not in service.space.members


def test_messages_before_the_join_get_errors_only(service: SpaceService) -> None:
    socket = Socket(service)
    socket.send({"kind": "chat", "id": "7", "payload": {"text": "hi"}})
    answer = json.loads(socket.channel.written[-1])
    assert answer["correlation_id"] == ["7"]
    assert answer["payload"]["your_capabilities"] == []
    socket.send("#stream-1#x")
    socket.send("garbage")
    socket.send({"kind": "system/heartbeat"})
    assert socket.reported() == ["not_joined", "not_joined", "invalid_json"]
    socket.send(JOIN)
    assert socket.reported() == ["system/welcome"]


def test_a_connection_that_does_not_join_in_time_is_closed(service: SpaceService) -> None:
    socket = Socket(service)
    socket.connection.join_timed_out()
    assert socket.reported() == ["not_joined"]
    assert socket.channel.closed == (4401, "not_joined")
    joined = Socket(service)
    joined.send(JOIN)
    joined.connection.join_timed_out()
    assert joined.reported() == ["system/welcome"]


def test_invalid_utf8_in_a_text_frame_is_refused(service: SpaceService) -> None:
    socket = Socket(service)
    socket.send(JOIN)
    socket.send({"kind": "stream/request", "payload": {"direction": "upload"}})
    socket.reported()
    socket.connection.receive(b"#stream-1#\xff", is_text=True)
    assert socket.reported() == ["invalid_frame"]
    socket.connection.receive(b"#stream-1#\xff", is_text=False)
    assert socket.channel.written == [b"#stream-1#\xff"]


def test_an_internal_error_is_reported_and_logged(config: SpaceConfig, caplog: pytest.LogCaptureFixture) -> None:
    moments = [datetime(2026, 1, 1, tzinfo=UTC)] * 2

    def clock_that_stops_once() -> datetime:
        if not moments:
            moments.append(datetime(2026, 1, 2, tzinfo=UTC))
            raise OSError("the clock stopped")
        return moments.pop()

    socket = Socket(SpaceService(config, TokenBook.generate(config), clock=clock_that_stops_once))
    socket.send(JOIN)
    socket.reported()
    with caplog.at_level(logging.ERROR, logger="mew_spaces"):
        socket.send({"kind": "chat", "payload": {"text": "hi"}})
    assert socket.reported() == ["internal_error"]
    assert "the clock stopped" in caplog.text


def test_a_message_above_the_limit_gets_an_error_that_names_it(service: SpaceService) -> None:
    socket = Socket(service)
    socket.connection.too_large()
    assert socket.reported() == ["too_large"]


def test_messages_from_a_slow_consumer_are_ignored(service: SpaceService) -> None:
    slow, other = Socket(service), Socket(service, bearer=service.tokens.token_of("ada"))
    slow.send(JOIN)
    other.connection.join_by_header()
    slow.reported()
    slow.channel.stop_writing()
    slow.connection.slow()
    slow.send({"kind": "chat", "payload": {"text": "unheard"}})
    other.send({"kind": "chat", "payload": {"text": "next"}})
    assert slow.reported() == ["slow_consumer"]
    assert other.reported() == ["system/welcome", "chat", "system/presence"]


@given(messages=st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=10))
def test_no_sequence_of_messages_raises(messages: list[tuple[bytes, bool]]) -> None:
    config = parse_space("space: {id: demo}\nparticipants: {coder: {tokens: [token-of-coder]}}")
    socket = Socket(SpaceService(config, TokenBook.generate(config)))
    socket.send(JOIN)
    socket.reported()
    for data, is_text in messages:
        socket.connection.receive(data, is_text=is_text)
        assert len(socket.reported()) == 1
