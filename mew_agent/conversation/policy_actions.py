"""Carries out the actions of a policy: at once where possible, otherwise as pending actions for the conversation.

Owns the status words and events of each action, and their order. Does not compact, clear, stop or repeat anything:
these need the history between two calls, so the conversation does them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from mew_agent.context.policy import (
    AbortAction,
    Action,
    ApproachingRedlineAction,
    ClearAction,
    CompactAction,
    ErrorAction,
    InjectAction,
    NearLimitAction,
    RedlinedAction,
    RemindAction,
    RestartAction,
    StateChangedAction,
    SuggestAction,
    UnremindAction,
)
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.events import RedlineApproached, RedlineCrossed, SavingSuggested
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.policy")


@dataclass
class PendingActions:
    """What remains of a decision: status words to announce, in order, and at most one intervention."""

    words: list[str] = field(default_factory=list)
    compact: CompactAction | None = None
    restart: RestartAction | None = None
    stop: AbortAction | ErrorAction | None = None


async def carry_out(actions: Sequence[Action], state: ContextState) -> PendingActions:
    """Change reminders, prompts and plans, emit events, and return what remains to be done."""
    pending = PendingActions()
    for action in actions:
        await _carry_out(action, state, pending)
    state.renew_injection()
    return pending


async def _carry_out(  # noqa: C901 - one case for each action
    action: Action, state: ContextState, pending: PendingActions
) -> None:
    usage = state.context_usage
    match action:
        case NearLimitAction():
            pending.words.append("near_limit")
        case CompactAction():
            pending.compact = action
        case RemindAction(owner):
            state.reminders.remind(owner, at=timestamp())
        case UnremindAction(owner):
            state.reminders.unremind(owner)
        case InjectAction(level, remaining):
            state.queue_prompt(level, remaining)
        case ClearAction(reason):
            state.plan_clear(reason)
        case RestartAction(attempt, most):
            logger.info("the reply starts over (attempt %d of %d)", attempt, most)
            pending.restart = action
        case AbortAction() | ErrorAction():
            pending.stop = action
        case StateChangedAction(before, after):
            pending.words.append(f"state_changed:{before} -> {after}")
        case ApproachingRedlineAction():
            pending.words.append("approaching_redline")
            await state.events.emit(RedlineApproached(usage.used_tokens, usage.limit_tokens))
        case RedlinedAction():
            pending.words.append("redlined")
            await state.events.emit(RedlineCrossed(usage.used_tokens, usage.limit_tokens))
        case SuggestAction(suggestion):
            await state.events.emit(SavingSuggested(suggestion))
        case _:
            assert_never(action)
