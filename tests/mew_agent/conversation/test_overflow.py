"""Which failed calls are overflows, what window they reveal, and how far the next compaction goes."""

import pytest

from mew_agent.agent.turn import cut_reason
from mew_agent.context.history import History
from mew_agent.context.policy import MEW, CompactAction
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.conversation.compactions import (
    halved,
    is_overflow,
    overflow_compaction,
)
from mew_agent.conversation.texts import CutReason
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import ModelReply, Window
from mew_agent.model.usage import Usage


def full(prompt_tokens: int, window: Window) -> Tracker:
    tracker = Tracker(History(), MEW, window, "m")
    tracker.ledger.projected_tokens = prompt_tokens
    return tracker


def cut(chunks: int) -> ModelStreamCut:
    return ModelStreamCut("http://server", "m", "ended", chunks=chunks)


def overflow(limit_tokens: int | None = None) -> ContextOverflow:
    return ContextOverflow("http://server", "m", "too long", limit_tokens=limit_tokens)


@pytest.mark.parametrize(
    ("error", "prompt_tokens", "is_one"),
    [
        pytest.param(overflow(), 1, True, id="named"),
        pytest.param(cut(0), 900, True, id="an empty stream, nearly full"),
        pytest.param(cut(0), 899, False, id="an empty stream with room"),
        pytest.param(cut(1), 999, False, id="a stream that began"),
        pytest.param(ModelError("http://server", "m", "bad"), 999, False, id="another error"),
    ],
)
def test_overflow_errors_and_empty_streams_of_a_full_window_are_overflows(
    error: ModelError, prompt_tokens: int, is_one: bool
) -> None:
    assert is_overflow(error, full(prompt_tokens, Window(1000, "configured"))) is is_one


@pytest.mark.parametrize(
    ("window", "limit_tokens", "learnt"),
    [
        (Window(128_000, "assumed"), 4096, Window(4096, "loaded", "overflow error")),
        (Window(8192, "trained"), 32_768, Window(32_768, "loaded", "overflow error")),
        (Window(2048, "configured"), 4096, Window(2048, "configured")),
        (Window(8192, "configured"), 4096, Window(4096, "loaded", "overflow error")),
        (Window(8192, "configured"), None, Window(8192, "configured")),
    ],
)
def test_an_overflow_error_reveals_the_window(window: Window, limit_tokens: int | None, learnt: Window) -> None:
    assert learn_from_overflow(window, limit_tokens) == learnt


@pytest.mark.parametrize(("prompt_tokens", "target"), [(3000, 500), (600, 300)])
def test_the_compaction_aims_at_half_the_window_or_request(prompt_tokens: int, target: int) -> None:
    assert overflow_compaction(full(prompt_tokens, Window(1000, "loaded"))) == CompactAction("overflow_error", target)


@pytest.mark.parametrize(
    ("finish_reason", "total_tokens", "reason"),
    [
        ("stop", 1000, None),
        ("tool_calls", 1000, None),
        ("length", 1000, "context_full"),
        ("length", 980, "context_full"),
        ("length", 979, "max_tokens"),
        ("length", None, "context_full"),
        ("content_filter", 1000, "content_filter"),
    ],
)
def test_an_incomplete_reply_blames_the_window_only_if_it_is_full(
    finish_reason: str, total_tokens: int | None, reason: CutReason | None
) -> None:
    usage = None if total_tokens is None else Usage(900, total_tokens - 900, total_tokens)
    reply = ModelReply("text", (), finish_reason, usage, "m")
    assert cut_reason(reply, full(990, Window(1000, "configured"))) == reason


@pytest.mark.parametrize(("target", "prompt", "expected"), [(900, 1000, 500), (300, 1000, 300), (900, 1, 0)])
def test_at_most_half_of_a_prompt_without_room_remains(target: int, prompt: int, expected: int) -> None:
    assert halved(CompactAction("stream", target), prompt).target_tokens == expected
