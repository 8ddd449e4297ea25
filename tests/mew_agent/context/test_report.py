"""The keys of a report and when they are present."""

from typing import Any

import pytest

from mew_agent.context.history import History
from mew_agent.context.policy import MEW, Policy, StopAction
from mew_agent.context.policy.definition import Level, StopRule
from mew_agent.context.policy.threshold import Condition
from mew_agent.context.spending import with_call
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import Window
from mew_agent.model.usage import Usage
from tests.support.trackers import keep_call

WINDOW = Window(200_000, "configured")

SPEND = Policy(
    name="loop",
    measure="cumulative",
    levels=(Level(name="redline", severity=3, at=Condition(figure="used", op="gt", tokens=150_000)),),
    rules=(
        StopRule(
            action="clear",
            phase="after_call",
            reason="redline",
            when=(Condition(figure="used", op="gt", tokens=150_000),),
        ),
    ),
)


def called(tracker: Tracker, *usages: tuple[int, int] | None) -> Tracker:
    for number, usage in enumerate(usages):
        keep_call(tracker, None if usage is None else Usage(usage[0], usage[1], sum(usage)), call_id=f"c{number}")
    return tracker


def tracker_of(policy: Policy) -> Tracker:
    return Tracker(History(), policy, WINDOW, "m")


def test_a_report_passes_its_own_validation() -> None:
    report = called(tracker_of(MEW), (900, 100)).report()
    assert (report.basis, report.measure, report.policy, report.model) == ("reported", "total", "mew", "m")
    assert type(report).model_validate(report.model_dump()) == report


@pytest.mark.parametrize("policy", [MEW, SPEND], ids=["window", "spend"])
def test_a_report_leaves_out_unknown_figures(policy: Policy) -> None:
    known = tracker_of(policy).report().model_dump(exclude_none=True)
    for absent in ("prompt_tokens", "breakdown", "spent_tokens", "tokens_per_turn", "drift_tokens", "suggestions"):
        assert absent not in known


def test_the_prompt_measure_compares_the_prompt_and_leaves_tokens_the_total() -> None:
    at_900 = Condition(figure="used", op="ge", tokens=900)
    policy = Policy(name="p", measure="prompt", levels=(Level(name="large", severity=1, at=at_900),))
    below, at = (called(tracker_of(policy), (prompt, 1_000)) for prompt in (899, 900))
    assert (below.measurement.tokens, at.measurement.tokens) == (1_899, 1_900)
    assert [tracker.report().level for tracker in (below, at)] == ["healthy", "large"]
    assert at.report().measure == "prompt"
    assert at.report().compact_at_tokens is None


# -- spend ----------------------------------------------------------------------------------------------------

T15 = [(20_000, 1_000), (25_000, 1_000), (30_000, 1_000), (35_000, 1_000), (40_000, 1_000)]


def spend(tracker: Tracker) -> dict[str, Any]:
    return tracker.report().model_dump(include={"spent_tokens", "budget_tokens"}, exclude_none=True)


def test_t15_the_spend_stops_the_loop_above_150000_tokens() -> None:
    tracker, spent, stopped = tracker_of(SPEND), [], []
    for usage in T15:
        called(tracker, usage)
        spent.append(tracker.measurement.spent_since_clear)
        stopped.append(any(isinstance(action, StopAction) for action in tracker.decide("after_call", 0.0).actions))
    assert spent == [21_000, 47_000, 78_000, 114_000, 155_000]
    assert stopped == [False, False, False, False, True]
    assert tracker.measurement.tokens == 41_000  # 20.5 % of the window, which is far from full
    exactly = called(tracker_of(SPEND), (149_000, 1_000))
    assert exactly.measurement.spent_since_clear == 150_000
    assert exactly.decide("after_call", 0.0).actions == ()


def test_the_spend_is_shown_as_a_budget() -> None:
    tracker = called(tracker_of(SPEND), *T15)
    report = tracker.report()
    assert spend(tracker) == {"spent_tokens": 155_000, "budget_tokens": 150_000}
    assert (report.measure, report.level, report.severity) == ("cumulative", "redline", 3)
    assert report.compact_at_tokens is None
    assert report.turns_to_compaction is None
    assert (tracker.status("active").tokens, report.basis) == (41_000, "reported")


def test_the_spend_survives_cuts_and_restarts_until_a_clear() -> None:
    tracker = called(tracker_of(SPEND), (100, 10), (200, 20))
    tracker.history.revision += 1
    called(tracker, (300, 30))
    tracker.spending = with_call(None, Usage(300, 30, 330), 0.5, "USD")
    again = tracker_of(SPEND)
    again.restored(tracker.saved(), {})
    assert again.measurement.spent_since_clear == 660
    assert (again.report().basis, again.report().level, spend(again)["spent_tokens"]) == ("unknown", "healthy", 660)
    again.history.clear()
    again.cleared()
    assert again.measurement.spent_since_clear == 0
    assert str(again.report().spending) == "330 tokens in 1 call, 0.5 USD"
    assert "spent_tokens" not in spend(again)
    assert again.report().level == "unknown"


def test_a_call_without_usage_makes_the_spend_unknown() -> None:
    tracker = called(tracker_of(SPEND), (100, 10), None)
    assert tracker.report().level == "unknown"
    assert "spent_tokens" not in spend(tracker)
    called(tracker, (100, 10))
    assert spend(tracker)["spent_tokens"] == 220
