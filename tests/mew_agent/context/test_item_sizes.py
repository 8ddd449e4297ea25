"""Measures of items, and the size of a kept reply."""

import pytest

from mew_agent.context.history import History
from mew_agent.context.item_sizes import ItemSize, item_size, kept_reply_tokens
from mew_agent.context.measurement import KeptReply, Measurement
from mew_agent.context.persisted_state import CallRecord
from mew_agent.model.interface import ToolCall
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration


@pytest.mark.parametrize(
    ("usage", "thinking_seen", "kept"),
    [
        pytest.param(None, False, None, id="nothing was reported"),
        pytest.param(Usage(100, 30, 130), False, 30, id="the completion is the reply"),
        pytest.param(Usage(100, 30, 130, reasoning_tokens=20), True, 10, id="reasoning inside is not sent again"),
        pytest.param(Usage(100, 30, 150, reasoning_tokens=20), True, 30, id="reasoning lies outside the completion"),
        pytest.param(Usage(100, 30, 130), True, None, id="thinking was seen and not counted"),
        pytest.param(Usage(100, 30, 130, reasoning_tokens=50), False, 0, id="never negative"),
    ],
)
def test_the_size_of_a_kept_reply_follows_from_its_usage(
    usage: Usage | None, thinking_seen: bool, kept: int | None
) -> None:
    assert kept_reply_tokens(usage, thinking_seen=thinking_seen) == kept


def test_a_measure_has_the_kind_of_its_item() -> None:
    history = History()
    call = ToolCall("c1", "look_up", '{"q": "pumps"}')
    requested = item_size(history.append("assistant", "", id="a", at="t", tool_calls=(call,)))
    result = item_size(history.append("tool", "three pumps", id="b", at="t", tool_call_id="c1"))
    assert requested.tool_calls
    assert requested.features > 0
    assert result.tool_result
    assert not result.thinking


def test_thinking_left_in_the_text_counts_as_thinking() -> None:
    item = History().append("assistant", "<think>hm</think>yes", id="a", at="t")
    assert item_size(item).thinking


def test_an_impossible_reported_size_is_ignored() -> None:
    history = History()
    assert item_size(history.append("assistant", "yes", id="a", at="t", known_tokens=5000)).known_tokens is None
    assert item_size(history.append("assistant", "yes", id="b", at="t", known_tokens=1)).known_tokens == 1


CALIBRATION = Calibration()


def reply_to(usage: Usage) -> KeptReply:
    """Return the reply of a call with this usage, whose item has not entered yet."""
    measurement = Measurement()
    measurement.record(usage, CallRecord("c", "main", "t", "m", 0, usage), last_seq=0, turn=0)
    return measurement.reply


def test_only_the_awaited_item_is_the_reply() -> None:
    reply = KeptReply()
    assert not reply.identify(ItemSize(3, 10.0), CALIBRATION)
    reply = reply_to(Usage(100, 50, 150))
    assert reply.identify(ItemSize(4, 10.0, known_tokens=50), CALIBRATION)
    assert not reply.identify(ItemSize(5, 10.0), CALIBRATION)
    assert (reply.tokens, reply.hidden_tokens, reply.seq) == (50, 0, 4)
    assert reply.is_in(4, 4)
    assert not reply.is_in(5, 9)


def test_unsent_parts_of_a_reply_are_hidden() -> None:
    reply = reply_to(Usage(100, 20, 180))
    reply.identify(ItemSize(0, 10.0, known_tokens=20), CALIBRATION)
    assert (reply.tokens, reply.hidden_tokens) == (80, 60)


def test_a_replys_projection_ends_at_its_reported_size() -> None:
    for features, hidden in ((30.0, 50), (500.0, 0)):
        reply = reply_to(Usage(100, 80, 180))
        reply.identify(ItemSize(0, features), CALIBRATION)
        assert reply.hidden_tokens == hidden


def test_a_total_below_its_prompt_leaves_nothing_for_the_reply() -> None:
    assert reply_to(Usage(600, 1, 500)).tokens == 0


def test_without_a_reply_nothing_counts() -> None:
    assert (KeptReply().tokens, KeptReply().hidden_tokens, KeptReply().seq) == (0, 0, None)
    assert not KeptReply().is_in(0, 9)
