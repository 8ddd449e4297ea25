"""When a figure is old, and how that reads."""

import pytest
from mew_board.figures import old_figure, span
from mew_protocol.context_report import ContextReport, outdated_by

REPORT = ContextReport(basis="reported")


def test_a_join_makes_every_known_figure_old() -> None:
    assert outdated_by("join", 704, None) == "before_join"
    assert outdated_by("join", 704, REPORT, "messages_since") == "before_join"
    assert outdated_by("join", None, REPORT) is None


def test_a_chat_makes_figures_old_that_are_reported_only_on_request() -> None:
    assert outdated_by("chat", 704, None) == "messages_since"
    assert outdated_by("chat", 704, REPORT) is None
    assert outdated_by("chat", 704, None, "before_join") == "before_join"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (725, "12 min"), (7_200, "2 h"), (1e6, "11 d")]
)
def test_a_duration_is_in_its_largest_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_an_old_figure_says_its_age_and_why() -> None:
    assert old_figure("messages_since", "12 min") == "figure 12 min old, messages since"
    assert old_figure("before_join", None) == "figure of unknown age, from before it joined"
