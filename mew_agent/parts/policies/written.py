"""[pure] Policies from files and of other systems, with rules of every kind. Refuses contradictions."""

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

from pydantic import model_validator

from mew_agent.context.policy.actions import Suggestion
from mew_agent.context.policy.definition import (
    CompactRule,
    MessageSums,
    NearLimitRule,
    PhaseRule,
    Policy,
    StopRule,
)
from mew_agent.context.policy.threshold import Condition, Fraction
from mew_agent.parts.policies.rules import EntryRule, InjectRule, RemindRule, SuggestRule, WrittenRule

_WHOLE = Fraction(numerator=1, denominator=1)
_MEASURED = ("used", "resent", "with_tool_result")
_WITHOUT_REPORT = ("pre_request", "tool_result", "stream", "message_added")


class WrittenPolicy(Policy):
    """A policy that refuses contradictions when it is created."""

    suggests: ClassVar[bool] = True

    rules: tuple[WrittenRule, ...] = ()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "WrittenPolicy":
        refuse_contradictions(self)
        return self

    def suggestions(
        self, sums: MessageSums, tokens: Callable[[float, int], int], limit_tokens: int | None
    ) -> tuple[Suggestion, ...]:
        if limit_tokens is None:
            return ()
        rules = [rule for rule in self.rules if isinstance(rule, SuggestRule)]
        found = (rule.suggestion(sums.get(rule.role, ()), tokens, limit_tokens) for rule in rules)
        return tuple(one for one in found if one is not None)


def refuse_contradictions(policy: Policy) -> None:
    """Raise `ValueError` for the first contradiction."""
    _check_levels(policy)
    _check_names(policy)
    _check_bases(policy)
    if policy.ceiling.is_above(_WHOLE):
        raise ValueError("the ceiling is above the whole window")
    for rule in policy.rules:
        match rule:
            case NearLimitRule():
                _check_near_limit(rule)
            case CompactRule():
                _check_compact(policy, rule)
            case StopRule(action="abort" | "error", phase="task_end"):
                raise ValueError(f"a rule with the action '{rule.action}' has nothing to stop at the end of a task")
            case _:
                pass
        if isinstance(rule, PhaseRule | RemindRule):
            _check_figures(rule)
    if policy.measure == "cumulative":
        _check_cumulative(policy)


def _check_cumulative(policy: Policy) -> None:
    """Refuse rules that cannot use a cumulative figure, which grows independently of the window."""
    if any(condition.fraction for condition in policy.conditions() if condition.figure in _MEASURED):
        raise ValueError("a cumulative figure cannot be compared with a fraction of the window")
    for rule in policy.rules:
        if isinstance(rule, NearLimitRule) and _compares_measure(rule):
            raise ValueError("a cumulative figure never falls, so near_limit would never be armed again")
        if isinstance(rule, CompactRule) and (rule.target_of == "used" or _compares_measure(rule)):
            raise ValueError(f"rule '{rule.trigger}' compacts, which does not lower a cumulative figure; use `clear`")


def _compares_measure(rule: NearLimitRule | CompactRule) -> bool:
    return any(condition.figure in _MEASURED for condition in rule.when)


def _check_levels(policy: Policy) -> None:
    names = [policy.healthy, *(level.name for level in policy.levels)]
    if len({"unknown", *names}) <= len(names):
        raise ValueError(f"levels must have different names, got {names}")
    severities = [level.severity for level in policy.levels]
    if severities != sorted(severities):
        raise ValueError("levels must be ordered from mild to severe")
    if any(level.at.op == "lt" for level in policy.levels):
        raise ValueError("a level cannot use `lt`: it begins at a figure and has no end")
    for milder, level in pairwise(policy.levels):
        if not begins_above(level.at, milder.at):
            raise ValueError(f"level '{milder.name}' can never be true: '{level.name}' begins at or below it")


def _check_names(policy: Policy) -> None:
    levels = {policy.healthy, *(level.name for level in policy.levels)}
    named = [rule.level for rule in policy.rules if isinstance(rule, InjectRule | EntryRule)]
    named += policy.large_results.levels if policy.large_results is not None else ()
    for name in named:
        if name not in levels:
            raise ValueError(f"there is no level '{name}' (levels are {', '.join(sorted(levels))})")
    prompted = [rule.level for rule in policy.rules if isinstance(rule, InjectRule)]
    if len(set(prompted)) != len(prompted):
        raise ValueError("two rules inject prompts at the same level")


def _check_bases(policy: Policy) -> None:
    if "unknown" in policy.bases or not policy.bases:
        raise ValueError("`bases` must be one or both of: reported, projected")
    if "reported" not in policy.bases and set(policy.phases) == {"after_call"}:
        raise ValueError("this policy decides only after calls, but does not trust the figures that calls report")
    if policy.bases == ("reported",):
        asked = [rule.phase for rule in policy.rules if isinstance(rule, PhaseRule)]
        phase = next((phase for phase in (*policy.phases, *asked) if phase in _WITHOUT_REPORT), None)
        if phase is not None:
            raise ValueError(f"this policy trusts only reported figures, and there are none in the phase '{phase}'")


def _check_near_limit(rule: NearLimitRule) -> None:
    used = [c.fraction for c in rule.when if c.fraction is not None and c.figure in _MEASURED]
    if any(rule.rearm_below.is_above(fraction) for fraction in used):
        raise ValueError("`rearm_below` is above the threshold of near_limit")


def _check_compact(policy: Policy, rule: CompactRule) -> None:
    problem = _problem_of_target(policy, rule)
    if rule.method == "summarise" and policy.summariser is policy.fallback is None:
        problem = "summarises, but the policy has neither a `summariser` nor a `fallback`"
    elif rule.restart and rule.phase not in ("stream", "tool_result"):
        problem = f"restarts a reply, but the phase '{rule.phase}' has none"
    elif rule.known == "unavailable" and _compares_measure(rule):
        problem = "is for calls without usage, but compares their usage"
    if problem is not None:
        raise ValueError(f"rule '{rule.trigger}' {problem}")


def _problem_of_target(policy: Policy, rule: CompactRule) -> str | None:
    if rule.target.is_above(_WHOLE):
        return "has a target above the whole window"
    if rule.target_of == "used":
        return None if _WHOLE.is_above(rule.target) else "has a target of the whole figure, so nothing would shrink"
    if rule.target.is_above(policy.ceiling):
        return "has a target above the policy's ceiling"
    marks = [c.fraction for c in rule.when if c.figure in _MEASURED and c.fraction is not None]
    return "would compact again at its own target" if not all(m.is_above(rule.target) for m in marks) else None


def _check_figures(rule: PhaseRule | RemindRule) -> None:
    looked_at = {condition.figure for condition in rule.conditions()}
    if rule.phase != "tool_result" and looked_at & {"tool_result", "with_tool_result"}:
        raise ValueError(f"the phase '{rule.phase}' has no tool result to compare")


def begins_above(condition: Condition, other: Condition) -> bool:
    """Return whether `condition` starts to hold at a higher count than `other`; True if not comparable."""
    if condition.figure != other.figure:
        return True
    if condition.fraction is not None and other.fraction is not None:
        if condition.fraction.is_above(other.fraction):
            return True
        return not other.fraction.is_above(condition.fraction) and (condition.op, other.op) == ("gt", "ge")
    if condition.tokens is not None and other.tokens is not None:
        return condition.tokens + (condition.op == "gt") > other.tokens + (other.op == "gt")
    return True
