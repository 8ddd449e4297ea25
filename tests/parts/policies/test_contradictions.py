"""Contradictions that are refused when a policy is created. More are in test_checks.py."""

from typing import Any

import pytest
from pydantic import ValidationError

from mew_agent.context.policy.definition import CompactRule, Level, NearLimitRule
from mew_agent.context.policy.threshold import Condition, Fraction
from mew_agent.parts.policies.written import WrittenPolicy, begins_above


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


def policy(**values: Any) -> WrittenPolicy:
    return WrittenPolicy(name="p", **values)


REFUSED: dict[str, tuple[Any, str]] = {
    "two levels of one name": (
        lambda: policy(levels=(level("a", 1, used("ge", part(50))), level("a", 2, used("ge", part(90))))),
        "different names",
    ),
    "a level named as the healthy one": (
        lambda: policy(levels=(level("healthy", 1, used("ge", part(50))),)),
        "different names",
    ),
    "a milder level after a severe one": (
        lambda: policy(levels=(level("a", 2, used("ge", part(50))), level("b", 1, used("ge", part(90))))),
        "mild to severe",
    ),
    "a level that another one hides": (
        lambda: policy(levels=(level("a", 1, used("ge", part(90))), level("b", 2, used("ge", part(80))))),
        "'a' can never be true",
    ),
    "two levels at one place": (
        lambda: policy(levels=(level("a", 1, used("gt", part(90))), level("b", 2, used("ge", part(90))))),
        "'a' can never be true",
    ),
    "two levels at one number": (
        lambda: policy(
            levels=(
                level("a", 1, Condition(figure="used", op="gt", tokens=9)),
                level("b", 2, Condition(figure="used", op="ge", tokens=10)),
            ),
        ),
        "'a' can never be true",
    ),
    "a target above the window": (
        lambda: policy(rules=(compacting(target=part(101)),)),
        "whole window",
    ),
    "a target above the ceiling": (lambda: policy(rules=(compacting(target=part(71)),)), "ceiling"),
    "a target at its own threshold": (
        lambda: policy(rules=(compacting(when=(used("ge", part(50)),)),)),
        "compact again",
    ),
    "a rule that always holds": (lambda: compacting(when=()), "at least 1"),
    "a warning that always holds": (lambda: NearLimitRule(when=(), rearm_below=part(75)), "at least 1"),
    "a rule for missing usage that looks at usage": (
        lambda: policy(rules=(compacting(known="unavailable"),)),
        "without usage",
    ),
    "armed again above where it is announced": (
        lambda: policy(rules=(NearLimitRule(when=(used("ge", part(90)),), rearm_below=part(91)),)),
        "`rearm_below` is above",
    ),
    "a negative cooldown": (
        lambda: NearLimitRule(when=(used("ge", part(90)),), rearm_below=part(75), cooldown_seconds=-1),
        "greater than or equal to 0",
    ),
    "a sum of all calls compared with the window": (
        lambda: policy(measure="cumulative", rules=(compacting(),)),
        "cumulative",
    ),
    "a level of the sum of all calls compared with the window": (
        lambda: policy(measure="cumulative", levels=(level("a", 1, used("ge", part(90))),)),
        "cumulative",
    ),
    "two bounds": (lambda: Condition(figure="used", op="ge", tokens=1, fraction=part(1)), "exactly one"),
    "no bound": (lambda: Condition(figure="used", op="ge"), "exactly one"),
    "a fraction of nothing": (lambda: Fraction(numerator=1, denominator=0), "greater than 0"),
    "no tries at all": (lambda: policy(max_stalls=0), "greater than or equal to 1"),
    "an unknown key": (lambda: WrittenPolicy.model_validate({"name": "p", "leveles": ()}), "leveles"),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_a_policy_that_contradicts_itself_is_refused_when_it_is_made(make: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        make()


def test_conditions_that_cannot_be_compared_are_accepted_in_any_order() -> None:
    tokens, fraction = Condition(figure="used", op="ge", tokens=5), Condition(figure="used", op="ge", fraction=part(5))
    assert begins_above(tokens, fraction)
    assert begins_above(fraction, tokens)
    assert begins_above(tokens, tokens.model_copy(update={"figure": "next_prompt"}))
    assert not begins_above(tokens, tokens)
