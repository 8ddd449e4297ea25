"""The policy `mew` at both sides of each threshold, and policies that are refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import answer_reserve_tokens

from mew_agent.context.policy import (
    MEW,
    AnnounceAction,
    CompactAction,
    ContextSnapshot,
    Phase,
    Policy,
    PolicyState,
    after_compaction,
    compacting_early,
    decide,
    is_stalled,
    level_of,
)
from mew_agent.context.policy.definition import CompactRule, Level
from mew_agent.context.policy.threshold import Condition, Fraction
from tests.support.policies import COUNTING

WINDOWS = [1, 2, 7, 9, 10, 11, 19, 100, 999, 1_000, 4_096, 8_192, 32_768, 99_999, 128_000, 131_072, 200_000, 1_048_576]


def after(used: int | None, limit: int | None = 128_000, **more: Any) -> ContextSnapshot:
    return ContextSnapshot(
        used_tokens=used, basis="reported" if used is not None else "unknown", limit_tokens=limit, **more
    )


FRESH = PolicyState()


def actions(snapshot: ContextSnapshot, phase: Phase = "after_call", state: PolicyState = FRESH) -> list[Any]:
    return list(decide(MEW, state, snapshot, phase).actions)


def compactions(snapshot: ContextSnapshot, phase: Phase = "after_call", state: PolicyState = FRESH) -> list[str]:
    return [action.trigger for action in actions(snapshot, phase, state) if isinstance(action, CompactAction)]


def first_at(limit: int) -> int:
    return next(tokens for tokens in range(limit * 9 // 10, limit + 1) if tokens * 10 >= limit * 9)


# -- nine tenths ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", WINDOWS)
def test_compaction_begins_at_nine_tenths_and_not_one_token_below(limit: int) -> None:
    at = first_at(limit)
    assert MEW.marks(limit).compact_at_tokens == at
    assert compactions(after(at, limit)) == ["threshold"]
    assert compactions(after(at - 1, limit)) == []
    assert level_of(MEW, after(at, limit)) == ("near_limit", 2)
    assert level_of(MEW, after(at - 1, limit)) == ("healthy", 0)


def test_of_128000_tokens_the_threshold_is_115200() -> None:
    assert MEW.marks(128_000).compact_at_tokens == 115_200
    assert compactions(after(115_199)) == []
    decided = actions(after(115_200))
    assert decided == [AnnounceAction("near_limit"), CompactAction("threshold", 64_000, moment="task_end")]


@pytest.mark.parametrize(
    ("tokens", "usual", "grown", "compacts"),
    [
        pytest.param(93_000, 31_000, 93_000, True, id="the next task would not fit"),
        pytest.param(93_000, 30_904, 93_000, False, id="it would fit to the token"),
        pytest.param(89_599, 90_000, 89_599, False, id="below 7/10"),
        pytest.param(93_000, 31_000, 25_599, False, id="compacted a short while ago"),
        pytest.param(93_000, None, 93_000, False, id="too few tasks seen"),
    ],
)
def test_mew_compacts_early_only_on_request(tokens: int, usual: int | None, grown: int, compacts: bool) -> None:
    snapshot = after(tokens)._replace(next_prompt_tokens=tokens, usual_task_tokens=usual, grown_tokens=grown)
    reason = "the next task of the usual size, 31,000 tokens, would not fit"
    action = CompactAction("next_task", 51_666, moment="task_end", reason=reason)
    assert decide(compacting_early(MEW), PolicyState(), snapshot, "task_end").actions == ((action,) if compacts else ())
    assert decide(MEW, PolicyState(), snapshot, "task_end").actions == ()


@given(st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 10**7))
def test_more_tokens_are_never_a_milder_level_or_fewer_compactions(limit: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert (level_of(MEW, after(low, limit))[1] or 0) <= (level_of(MEW, after(high, limit))[1] or 0)
    assert len(compactions(after(low, limit))) <= len(compactions(after(high, limit)))
    below = after(None, limit, next_prompt_tokens=low)
    above = after(None, limit, next_prompt_tokens=high)
    assert len(compactions(below, "pre_request")) <= len(compactions(above, "pre_request"))


@given(st.integers(1, 10**7), st.integers(0, 10**7))
def test_the_decision_is_the_exact_fraction_of_any_window(limit: int, used: int) -> None:
    assert bool(compactions(after(used, limit))) is (used * 10 >= limit * 9)
    threshold = MEW.marks(limit).compact_at_tokens
    assert threshold is not None
    assert (used >= threshold) is (used * 10 >= limit * 9)


@pytest.mark.parametrize("limit", [None])
def test_without_a_known_limit_the_level_is_unknown(limit: None) -> None:
    assert level_of(MEW, after(10**9, limit)) == ("unknown", None)
    assert actions(after(10**9, limit)) == []
    assert actions(after(10**9, limit, next_prompt_tokens=10**9), "pre_request") == []
    assert MEW.marks(limit).compact_at_tokens is None


# -- would overflow -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "reserve"),
    [(19, 0), (20, 1), (1_000, 50), (8_192, 409), (81_919, 4_095), (81_920, 4_096), (128_000, 4_096), (10**7, 4_096)],
)
def test_the_answer_reserve_is_a_twentieth_up_to_4096(limit: int, reserve: int) -> None:
    assert answer_reserve_tokens(limit) == reserve


@pytest.mark.parametrize("limit", WINDOWS)
def test_only_a_request_that_would_overflow_compacts_first(limit: int) -> None:
    fits = limit - answer_reserve_tokens(limit)
    assert compactions(after(1, limit, next_prompt_tokens=fits), "pre_request") == []
    assert compactions(after(1, limit, next_prompt_tokens=fits + 1), "pre_request") == ["would_overflow"]


@pytest.mark.parametrize("basis", ["reported", "projected", "unknown"])
def test_the_request_rule_works_with_any_known_past(basis: Any) -> None:
    snapshot = ContextSnapshot(None if basis == "unknown" else 5, basis, 1_000, next_prompt_tokens=951)
    assert compactions(snapshot, "pre_request") == ["would_overflow"]


def test_a_full_next_prompt_alone_compacts_nothing_after_a_call() -> None:
    assert compactions(after(500, 1_000, next_prompt_tokens=5_000)) == []


# -- hidden reasoning, missing usage --------------------------------------------------------------------------


def test_hidden_reasoning_alone_raises_the_level_but_does_not_compact() -> None:
    snapshot = after(900, 1_000, hidden_tokens=1)
    assert level_of(MEW, snapshot) == ("near_limit", 2)
    assert actions(snapshot) == [AnnounceAction("near_limit")]
    assert compactions(after(901, 1_000, hidden_tokens=1)) == ["threshold"]


@pytest.mark.parametrize(("next_prompt", "triggers"), [(899, []), (900, ["threshold_projected"])])
def test_without_usage_the_next_prompt_decides(next_prompt: int, triggers: list[str]) -> None:
    snapshot = after(None, 1_000, reason="usage_unavailable", next_prompt_tokens=next_prompt)
    assert compactions(snapshot) == triggers


@pytest.mark.parametrize("reason", ["no_call_yet", "cleared", "restarted", "model_changed"])
def test_other_unknowns_compact_nothing_by_projection(reason: Any) -> None:
    assert actions(after(None, 1_000, reason=reason, next_prompt_tokens=999)) == []


# -- near_limit once per crossing -----------------------------------------------------------------------------


def announced(used_at: list[tuple[int, float]]) -> list[float]:
    state, reported = PolicyState(), []
    for used, at_seconds in used_at:
        decision = decide(MEW, state, after(used, 1_000, hidden_tokens=used, at_seconds=at_seconds), "after_call")
        state = decision.state
        if AnnounceAction("near_limit") in decision.actions:
            reported.append(at_seconds)
    return reported


@pytest.mark.parametrize(
    ("used_at", "reported"),
    [
        pytest.param([(900, 0), (950, 100), (990, 200)], [0], id="once while it stays high"),
        pytest.param([(899, 0)], [], id="not below"),
        pytest.param([(900, 0), (750, 100), (900, 200)], [0], id="at 3/4 it is not armed again"),
        pytest.param([(900, 0), (749, 100), (900, 200)], [0, 200], id="below 3/4 it is"),
        pytest.param([(900, 0), (700, 10), (900, 20), (900, 60), (900, 61)], [0, 61], id="postponed, not dropped"),
        pytest.param([(900, 0), (700, 10), (900, 20), (700, 70), (900, 80)], [0, 80], id="a passed crossing is silent"),
        pytest.param([(900, 5_000), (700, 10), (900, 20)], [5_000, 20], id="a clock set back does not silence"),
    ],
)
def test_near_limit_is_announced_once_per_crossing_and_minute(
    used_at: list[tuple[int, float]], reported: list[float]
) -> None:
    assert announced(used_at) == reported


def test_a_finished_compaction_counts_for_the_cooldown() -> None:
    state = after_compaction(PolicyState(), progressed=True, at_seconds=100.0)
    high = after(900, 1_000, hidden_tokens=900, at_seconds=150.0)
    held = decide(MEW, state, high, "after_call")
    assert held.actions == ()
    later = after(900, 1_000, hidden_tokens=900, at_seconds=161.0)
    assert decide(MEW, held.state, later, "after_call").actions == (AnnounceAction("near_limit"),)


def test_nothing_is_announced_before_a_request_or_while_unknown() -> None:
    assert actions(after(900, 1_000, next_prompt_tokens=10), "pre_request") == []
    assert actions(after(None, 1_000, reason="usage_unavailable", next_prompt_tokens=10)) == []


# -- compactions that do not help -----------------------------------------------------------------------------


def stalled() -> PolicyState:
    state = PolicyState()
    for _ in range(2):
        state = after_compaction(state, progressed=False, at_seconds=0.0)
    return state


def test_two_compactions_without_progress_stop_both_rules() -> None:
    once = after_compaction(PolicyState(), progressed=False, at_seconds=-100.0)
    assert not is_stalled(MEW, once)
    assert compactions(after(999, 1_000), state=once) == ["threshold"]
    assert is_stalled(MEW, stalled())
    assert compactions(after(999, 1_000), state=stalled()) == []
    assert compactions(after(5, 1_000, next_prompt_tokens=5_000), "pre_request", stalled()) == []


def test_an_overflow_ignores_the_cooldown_of_the_threshold() -> None:
    state = after_compaction(PolicyState(), progressed=True, at_seconds=-60.0)
    assert compactions(after(999, 1_000), state=state) == []
    assert compactions(after(5, 1_000, next_prompt_tokens=5_000), "pre_request", state) == ["would_overflow"]
    assert compactions(after(999, 1_000), state=replace(state, compacted_at_seconds=-60.5)) == ["threshold"]
    assert compactions(after(999, 1_000), state=replace(state, compacted_at_seconds=1.0)) == ["threshold"], "clock set"


def test_a_cooldown_does_not_end_a_stall() -> None:
    assert compactions(after(999, 1_000), state=stalled()) == []
    assert is_stalled(MEW, decide(MEW, stalled(), after(999, 1_000), "after_call").state)


@pytest.mark.parametrize(
    ("mark", "first", "target"), [("75%", 750, 416), ("3/4", 750, 416), ("90%", 900, 500), ("50%", 500, 277)]
)
def test_an_earlier_mark_moves_the_threshold_and_its_target(mark: str, first: int, target: int) -> None:
    policy = MEW.compacting_at(Fraction.model_validate(mark))
    assert policy.marks(1_000).compact_at_tokens == first
    decided = decide(policy, PolicyState(), after(900, 1_000), "after_call").actions
    assert decided[-1] == CompactAction("threshold", target, moment="task_end")
    assert policy.level_named("near_limit") == MEW.level_named("near_limit")


def test_a_later_mark_and_a_policy_that_never_compacts_are_refused() -> None:
    with pytest.raises(ValueError, match="9/10 already, which is earlier"):
        MEW.compacting_at(Fraction.model_validate("95%"))
    with pytest.raises(ValueError, match="'counting' does not compact at a fraction"):
        COUNTING.compacting_at(Fraction.model_validate("50%"))


def test_progress_forgets_an_earlier_failure() -> None:
    state = after_compaction(PolicyState(), progressed=False, at_seconds=0.0)
    assert after_compaction(state, progressed=True, at_seconds=1.0).stalls == 0


@pytest.mark.parametrize(
    ("snapshot", "phase", "still_stalled"),
    [
        pytest.param(after(899, 1_000), "after_call", False, id="a call below every threshold"),
        pytest.param(after(900, 1_000), "after_call", True, id="a call at the threshold"),
        pytest.param(after(900, 1_000, hidden_tokens=500), "after_call", True, id="a call high by hidden reasoning"),
        pytest.param(after(5, 1_000, next_prompt_tokens=5), "pre_request", True, id="no call at all"),
        pytest.param(
            after(None, 1_000, reason="usage_unavailable", next_prompt_tokens=5),
            "after_call",
            False,
            id="no usage, low",
        ),
        pytest.param(
            after(None, 1_000, reason="usage_unavailable", next_prompt_tokens=950),
            "after_call",
            True,
            id="no usage, high",
        ),
        pytest.param(after(None, 1_000, reason="restarted"), "after_call", True, id="a restart tells nothing"),
        pytest.param(after(None, 1_000, reason="no_call_yet"), "after_call", True, id="neither does a join"),
        pytest.param(ContextSnapshot(100, "projected", 1_000), "after_call", True, id="nor a projection after a cut"),
    ],
)
def test_only_a_call_below_every_threshold_lets_it_try_again(
    snapshot: ContextSnapshot, phase: Phase, still_stalled: bool
) -> None:
    assert is_stalled(MEW, decide(MEW, stalled(), snapshot, phase).state) is still_stalled


# -- policies that contradict themselves ----------------------------------------------------------------------


def part(numerator: int, denominator: int = 100) -> Fraction:
    return Fraction(numerator=numerator, denominator=denominator)


def used(op: Any, fraction: Fraction) -> Condition:
    return Condition(figure="used", op=op, fraction=fraction)


def level(name: str, severity: int, at: Condition) -> Level:
    return Level(name=name, severity=severity, at=at)


def compacting(**changes: Any) -> CompactRule:
    values: dict[str, Any] = {
        "phase": "after_call",
        "when": (used("ge", part(90)),),
        "trigger": "threshold",
        "target": part(50),
    }
    return CompactRule(**{**values, **changes})


def test_levels_that_share_a_place_by_their_operator_are_two_levels() -> None:
    policy = Policy(name="p", levels=(level("a", 1, used("ge", part(90))), level("b", 2, used("gt", part(90)))))
    assert [level_of(policy, after(tokens, 100))[0] for tokens in (89, 90, 91)] == ["healthy", "a", "b"]


@pytest.mark.parametrize(("op", "first"), [("ge", 90), ("gt", 91)])
def test_first_tokens_is_the_first_count_that_holds(op: Any, first: int) -> None:
    for condition in (used(op, part(9, 10)), Condition(figure="used", op=op, tokens=90)):
        assert condition.first_tokens(100) == first
        assert condition.holds(first, 100)
        assert not condition.holds(first - 1, 100)
    assert used(op, part(9, 10)).first_tokens(None) is None


def test_a_condition_on_something_unknown_never_holds() -> None:
    assert not used("ge", part(1)).holds(None, 100)
    assert not used("ge", part(1)).holds(100, None)
    assert Condition(figure="used", op="ge", tokens=5).holds(5, None)


def test_only_policies_that_compact_can_compact_early() -> None:
    with pytest.raises(ValueError, match="'counting' does not compact after calls"):
        compacting_early(COUNTING)
