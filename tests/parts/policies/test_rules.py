"""The conditions and thresholds of rules."""

from itertools import chain
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import MEW, NO_FLAGS, ContextSnapshot, Phase, Policy, PolicyState, decide
from mew_agent.context.policy.definition import Deciding, PhaseRule
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
    for phase, (used, next_prompt) in policy.marks(limit_tokens).rests_below.items():
        sizes = [0 if size == inf else max(0, int(size) - 1) for size in (used, next_prompt)]
        below = ContextSnapshot(sizes[0], "reported", limit_tokens, next_prompt_tokens=sizes[1])
        rules = [one for one in chain.from_iterable(policy.acting[phase]) if isinstance(one, PhaseRule)]
        for rule in rules if min(used, next_prompt) > 0 else ():
            assert not below.meets(rule.when, policy.reserve)


@pytest.mark.parametrize("phase", ["after_call", "pre_request"])
@given(used=st.integers(0, 1_200), next_prompt=st.integers(0, 1_200))
def test_a_resting_phase_decides_like_one_with_evaluated_rules(phase: Phase, used: int, next_prompt: int) -> None:
    snapshot = ContextSnapshot(used, "reported", 1_000, next_prompt_tokens=next_prompt)
    asked = Deciding(MEW, PolicyState(), snapshot, phase, NO_FLAGS, "healthy", None)
    for rules in MEW.acting[phase]:
        rules[0].decide(rules, asked)
    assert decide(MEW, PolicyState(), snapshot, phase).actions == tuple(asked.actions)


def test_a_rule_acts_from_its_highest_mark_on() -> None:
    assert LMSTUDIO.acts_at_tokens("stream", 1_000) == 900
    assert LMSTUDIO.acts_at_tokens("stream", None) is LMSTUDIO.acts_at_tokens("pre_request", 1_000) is None


def test_marks_follow_the_window() -> None:
    found = [MEW.marks(limit).compact_at_tokens for limit in (1000, 2000, None, 1000)]
    assert found == [900, 1800, None, 900]
