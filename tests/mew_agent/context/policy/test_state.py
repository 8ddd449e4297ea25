"""The input of a decision: the snapshot, and the state that survives a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mew_agent.context.persisted_state import SavedContext
from mew_agent.context.policy import (
    ContextSnapshot,
    PolicyState,
    after_clear,
    after_compaction,
)
from mew_agent.context.policy.threshold import Figure
from tests.support.accounted import restored_state

STATES = st.builds(
    PolicyState,
    armed=st.booleans(),
    announced_at_seconds=st.none() | st.floats(0, 2e9),
    stalls=st.integers(0, 5),
    level=st.none() | st.text(max_size=9),
    announced_entries=st.lists(st.text(max_size=9), max_size=2).map(tuple),
    suggested=st.lists(st.text(max_size=9), max_size=2).map(tuple),
    reminders=st.lists(st.text(max_size=9), max_size=2).map(tuple),
    generation=st.none() | st.text(max_size=9),
    prompted=st.booleans(),
    prompting=st.none() | st.text(max_size=9),
    due=st.booleans(),
    counted=st.integers(0, 99),
    remaining=st.none() | st.integers(0, 5),
    restarts=st.integers(0, 3),
    restarting=st.booleans(),
)


@given(STATES)
def test_a_state_survives_a_round_trip(state: PolicyState) -> None:
    assert restored_state(state) == state


def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(ValidationError):
        SavedContext.model_validate_json('{"policy_state": {"remaining": "many"}}')


@given(STATES)
def test_a_clear_resets_all_but_reminders_and_the_cooldown(state: PolicyState) -> None:
    cleared = after_clear(state)
    assert cleared == PolicyState(announced_at_seconds=state.announced_at_seconds, reminders=state.reminders)


def test_a_compaction_restarts_the_cooldown_and_may_count_as_a_stall() -> None:
    useless = after_compaction(PolicyState(), progressed=False, at_seconds=5.0)
    assert (useless.announced_at_seconds, useless.stalls) == (5.0, 1)
    assert after_compaction(useless, progressed=True, at_seconds=6.0).stalls == 0


MOMENT = ContextSnapshot(900, "reported", 1000, hidden_tokens=100, next_prompt_tokens=800, tool_result_tokens=50)
NOTHING = ContextSnapshot(None, "unknown", None, "no_call_yet")


@pytest.mark.parametrize(
    ("figure", "tokens"),
    [
        ("used", 900),
        ("resent", 800),
        ("next_prompt", 800),
        ("next_prompt_and_reserve", 800),
        ("tool_result", 50),
        ("with_tool_result", 950),
    ],
)
def test_a_figure_is_none_if_it_is_unknown(figure: Figure, tokens: int) -> None:
    assert MOMENT.figure(figure) == tokens
    assert NOTHING.figure(figure) is None


def test_a_tool_result_added_to_an_unknown_context_is_unknown() -> None:
    assert ContextSnapshot(None, "unknown", 1000, "cleared", tool_result_tokens=50).figure("with_tool_result") is None
