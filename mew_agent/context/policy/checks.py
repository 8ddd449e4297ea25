"""[pure] What makes a policy contradict itself. Found when it is made, so that no decision has to.

Each check raises `ValueError` saying which part cannot be meant.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from mew_agent.context.policy.rules import (
    CompactRule,
    EntryRule,
    InjectRule,
    NearLimitRule,
    RemindRule,
    StopRule,
    conditions_of,
)
from mew_agent.context.policy.threshold import Fraction, begins_above

if TYPE_CHECKING:
    from mew_agent.context.policy.definition import Policy

_WHOLE = Fraction(numerator=1, denominator=1)
_MEASURED = ("used", "resent", "with_tool_result")
_WITHOUT_REPORT = ("pre_request", "tool_result", "stream", "message_added")


def refuse_contradictions(policy: "Policy") -> None:
    """Raise `ValueError` for the first contradiction."""
    _levels(policy)
    _names(policy)
    _bases(policy)
    if policy.ceiling.is_above(_WHOLE):
        raise ValueError("the ceiling is above the whole window")
    for rule in policy.rules:
        match rule:
            case NearLimitRule():
                _near_limit(rule)
            case CompactRule():
                _compact(policy, rule)
            case _:
                pass
        if isinstance(rule, NearLimitRule | CompactRule | StopRule | RemindRule):
            _figures(rule)
    if policy.measure == "cumulative":
        _cumulative(policy)


def _cumulative(policy: "Policy") -> None:
    """What all calls took together only grows, whatever happens to the window."""
    if any(c.fraction and c.figure in _MEASURED for c in policy.conditions()):
        raise ValueError("a cumulative figure cannot be compared with a part of the window")
    for rule in policy.rules:
        if isinstance(rule, NearLimitRule) and any(c.figure in _MEASURED for c in rule.when):
            raise ValueError("a cumulative figure never falls, so that near_limit is never armed again")
        if isinstance(rule, CompactRule) and (
            rule.target_of == "used" or any(c.figure in _MEASURED for c in rule.when)
        ):
            raise ValueError(f"rule '{rule.trigger}' compacts, which lowers no cumulative figure; `clear` begins anew")


def _levels(policy: "Policy") -> None:
    names = [level.name for level in policy.levels]
    if len(set(names)) != len(names) or policy.healthy in names or "unknown" in names:
        raise ValueError(f"levels must have names of their own, got {[policy.healthy, *names]}")
    severities = [level.severity for level in policy.levels]
    if severities != sorted(severities):
        raise ValueError("levels must be ordered from mild to severe")
    if any(level.at.op == "lt" for level in policy.levels):
        raise ValueError("a level begins at a figure; `lt` would end it there")
    for milder, level in pairwise(policy.levels):
        if not begins_above(level.at, milder.at):
            raise ValueError(f"level '{milder.name}' can never be seen: '{level.name}' begins at or below it")


def _names(policy: "Policy") -> None:
    levels = {policy.healthy, *(level.name for level in policy.levels)}
    named = [rule.level for rule in policy.rules if isinstance(rule, InjectRule | EntryRule)]
    named += policy.large_results.levels if policy.large_results is not None else ()
    for name in named:
        if name not in levels:
            raise ValueError(f"there is no level '{name}' (levels are {', '.join(sorted(levels))})")
    prompted = [rule.level for rule in policy.rules if isinstance(rule, InjectRule)]
    if len(set(prompted)) != len(prompted):
        raise ValueError("two rules put prompts at one level")


def _bases(policy: "Policy") -> None:
    if "unknown" in policy.bases or not policy.bases:
        raise ValueError("`bases` are what a figure may be known by: reported, projected")
    if policy.name.startswith("dominds-") and policy.bases != ("reported",):
        raise ValueError(f"'{policy.name}' decides by reported figures only")
    if "reported" not in policy.bases and set(policy.phases) == {"after_call"}:
        raise ValueError("a call reports its figures, and this policy looks at calls alone and trusts no report")
    if policy.bases == ("reported",):
        moved = [phase for phase in policy.phases if phase in _WITHOUT_REPORT]
        asked = [rule.phase for rule in policy.rules if isinstance(rule, CompactRule | StopRule | NearLimitRule)]
        for phase in (*moved, *(phase for phase in asked if phase in _WITHOUT_REPORT)):
            raise ValueError(f"nothing is reported in the phase '{phase}', and this policy trusts reports only")


def _near_limit(rule: NearLimitRule) -> None:
    used = [c.fraction for c in rule.when if c.fraction is not None and c.figure in _MEASURED]
    if any(rule.rearm_below.is_above(fraction) for fraction in used):
        raise ValueError("near_limit is armed again above the place where it is announced")


def _compact(policy: "Policy", rule: CompactRule) -> None:
    if rule.target.is_above(_WHOLE):
        raise ValueError(f"rule '{rule.trigger}' aims above the whole window")
    if rule.method == "summarise" and policy.summariser is None and policy.fallback is None:
        raise ValueError(f"rule '{rule.trigger}' summarises, but there is neither a `summariser` nor a `fallback`")
    if rule.restart and rule.phase not in ("stream", "tool_result"):
        raise ValueError(f"rule '{rule.trigger}' restarts a reply, but there is none in the phase '{rule.phase}'")
    if rule.target_of == "used":
        if not _WHOLE.is_above(rule.target):
            raise ValueError(f"rule '{rule.trigger}' aims at all there is, so that nothing shrinks")
    elif rule.target.is_above(policy.ceiling):
        raise ValueError(f"rule '{rule.trigger}' aims above the policy's ceiling, so that it never makes progress")
    elif any(c.fraction and c.figure in _MEASURED and not c.fraction.is_above(rule.target) for c in rule.when):
        raise ValueError(f"rule '{rule.trigger}' compacts to where it compacts again")
    if rule.known == "unavailable" and any(c.figure in _MEASURED for c in rule.when):
        raise ValueError(f"rule '{rule.trigger}' is for calls without usage, and looks at their usage")


def _figures(rule: NearLimitRule | CompactRule | StopRule | RemindRule) -> None:
    looked_at = {condition.figure for condition in conditions_of(rule)}
    if rule.phase != "tool_result" and looked_at & {"tool_result", "with_tool_result"}:
        raise ValueError(f"there is no tool result to look at in the phase '{rule.phase}'")
