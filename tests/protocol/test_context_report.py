"""The consistency rules of the context report."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import BreakdownPart, ContextReport
from pydantic import ValidationError


@pytest.mark.parametrize(
    "value", [{"basis": "unknown"}, {"basis": "reported", "reason": "no_call_yet"}, {"basis": "guessed"}, {}]
)
def test_a_consistent_report_is_valid(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContextReport.model_validate(value)


@pytest.mark.parametrize(
    "value", [{"basis": "unknown", "reason": "restarted"}, {"basis": "reported"}, {"basis": "projected"}]
)
def test_only_an_unknown_figure_has_a_reason(value: dict[str, Any]) -> None:
    assert ContextReport.model_validate(value).basis == value["basis"]


def test_unreported_figures_are_absent() -> None:
    report = ContextReport(basis="unknown", reason="no_call_yet")
    for name in ("prompt_tokens", "completion_tokens", "next_prompt_tokens", "compact_at_tokens", "drift_tokens"):
        assert getattr(report, name) is None
    assert (report.level, report.severity) == ("unknown", "unknown")


def test_keys_of_other_implementations_are_kept() -> None:
    assert ContextReport.model_validate({"basis": "reported", "mood": "fine"}).model_dump()["mood"] == "fine"


@given(tokens=st.integers(max_value=-1))
def test_a_part_has_no_negative_tokens(tokens: int) -> None:
    with pytest.raises(ValidationError):
        BreakdownPart(part="reply", tokens=tokens, basis="exact")
