"""Carries out the actions of a policy: at once where possible, otherwise as pending actions for the conversation.

Owns the status words and events of each action, and their order. What needs the history between two calls is pending.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from mew_protocol.status_word import StatusWord, status_word

from mew_agent.context.policy import actions as acts
from mew_agent.conversation import texts
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.events import (
    ConversationEvent,
    RedlineApproached,
    RedlineCrossed,
    ReplyNotice,
    SavingSuggested,
)
from mew_agent.errors import MewAgentError
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.policy")


@dataclass
class PendingActions:
    """What remains of a decision: status words to announce, in order, and at most one intervention."""

    words: list[StatusWord] = field(default_factory=list)
    compact: acts.CompactAction | None = None
    restart: acts.RestartAction | None = None
    stop: acts.AbortAction | acts.ErrorAction | None = None
    revision: int = 0  # of the history that was decided about


@dataclass(eq=False)
class ReplyStopped(MewAgentError):
    """The policy stopped a running reply, at this size of the context."""

    pending: PendingActions
    tokens: int
    basis: str

    def __str__(self) -> str:
        return f"stopped by the policy when the context held {self.tokens:,} tokens ({self.basis.replace('_', ' ')})"


async def carry_out(  # noqa: C901 - one case for each action
    actions: Sequence[acts.Action], state: ContextState
) -> PendingActions:
    """Change reminders, prompts and plans, emit events, and return what remains to be done."""
    pending, happened = PendingActions(revision=state.history.revision), list[ConversationEvent]()
    for action in actions:
        match action:
            case acts.NearLimitAction():
                pending.words.append(status_word("near_limit"))
            case acts.CompactAction():
                pending.compact = action
            case acts.RemindAction(owner):
                state.reminders.remind(owner, at=timestamp())
            case acts.UnremindAction(owner):
                state.reminders.unremind(owner)
            case acts.InjectAction(level, remaining):
                state.queue_prompt(level, remaining)
            case acts.ClearAction(reason):
                state.plan_clear(reason)
            case acts.RestartAction(attempt, most):
                logger.info("the reply starts over (attempt %d of %d)", attempt, most)
                pending.restart = action
            case acts.AbortAction() | acts.ErrorAction():
                pending.stop = action
            case acts.StateChangedAction(before, after):
                pending.words.append(status_word("state_changed", f"{before} -> {after}"))
            case acts.ApproachingRedlineAction():
                pending.words.append(status_word("approaching_redline"))
                happened.append(RedlineApproached(*state.context_usage))
            case acts.RedlinedAction():
                pending.words.append(status_word("redlined"))
                happened.append(RedlineCrossed(*state.context_usage))
            case acts.SuggestAction(suggestion):
                happened.append(SavingSuggested(suggestion))
            case _:
                assert_never(action)
    state.renew_injection()
    for event in happened:  # after all that was decided about this history: listeners may change it
        await state.events.emit(event)
    return pending


async def report_stop(
    stop: acts.AbortAction | acts.ErrorAction,
    state: ContextState,
    used_tokens: int | None = None,
    basis: str = "reported",
) -> str:
    """Report that the policy stopped a reply. Returns why, with figures if the window is full."""
    if isinstance(stop, acts.ErrorAction):
        logger.warning("context policy '%s': %s", state.tracker.policy.name, stop.reason)
        return stop.reason
    used = state.context_usage.used_tokens if used_tokens is None else used_tokens
    limit = state.tracker.limit_tokens
    logger.warning("%s: %s of %s tokens, %s", stop.reason, used, limit, basis)
    text = texts.aborted(used, limit, basis)
    await state.events.emit(ReplyNotice("aborted", text, tokens=used, max_tokens=limit, basis=basis))
    return f"{stop.reason} ({texts.tokens_of_limit(used, limit, basis)})"
