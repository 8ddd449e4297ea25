"""Prompts on a cadence and in a countdown, against a simple model of their rule, and across restarts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.policy import (
    NO_FLAGS,
    Action,
    ContextSnapshot,
    GenerationFlags,
    InjectAction,
    PolicyState,
    StopAction,
    decide,
)
from mew_agent.parts.policies.presets import DOMINDS_V3
from tests.support.accounted import restored_state

CAUTION, CRITICAL, HEALTHY, UNKNOWN = 150_000, 190_000, 5_000, None


def call(tokens: int | None, number: int) -> ContextSnapshot:
    reason = None if tokens is not None else "usage_unavailable"
    basis = "unknown" if tokens is None else "reported"
    return ContextSnapshot(tokens, basis, 200_000, reason, call_id=f"c{number}")  # type: ignore[arg-type]


def after(
    state: PolicyState, tokens: int | None, number: int, flags: GenerationFlags = NO_FLAGS
) -> tuple[PolicyState, tuple[Action, ...]]:
    decision = decide(DOMINDS_V3, state, call(tokens, number), "after_call", flags)
    return decision.state, decision.actions


@given(st.integers(1, 12), st.integers(1, 40))
def test_a_cadence_prompts_at_entry_and_every_k_generations(cadence: int, generations: int) -> None:
    policy = DOMINDS_V3.configured({"caution_remediation_cadence_generations": cadence})
    state, found = PolicyState(), []
    for number in range(generations):
        decision = decide(policy, state, call(CAUTION, number), "after_call")
        state = decision.state
        found += [number] if decision.actions else []
    assert found == list(range(0, generations, cadence))


@given(st.lists(st.sampled_from([CAUTION, CRITICAL, HEALTHY, UNKNOWN]), max_size=40))
def test_five_critical_generations_are_prompted_and_the_sixth_clears(sizes: list[int | None]) -> None:
    state, in_a_row = PolicyState(), 0
    for number, tokens in enumerate(sizes):
        state, actions = after(state, tokens, number)
        if tokens != CRITICAL:
            in_a_row = 0
            assert not any(isinstance(action, StopAction) for action in actions)
            continue
        in_a_row = in_a_row % 6 + 1
        if in_a_row == 6:
            assert [type(action) for action in actions] == [StopAction]
        else:
            assert actions == (InjectAction("critical", 5 - in_a_row),)


SIZES = st.sampled_from([CAUTION, CRITICAL, HEALTHY, UNKNOWN])
FLAGS = st.builds(GenerationFlags, st.booleans(), st.booleans(), st.booleans())


@given(st.lists(st.tuples(SIZES, FLAGS), max_size=30))
def test_asking_twice_about_one_call_changes_nothing(calls: list[tuple[int | None, GenerationFlags]]) -> None:
    once = twice = PolicyState()
    for number, (tokens, flags) in enumerate(calls):
        once, expected = after(once, tokens, number, flags)
        twice, first = after(twice, tokens, number, flags)
        twice, again = after(twice, tokens, number, flags)
        assert (first, again) == (expected, ())
        assert twice == once


@given(st.lists(st.tuples(SIZES, FLAGS), max_size=30), st.data())
def test_a_restart_does_not_change_decisions(
    calls: list[tuple[int | None, GenerationFlags]], data: st.DataObject
) -> None:
    whole = restarted = PolicyState()
    for number, (tokens, flags) in enumerate(calls):
        whole, expected = after(whole, tokens, number, flags)
        if data.draw(st.booleans()):
            restarted = restored_state(restarted)
        restarted, found = after(restarted, tokens, number, flags)
        assert found == expected
    assert restarted == whole


def test_a_withheld_prompt_is_injected_when_its_generation_becomes_free() -> None:
    state, actions = after(PolicyState(), CAUTION, 1, GenerationFlags(queue_busy=True))
    assert actions == ()
    state, actions = after(state, CAUTION, 1)
    assert actions == (InjectAction("caution"),)
    assert after(state, CAUTION, 1)[1] == ()


@pytest.mark.parametrize("remaining", range(5))
def test_a_countdown_continues_after_a_restart(remaining: int) -> None:
    state = PolicyState()
    actions: tuple[Action, ...] = ()
    for number in range(5 - remaining):
        state, actions = after(state, CRITICAL, number)
    assert actions == (InjectAction("critical", remaining),)
    assert state.remaining == remaining
    _, actions = after(restored_state(state), CRITICAL, 9)
    assert [type(action) for action in actions] == [StopAction if remaining == 0 else InjectAction]
