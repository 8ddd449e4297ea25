"""The conditions and thresholds of rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import MEW, ContextSnapshot, Policy
from mew_agent.context.policy.definition import Cadence, InjectRule, conditions_of


def test_conditions_of_returns_every_condition_of_a_rule() -> None:
    reported = {name: sum(len(conditions_of(rule)) for rule in policy.rules) for name, policy in presets().items()}
    assert reported == {
        "mew": 5,
        "mew-reference": 2,
        "dominds-v1": 3,
        "dominds-v3": 0,
        "lmstudio": 7,
        "tachikoma": 0,
    }


def test_a_cadence_takes_its_setting_by_either_name() -> None:
    cadence = Cadence(generations=10, override="long", aliases=("short",))
    assert cadence.configured({}).generations == 10
    assert cadence.configured({"short": 2}).generations == 2
    assert cadence.configured({"short": 2, "long": 3}).generations == 3
    assert cadence.configured({"long": 0, "short": 2}).generations == 2


def test_prompts_belong_to_ended_calls() -> None:
    rules = [rule for policy in presets().values() for rule in policy.rules if isinstance(rule, InjectRule)]
    assert rules
    assert {rule.phase for rule in rules} == {"after_call"}


@pytest.mark.parametrize("policy", presets().values(), ids=presets().keys())
@given(limit_tokens=st.integers(1, 10**7))
def test_below_its_mark_no_rule_can_hold_and_no_level_begins(policy: Policy, limit_tokens: int) -> None:
    marks = policy.rule_index.marks(limit_tokens)
    for level, mark in marks.levels:
        if mark is not None:
            assert level.at.holds(mark, limit_tokens)
            assert not level.at.holds(mark - 1, limit_tokens)
    for rules in marks.interventions.values():
        for rule, least_used, least_next in rules:
            used = [condition for condition in rule.when if condition.figure == "used"]
            assert all(condition.holds(least_used, limit_tokens) for condition in used)
            assert not used or not all(condition.holds(least_used - 1, limit_tokens) for condition in used)
            of_next = tuple(one for one in rule.when if one.figure in ("next_prompt", "next_prompt_and_reserve"))
            below = ContextSnapshot(None, "unknown", limit_tokens, next_prompt_tokens=least_next - 1)
            assert not least_next or not below.meets(of_next, policy.reserve)


def test_marks_follow_the_window() -> None:
    found = [MEW.rule_index.marks(limit).compact_at_tokens for limit in (1000, 2000, None, 1000)]
    assert found == [900, 1800, None, 900]
