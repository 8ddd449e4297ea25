"""[pure] A policy as data: its measure, levels, rules and settings, and `RuleIndex`, which sorts them for decisions.

Files and presets create the same frozen `Policy`, which refuses contradictions when it is created. `decision` applies
it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from mew_protocol.context_report import Basis, Measure
from pydantic import Field, model_validator

from mew_agent.context.policy.threshold import (
    Condition,
    Figure,
    Fraction,
    PolicyPart,
    Reserve,
    Settings,
    begins_above,
    whole_count,
)

Phase = Literal["pre_request", "tool_result", "stream", "after_call", "message_added", "task_end"]
"""When a decision is made: before a request, when a tool has answered, while a reply streams, after a call, when a
message was added, or when a task has ended and no compaction is pending."""

Known = Literal["reported_or_projected", "unavailable"]
Flag = Literal["user_prompt", "queue_busy", "user_chain"]
Impact = Literal["low", "medium", "high"]
CompactionMethod = Literal["staged", "summarise", "drop_oldest"]
"""`staged`: clear old tool outputs, then summarise. `summarise`: only summarise. `drop_oldest`: drop old turns."""

Moment = Literal["at_once", "task_end"]
"""When to compact: before the next request, or when the answer is complete, as long as the next request fits."""


class Level(PolicyPart):
    """A named level of fullness. `severity` is 0-3, for colours; `needs_reset` advises to start over."""

    name: str
    severity: int = Field(ge=0, le=3)
    at: Condition
    needs_reset: bool = False


class NearLimitRule(PolicyPart):
    """Announce once per crossing, at most once per `cooldown_seconds`; armed again below `rearm_below`."""

    action: Literal["near_limit"] = "near_limit"
    phase: Phase = "after_call"
    when: tuple[Condition, ...] = Field(min_length=1)
    cooldown_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    rearm_below: Fraction


class RemindRule(PolicyPart):
    """Add a reminder of `owner` if any of `when_any` is true; remove it if all of `until` are."""

    action: Literal["remind"] = "remind"
    phase: Phase = "after_call"
    owner: str
    when_any: tuple[Condition, ...] = Field(min_length=1)
    until: tuple[Condition, ...] = Field(min_length=1)


class Cadence(PolicyPart):
    """Prompt on entering the level, and again after each `generations` further generations there."""

    kind: Literal["cadence"] = "cadence"
    generations: int = Field(ge=1)
    override: str | None = None
    aliases: tuple[str, ...] = ()

    def configured(self, settings: Settings) -> "Cadence":
        """Return a copy with the count from the settings, if the setting is at least one generation."""
        names = (self.override, *self.aliases)
        found = [count for name in names if name and (count := whole_count(settings.get(name))) is not None]
        return self.model_copy(update={"generations": found[0]}) if found else self


class Countdown(PolicyPart):
    """Prompt in each of `steps` generations with the number that remain, then clear the context."""

    kind: Literal["countdown"] = "countdown"
    steps: int = Field(ge=1)


class InjectRule(PolicyPart):
    """Insert a prompt before the next generation while at `level`."""

    action: Literal["inject"] = "inject"
    phase: Literal["after_call"] = "after_call"
    level: str
    repeat: Annotated[Cadence | Countdown, Field(discriminator="kind")]
    withheld_by: tuple[Flag, ...] = ()  # flags that make the prompt wait
    silent_for: tuple[Flag, ...] = ()  # flags without injection and countdown, unless a person's message comes too


class StateChangedRule(PolicyPart):
    """Announce every change of level. The first known level is not a change."""

    action: Literal["state_changed"] = "state_changed"


class EntryRule(PolicyPart):
    """Announce that a level was entered: at every entry, or at the first one since the last clear."""

    action: Literal["approaching_redline", "redlined"]
    level: str
    repeat: Literal["every_entry", "first_entry"] = "every_entry"


class SuggestRule(PolicyPart):
    """Suggest to remove old messages of a role, or to summarise a role, when that becomes worth it."""

    action: Literal["suggest"] = "suggest"
    role: Literal["user", "assistant"]
    impact: Impact
    more_than_messages: int | None = Field(default=None, ge=0)  # remove if there are more, except the `keep_newest`
    keep_newest: int | None = Field(default=None, ge=0)
    more_than: Fraction | None = None  # summarise above this part of the window; saves the fraction `saves` of it
    saves: Fraction | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "SuggestRule":
        counts = (self.more_than_messages, self.keep_newest)
        parts = (self.more_than, self.saves)
        if (None in counts) == (None in parts) or counts.count(None) == 1 or parts.count(None) == 1:
            raise ValueError("needs either `more_than_messages` and `keep_newest`, or `more_than` and `saves`")
        return self


class CompactRule(PolicyPart):
    """Compact to `target` if all conditions hold."""

    action: Literal["compact"] = "compact"
    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)
    trigger: str
    target: Fraction
    target_of: Literal["window", "used"] = "window"
    known: Known = "reported_or_projected"  # `unavailable`: for calls without usage
    method: CompactionMethod = "staged"
    restart: bool = False  # the reply then starts again, within `max_restarts_per_request`
    moment: Moment = "at_once"
    cooldown_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # since the compaction before


class StopRule(PolicyPart):
    """Abort the reply, report an error, or clear the context if all conditions hold."""

    action: Literal["abort", "error", "clear"]
    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)
    reason: str


Intervention = CompactRule | StopRule  # of these rules, only the first that applies acts

Rule = Annotated[
    NearLimitRule | RemindRule | InjectRule | StateChangedRule | EntryRule | SuggestRule | CompactRule | StopRule,
    Field(discriminator="action"),
]


class Marks(NamedTuple):
    """Thresholds of a policy in a window of one size, in tokens."""

    levels: tuple[tuple[Level, int | None], ...]
    compact_at_tokens: int | None  # where it compacts after a call
    # Each rule with the sizes below which it never applies: the measured one, and that of the next prompt.
    near_limit: dict[Phase, tuple[tuple[NearLimitRule, int, int], ...]]
    interventions: dict[Phase, tuple[tuple[Intervention, int, int], ...]]


class RuleIndex:
    """A policy's rules by kind and phase, so that a decision looks at few."""

    def __init__(self, rules: tuple[Rule, ...], levels: tuple[Level, ...], reserve: Reserve) -> None:
        self._levels, self._reserve = levels, reserve
        self.marks = lru_cache(maxsize=64)(self._marks_in)
        """Returns the marks in a window of this size; they are computed once."""
        self.announcements = tuple(rule for rule in rules if isinstance(rule, StateChangedRule | EntryRule))
        self.prompts = _of_type(InjectRule, rules)
        self.near_limit = _by_phase(_of_type(NearLimitRule, rules))
        self.reminders = _by_phase(_of_type(RemindRule, rules))
        self.interventions: dict[Phase, tuple[Intervention, ...]] = _by_phase(
            [rule for rule in rules if isinstance(rule, CompactRule | StopRule)]
        )
        compacting = [rule for rule in _of_type(CompactRule, rules) if rule.phase == "after_call"]
        self.compact_at = tuple(condition for rule in compacting for condition in rule.when)

    def _marks_in(self, limit_tokens: int | None) -> Marks:
        levels = tuple(
            (level, level.at.first_tokens(limit_tokens) if level.at.figure == "used" else None)
            for level in self._levels
        )
        compact_at = min(_first_tokens(self.compact_at, "used", limit_tokens), default=None)
        near_limit = _with_first_tokens(self.near_limit, limit_tokens, self._reserve)
        interventions = _with_first_tokens(self.interventions, limit_tokens, self._reserve)
        return Marks(levels, compact_at, near_limit, interventions)


def _first_tokens(conditions: Iterable[Condition], figure: Figure, limit_tokens: int | None) -> list[int]:
    """Return where the conditions on a figure begin to hold, where that is known."""
    found = [condition.first_tokens(limit_tokens) for condition in conditions if condition.figure == figure]
    return [tokens for tokens in found if tokens is not None]


_Rule = TypeVar("_Rule", bound=PolicyPart)
_Kind = TypeVar("_Kind", bound=NearLimitRule | RemindRule | CompactRule | StopRule)
_Conditional = TypeVar("_Conditional", bound=NearLimitRule | CompactRule | StopRule)


def _with_first_tokens(
    by_phase: dict[Phase, tuple[_Conditional, ...]], limit_tokens: int | None, reserve: Reserve
) -> dict[Phase, tuple[tuple[_Conditional, int, int], ...]]:
    # A reserve is largest for an empty prompt.
    most, scale = (0, 1) if limit_tokens is None else reserve.added_to(0, limit_tokens)
    most_tokens = -(-most // scale)

    def marked(rule: _Conditional) -> tuple[_Conditional, int, int]:
        with_reserve = _first_tokens(rule.when, "next_prompt_and_reserve", limit_tokens)
        of_next = _first_tokens(rule.when, "next_prompt", limit_tokens)
        of_next += [tokens - most_tokens for tokens in with_reserve]
        return rule, max(_first_tokens(rule.when, "used", limit_tokens), default=0), max(of_next, default=0)

    return {phase: tuple(map(marked, rules)) for phase, rules in by_phase.items()}


def _of_type(kind: type[_Rule], rules: Sequence[Rule]) -> tuple[_Rule, ...]:
    return tuple(rule for rule in rules if isinstance(rule, kind))


def _by_phase(rules: Sequence[_Kind]) -> dict[Phase, tuple[_Kind, ...]]:
    return {phase: tuple(rule for rule in rules if rule.phase == phase) for phase in {rule.phase for rule in rules}}


def conditions_of(rule: Rule) -> tuple[Condition, ...]:
    """Return all conditions of a rule."""
    match rule:
        case RemindRule():
            return (*rule.when_any, *rule.until)
        case NearLimitRule() | CompactRule() | StopRule():
            return rule.when
        case InjectRule() | StateChangedRule() | EntryRule() | SuggestRule():
            return ()


# As `answer_reserve_tokens` of the protocol, by which every reader knows what fits.
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
    phases: tuple[Phase, ...] = ("after_call",)  # whose figure moves the level
    limit_missing: Literal["assume", "unknown", "error"] = "assume"  # if the window is unknown
    limit_keys: tuple[str, ...] = ()  # settings that contain the window's size
    scope: str | None = None  # the only provider that it is for
    healthy: str = "healthy"
    levels: tuple[Level, ...] = ()
    rules: tuple[Rule, ...] = ()
    reserve: Reserve = ANSWER_RESERVE
    ceiling: Fraction = Fraction(numerator=7, denominator=10)  # of the window; no compaction target is above it
    max_stalls: int = Field(default=2, ge=1)
    max_restarts_per_request: int = Field(default=3, ge=0)
    summariser: str | None = None  # model that writes summaries; `same` is the agent's own
    fallback: Literal["drop_oldest"] | None = None  # what to do if a summary is not available
    requested_method: CompactionMethod = "staged"  # how a compaction that a participant requests makes room
    redline: Fraction | None = None  # a threshold that is only shown
    large_results: LargeResults | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "Policy":
        refuse_contradictions(self)
        return self

    @cached_property
    def rule_index(self) -> RuleIndex:
        """The rules, indexed for decisions."""
        return RuleIndex(self.rules, self.levels, self.reserve)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Policy":
        """Return a copy with other values, not validated, and with its own index."""
        copy = super().model_copy(update=update, deep=deep)
        for computed in ("rule_index", "counts_messages"):
            copy.__dict__.pop(computed, None)
        return copy

    @cached_property
    def counts_messages(self) -> bool:
        """Whether it measures the sum of the messages added so far."""
        return "message_added" in self.phases

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of all levels and rules."""
        return (*(level.at for level in self.levels), *(c for rule in self.rules for c in conditions_of(rule)))

    def level_named(self, name: str) -> Level | None:
        """Return the level of this name; None for the healthy one and for unknown names."""
        return next((level for level in self.levels if level.name == name), None)

    @property
    def needs_reminder_tools(self) -> bool:
        """Whether it reminds or prompts, so that the model needs the tools these texts mention."""
        return any(isinstance(rule, RemindRule | InjectRule) for rule in self.rules)

    def setting_names(self) -> tuple[str, ...]:
        """Return all settings that it accepts, in order of use."""
        names = [condition.override for condition in self.conditions()]
        for cadence in self._cadences():
            names += [cadence.override, *cadence.aliases]
        if self.large_results is not None:
            names.append(self.large_results.override)
        return tuple(dict.fromkeys(name for name in (*names, *self.limit_keys) if name))

    def _cadences(self) -> list[Cadence]:
        repeats = [rule.repeat for rule in self.rules if isinstance(rule, InjectRule)]
        return [repeat for repeat in repeats if isinstance(repeat, Cadence)]

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


def _compacting_at(rule: Rule, mark: Fraction) -> Rule:
    if not isinstance(rule, CompactRule) or rule.phase != "after_call":
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


def _configured(rule: Rule, settings: Settings) -> Rule:
    def each(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        return tuple(condition.configured(settings) for condition in conditions)

    match rule:
        case RemindRule():
            return rule.model_copy(update={"when_any": each(rule.when_any), "until": each(rule.until)})
        case NearLimitRule() | CompactRule() | StopRule():
            return rule.model_copy(update={"when": each(rule.when)})
        case InjectRule(repeat=Cadence() as cadence):
            return rule.model_copy(update={"repeat": cadence.configured(settings)})
        case _:
            return rule


_WHOLE = Fraction(numerator=1, denominator=1)
_MEASURED = ("used", "resent", "with_tool_result")
_WITHOUT_REPORT = ("pre_request", "tool_result", "stream", "message_added")


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
        if isinstance(rule, NearLimitRule | CompactRule | StopRule | RemindRule):
            _check_figures(rule)
    if policy.measure == "cumulative":
        _check_cumulative(policy)


def _check_cumulative(policy: Policy) -> None:
    """Refuse rules that make no sense for a cumulative figure, which only grows whatever happens to the window."""
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
        asked = [rule.phase for rule in policy.rules if isinstance(rule, CompactRule | StopRule | NearLimitRule)]
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


def _check_figures(rule: NearLimitRule | CompactRule | StopRule | RemindRule) -> None:
    looked_at = {condition.figure for condition in conditions_of(rule)}
    if rule.phase != "tool_result" and looked_at & {"tool_result", "with_tool_result"}:
        raise ValueError(f"the phase '{rule.phase}' has no tool result to compare")
