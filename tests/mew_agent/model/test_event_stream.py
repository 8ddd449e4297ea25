"""Bytes of answers cut into events: the same events however the bytes are cut, in bounded time and memory."""

import json
from contextlib import suppress
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.event_stream import MAX_EVENT_BYTES, Event, EventDecoder
from mew_agent.model.reply_events import ReplyAssembly
from tests.mew_agent.model.reply_shapes import SHAPES

OPENAIS_HTTP: Any = import_module("httpx" if openai.__version__.startswith("2.") else "httpx2")


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


@pytest.mark.parametrize("line", [b"data: [\n", b"data: []\n", b"data: x]\n", b"data: {"])
def test_no_line_is_decoded_twice(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Mock(side_effect=json.loads)
    monkeypatch.setattr("mew_agent.model.event_stream.json", Mock(loads=loads))
    with suppress(ValueError):
        decoded(*[line] * 1_000, b"\n")
    assert sum(len(call.args[0]) for call in loads.call_args_list) <= 1_000 * len(line)


def test_an_error_line_is_its_json_or_its_text() -> None:
    def errors(text: str) -> list[Any]:
        return [event.data for event in decoded(text.encode()) if event.is_error]

    about = {"message": "full"}
    assert errors(f"error: {json.dumps(about)}\n") == [about]
    assert errors("error: the context is full\n") == ["the context is full"]
    assert errors("event: error\ndata: the context is full\n\n") == ["the context is full"]
    assert errors("event: error\n\ndata: {}\n\n") == []


STREAMED = {name: shape for name, shape in SHAPES.items() if shape.body.lstrip()[:1] not in (b"{", b"[", b"<")}

LOST_BY_HTTPX2 = {
    "CRLF, and no line end after the last event",
    "a byte order mark at the start",
    "a mark of an event without data",
    "gpustack: an error in mid-stream",
    "gpustack: an error in words",
    "no line end after the last event",
    "one line end between events",
}
LOST_BY_OPENAI = {*LOST_BY_HTTPX2, "an error event", "figures after the end mark"}


def facts(events: list[Event]) -> tuple[object, ...]:
    """The facts of a reply that an account of tokens and a chat are made of."""
    assembly = ReplyAssembly("m")
    for event in events:
        assembly.feed(event)
    reply = assembly.reply(request_id=None, is_streamed=True)
    return reply.text, reply.reasoning_text, reply.usage, reply.tool_calls, bool(assembly.events.error)


def answer(body: bytes, http: Any = httpx2) -> Any:
    request = http.Request("POST", "http://provider/v1/chat/completions")
    return http.Response(200, headers={"content-type": "text/event-stream"}, content=body, request=request)


def by_httpx2(body: bytes) -> list[Event]:
    return [
        Event(is_done=True) if event.data.startswith("[DONE]") else Event(event.json(), is_error=event.event == "error")
        for event in httpx2.EventSource(answer(body))
    ]


async def by_openai(body: bytes) -> list[Event]:
    transport = OPENAIS_HTTP.MockTransport(lambda _request: answer(body, OPENAIS_HTTP))
    http = OPENAIS_HTTP.AsyncClient(transport=transport)
    events = []
    async with openai.AsyncOpenAI(api_key="x", base_url="http://provider/v1", http_client=http) as client:
        chunks = await client.chat.completions.create(model="m", messages=[], stream=True)
        try:
            async for one in chunks:
                events.append(Event(one.model_dump(exclude_unset=True, warnings=False)))  # noqa: PERF401 - it may raise
        except openai.APIError as error:
            events.append(Event(error.message, is_error=True))
    return events


async def test_libraries_lose_text_figures_or_errors_of_the_listed_streams() -> None:
    """Why `event_stream` reads them itself; if a newer version of a library reads more, this fails."""
    chats = {name: shape for name, shape in STREAMED.items() if shape.api == "chat"}
    by_library: dict[str, set[str]] = {"httpx2": set(), "openai": set()}
    for name, shape in STREAMED.items():
        with suppress(ValueError):
            if facts(by_httpx2(shape.body)) == facts(decoded(shape.body)):
                by_library["httpx2"].add(name)
        with suppress(ValueError):
            if name in chats and facts(await by_openai(shape.body)) == facts(decoded(shape.body)):
                by_library["openai"].add(name)
    assert by_library["httpx2"].isdisjoint(LOST_BY_HTTPX2)
    assert by_library["openai"].isdisjoint(LOST_BY_OPENAI)
    assert (len(STREAMED), len(chats)) == (83, 59)  # of which the module says how many are lost
    assert (len(LOST_BY_HTTPX2), len(LOST_BY_OPENAI)) == (7, 9)
