"""Carries out what a policy decided: told and remembered here, in order; interventions are handed back.

Compacting, clearing, stopping a reply and beginning again need the history between two calls, so whoever makes the
calls does them. Owned here: words for peers, events, reminders, prompts, and what of all that outlives the process.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from mew_protocol.context_report import Injection

from mew_agent.context.persisted_state import NOTHING, PersistedState
from mew_agent.context.policy import (
    AbortAction,
    Action,
    ApproachingRedlineAction,
    ClearAction,
    CompactAction,
    ErrorAction,
    InjectAction,
    NearLimitAction,
    Policy,
    PolicyState,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    UnremindAction,
    level_of,
)
from mew_agent.context.policy.rules import InjectRule, RemindRule
from mew_agent.context.reminders import ContinuationPackage, Reminders
from mew_agent.context.tracker import Tracker
from mew_agent.conversation import texts
from mew_agent.conversation.events import Events, LevelChanged, RedlineApproached, RedlineCrossed, SavingSuggested
from mew_agent.conversation.transcript import Transcript
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.policy")


@dataclass
class Due:
    """What is left to do of a decision: status words to announce, in order, and at most one intervention."""

    words: list[str] = field(default_factory=list)
    compact: CompactAction | None = None
    restart: RestartAction | None = None
    stop: AbortAction | ErrorAction | None = None


class Remedies:
    """One agent's reminders, prompts and events. Everything that must not be lost is in the transcript's `standing`."""

    def __init__(self, transcript: Transcript, events: Events) -> None:
        self.events = events
        self.reminders = Reminders()
        self._transcript = transcript
        self._tracker: Tracker = transcript.tracker
        self._level = "unknown"

    @property
    def offers_reminders(self) -> bool:
        """Whether the policy reminds or prompts, so that the model needs the tools these speak of."""
        return any(isinstance(rule, RemindRule | InjectRule) for rule in self._tracker.policy.rules)

    def restored(self) -> None:
        """The transcript was loaded: take up what stood. What another policy decided or remembered is let go."""
        standing = self._transcript.standing
        if standing.policy not in (None, self._tracker.policy.name):
            own = tuple(one for one in standing.reminders if one.owner is None)
            standing = self._transcript.standing = PersistedState(own, standing.reminders_made)
            self._tracker.policy_state = PolicyState()
        self.reminders = Reminders(standing.reminders, standing.reminders_made)
        self._tracker.injection = standing.injection

    def carry_out(self, actions: Sequence[Action]) -> Due:
        """Do what can be done at once; the rest is in the answer."""
        due = Due()
        for action in actions:
            self._carry_out(action, due)
        self._renew_injection()
        self.keep_standing()
        return due

    def _carry_out(self, action: Action, due: Due) -> None:  # noqa: C901 - one case for each action
        match action:
            case NearLimitAction():
                due.words.append("near_limit")
            case CompactAction():
                due.compact = action
            case RemindAction(owner):
                self.reminders.remind(owner, at=timestamp())
            case UnremindAction(owner):
                self.reminders.unremind(owner)
            case InjectAction(level, remaining):
                self._inject(level, remaining)
            case ClearAction(reason):
                self.plan_clear(reason)
            case RestartAction(attempt, most):
                logger.info("the reply begins again (%d of %d)", attempt, most)
                due.restart = action
            case AbortAction() | ErrorAction():
                due.stop = action
            case StateChangedAction(before, after):
                due.words.append(f"state_changed:{before} -> {after}")
            case ApproachingRedlineAction():
                due.words.append("approaching_redline")
                self.events.tell(RedlineApproached(*self._figures()))
            case RedlinedAction():
                due.words.append("redlined")
                self.events.tell(RedlineCrossed(*self._figures()))
            case SuggestAction(suggestion):
                self.events.tell(SavingSuggested(suggestion))
            case _:
                assert_never(action)

    def note_level(self) -> None:
        """Tell an event if the level is another one than last time."""
        level, severity = level_of(self._tracker.policy, self._tracker.snapshot())
        if level == self._level:
            return
        before, self._level = self._level, level
        status = self._tracker.status("")
        basis = self._tracker.shown_basis[0]
        self.events.tell(LevelChanged(before, level, severity, status.tokens, status.max_tokens, basis))

    # -- prompts and reminders ---------------------------------------------------------------------------

    @property
    def note(self) -> str:
        """The reminders as they stand in the next request; empty without any."""
        return self.reminders.shown(lambda _owner: texts.health_reminder(self.fullness))

    @property
    def fullness(self) -> texts.Fullness:
        """How full the context is by the policy's measure and the bases it trusts."""
        used, limit = self._figures()
        return texts.Fullness(used, limit)

    @property
    def package(self) -> ContinuationPackage | None:
        """The mark that a reminder written now gets: at a level above healthy it is a continuation package."""
        policy = self._tracker.policy
        level, severity = level_of(policy, self._tracker.snapshot())
        return ContinuationPackage("context_health", level) if severity else None

    @property
    def notices(self) -> tuple[str, ...]:
        """The prompts that wait for the next generation."""
        return self._transcript.standing.pending_prompts

    async def enter_notices(self) -> None:
        """The prompts that wait enter the history now."""
        notices = self.notices
        if notices:
            self._change(pending_prompts=())
            for text in notices:
                await self._transcript.notice(text)

    def drop_notices(self) -> None:
        """The prompts that wait are not said after all; their cadence or countdown goes on as if they had been."""
        self._change(pending_prompts=())

    def new_course(self, reason: str | None) -> None:
        """The context was cleared. With a `reason` of our own the model is told when it is asked again."""
        self._renew_injection()
        notices = (texts.NEW_COURSE.format(reason=reason),) if reason else ()
        self._change(pending_prompts=notices, planned_clear=None, injection=self._tracker.injection)

    def plan_clear(self, reason: str) -> None:
        """The context is to be cleared before the next generation; that outlives the process."""
        self._change(planned_clear=reason)

    @property
    def planned_clear(self) -> str | None:
        """Why the context is to be cleared before the next generation."""
        return self._transcript.standing.planned_clear

    def keep_standing(self) -> None:
        """Bring what is kept up to date; the next change of the transcript stores it."""
        reminders = self.reminders
        self._change(
            reminders=reminders.all,
            reminders_made=reminders.made,
            injection=self._tracker.injection,
            policy=self._tracker.policy.name,
        )

    def _inject(self, level: str, remaining: int | None) -> None:
        policy: Policy = self._tracker.policy
        text = texts.prompt_text(policy, level, remaining, self.fullness)
        self._change(pending_prompts=(*self._transcript.standing.pending_prompts, text))
        kind = "prompt" if remaining is None else "countdown"
        self._tracker.injection = Injection(kind=kind, remaining=remaining, text=texts.injection_line(level, remaining))

    def _renew_injection(self) -> None:
        """A prompt or countdown is in force as long as its level is, a policy's reminder as long as it is there."""
        now = self._tracker.injection
        if now is not None and now.kind != "reminder" and self._tracker.policy_state.prompting is not None:
            return
        owned = next((one.owner for one in self.reminders.all if one.owner), None)
        self._tracker.injection = None if owned is None else Injection(kind="reminder", text=texts.REMINDED)

    def _figures(self) -> tuple[int | None, int | None]:
        snapshot = self._tracker.snapshot()
        known = snapshot.basis in self._tracker.policy.bases
        return snapshot.used_tokens if known else None, snapshot.limit_tokens

    def _change(self, **changes: object) -> None:
        standing: PersistedState = replace(self._transcript.standing, **changes)  # type: ignore[arg-type]
        self._transcript.standing = NOTHING if standing == NOTHING else standing
