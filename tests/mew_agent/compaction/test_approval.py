"""Asking before a compaction: what a proposal says, which approvals are read, and how long a rejection holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.compaction.approval import (
    REJECTION_SECONDS,
    CompactionDecision,
    ProposedCompaction,
    Rejection,
    proposal_arguments,
    read_approval,
)
from mew_agent.compaction.planner import STUB_TOKENS, CompactionPlan
from mew_agent.context.history import History, Pin


def history_of(turns: int) -> History:
    history = History(pins=[Pin("p1", "never push to main", "ada")])
    for number in range(turns):
        history.begin_turn()
        history.append("user", f"question {number} " + "x" * 100, id=f"q{number}", at=f"t{2 * number}", name="ada")
        history.append("assistant", f"answer {number}", id=f"a{number}", at=f"t{2 * number + 1}")
    return history


def test_a_proposal_says_what_goes_what_stays_and_what_it_costs() -> None:
    history = history_of(3)
    plan = CompactionPlan((), (0, 3), evicted_tokens=900, summary_budget_tokens=200)
    proposed = ProposedCompaction(plan, "threshold", 500, history.revision)
    prices = {item.seq: 200 for item in history.items}
    described = proposal_arguments(proposed, history, prices, present_tokens=1_500, summary_tokens=50)
    assert described == {
        "trigger": "threshold",
        "target_tokens": 500,
        "present_tokens": 1_500,
        "freed_tokens": 900 + 50 - 200,
        "cost_tokens": 900 + 50 + 200,
        "basis": "projected",
        "leaves": {
            "messages": 4,
            "turns": 2,
            "from": "t0",
            "to": "t3",
            "first": "ada: question 0 " + "x" * 69 + "...",
            "last": "answer 1",
        },
        "cleared_results": 0,
        "stays": {
            "messages": 2,
            "turns": 1,
            "from": "t4",
            "to": "t5",
            "first": "ada: question 2 " + "x" * 69 + "...",
            "last": "answer 2",
            "pins": 1,
        },
    }


def test_cleared_results_free_tokens_without_a_summary_call() -> None:
    history = history_of(1)
    result = history.append("tool", "long", id="r", at="t9", tool_call_id="c")
    plan = CompactionPlan((result.seq,), None, 0, 0)
    proposed = ProposedCompaction(plan, "requested", None, 0, requested_by="bob")
    prices = {item.seq: 300 for item in history.items}
    described = proposal_arguments(proposed, history, prices, present_tokens=900, summary_tokens=50)
    assert (described["freed_tokens"], described["cost_tokens"]) == (300 - STUB_TOKENS, 0)
    assert (described["cleared_results"], described["leaves"]["messages"], described["requested_by"]) == (1, 0, "bob")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "arguments: must be an object"),
        ({"target_tokens": -1}, "arguments.target_tokens: must be at least 0, not -1"),
        ({"target_tokens": "small"}, "arguments.target_tokens: must be a whole number, not 'small'"),
        ({"pins": "one"}, "arguments.pins: must be a list, not 'one'"),
        ({"pins": [" "]}, "arguments.pins: each line must have 1 to 4,000 characters"),
        ({"pins": ["x"] * 9}, "arguments.pins: must have at most 8 items"),
    ],
)
def test_an_approval_that_makes_no_sense_names_the_argument(arguments: object, problem: str) -> None:
    with pytest.raises(ValueError, match="arguments") as refused:
        read_approval(arguments)
    assert str(refused.value).startswith(problem)


def test_an_approval_of_what_was_proposed_ignores_the_other_keys() -> None:
    approved = read_approval({"trigger": "threshold", "leaves": {}, "target_tokens": 5, "pins": ["a"]})
    assert (approved.target_tokens, approved.pins) == (5, ("a",))


def test_the_approved_plan_counts_only_for_its_own_history_and_target() -> None:
    history = history_of(2)
    plan = CompactionPlan((), (0, 1), 100, 0)
    proposed = ProposedCompaction(plan, "threshold", 10, history.revision)
    assert CompactionDecision("approved", "ada", proposed=proposed).plan_for(history) is plan
    assert CompactionDecision("approved", "ada", 20, proposed).plan_for(history) is None
    assert CompactionDecision("urgent", "").plan_for(history) is None
    history.evict(0, 0, None)
    assert CompactionDecision("approved", "ada", proposed=proposed).plan_for(history) is None


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.floats(0, 10_000), st.integers(20, 200_000))
def test_a_rejection_holds_for_growth_and_ten_minutes(before: int, now: int, seconds: float, window: int) -> None:
    held = Rejection("rejected by ada: no", before, 0.0).holds(now, window, seconds)
    assert held == (now - before < window / 20 and seconds < REJECTION_SECONDS)
