"""A policy's memory outlives the process in a stable form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mew_agent.context.policy import PolicyState, after_clear, after_compaction, state_from_json, state_json

STATES = st.builds(
    PolicyState,
    armed=st.booleans(),
    announced_at_seconds=st.none() | st.floats(0, 2e9),
    stalls=st.integers(0, 5),
    level=st.none() | st.text(max_size=9),
    told=st.lists(st.text(max_size=9), max_size=2).map(tuple),
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
def test_a_state_reads_back_as_it_was(state: PolicyState) -> None:
    assert state_from_json(state_json(state)) == state


def test_only_what_differs_from_a_fresh_state_is_kept() -> None:
    assert state_json(PolicyState()) == "{}"
    assert state_json(PolicyState(prompting="critical", remaining=2)) == '{"prompting":"critical","remaining":2}'


def test_a_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ValidationError):
        state_from_json('{"remaining": "many"}')


@given(STATES)
def test_a_clear_forgets_all_but_reminders_and_the_cooldown(state: PolicyState) -> None:
    cleared = after_clear(state)
    assert cleared == PolicyState(announced_at_seconds=state.announced_at_seconds, reminders=state.reminders)


def test_a_compaction_counts_for_the_cooldown_and_a_useless_one_as_a_stall() -> None:
    useless = after_compaction(PolicyState(), progressed=False, at_seconds=5.0)
    assert (useless.announced_at_seconds, useless.stalls) == (5.0, 1)
    assert after_compaction(useless, progressed=True, at_seconds=6.0).stalls == 0
