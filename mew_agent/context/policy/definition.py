"""[pure] A policy as data: its measure, levels, rules and settings. `decision` applies it.

Contains the two kinds of rules of the default policy, and the one that stops a reply. Parts add others by extending
`Rule`, and policies from files by extending `Policy`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

from mew_protocol.context_report import Basis, Measure
from pydantic import Field, SerializeAsAny

from mew_agent.context.policy import actions as acts
from mew_agent.context.policy.actions import Action, CompactionMethod, Moment, Suggestion
from mew_agent.context.policy.snapshot import ContextSnapshot, GenerationFlags, PolicyState, has_passed
from mew_agent.context.policy.threshold import Condition, Figure, Fraction, PolicyPart, Reserve, Settings, whole_count
from mew_agent.model.interface import Role

Phase = Literal["pre_request", "tool_result", "stream", "after_call", "message_added", "task_end"]
"""When a decision is made: before a request, when a tool has answered, while a reply streams, after a call, when a
message was added, or when a task has ended and no compaction is pending."""

Known = Literal["reported_or_projected", "unavailable"]


class Level(PolicyPart):
    """A named level of fullness. `severity` is 0-3, for colours; `needs_reset` recommends a new conversation."""

    name: str
    severity: int = Field(ge=0, le=3)
    at: Condition
    needs_reset: bool = False


class Rule(PolicyPart):
    """One rule of a policy. Without a `phase`, it acts in every phase. Rules of the same `place` decide together."""

    action: str

    place: ClassVar[int]
    """The place of its actions in a decision."""
    needs_reminder_tools: ClassVar[bool] = False
    """Whether the model needs the tools that the texts of its prompts mention."""

    @classmethod
    def decide(cls, rules: Sequence[Any], deciding: "Deciding") -> None:
        """Add the actions of all rules of this place, and change the state."""
        raise NotImplementedError

    def conditions(self) -> tuple[Condition, ...]:
        """Return all conditions."""
        return ()

    def setting_names(self) -> Mapping[str, str]:
        """Return the settings that it accepts, each with its canonical name."""
        return {name: name for one in self.conditions() if (name := one.override) is not None}

    def configured(self, settings: Settings) -> Self:
        """Return a copy with one model's values."""
        return self


def configured_conditions(conditions: Iterable[Condition], settings: Settings) -> tuple[Condition, ...]:
    """Return copies of conditions with bounds from the settings."""
    return tuple(condition.configured(settings) for condition in conditions)


class PhaseRule(Rule):
    """A rule for one phase that acts when all its conditions hold."""

    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)

    def conditions(self) -> tuple[Condition, ...]:
        return self.when

    def configured(self, settings: Settings) -> Self:
        return self.model_copy(update={"when": configured_conditions(self.when, settings)})


class NearLimitRule(PhaseRule):
    """Announce once per crossing, at most once per `cooldown_seconds`; armed again below `rearm_below`."""

    action: Literal["near_limit"] = "near_limit"
    phase: Phase = "after_call"
    cooldown_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    rearm_below: Fraction

    place: ClassVar[int] = 2

    @classmethod
    def decide(cls, rules: Sequence["NearLimitRule"], deciding: "Deciding") -> None:
        used, limit, at = deciding.snapshot.used_tokens, deciding.snapshot.limit_tokens, deciding.snapshot.at_seconds
        if used is None:
            return
        for rule in rules:
            state = deciding.state
            if not state.armed and limit is not None and rule.rearm_below.exceeds(used, limit):
                state = deciding.state = replace(state, armed=True)
            if not state.armed or not deciding.meets(rule.when):
                continue
            if has_passed(rule.cooldown_seconds, state.announced_at_seconds, at):
                deciding.actions.append(acts.AnnounceAction("near_limit"))
                deciding.state = replace(state, armed=False, announced_at_seconds=at)


class InterventionRule(PhaseRule):
    """A compaction or a stop. Only the first of these rules that applies acts."""

    place: ClassVar[int] = 5

    @classmethod
    def decide(cls, rules: Sequence["InterventionRule"], deciding: "Deciding") -> None:
        rule = next((rule for rule in rules if rule.applies(deciding)), None)
        if rule is not None:
            deciding.has_intervened = True
            rule.intervene(deciding)

    def applies(self, deciding: "Deciding") -> bool:
        """Return whether it acts now."""
        return deciding.meets(self.when)

    def intervene(self, deciding: "Deciding") -> None:
        """Add its actions."""
        raise NotImplementedError


class CompactRule(InterventionRule):
    """Compact to `target` if all conditions hold."""

    action: Literal["compact"] = "compact"
    trigger: str
    target: Fraction
    target_of: Literal["window", "used"] = "window"
    known: Known = "reported_or_projected"  # `unavailable`: for calls without usage
    method: CompactionMethod = "staged"
    restart: bool = False  # the reply then starts again, within `max_restarts_per_request`
    moment: Moment = "at_once"
    cooldown_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # since the compaction before

    def applies(self, deciding: "Deciding") -> bool:
        snapshot = deciding.snapshot
        is_unavailable = snapshot.basis == "unknown" and snapshot.lacks_usage
        if self.phase == "after_call" and is_unavailable != (self.known == "unavailable"):
            return False
        return deciding.meets(self.when)

    def intervene(self, deciding: "Deciding") -> None:
        policy, state, now = deciding.policy, deciding.state, deciding.snapshot.at_seconds
        if self._holds_when_empty(deciding):
            # No compaction could help, and the policy would request one before every request.
            limit = deciding.snapshot.limit_tokens
            deciding.fail(f"a window of {limit} tokens has no room beyond the output reserve of {policy.name}")
        elif not self.restart:
            has_cooled = not self.cooldown_seconds or has_passed(self.cooldown_seconds, state.compacted_at_seconds, now)
            if has_cooled and state.stalls < policy.max_stalls:
                deciding.actions.append(self._compaction(deciding))
        elif state.restarts >= policy.max_restarts_per_request:
            deciding.fail(f"still over the limit after {policy.max_restarts_per_request} restarts of this request")
            deciding.state = replace(state, restarting=False)
        else:
            restart = acts.RestartAction(state.restarts + 1, policy.max_restarts_per_request)
            deciding.actions += [self._compaction(deciding), restart]
            deciding.state = replace(state, restarts=restart.attempt, restarting=True)

    def _compaction(self, deciding: "Deciding") -> acts.CompactAction:
        snapshot = deciding.snapshot
        limit = snapshot.limit_tokens or 0
        base = limit if self.target_of == "window" else snapshot.figure(self.when[0].figure) or 0
        target = min(self.target.floor_of(base), deciding.policy.ceiling.floor_of(limit))
        reason = None
        if any(condition.figure == "next_task_and_reserve" for condition in self.when):
            reason = f"the next task of the usual size, {snapshot.usual_task_tokens:,} tokens, would not fit"
        return acts.CompactAction(self.trigger, target, self.method, self.moment, reason)

    def _holds_when_empty(self, deciding: "Deciding") -> bool:
        """Return whether it would compact an empty conversation, because the reserve exceeds the window."""
        if not any(condition.figure == "next_prompt_and_reserve" for condition in self.when):
            return False
        return deciding.snapshot._replace(next_prompt_tokens=0).meets(self.when, deciding.policy.reserve)

    def compacting_at(self, mark: Fraction) -> Self:
        """Return a copy that compacts after calls from this fraction of the window on, to a proportionally smaller
        target.

        Returns itself without a fraction. Raises `ValueError` if it already compacts earlier.
        """
        marks = [condition.fraction for condition in self.when if condition.fraction is not None]
        if self.phase != "after_call" or not marks:
            return self
        own = marks[0]
        if any(mark.is_above(one) for one in marks):
            raise ValueError(f"the policy compacts at {own.numerator}/{own.denominator} already, which is earlier")
        when = [one.model_copy(update={"fraction": mark}) if one.fraction is not None else one for one in self.when]
        scaled = Fraction(
            numerator=self.target.numerator * mark.numerator * own.denominator,
            denominator=self.target.denominator * mark.denominator * own.numerator,
        )
        target = scaled if self.target_of == "window" else self.target
        return self.model_copy(update={"when": tuple(when), "target": target})


class StopRule(InterventionRule):
    """Abort the reply, report an error, or clear the context if all conditions hold."""

    action: acts.Stop
    reason: str

    def intervene(self, deciding: "Deciding") -> None:
        deciding.actions.append(acts.StopAction(self.action, self.reason))


# The same as `answer_reserve_tokens` of the protocol, from which every reader computes the free tokens.
ANSWER_RESERVE = Reserve(fraction=Fraction(numerator=1, denominator=20), at_most_tokens=4096, whole=True)


class LargeResults(PolicyPart):
    """At these levels, withhold tool results above `above_bytes`; None withholds none."""

    levels: tuple[str, ...]
    above_bytes: int | None = Field(default=None, gt=0)
    override: str = "withhold_tool_results_above_bytes"


class Marks(NamedTuple):
    """Thresholds of a policy in a window of one size, in tokens."""

    levels: tuple[tuple[Level, int | None], ...]
    compact_at_tokens: int | None  # where it compacts after a call
    # Of each phase: the measured size and the next prompt below both of which no rule acts, as most calls are.
    rests_below: Mapping[Phase, tuple[float, float]]


class MessageSums(dict[Role, list[float]]):
    """The sizes of the messages by role, oldest first, as running sums."""

    def add(self, size: float, role: Role | None) -> None:
        """Add a newer message. The policy's own prompts have no role and do not count."""
        if role is not None:
            sums = self.setdefault(role, [])
            sums.append(sums[-1] + size if sums else size)


class Policy(PolicyPart):
    """A policy as data. Levels are ordered from mild to severe; the last one that applies is the level."""

    suggests: ClassVar[bool] = False
    """Whether `suggestions` may make any."""

    name: str = Field(min_length=1)
    measure: Measure = "total"
    bases: tuple[Basis, ...] = ("reported", "projected")  # bases of the measured figure that it trusts
    on_missing: Literal["unknown", "keep_last", "error"] = "unknown"  # after a call without usage
    phases: tuple[Phase, ...] = ("after_call",)  # phases that may change the level
    limit_missing: Literal["assume", "unknown", "error"] = "assume"  # if the window is unknown
    limit_keys: tuple[str, ...] = ()  # settings that contain the window's size
    scope: str | None = None  # the only provider that it supports
    healthy: str = "healthy"
    levels: tuple[Level, ...] = ()
    rules: tuple[SerializeAsAny[Rule], ...] = ()
    reserve: Reserve = ANSWER_RESERVE
    ceiling: Fraction = Fraction(numerator=7, denominator=10)  # of the window; no compaction target is above it
    max_stalls: int = Field(default=2, ge=1)
    max_restarts_per_request: int = Field(default=3, ge=0)
    summariser: str | None = None  # model that writes summaries; `same` is the agent's own
    fallback: Literal["drop_oldest"] | None = None  # fallback without a summary
    requested_method: CompactionMethod = "staged"  # method of a compaction that a participant requests
    redline: Fraction | None = None  # a threshold for displays only
    large_results: LargeResults | None = None

    def suggestions(
        self, sums: MessageSums, tokens: Callable[[float, int], int], limit_tokens: int | None
    ) -> tuple[Suggestion, ...]:
        """Return ways to save tokens of these messages in a window of this size. Most policies make none.

        `tokens` returns the tokens of messages, from their summed size and their number.
        """
        return ()

    @cached_property
    def acting(self) -> Mapping[Phase, Sequence[tuple[Rule, ...]]]:
        """The rules of each phase by place, in the order of decision."""
        found: dict[Phase, list[tuple[Rule, ...]]] = {}
        for phase in get_args(Phase):
            rules = sorted((rule for rule in self.rules if getattr(rule, "phase", phase) == phase), key=_place)
            found[phase] = [tuple(together) for _, together in groupby(rules, key=_place)]
        return found

    @cached_property
    def interventions(self) -> Mapping[Phase, tuple[InterventionRule, ...]]:
        """The compactions and stops of each phase that has any."""
        found = [rule for rule in self.rules if isinstance(rule, InterventionRule)]
        return {rule.phase: tuple(one for one in found if one.phase == rule.phase) for rule in found}

    @cached_property
    def marks(self) -> Callable[[int | None], Marks]:
        """Return the marks in a window of this size; each is computed once."""
        return lru_cache(maxsize=64)(self._marks_in)

    def _marks_in(self, limit_tokens: int | None) -> Marks:
        levels = tuple(
            (level, level.at.first_tokens(limit_tokens) if level.at.figure == "used" else None) for level in self.levels
        )
        compacting = [rule for rule in self.interventions.get("after_call", ()) if isinstance(rule, CompactRule)]
        compact_at = [one for rule in compacting for one in first_tokens(rule.when, "used", limit_tokens)]
        rests_below = {phase: self._rests_below(phase, limit_tokens) for phase in self.acting}
        return Marks(levels, min(compact_at, default=None), rests_below)

    def _rests_below(self, phase: Phase, limit_tokens: int | None) -> tuple[float, float]:
        # A reserve is largest for an empty prompt.
        reserve, scale = (0, 1) if limit_tokens is None else self.reserve.added_to(0, limit_tokens)
        used, next_prompt = [inf], [inf]
        for rule in chain.from_iterable(self.acting[phase]):
            when = rule.when if isinstance(rule, PhaseRule) else ()
            of_next = first_tokens(when, "next_prompt", limit_tokens)
            with_reserve = first_tokens(when, "next_prompt_and_reserve", limit_tokens)
            of_next += [tokens + -reserve // scale for tokens in with_reserve]
            of_used = first_tokens(when, "used", limit_tokens)
            (used if of_used else next_prompt).append(max(of_used or of_next, default=0))
        return min(used), min(next_prompt)

    def acts_at_tokens(self, phase: Phase, limit_tokens: int | None) -> int | None:
        """Return the smallest measured size at which an intervention of this phase can apply; None without one."""
        firsts = (first_tokens(rule.when, "used", limit_tokens) for rule in self.interventions.get(phase, ()))
        return min((max(ones) for ones in firsts if ones), default=None)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return an unvalidated copy with other values and its own marks. Shares the frozen values."""
        values = {name: getattr(self, name) for name in type(self).model_fields} | dict(update or {})
        return cast("Self", type(self).model_construct(self.model_fields_set | {*(update or ())}, **values))

    @cached_property
    def counts_messages(self) -> bool:
        """Whether it measures the sum of the messages added so far."""
        return "message_added" in self.phases

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of all levels and rules."""
        return (*(level.at for level in self.levels), *(c for rule in self.rules for c in rule.conditions()))

    def level_named(self, name: str) -> Level | None:
        """Return the level of this name; None for the healthy level and unknown names."""
        return next((level for level in self.levels if level.name == name), None)

    @property
    def needs_reminder_tools(self) -> bool:
        """Whether it sends reminders or prompts, so that the model needs the tools they mention."""
        return any(rule.needs_reminder_tools for rule in self.rules)

    @property
    def _settings(self) -> dict[str, str]:
        """All settings that it accepts, in order of use, each with its canonical name."""
        names = {name: name for level in self.levels if (name := level.at.override) is not None}
        for rule in self.rules:
            names |= rule.setting_names()
        large = () if self.large_results is None else (self.large_results.override,)
        return {**names, **{name: name for name in (*large, *self.limit_keys)}}

    def setting_names(self) -> tuple[str, ...]:
        """Return all settings that it accepts, in order of use."""
        return tuple(self._settings)

    def with_canonical_names(self, settings: Settings) -> dict[str, float]:
        """Return the settings by canonical names. Raises `ValueError` if one setting is given under two names."""
        names = self._settings
        for name in settings:
            if (first := names.get(name, name)) != name and first in settings:
                raise ValueError(f"'{first}' and '{name}' are two names of one setting")
        return {names.get(name, name): value for name, value in settings.items()}

    def configured(self, settings: Settings) -> Self:
        """Return a copy with one model's values, rounded down; a value below 1 means the default."""
        # If they make a level unreachable (`critical` below `optimal`), the more severe level wins.
        large = self.large_results
        above = None if large is None else whole_count(settings.get(large.override))
        changes = {
            "levels": tuple(lv.model_copy(update={"at": lv.at.configured(settings)}) for lv in self.levels),
            "rules": tuple(rule.configured(settings) for rule in self.rules),
            "large_results": large.model_copy(update={"above_bytes": above}) if large and above else large,
        }
        return self.model_copy(update=changes)

    def compacting_at(self, mark: Fraction) -> Self:
        """Return a copy that compacts after calls from this fraction of the window on, to a proportionally smaller
        target.

        Raises `ValueError` if it does not compact after calls, or already does so earlier.
        """
        rules = [rule.compacting_at(mark) if isinstance(rule, CompactRule) else rule for rule in self.rules]
        if all(new is rule for new, rule in zip(rules, self.rules, strict=True)):
            raise ValueError(f"the policy '{self.name}' does not compact at a fraction of the window")
        return type(self).model_validate(self.model_dump(exclude={"rules"}) | {"rules": rules})

    def limit_from(self, settings: Settings) -> int | None:
        """Return the window size in the settings; None if they contain none."""
        found = [count for key in self.limit_keys if (count := whole_count(settings.get(key))) is not None]
        return found[0] if found else None

    def refuses_provider(self, provider: str, scope: Literal["any"] | None = None) -> str | None:
        """Return why it cannot be used with a provider; None if it can. The scope `any` allows every provider."""
        if self.scope is None or scope == "any" or provider.lower() == self.scope:
            return None
        return f"policy '{self.name}' is for {self.scope}, not for {provider}; `scope: any` uses it anyway"


def _place(rule: Rule) -> int:
    return rule.place


def first_tokens(conditions: Iterable[Condition], figure: Figure, limit_tokens: int | None) -> list[int]:
    """Return the known counts at which the conditions on a figure become true."""
    found = [condition.first_tokens(limit_tokens) for condition in conditions if condition.figure == figure]
    return [tokens for tokens in found if tokens is not None]


@dataclass(slots=True)
class Deciding:
    """A decision in progress: `state` and `actions` change place by place."""

    policy: Policy
    state: PolicyState
    snapshot: ContextSnapshot
    phase: Phase
    flags: GenerationFlags
    level: str  # level of the snapshot, which may be `unknown`
    level_before: str | None  # the last known level
    actions: list[Action] = field(default_factory=list)
    has_intervened: bool = False

    @property
    def has_moved(self) -> bool:
        """Whether it changes the level."""
        return self.state.level != self.level_before

    def meets(self, conditions: tuple[Condition, ...]) -> bool:
        """Return whether all conditions hold now."""
        return self.snapshot.meets(conditions, self.policy.reserve)

    def fail(self, problem: str) -> None:
        """Report an error."""
        self.actions.append(acts.StopAction("error", problem))
