"""Behaviour of the decision that all policies share. Presets are in test_presets.py, `mew` in test_policy.py."""

from dataclasses import replace
from typing import Any

import pytest

from mew_agent.context.policy import (
    MEW,
    CompactAction,
    ContextSnapshot,
    Decision,
    GenerationFlags,
    Policy,
    PolicyState,
    StopAction,
    after_compaction,
    decide,
    level_of,
    withheld_at,
)
from mew_agent.parts.policies.presets import DOMINDS_V3, LMSTUDIO, MEW_REFERENCE, TACHIKOMA


def reported(tokens: int, limit: int = 128_000, **more: Any) -> ContextSnapshot:
    return ContextSnapshot(tokens, "reported", limit, **more)


UNAVAILABLE = ContextSnapshot(None, "unknown", 128_000, "usage_unavailable")


def test_a_figure_with_a_forbidden_basis_is_unknown() -> None:
    projected = ContextSnapshot(190_000, "projected", 200_000)
    assert level_of(DOMINDS_V3, projected) == ("unknown", None)
    assert decide(DOMINDS_V3, PolicyState(), projected, "after_call").actions == ()
    assert level_of(MEW, projected) == ("near_limit", 2)


@pytest.mark.parametrize("policy", [LMSTUDIO, TACHIKOMA], ids=lambda policy: policy.name)
def test_a_call_without_usage_decides_nothing_by_the_kept_figure(policy: Policy) -> None:
    state = PolicyState(level="critical", restarts=2, restarting=True)
    assert decide(policy, state, UNAVAILABLE, "after_call") == Decision(replace(state, restarting=False))


def test_a_policy_may_make_missing_usage_an_error() -> None:
    policy = Policy(name="strict", on_missing="error")
    (error,) = decide(policy, PolicyState(), UNAVAILABLE, "after_call").actions
    assert error == StopAction("error", "strict cannot work without reported usage")
    assert decide(policy, PolicyState(), UNAVAILABLE, "pre_request").actions == ()


def test_a_policy_reports_that_it_needs_a_window() -> None:
    (error,) = decide(LMSTUDIO, PolicyState(), ContextSnapshot(5, "reported", None), "after_call").actions
    assert error == StopAction("error", "lmstudio cannot work without a known context window")


def test_m8_a_useless_compaction_is_the_last_until_a_small_call() -> None:
    state = PolicyState()
    found = []
    for _ in range(3):
        decision = decide(MEW_REFERENCE, state, reported(125_000), "after_call")
        state = decision.state
        found.append([type(action).__name__ for action in decision.actions])
        if any(isinstance(action, CompactAction) for action in decision.actions):
            state = after_compaction(state, progressed=False, at_seconds=0.0)
    assert found == [["AnnounceAction", "CompactAction"], [], []]
    state = decide(MEW_REFERENCE, state, reported(60_000), "after_call").state
    assert [type(one) for one in decide(MEW_REFERENCE, state, reported(125_000), "after_call").actions][-1:] == [
        CompactAction
    ]


SHOWN = DOMINDS_V3.configured({"withhold_tool_results_above_bytes": 2000})


@pytest.mark.parametrize(
    ("size_bytes", "withheld"), [pytest.param(2000, False, id="D22 2000"), pytest.param(2001, True, id="D22 2001")]
)
@pytest.mark.parametrize("tokens", [210_000, 250_000], ids=["caution", "critical"])
def test_a_large_tool_result_is_withheld_at_caution_and_critical(
    size_bytes: int,
    withheld: bool,
    tokens: int,
) -> None:
    policy = SHOWN.configured({"optimal_max_tokens": 200_000, "critical_max_tokens": 244_800})
    level = withheld_at(policy, PolicyState(), reported(tokens, 272_000), size_bytes)
    assert (level is not None) is withheld


def test_d22_without_usage_the_last_known_level_decides() -> None:
    state = decide(SHOWN, PolicyState(), reported(110_000, 272_000), "after_call").state
    state = decide(SHOWN, state, UNAVAILABLE, "after_call").state
    assert withheld_at(SHOWN, state, UNAVAILABLE, 2001) == state.level
    assert withheld_at(SHOWN, state, reported(1_000, 272_000), 2001) is None
    assert withheld_at(SHOWN, PolicyState(), UNAVAILABLE, 2001) is None


def test_results_are_withheld_only_where_that_was_asked_for() -> None:
    for policy in (DOMINDS_V3, MEW):
        assert withheld_at(policy, PolicyState(), reported(199_000, 200_000), 10**6) is None


def test_a_rule_belongs_to_its_phase_only() -> None:
    full = ContextSnapshot(128_000, "reported", 128_000, next_prompt_tokens=1, tool_result_tokens=10**6)
    for phase in ("tool_result", "stream", "message_added"):
        assert decide(MEW, PolicyState(), full, phase).actions == ()
    assert decide(LMSTUDIO, PolicyState(), full, "message_added").actions == ()


def test_a_new_question_resets_the_count_of_restarts() -> None:
    state = PolicyState(restarts=3)
    low = ContextSnapshot(10, "projected", 8192)
    assert decide(LMSTUDIO, state, low, "stream").state.restarts == 3
    assert decide(LMSTUDIO, state, low, "stream", GenerationFlags(user_prompt=True)).state.restarts == 0
