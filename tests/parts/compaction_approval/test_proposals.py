"""Asking before a compaction: what a proposal says, and how long a rejection holds."""

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.compaction.approval import ProposedCompaction
from mew_agent.compaction.planner import STUB_TOKENS, CompactionPlan
from mew_agent.context.history import History, Pin
from mew_agent.parts.compaction_approval.asking import REJECTION_SECONDS, Rejection, proposal_arguments


def history_of(turns: int) -> History:
    history = History(pins=[Pin("p1", "never push to main", "ada")])
    for number in range(turns):
        history.begin_turn()
        history.append("user", f"question {number} " + "x" * 100, id=f"q{number}", at=f"t{2 * number}", name="ada")
        history.append("assistant", f"answer {number}", id=f"a{number}", at=f"t{2 * number + 1}")
    return history


def test_a_proposal_lists_removed_and_kept_items_and_the_cost() -> None:
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
            "first": "ada: question 0 " + "x" * 69 + "…",
            "last": "answer 1",
        },
        "cleared_results": 0,
        "stays": {
            "messages": 2,
            "turns": 1,
            "from": "t4",
            "to": "t5",
            "first": "ada: question 2 " + "x" * 69 + "…",
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


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.floats(0, 10_000), st.integers(20, 200_000))
def test_a_rejection_holds_for_growth_and_ten_minutes(before: int, now: int, seconds: float, window: int) -> None:
    held = Rejection("rejected by ada: no", before, 0.0).holds(now, window, seconds)
    assert held == (now - before < window / 20 and seconds < REJECTION_SECONDS)
