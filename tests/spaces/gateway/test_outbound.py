"""Framing and fan-out."""

import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_spaces.core.events import ConnectionId
from mew_spaces.gateway.outbound import (
    MAX_JOINED_BYTES,
    Fanout,
    frame_json,
    frame_message,
)
from websockets.frames import Frame, Opcode

from tests.support.channels import RecordingChannel
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY])
def test_frames_equal_those_of_the_websockets_library(size: int, opcode: Opcode) -> None:
    message: bytes | str = "x" * size if opcode is Opcode.TEXT else b"x" * size
    assert frame_message(message) == Frame(opcode, b"x" * size).serialize(mask=False)
    if opcode is Opcode.TEXT:
        assert frame_json(b"x" * size) == frame_message("x" * size)


def fanout_of(count: int) -> tuple[Fanout, list[RecordingChannel]]:
    fanout, channels = Fanout(), [RecordingChannel() for _ in range(count)]
    for number, channel in enumerate(channels):
        fanout.add(ConnectionId(number), channel)
    return fanout, channels


def test_every_open_channel_gets_the_same_bytes() -> None:
    fanout, channels = fanout_of(4)
    channels[1].close(1000, "")
    fanout.write_to_all(frame_message("one"))
    fanout.write_to_all(frame_message("two"), without=frozenset({ConnectionId(0)}))
    fanout.write_to(frame_message("three"), [ConnectionId(1), ConnectionId(2), ConnectionId(9)])
    fanout.remove(ConnectionId(3))
    fanout.remove(ConnectionId(9))
    fanout.write_to_all(frame_message("four"))
    assert [channel.written for channel in channels] == [
        ["one", "four"],
        [],
        ["one", "two", "three", "four"],
        ["one", "two"],
    ]
    assert len(fanout) == 3


class Step(NamedTuple):
    """Something that happens to a fan-out: a broadcast (with or without a channel), a write, or a change."""

    name: str
    channel: int = 0


STEPS = st.builds(
    Step,
    st.sampled_from(["broadcast", "broadcast", "omit", "write", "add", "remove", "close", "turn"]),
    st.integers(0, 3),
)


def received(steps: list[Step], *, is_joined: bool) -> tuple[list[list[bytes | str]], int]:
    """What each channel gets, and the number of deliveries: with one write a turn, or with one a message."""
    fanout, channels = fanout_of(3)
    channels.append(RecordingChannel())
    turns: list[None] = []
    if is_joined:
        fanout.request_flush = lambda: turns.append(None)
    for number, (name, place) in enumerate([*steps, Step("turn")]):
        connection, framed = ConnectionId(place), frame_message(f"{name} {number}")
        match name:
            case "broadcast":
                fanout.write_to_all(framed, numbered=frame_message(f"numbered {number}"))
            case "omit":
                fanout.write_to_all(framed, without=frozenset({connection}))
            case "write":
                fanout.write_to(framed, [connection])
            case "add":
                fanout.add(connection, channels[place], numbered=place == 3)
            case "remove":
                fanout.remove(connection)
            case "close" if channels[place].is_open:
                fanout.flush()
                channels[place].close(1000, "")
            case _:
                assert len(turns) <= number
                fanout.flush()
    return [channel.written for channel in channels], fanout.deliveries


@given(steps=st.lists(STEPS, max_size=30))
def test_joined_writes_change_neither_order_nor_receivers(steps: list[Step]) -> None:
    assert received(steps, is_joined=True) == received(steps, is_joined=False)


@pytest.fixture
def datagrams() -> Iterator[tuple[Fanout, socket.socket]]:
    """A fan-out with one channel, and a socket that receives each write to that channel apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.settimeout(PATIENCE_SECONDS)
        fanout, channel = Fanout(), RecordingChannel()
        channel.descriptor = ours.fileno()
        fanout.add(ConnectionId(1), channel)
        yield fanout, theirs


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_broadcasts_of_one_turn_leave_in_one_write(datagrams: tuple[Fanout, socket.socket]) -> None:
    fanout, reader = datagrams
    turns: list[None] = []
    fanout.request_flush = lambda: turns.append(None)
    for text in ("one", "two", "three"):
        fanout.write_to_all(frame_message(text))
    assert len(turns) == 1
    fanout.flush()
    assert reader.recv(1_000) == b"".join(frame_message(text) for text in ("one", "two", "three"))
    fanout.write_to_all(frame_message("alone"))
    assert len(turns) == 2
    fanout.flush()
    assert reader.recv(1_000) == frame_message("alone")
    fanout.write_to_all(big := frame_message("x" * MAX_JOINED_BYTES))
    assert reader.recv(2 * MAX_JOINED_BYTES) == big, "a large message waits for the end of the turn"
