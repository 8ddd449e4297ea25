"""Bytes of answers cut into events: the same events however the bytes are cut, in bounded time and memory."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.reply_events import MAX_EVENT_BYTES, Event, EventDecoder
from tests.mew_agent.model.reply_shapes import SHAPES


def decoded(*pieces: bytes) -> list[Event]:
    decoder = EventDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [*events, *decoder.end()]


def decoded_or_problem(*pieces: bytes) -> list[Event] | str:
    try:
        return decoded(*pieces)
    except ValueError as problem:
        return str(problem)


@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_events_are_the_same_however_their_bytes_are_cut(name: str, data: st.DataObject) -> None:
    body = SHAPES[name].body
    start = 3 if body.startswith(b"\xef") else 0  # a mark that is cut itself is text
    cuts = sorted(data.draw(st.lists(st.integers(start, len(body)), max_size=9)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert decoded_or_problem(*pieces) == decoded_or_problem(body)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_events_or_a_value_error(pieces: list[bytes]) -> None:
    with suppress(ValueError):
        assert all(isinstance(event, Event) for event in decoded(*pieces))


def test_an_event_without_an_end_is_refused_in_bounded_memory() -> None:
    line = b"data: [" + b"x" * 1_000_000 + b"\n"
    with pytest.raises(ValueError, match="too large"):
        decoded(*[line] * (2 + MAX_EVENT_BYTES // 1_000_000))


@pytest.mark.parametrize("line", [b"data: [\n", b"data: x\n", b"data: {"])
def test_hostile_lines_cost_the_same_each(line: bytes) -> None:
    def seconds(lines: int) -> float:
        decoder, started = EventDecoder(), time.process_time()
        for _ in range(lines // 100):
            list(decoder.feed(line * 100))
        return time.process_time() - started

    seconds(2_000)
    once = min(seconds(20_000) for _ in range(3))
    assert min(seconds(80_000) for _ in range(3)) < 12 * once


def test_an_error_line_is_its_json_or_its_text() -> None:
    def errors(text: str) -> list[Any]:
        return [event.data for event in decoded(text.encode()) if event.is_error]

    about = {"message": "full"}
    assert errors(f"error: {json.dumps(about)}\n") == [about]
    assert errors("error: the context is full\n") == ["the context is full"]
    assert errors("event: error\ndata: the context is full\n\n") == ["the context is full"]
    assert errors("event: error\n\ndata: {}\n\n") == []
