"""The conditions and thresholds of rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import MEW, ContextSnapshot, Policy
from mew_agent.parts.policies.presets import LMSTUDIO
from mew_agent.parts.policies.rules import Cadence, InjectRule


def test_conditions_of_returns_every_condition_of_a_rule() -> None:
    reported = {name: sum(len(rule.conditions()) for rule in policy.rules) for name, policy in presets().items()}
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
    for level, mark in policy.marks(limit_tokens).levels:
        if mark is not None:
            assert level.at.holds(mark, limit_tokens)
            assert not level.at.holds(mark - 1, limit_tokens)
    for phase, rules in policy.interventions.items():
        least = policy.acts_at_tokens(phase, limit_tokens)
        for rule in rules if least is not None else ():
            used = tuple(condition for condition in rule.when if condition.figure == "used")
            below = ContextSnapshot((least or 0) - 1, "reported", limit_tokens)
            assert not used or not below.meets(used, policy.reserve)


def test_a_rule_acts_from_its_highest_mark_on() -> None:
    assert LMSTUDIO.acts_at_tokens("stream", 1_000) == 900
    assert LMSTUDIO.acts_at_tokens("stream", None) is LMSTUDIO.acts_at_tokens("pre_request", 1_000) is None


def test_marks_follow_the_window() -> None:
    found = [MEW.marks(limit).compact_at_tokens for limit in (1000, 2000, None, 1000)]
    assert found == [900, 1800, None, 900]
