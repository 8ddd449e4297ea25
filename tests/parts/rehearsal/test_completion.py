"""Completions: limits, usage and the shape of chunks, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.event_stream import Event
from mew_agent.model.reply_events import ReplyEvents
from mew_agent.parts.rehearsal.behaviour import PlannedReply
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions, ScriptedToolCall
from mew_agent.parts.rehearsal.reply_bodies import Completion, body_of, chunks_of, complete, usage_of
from mew_agent.parts.rehearsal.tokenizer import count, count_tool_call

CALL = ScriptedToolCall(name="look_up", arguments='{"word": "elbe"}')
CALL_TOKENS = count_tool_call(CALL.name, CALL.arguments)


def completed(
    plan: PlannedReply, *, prompt_tokens: int = 10, max_tokens: int | None = None, **options: Any
) -> Completion:
    return complete(plan, RehearsalOptions(**options), number=3, prompt_tokens=prompt_tokens, max_tokens=max_tokens)


def test_a_reply_that_fits_is_complete() -> None:
    reply = completed(PlannedReply("Hello world"))
    assert ("".join(reply.text), reply.completion_tokens, reply.finish_reason) == ("Hello world", 2, "stop")


def test_tool_calls_have_unique_ids() -> None:
    reply = completed(PlannedReply("", (CALL, CALL)))
    assert [call.id for call in reply.calls] == ["call_3_0", "call_3_1"]
    assert (reply.completion_tokens, reply.finish_reason) == (2 * CALL_TOKENS, "tool_calls")


def test_a_call_that_does_not_fit_is_dropped() -> None:
    reply = completed(PlannedReply("", (CALL, CALL)), max_tokens=2 * CALL_TOKENS - 1)
    assert (len(reply.calls), reply.finish_reason) == (1, "length")


@given(st.text(max_size=80), st.integers(1, 40), st.integers(0, 30), st.integers(0, 99), st.text(max_size=20))
def test_no_reply_exceeds_its_limit_or_the_window(
    text: str, bound: int, hidden: int, prompt: int, thinking: str
) -> None:
    reply = completed(
        PlannedReply(text),
        prompt_tokens=prompt,
        max_tokens=bound,
        window_tokens=100,
        reasoning_tokens=hidden,
        visible_reasoning=thinking,
    )
    whole = hidden + count(thinking) + count(text)
    room = min(bound, 100 - prompt)
    assert reply.completion_tokens == min(whole, room)
    assert reply.completion_tokens == reply.reasoning_tokens + count("".join(reply.text))
    assert reply.finish_reason == ("stop" if whole <= room else "length")


def test_a_reply_at_the_window_limit_fills_it() -> None:
    reply = completed(PlannedReply("word " * 500), window_tokens=64)
    assert reply.finish_reason == "length"
    assert usage_of(reply, RehearsalOptions())["total_tokens"] == 64


def test_reasoning_tokens_are_reported_as_configured() -> None:
    reply = completed(PlannedReply("Hello"), reasoning_tokens=7)
    reporting, silent = RehearsalOptions(), RehearsalOptions(reasoning_reported=False)
    assert usage_of(reply, reporting)["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert "completion_tokens_details" not in usage_of(reply, silent)
    assert usage_of(reply, silent)["completion_tokens"] == 8


def test_a_fixed_usage_is_reported_as_given() -> None:
    reply = completed(PlannedReply("Hello"))
    assert usage_of(reply, RehearsalOptions(), (5, 6, 99)) == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 99,
    }
    assert "total_tokens" not in usage_of(reply, RehearsalOptions(), (5, 6, None))


@pytest.mark.parametrize(
    ("usage_on", "tail"),
    [
        ("empty_last_chunk", [("stop", False), (None, True)]),
        ("no_total", [("stop", False), (None, True)]),
        ("finish_chunk", [(None, False), ("stop", True)]),
        ("before_null_usage_chunk", [("stop", False), (None, True), (None, False)]),
        ("every_chunk", [(None, True), ("stop", True), (None, True)]),
    ],
)
def test_usage_is_placed_as_configured(usage_on: Any, tail: list[tuple[str | None, bool]]) -> None:
    options = RehearsalOptions(usage_on=usage_on)
    reply = completed(PlannedReply("Hello world"))
    chunks: list[Any] = list(chunks_of(reply, options, usage_of(reply, options)))
    shapes = [
        (chunk["choices"][0]["finish_reason"] if chunk["choices"] else None, chunk["usage"] is not None)
        for chunk in chunks
    ]
    assert shapes[-len(tail) :] == tail


@pytest.mark.parametrize("usage_on", ["every_chunk", "empty_last_chunk"])
def test_running_usage_grows_to_the_final_figure(usage_on: Any) -> None:
    options = RehearsalOptions(
        usage_on=usage_on, reasoning_tokens=3, visible_reasoning="Let me see.", tokens_per_chunk=1
    )
    reply = complete(PlannedReply("Hello world", (CALL,)), options, number=1, prompt_tokens=10, max_tokens=None)
    events = ReplyEvents()
    seen = []
    for chunk in chunks_of(reply, options, usage_of(reply, options)):
        events.read(Event(chunk))
        seen.append(events.usage.completion_tokens if events.usage else 0)
    assert seen == sorted(seen)
    assert seen[-1] == reply.completion_tokens
    assert (len(set(seen)) > 3) == (usage_on == "every_chunk")


def test_without_usage_no_chunk_has_it() -> None:
    reply = completed(PlannedReply("Hello world"))
    for usage_on in ("empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "every_chunk"):
        chunks = list(chunks_of(reply, RehearsalOptions.model_validate({"usage_on": usage_on}), None))
        assert all(chunk["usage"] is None for chunk in chunks)
        assert chunks[-1]["choices"]


def test_a_whole_body_has_every_part_of_the_reply() -> None:
    reply = completed(PlannedReply("Hello", (CALL,)), visible_reasoning="Hm.", served_model="other")
    body: Any = body_of(reply, {"total_tokens": 1})
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "Hm.")
    assert message["tool_calls"][0]["function"] == {"name": CALL.name, "arguments": CALL.arguments}
    assert (body["model"], body["usage"]) == ("other", {"total_tokens": 1})
    assert "usage" not in body_of(reply, None)
