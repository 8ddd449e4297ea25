"""From items and usage to what the ledger books."""

import pytest

from mew_agent.context.history import History
from mew_agent.context.measures import kept_reply_tokens, measure_of
from mew_agent.model.interface import ToolCall
from mew_agent.model.usage import Usage


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
def test_what_a_reply_takes_when_it_is_sent_again(usage: Usage | None, thinking_seen: bool, kept: int | None) -> None:
    assert kept_reply_tokens(usage, thinking_seen=thinking_seen) == kept


def test_a_measure_says_what_kind_of_item_it_is() -> None:
    history = History()
    call = ToolCall("c1", "look_up", '{"q": "pumps"}')
    asked = measure_of(history.append("assistant", "", id="a", at="t", tool_calls=[call]))
    result = measure_of(history.append("tool", "three pumps", id="b", at="t", tool_call_id="c1"))
    assert asked.tool_calls
    assert asked.features > 0
    assert result.tool_result
    assert not result.thinking


def test_thinking_left_in_the_text_counts_as_thinking() -> None:
    item = History().append("assistant", "<think>hm</think>yes", id="a", at="t")
    assert measure_of(item).thinking


def test_a_reported_size_that_the_text_cannot_have_is_not_believed() -> None:
    history = History()
    assert measure_of(history.append("assistant", "yes", id="a", at="t", known_tokens=5000)).known_tokens is None
    assert measure_of(history.append("assistant", "yes", id="b", at="t", known_tokens=1)).known_tokens == 1
