"""The context report's own rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import BreakdownPart, ContextReport
from pydantic import ValidationError


@pytest.mark.parametrize(
    "value", [{"basis": "unknown"}, {"basis": "reported", "reason": "no_call_yet"}, {"basis": "guessed"}, {}]
)
def test_a_report_says_how_its_figure_is_known_and_why_it_is_not(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContextReport.model_validate(value)


@pytest.mark.parametrize(
    "value", [{"basis": "unknown", "reason": "restarted"}, {"basis": "reported"}, {"basis": "projected"}]
)
def test_a_known_figure_has_no_reason_and_an_unknown_one_has(value: dict[str, Any]) -> None:
    assert ContextReport.model_validate(value).basis == value["basis"]


def test_what_nobody_reported_is_absent_not_zero() -> None:
    report = ContextReport(basis="unknown", reason="no_call_yet")
    for name in ("prompt_tokens", "completion_tokens", "next_prompt_tokens", "compact_at_tokens", "drift_tokens"):
        assert getattr(report, name) is None
    assert (report.level, report.severity) == ("unknown", "unknown")


def test_keys_of_other_implementations_are_kept() -> None:
    assert ContextReport.model_validate({"basis": "reported", "mood": "fine"}).model_dump()["mood"] == "fine"


@given(tokens=st.integers(max_value=-1))
def test_a_part_never_holds_less_than_nothing(tokens: int) -> None:
    with pytest.raises(ValidationError):
        BreakdownPart(part="reply", tokens=tokens, basis="exact")
