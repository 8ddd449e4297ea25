"""[pure] Levels and rules: the parts of a policy, as data, and `RuleIndex`, which sorts them for the decision."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field, model_validator

from mew_agent.context.policy.threshold import Condition, Fraction, PolicyPart, Settings, whole_count

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
    # Each rule with the size below which it never applies.
    near_limit: dict[Phase, tuple[tuple[NearLimitRule, int], ...]]
    interventions: dict[Phase, tuple[tuple[Intervention, int], ...]]


class RuleIndex:
    """A policy's rules by kind and phase, so that a decision looks at few."""

    def __init__(self, rules: tuple[Rule, ...], levels: tuple[Level, ...]) -> None:
        self._levels = levels
        self._marks: tuple[int | None, Marks] | None = None
        self.announcements = tuple(rule for rule in rules if isinstance(rule, StateChangedRule | EntryRule))
        self.prompts = tuple(rule for rule in rules if isinstance(rule, InjectRule))
        self.near_limit = _by_phase([rule for rule in rules if isinstance(rule, NearLimitRule)])
        self.reminders = _by_phase([rule for rule in rules if isinstance(rule, RemindRule)])
        self.interventions: dict[Phase, tuple[Intervention, ...]] = _by_phase(
            [rule for rule in rules if isinstance(rule, CompactRule | StopRule)]
        )
        compacting = [rule for rule in rules if isinstance(rule, CompactRule) and rule.phase == "after_call"]
        self.compact_at = tuple(condition for rule in compacting for condition in rule.when)

    def marks(self, limit_tokens: int | None) -> Marks:
        """Return the thresholds in a window of this size; computed again only when the size changes."""
        if self._marks is None or self._marks[0] != limit_tokens:
            levels = tuple(
                (level, level.at.first_tokens(limit_tokens) if level.at.figure == "used" else None)
                for level in self._levels
            )
            compact_at = min(_first_tokens(self.compact_at, limit_tokens), default=None)
            near_limit = _with_first_tokens(self.near_limit, limit_tokens)
            interventions = _with_first_tokens(self.interventions, limit_tokens)
            self._marks = limit_tokens, Marks(levels, compact_at, near_limit, interventions)
        return self._marks[1]


def _first_tokens(conditions: Iterable[Condition], limit_tokens: int | None) -> list[int]:
    """Return where the conditions on the measured figure begin to hold, where that is known."""
    found = [condition.first_tokens(limit_tokens) for condition in conditions if condition.figure == "used"]
    return [tokens for tokens in found if tokens is not None]


_Kind = TypeVar("_Kind", bound=NearLimitRule | RemindRule | CompactRule | StopRule)
_Conditional = TypeVar("_Conditional", bound=NearLimitRule | CompactRule | StopRule)


def _with_first_tokens(
    by_phase: dict[Phase, tuple[_Conditional, ...]], limit_tokens: int | None
) -> dict[Phase, tuple[tuple[_Conditional, int], ...]]:
    return {
        phase: tuple((rule, max(_first_tokens(rule.when, limit_tokens), default=0)) for rule in rules)
        for phase, rules in by_phase.items()
    }


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
