"""The figures of one moment."""

import pytest

from mew_agent.context.policy import ContextSnapshot
from mew_agent.context.policy.threshold import Figure

MOMENT = ContextSnapshot(900, "reported", 1000, hidden_tokens=100, next_prompt_tokens=800, tool_result_tokens=50)
NOTHING = ContextSnapshot(None, "unknown", None, "no_call_yet")


@pytest.mark.parametrize(
    ("figure", "tokens"),
    [
        ("used", 900),
        ("resent", 800),
        ("next_prompt", 800),
        ("next_prompt_and_reserve", 800),
        ("tool_result", 50),
        ("with_tool_result", 950),
    ],
)
def test_a_figure_is_what_is_known_and_nothing_where_it_is_not(figure: Figure, tokens: int) -> None:
    assert MOMENT.figure(figure) == tokens
    assert NOTHING.figure(figure) is None


def test_a_result_on_top_of_something_unknown_is_unknown() -> None:
    assert ContextSnapshot(None, "unknown", 1000, "cleared", tool_result_tokens=50).figure("with_tool_result") is None
