"""[pure] Additional kinds of rules, for the policies of other systems and for policy files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mew_agent.context.policy import actions as acts
from mew_agent.context.policy.actions import Impact, Suggestion
from mew_agent.context.policy.definition import (
    CompactRule,
    Deciding,
    NearLimitRule,
    Phase,
    Rule,
    StopRule,
    configured_conditions,
)
from mew_agent.context.policy.snapshot import GenerationFlags, PolicyState
from mew_agent.context.policy.threshold import Condition, Fraction, PolicyPart, Settings, whole_count

Flag = Literal["user_prompt", "queue_busy", "user_chain"]


class RemindRule(Rule):
    """Add a reminder of `owner` if any of `when_any` holds; remove it if all of `until` hold."""

    action: Literal["remind"] = "remind"
    phase: Phase = "after_call"
    owner: str
    when_any: tuple[Condition, ...] = Field(min_length=1)
    until: tuple[Condition, ...] = Field(min_length=1)

    place: ClassVar[int] = 3
    needs_reminder_tools: ClassVar[bool] = True

    def conditions(self) -> tuple[Condition, ...]:
        return (*self.when_any, *self.until)

    def configured(self, settings: Settings) -> Self:
        bounds = {name: configured_conditions(getattr(self, name), settings) for name in ("when_any", "until")}
        return self.model_copy(update=bounds)

    @classmethod
    def decide(cls, rules: Sequence["RemindRule"], deciding: Deciding) -> None:
        for rule in rules if deciding.snapshot.limit_tokens is not None else ():
            owners = deciding.state.reminders
            if rule.owner not in owners and any(deciding.meets((one,)) for one in rule.when_any):
                deciding.actions.append(acts.RemindAction(rule.owner))
                owners = (*owners, rule.owner)
            if rule.owner in owners and deciding.meets(rule.until):
                deciding.actions.append(acts.RemindAction(rule.owner, is_shown=False))
                owners = tuple(owner for owner in owners if owner != rule.owner)
            if owners is not deciding.state.reminders:
                deciding.state = replace(deciding.state, reminders=owners)


class AnnouncementRule(Rule):
    """Announces changes of the level."""

    place: ClassVar[int] = 0

    @classmethod
    def decide(cls, rules: Sequence["AnnouncementRule"], deciding: Deciding) -> None:
        for rule in rules if deciding.has_moved else ():
            rule.announce(deciding)

    def announce(self, deciding: Deciding) -> None:
        """Add its action for the new level."""
        raise NotImplementedError


class StateChangedRule(AnnouncementRule):
    """Announce every change of level. The first known level is not a change."""

    action: Literal["state_changed"] = "state_changed"

    def announce(self, deciding: Deciding) -> None:
        if deciding.level_before is not None:
            deciding.actions.append(acts.AnnounceAction("state_changed", deciding.level_before, deciding.level))


class EntryRule(AnnouncementRule):
    """Announce that a level was entered: at every entry, or at the first one since the last clear."""

    action: Literal["approaching_redline", "redlined"]
    level: str
    repeat: Literal["every_entry", "first_entry"] = "every_entry"

    def announce(self, deciding: Deciding) -> None:
        announced = deciding.state.announced_entries
        if self.level != deciding.level or (self.repeat == "first_entry" and self.action in announced):
            return
        deciding.actions.append(acts.AnnounceAction(self.action))
        if self.action not in announced:
            deciding.state = replace(deciding.state, announced_entries=(*announced, self.action))


class SuggestRule(Rule):
    """Suggest removing old messages of a role, or summarising a role, when the saving is large enough."""

    action: Literal["suggest"] = "suggest"
    role: Literal["user", "assistant"]
    impact: Impact
    more_than_messages: int | None = Field(default=None, ge=0)  # remove if there are more, except the `keep_newest`
    keep_newest: int | None = Field(default=None, ge=0)
    more_than: Fraction | None = None  # summarise above this part of the window; saves the fraction `saves` of it
    saves: Fraction | None = None

    place: ClassVar[int] = 1

    @model_validator(mode="after")
    def _one_way(self) -> "SuggestRule":
        counts = (self.more_than_messages, self.keep_newest)
        parts = (self.more_than, self.saves)
        if (None in counts) == (None in parts) or counts.count(None) == 1 or parts.count(None) == 1:
            raise ValueError("needs either `more_than_messages` and `keep_newest`, or `more_than` and `saves`")
        return self

    @classmethod
    def decide(cls, rules: Sequence["SuggestRule"], deciding: Deciding) -> None:
        offered, suggested = deciding.snapshot.suggestions, deciding.state.suggested
        is_level_known = deciding.phase in deciding.policy.phases and deciding.level != "unknown"
        if is_level_known and (offered or suggested):
            deciding.actions += [acts.SuggestAction(one) for one in offered if one.key not in suggested]
            deciding.state = replace(deciding.state, suggested=tuple(one.key for one in offered))

    def suggestion(
        self, sums: Sequence[float], tokens: Callable[[float, int], int], limit_tokens: int
    ) -> Suggestion | None:
        """Return the saving for the messages of the role; None if it is too small. See `Policy.suggestions`."""
        count = len(sums)
        if self.more_than_messages is not None and self.keep_newest is not None:
            old = count - self.keep_newest
            if count <= self.more_than_messages or old <= 0:
                return None
            text = f"remove the {old} oldest {self.role} messages"
            return Suggestion(f"remove_{self.role}", text, tokens(sums[old - 1], old), self.impact)
        present = tokens(sums[-1], count) if sums else 0
        if self.more_than is None or self.saves is None or present <= self.more_than.floor_of(limit_tokens):
            return None
        text = f"summarise the {self.role} messages"
        return Suggestion(f"summarise_{self.role}", text, self.saves.floor_of(present), self.impact)


class Cadence(PolicyPart):
    """Prompt on entering the level, and after every `generations` generations there."""

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
    """Prompt in each of `steps` generations with the number of remaining ones, then clear the context."""

    kind: Literal["countdown"] = "countdown"
    steps: int = Field(ge=1)


class InjectRule(Rule):
    """Insert a prompt before the next generation while at `level`."""

    action: Literal["inject"] = "inject"
    phase: Literal["after_call"] = "after_call"
    level: str
    repeat: Annotated[Cadence | Countdown, Field(discriminator="kind")]
    withheld_by: tuple[Flag, ...] = ()  # flags that delay the prompt
    silent_for: tuple[Flag, ...] = ()  # flags without injection and countdown, except together with a person's message

    place: ClassVar[int] = 4
    needs_reminder_tools: ClassVar[bool] = True

    def setting_names(self) -> Mapping[str, str]:
        if not isinstance(self.repeat, Cadence) or (name := self.repeat.override) is None:
            return {}
        return dict.fromkeys((name, *self.repeat.aliases), name)

    def configured(self, settings: Settings) -> Self:
        cadence = self.repeat
        changed = cadence.configured(settings) if isinstance(cadence, Cadence) else cadence
        return self.model_copy(update={"repeat": changed})

    @classmethod
    def decide(cls, rules: Sequence["InjectRule"], deciding: Deciding) -> None:
        """Choose the prompt before the next generation, after a call at this level (possibly `unknown`)."""
        state, flags, call_id = deciding.state, deciding.flags, deciding.snapshot.call_id
        # Count generations by their call, so that a second decision about a call changes nothing.
        is_new = call_id is None or call_id != state.generation
        prompted = state.prompted and not is_new
        rule = next((rule for rule in rules if rule.level == deciding.level), None)
        if rule is None:
            deciding.state = _without_prompts(state, call_id, prompted=prompted)
            return
        entering = state.prompting != rule.level
        state = replace(_entering(state, rule) if entering else state, generation=call_id, prompted=prompted)
        deciding.state = state
        # Another message of a person ends the silence, also between the tool calls of an answer.
        if not flags.user_prompt and _is_set(flags, rule.silent_for):
            return
        withheld = prompted or _is_set(flags, rule.withheld_by)
        if isinstance(rule.repeat, Countdown):
            _count_down(deciding, rule.level, withheld=withheld)
        else:
            _at_cadence(deciding, rule.level, rule.repeat, counts=is_new and not entering, withheld=withheld)


def _entering(state: PolicyState, rule: InjectRule) -> PolicyState:
    remaining = rule.repeat.steps if isinstance(rule.repeat, Countdown) else None
    return replace(state, prompting=rule.level, due=True, counted=0, remaining=remaining)


def _at_cadence(deciding: Deciding, level: str, cadence: Cadence, *, counts: bool, withheld: bool) -> None:
    state = deciding.state
    if counts and not state.due:  # while a prompt is due, no generation counts towards the next one
        state = replace(state, counted=state.counted + 1, due=state.counted + 1 >= cadence.generations)
    if state.due and not withheld:
        deciding.actions.append(acts.InjectAction(level))
        state = replace(state, due=False, counted=0, prompted=True)
    deciding.state = state


def _count_down(deciding: Deciding, level: str, *, withheld: bool) -> None:
    state = deciding.state
    remaining = state.remaining or 0
    if remaining == 0 and not state.prompted:
        # A waiting prompt does not prevent the clear; it enters the cleared context.
        deciding.actions.append(acts.StopAction("clear", f"countdown at {level} ended"))
        deciding.state = _without_prompts(state, state.generation, prompted=True)
    elif not withheld:
        deciding.actions.append(acts.InjectAction(level, remaining - 1))
        deciding.state = replace(state, remaining=remaining - 1, prompted=True)


def _without_prompts(state: PolicyState, call_id: str | None, *, prompted: bool) -> PolicyState:
    return replace(state, generation=call_id, prompted=prompted, prompting=None, due=False, counted=0, remaining=None)


def _is_set(flags: GenerationFlags, names: tuple[Flag, ...]) -> bool:
    return any(getattr(flags, name) for name in names)


WrittenRule = Annotated[
    NearLimitRule | RemindRule | InjectRule | StateChangedRule | EntryRule | SuggestRule | CompactRule | StopRule,
    Field(discriminator="action"),
]
"""A rule of any kind."""
