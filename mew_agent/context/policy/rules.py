"""[pure] Levels and rules: what a policy may say, as data.

A rule names the phase it belongs to, what must hold, what is to be done and how often. It knows no state and decides
nothing (see `decision`).
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

from pydantic import Field, model_validator

from mew_agent.context.policy.threshold import Condition, Fraction, PolicyPart, Settings, whole_count

Phase = Literal["pre_request", "tool_result", "stream", "after_call", "message_added"]
"""When a decision is asked for: before a request, when a tool answered, while a reply arrives, when a call ended,
when a message was counted in."""

Known = Literal["reported_or_projected", "unavailable"]
Flag = Literal["user_prompt", "queue_busy", "user_chain"]
Impact = Literal["low", "medium", "high"]
CompactionMethod = Literal["staged", "summarise", "drop_oldest"]
"""Old tool outputs first and then a summary; a summary; or the oldest turns without one."""


class Level(PolicyPart):
    """A named state of fullness. `severity` 0-3 lets every reader colour it; `needs_reset` asks for a fresh start."""

    name: str
    severity: int = Field(ge=0, le=3)
    at: Condition
    needs_reset: bool = False


class NearLimitRule(PolicyPart):
    """Announce a crossing once; re-armed below `rearm_below`; at most one announcement per `cooldown_seconds`."""

    action: Literal["near_limit"] = "near_limit"
    phase: Phase = "after_call"
    when: tuple[Condition, ...] = Field(min_length=1)
    cooldown_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    rearm_below: Fraction


class RemindRule(PolicyPart):
    """Once until clear: a reminder of `owner` stays while it is there; dropped when all of `until` holds.

    Adding is looked at first and dropping second, also within one decision.
    """

    action: Literal["remind"] = "remind"
    phase: Phase = "after_call"
    owner: str
    when_any: tuple[Condition, ...] = Field(min_length=1)
    until: tuple[Condition, ...] = Field(min_length=1)


class Cadence(PolicyPart):
    """On entering the level, then each time so many further generations were counted there."""

    kind: Literal["cadence"] = "cadence"
    generations: int = Field(ge=1)
    override: str | None = None
    aliases: tuple[str, ...] = ()

    def configured(self, settings: Settings) -> "Cadence":
        """The cadence with its setting, if that is a count of at least one generation."""
        names = (self.override, *self.aliases)
        found = [count for name in names if name and (count := whole_count(settings.get(name))) is not None]
        return self.model_copy(update={"generations": found[0]}) if found else self


class Countdown(PolicyPart):
    """In each of `steps` generations, telling how many remain; then the context is cleared in place of the next."""

    kind: Literal["countdown"] = "countdown"
    steps: int = Field(ge=1)


class InjectRule(PolicyPart):
    """Put a prompt before the next generation while at `level`. Withheld by flags, it waits and is not lost.

    A flag of `silent_for` lets the generation pass untouched: nothing is injected and no countdown ends. It does not
    where that carries another message of a person.
    """

    action: Literal["inject"] = "inject"
    phase: Literal["after_call"] = "after_call"
    level: str
    repeat: Annotated[Cadence | Countdown, Field(discriminator="kind")]
    withheld_by: tuple[Flag, ...] = ()
    silent_for: tuple[Flag, ...] = ()


class StateChangedRule(PolicyPart):
    """Tell every change of level, in each phase that moves it; the first known level is no change."""

    action: Literal["state_changed"] = "state_changed"


class EntryRule(PolicyPart):
    """Tell that a level was entered: at every entry, or at the first one until the context is cleared."""

    action: Literal["approaching_redline", "redlined"]
    level: str
    repeat: Literal["every_entry", "first_entry"] = "every_entry"


class SuggestRule(PolicyPart):
    """Suggest a way to save tokens when it becomes available.

    Either old messages of a role (more than `more_than_messages`, keeping the newest `keep_newest`), or summaries of a
    role that takes more than `more_than` of the window, which would save the part `saves` of it.
    """

    action: Literal["suggest"] = "suggest"
    role: Literal["user", "assistant"]
    impact: Impact
    more_than_messages: int | None = Field(default=None, ge=0)
    keep_newest: int | None = Field(default=None, ge=0)
    more_than: Fraction | None = None
    saves: Fraction | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "SuggestRule":
        counts = (self.more_than_messages, self.keep_newest)
        parts = (self.more_than, self.saves)
        if (None in counts) == (None in parts) or counts.count(None) == 1 or parts.count(None) == 1:
            raise ValueError("needs either `more_than_messages` and `keep_newest`, or `more_than` and `saves`")
        return self


class CompactRule(PolicyPart):
    """Compact to `target` when all conditions hold. `known` says which basis of the figures the rule is for.

    `target_of` takes the part of the window or of what there is to compact. With `restart` the reply begins again
    afterwards, as often as the policy's `max_restarts_per_request` allows.
    """

    action: Literal["compact"] = "compact"
    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)
    trigger: str
    target: Fraction
    target_of: Literal["window", "used"] = "window"
    known: Known = "reported_or_projected"
    method: CompactionMethod = "staged"
    restart: bool = False


class StopRule(PolicyPart):
    """Abort the reply, fail, or clear the context, when all conditions hold."""

    action: Literal["abort", "error", "clear"]
    phase: Phase
    when: tuple[Condition, ...] = Field(min_length=1)
    reason: str


Intervention = CompactRule | StopRule
"""Rules of which only the first one that holds is carried out."""

Rule = Annotated[
    NearLimitRule | RemindRule | InjectRule | StateChangedRule | EntryRule | SuggestRule | CompactRule | StopRule,
    Field(discriminator="action"),
]


class Marks(NamedTuple):
    """Where in a window of one size a policy's levels begin, and where it compacts after a call, in tokens.

    A level's mark is None where it does not look at the measured figure, or cannot be told without a window. Beside
    each rule stands the measured figure below which it cannot hold, 0 where that does not tell.
    """

    levels: tuple[tuple[Level, int | None], ...]
    compact_at_tokens: int | None
    interventions: dict[Phase, tuple[tuple[Intervention, int], ...]]


class RuleIndex:
    """A policy's rules by what they do, and those of one phase by their phase: decisions look through few."""

    __slots__ = ("_levels", "_marks", "compact_at", "injected", "interventions", "near_limit", "reminders", "told")

    def __init__(self, rules: tuple[Rule, ...], levels: tuple[Level, ...] = ()) -> None:
        self._levels = levels
        self._marks: tuple[int | None, Marks] | None = None
        self.told = tuple(rule for rule in rules if isinstance(rule, StateChangedRule | EntryRule))
        self.injected = tuple(rule for rule in rules if isinstance(rule, InjectRule))
        self.near_limit = _by_phase([rule for rule in rules if isinstance(rule, NearLimitRule)])
        self.reminders = _by_phase([rule for rule in rules if isinstance(rule, RemindRule)])
        self.interventions: dict[Phase, tuple[Intervention, ...]] = _by_phase(
            [rule for rule in rules if isinstance(rule, CompactRule | StopRule)]
        )
        compacting = [rule for rule in rules if isinstance(rule, CompactRule) and rule.phase == "after_call"]
        self.compact_at = tuple(c for rule in compacting for c in rule.when if c.figure == "used")

    def marks(self, limit_tokens: int | None) -> Marks:
        """The marks in a window of this size; worked out anew only when the size is another one."""
        if self._marks is None or self._marks[0] != limit_tokens:
            found = [condition.first_tokens(limit_tokens) for condition in self.compact_at]
            levels = tuple(
                (level, level.at.first_tokens(limit_tokens) if level.at.figure == "used" else None)
                for level in self._levels
            )
            interventions = {
                phase: tuple((rule, _never_below(rule, limit_tokens)) for rule in rules)
                for phase, rules in self.interventions.items()
            }
            compact_at = min((tokens for tokens in found if tokens is not None), default=None)
            self._marks = limit_tokens, Marks(levels, compact_at, interventions)
        return self._marks[1]


def _never_below(rule: Intervention, limit_tokens: int | None) -> int:
    marks = [condition.first_tokens(limit_tokens) for condition in rule.when if condition.figure == "used"]
    return max((tokens for tokens in marks if tokens is not None), default=0)


class _OfAPhase(Protocol):
    @property
    def phase(self) -> Phase: ...


_Kind = TypeVar("_Kind", bound=_OfAPhase)


def _by_phase(rules: Sequence[_Kind]) -> dict[Phase, tuple[_Kind, ...]]:
    return {phase: tuple(rule for rule in rules if rule.phase == phase) for phase in {rule.phase for rule in rules}}


def conditions_of(rule: Rule) -> tuple[Condition, ...]:
    """Everything a rule compares."""
    match rule:
        case RemindRule():
            return (*rule.when_any, *rule.until)
        case NearLimitRule() | CompactRule() | StopRule():
            return rule.when
        case InjectRule() | StateChangedRule() | EntryRule() | SuggestRule():
            return ()
