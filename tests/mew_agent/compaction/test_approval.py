"""The approval of a compaction: which answers are read, and for which plan they count."""

import pytest

from mew_agent.compaction.approval import CompactionDecision, ProposedCompaction, read_approval
from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.history import History


def history_of(turns: int) -> History:
    history = History()
    for number in range(turns):
        history.begin_turn()
        history.append("user", f"question {number} " + "x" * 100, id=f"q{number}", at=f"t{2 * number}", name="ada")
        history.append("assistant", f"answer {number}", id=f"a{number}", at=f"t{2 * number + 1}")
    return history


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
