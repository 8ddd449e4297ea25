"""The approval of a compaction: what a conversation asks, and the plan that results from the decision.

Owns when a compaction may not wait. Does not know who decides; see `agent.compaction_approval`.
"""

from typing import Protocol

from mew_protocol.payloads.participant import Compact

from mew_agent.compaction.approval import CompactionDecision, ProposedCompaction
from mew_agent.compaction.planner import CompactionPlan, NothingToDo
from mew_agent.context.archive import Origin
from mew_agent.context.policy import CompactAction, CompactionMethod, output_reserve_tokens
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.context_state import ContextState


class CompactionGate(Protocol):
    """Asks a participant before a compaction."""

    def must_ask(self, requester: str) -> bool:
        """Return whether a compaction that this participant requests has to be approved."""

    def admit(self, action: CompactAction, *, is_urgent: bool) -> CompactionDecision | None:
        """Decide about a compaction by the policy; None: it must not run now. An urgent one always runs."""

    async def decide(self, proposed: ProposedCompaction) -> CompactionDecision:
        """Ask about a compaction that a participant requested, and wait for the decision."""

    def close(self, why: str) -> None:
        """Withdraw an open question because the conversation ends."""


async def ask_about_request(
    gate: CompactionGate | None, request: Compact, requester: str | None, state: ContextState
) -> CompactionDecision | None:
    """Ask before a requested compaction, if the gate demands it and there is something to compact."""
    if gate is None or requester is None or not gate.must_ask(requester):
        return None
    plan = plan_request(request, None, state)
    if isinstance(plan, NothingToDo):
        return None
    target_tokens = request.target_in(state.tracker.window.max_tokens)
    return await gate.decide(
        ProposedCompaction(plan, "requested", target_tokens, state.history.revision, requester, request.reason)
    )


def plan_request(
    request: Compact, decision: CompactionDecision | None, state: ContextState
) -> CompactionPlan | NothingToDo:
    """Return the plan of a requested compaction, as it was decided if a participant was asked."""
    tracker = state.tracker
    return _plan(decision, state, request.target_in(tracker.window.max_tokens), tracker.policy.requested_method)


def plan_action(
    action: CompactAction, decision: CompactionDecision | None, state: ContextState
) -> CompactionPlan | NothingToDo:
    """Return the plan of a compaction by the policy, as it was decided if a participant was asked."""
    is_refused = action.trigger == "overflow_error"
    return _plan(decision, state, action.target_tokens, action.method, is_refused=is_refused)


def _plan(
    decision: CompactionDecision | None,
    state: ContextState,
    target_tokens: int | None,
    method: CompactionMethod,
    *,
    is_refused: bool = False,
) -> CompactionPlan | NothingToDo:
    if decision is not None:
        target_tokens = target_tokens if decision.target_tokens is None else decision.target_tokens
        if (approved := decision.plan_for(state.history)) is not None:
            return approved
    return state.plan_compaction(target_tokens, method, is_refused=is_refused)


def would_overflow(tracker: Tracker) -> bool:
    """Return whether the next request, with room for an answer, is larger than the window."""
    window_tokens = tracker.window.max_tokens
    return tracker.next_prompt.tokens + output_reserve_tokens(window_tokens) > window_tokens


def origin_of(decision: CompactionDecision | None, asked_by: str | None = None, reason: str | None = None) -> Origin:
    """Return who asked for a compaction, why, and how it was decided."""
    return Origin(asked_by, reason, None if decision is None else decision.sentence)
