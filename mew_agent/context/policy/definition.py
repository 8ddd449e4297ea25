"""[pure] A policy as data: its measure, levels, rules and settings.

Files and presets create the same frozen `Policy`, which refuses contradictions when it is created. `decision` applies
it.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from mew_protocol.context_report import Basis, Measure
from pydantic import Field, model_validator

from mew_agent.context.policy import checks
from mew_agent.context.policy import rules as r
from mew_agent.context.policy.threshold import Condition, Fraction, PolicyPart, Reserve, Settings, whole_count

ANSWER_RESERVE = Reserve(fraction=Fraction(numerator=1, denominator=20), at_most_tokens=4096, whole=True)


class LargeResults(PolicyPart):
    """At these levels, withhold tool results of more than `above_bytes`; off while that is None."""

    levels: tuple[str, ...]
    above_bytes: int | None = Field(default=None, gt=0)
    override: str = "withhold_tool_results_above_bytes"


class Policy(PolicyPart):
    """A policy as data. Levels are ordered from mild to severe; the last one that applies is the level."""

    name: str = Field(min_length=1)
    measure: Measure = "total"
    bases: tuple[Basis, ...] = ("reported", "projected")  # bases of the measured figure that it trusts
    on_missing: Literal["unknown", "keep_last", "error"] = "unknown"  # after a call without usage
    phases: tuple[r.Phase, ...] = ("after_call",)  # whose figure moves the level
    limit_missing: Literal["assume", "unknown", "error"] = "assume"  # if the window is unknown
    limit_keys: tuple[str, ...] = ()  # settings that contain the window's size
    scope: str | None = None  # the only provider that it is for
    healthy: str = "healthy"
    levels: tuple[r.Level, ...] = ()
    rules: tuple[r.Rule, ...] = ()
    reserve: Reserve = ANSWER_RESERVE
    ceiling: Fraction = Fraction(numerator=7, denominator=10)  # of the window; no compaction target is above it
    max_stalls: int = Field(default=2, ge=1)
    max_restarts_per_request: int = Field(default=3, ge=0)
    summariser: str | None = None  # model that writes summaries; `same` is the agent's own
    fallback: Literal["drop_oldest"] | None = None  # what to do if a summary is not available
    requested_method: r.CompactionMethod = "staged"  # how a compaction that a participant requests makes room
    redline: Fraction | None = None  # a threshold that is only shown
    large_results: LargeResults | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "Policy":
        checks.refuse_contradictions(self)
        return self

    @cached_property
    def rule_index(self) -> r.RuleIndex:
        """The rules, indexed for decisions."""
        return r.RuleIndex(self.rules, self.levels)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Policy":
        """Return a copy with other values, not validated, and with its own index."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("rule_index", None)
        return copy

    @property
    def counts_messages(self) -> bool:
        """Whether it measures the sum of the messages added so far."""
        return "message_added" in self.phases

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of all levels and rules."""
        return (*(level.at for level in self.levels), *(c for rule in self.rules for c in r.conditions_of(rule)))

    def level_named(self, name: str) -> r.Level | None:
        """Return the level of this name; None for the healthy one and for unknown names."""
        return next((level for level in self.levels if level.name == name), None)

    @property
    def needs_reminder_tools(self) -> bool:
        """Whether it reminds or prompts, so that the model needs the tools these texts mention."""
        return any(isinstance(rule, r.RemindRule | r.InjectRule) for rule in self.rules)

    def setting_names(self) -> tuple[str, ...]:
        """Return all settings that it accepts, in order of use."""
        names = [condition.override for condition in self.conditions()]
        for cadence in self._cadences():
            names += [cadence.override, *cadence.aliases]
        if self.large_results is not None:
            names.append(self.large_results.override)
        return tuple(dict.fromkeys(name for name in (*names, *self.limit_keys) if name))

    def _cadences(self) -> list[r.Cadence]:
        repeats = [rule.repeat for rule in self.rules if isinstance(rule, r.InjectRule)]
        return [repeat for repeat in repeats if isinstance(repeat, r.Cadence)]

    def with_canonical_names(self, settings: Settings) -> dict[str, float]:
        """Return the settings by canonical names. Raises `ValueError` if one setting is given under two names."""
        first = {
            alias: cadence.override for cadence in self._cadences() for alias in cadence.aliases if cadence.override
        }
        for name in settings:
            if first.get(name) in settings:
                raise ValueError(f"'{first[name]}' and '{name}' are two names of one setting")
        return {first.get(name, name): value for name, value in settings.items()}

    def configured(self, settings: Settings) -> "Policy":
        """Return a copy with one model's values: rounded down, and below 1 the default."""
        # If they make a level unreachable (`critical` below `optimal`), the more severe level wins.
        large = self.large_results
        above = None if large is None else whole_count(settings.get(large.override))
        changes = {
            "levels": tuple(lv.model_copy(update={"at": lv.at.configured(settings)}) for lv in self.levels),
            "rules": tuple(_configured(rule, settings) for rule in self.rules),
            "large_results": large.model_copy(update={"above_bytes": above}) if large and above else large,
        }
        return self.model_copy(update=changes)

    def compacting_at(self, mark: Fraction) -> "Policy":
        """Return a copy that compacts after calls from this part of the window on, to a proportionally smaller target.

        Raises `ValueError` if it does not compact after calls, or does so from an earlier mark on.
        """
        rules = [_compacting_at(rule, mark) for rule in self.rules]
        if all(new is rule for new, rule in zip(rules, self.rules, strict=True)):
            raise ValueError(f"the policy '{self.name}' does not compact at a fraction of the window")
        return Policy.model_validate(self.model_dump() | {"rules": [rule.model_dump() for rule in rules]})

    def limit_from(self, settings: Settings) -> int | None:
        """Return the window size in the settings; None if they contain none."""
        found = [count for key in self.limit_keys if (count := whole_count(settings.get(key))) is not None]
        return found[0] if found else None

    def refuses_provider(self, provider: str, scope: Literal["any"] | None = None) -> str | None:
        """Return why it cannot be used with a provider; None if it can. The scope `any` allows every provider."""
        if self.scope is None or scope == "any" or provider.lower() == self.scope:
            return None
        return f"policy '{self.name}' is for {self.scope}, not for {provider}; `scope: any` uses it anyway"


def output_reserve_tokens(limit_tokens: int) -> int:
    """Return the tokens that the policy `mew` keeps free for an answer."""
    return ANSWER_RESERVE.added_to(0, limit_tokens)[0]


def _compacting_at(rule: r.Rule, mark: Fraction) -> r.Rule:
    if not isinstance(rule, r.CompactRule) or rule.phase != "after_call":
        return rule
    marks = [condition.fraction for condition in rule.when if condition.fraction is not None]
    if not marks:
        return rule
    if any(mark.is_above(own) for own in marks):
        own = marks[0]
        raise ValueError(f"the policy compacts at {own.numerator}/{own.denominator} already, which is earlier")
    when = tuple(one.model_copy(update={"fraction": mark}) if one.fraction is not None else one for one in rule.when)
    target, own = rule.target, marks[0]
    scaled = Fraction(
        numerator=target.numerator * mark.numerator * own.denominator,
        denominator=target.denominator * mark.denominator * own.numerator,
    )
    return rule.model_copy(update={"when": when, "target": scaled if rule.target_of == "window" else target})


def _configured(rule: r.Rule, settings: Settings) -> r.Rule:
    def each(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        return tuple(condition.configured(settings) for condition in conditions)

    match rule:
        case r.RemindRule():
            return rule.model_copy(update={"when_any": each(rule.when_any), "until": each(rule.until)})
        case r.NearLimitRule() | r.CompactRule() | r.StopRule():
            return rule.model_copy(update={"when": each(rule.when)})
        case r.InjectRule(repeat=r.Cadence() as cadence):
            return rule.model_copy(update={"repeat": cadence.configured(settings)})
        case _:
            return rule
