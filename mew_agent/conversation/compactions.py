"""Compactions: approval, plan, summary call, change of the context, and answer.

Decides which compactions are urgent. The caller of `run_compaction` holds the lock of the calls. `CompactionGate` asks
the approvers.
"""

import logging
from dataclasses import replace
from typing import Protocol

from mew_protocol.context_report import Progress
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent import tracing
from mew_agent.compaction.approval import CompactionDecision, ProposedCompaction
from mew_agent.compaction.compactor import CompactionResult, write_summary
from mew_agent.compaction.planner import CompactionPlan, NothingToDo
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.archive import ITSELF, Origin
from mew_agent.context.policy import CompactAction, CompactionMethod
from mew_agent.context.spending import SummarySpending
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation_events import ContextCompacted, StatusChanged
from mew_agent.conversation.model_calls import CallInterrupted, ModelCalls
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import ModelReply, ModelRequest
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.compaction")


def is_overflow(error: ModelError, tracker: Tracker) -> bool:
    """Return whether the prompt did not fit: an overflow error, or an empty stream when the window is nearly full."""
    if isinstance(error, ContextOverflow):
        return True
    nearly_full = tracker.ledger.projected_tokens * 10 >= tracker.window.max_tokens * 9
    return isinstance(error, ModelStreamCut) and error.chunks == 0 and nearly_full


def overflow_compaction(tracker: Tracker) -> CompactAction:
    """Return the compaction to run before repeating a refused request: to half of the window, or of the refused
    prompt.
    """
    window_tokens = tracker.window.max_tokens
    present_tokens = tracker.ledger.projected_tokens
    return CompactAction("overflow_error", min(window_tokens, present_tokens) // 2)


def halved(action: CompactAction, prompt_tokens: int) -> CompactAction:
    """Return the compaction to half of a prompt that left no room for a reply or a result."""
    # The policy's target includes the reply or result, which is not part of the prompt.
    return replace(action, target_tokens=min(action.target_tokens, prompt_tokens // 2))


COMPACTION_FAILURES = (ModelError, RejectedSummary, CallInterrupted)
"""Failures of a compaction that leave the context unchanged."""


class CompactionGate(Protocol):
    """Asks a participant to approve a compaction."""

    def must_ask(self, requester: str) -> bool:
        """Return whether a compaction requested by this participant needs approval."""

    def admit(self, action: CompactAction, *, is_urgent: bool) -> CompactionDecision | None:
        """Decide about a compaction by the policy; None: it must not run now. An urgent one always runs."""

    async def decide(self, proposed: ProposedCompaction) -> CompactionDecision:
        """Ask for approval of a requested compaction, and wait for the decision."""

    def close(self, why: str) -> None:
        """Withdraw an open proposal, because the conversation ends."""


async def ask_about_request(
    gate: CompactionGate | None, request: Compact, requester: str | None, state: ContextState
) -> CompactionDecision | None:
    """Ask before a requested compaction, if it needs approval and there is something to compact."""
    if gate is None or requester is None or not gate.must_ask(requester):
        return None
    target_tokens = request.target_in(state.tracker.window.max_tokens)
    plan = state.plan_compaction(target_tokens, state.tracker.policy.requested_method)
    if isinstance(plan, NothingToDo):
        return None
    return await gate.decide(
        ProposedCompaction(plan, "requested", target_tokens, state.history.revision, requester, request.reason)
    )


def plan_as_decided(
    decision: CompactionDecision | None,
    state: ContextState,
    target_tokens: int | None,
    method: CompactionMethod,
    *,
    is_refused: bool = False,
) -> CompactionPlan | NothingToDo:
    """Return the plan of a compaction: the approved plan, if a participant was asked."""
    if decision is not None:
        target_tokens = target_tokens if decision.target_tokens is None else decision.target_tokens
        if (approved := decision.plan_for(state.history)) is not None:
            return approved
    return state.plan_compaction(target_tokens, method, is_refused=is_refused)


def is_outdated(action: CompactAction, tracker: Tracker, revision: int) -> bool:
    """Return whether the history has changed since this revision, so that the compaction's reason is gone."""
    is_needed = action.trigger == "would_overflow" and tracker.would_overflow()
    return tracker.history.revision != revision and not is_needed


async def run_compaction(
    plan: CompactionPlan,
    trigger: str,
    state: ContextState,
    calls: ModelCalls,
    *,
    may_extract: bool = True,
    spending: SummarySpending | None = None,
    origin: Origin = ITSELF,
) -> CompactionResult:
    """Carry out a plan. Raises one of `COMPACTION_FAILURES`; nothing has changed then.

    `spending` contains the summary calls of earlier attempts; this attempt adds its own.
    """
    tracker, begun, spending = state.tracker, timestamp(), spending or SummarySpending(calls.summary_price)

    async def summarise(request: ModelRequest) -> ModelReply:
        spending.calls += 1
        reply = await calls.summary(request)
        spending.record(reply.usage)
        return reply

    async def report_piece(done: int, total: int) -> None:
        tracker.progress = Progress(kind="compaction", done=done, total=total, unit="pieces", since=begun)
        status = tracker.status("compacting", calls.latency_ms)
        await state.events.emit(StatusChanged(status, status.word))

    before = tracker.measurement.tokens
    with tracing.span("compaction", {}, model=tracker.model, trigger=trigger, tokens_before=before) as span:
        try:
            summary = await write_summary(
                plan,
                tracker,
                summarise,
                conversation=None if plan.evict is None else calls.request_up_to(plan.evict[1]),
                timeout_seconds=calls.options.summary_timeout_seconds,
                may_extract=may_extract,
                may_recall=calls.supports_tools,
                piece_started=report_piece,
            )
        finally:
            tracker.progress = None
        counted = await calls.count_cut(plan, summary, spending)
        if counted is not None and counted.after >= counted.before:
            figures = f"{counted.after:,} tokens after it, and {counted.before:,} before it"
            raise RejectedSummary(f"the server counts {figures}")
        result = await state.apply_compaction(plan, summary, trigger, spending, origin, counted)
        if counted is not None:
            await calls.count_new_tools(counted)
        outcome = result.outcome
        await state.events.emit(ContextCompacted(outcome.tokens_before, outcome.tokens_after, trigger))
        span.facts |= {"tokens_after": outcome.tokens_after, "freed_tokens": outcome.freed_tokens}
    return result


async def run_compaction_or_drop(
    plan: CompactionPlan, action: CompactAction, state: ContextState, calls: ModelCalls, origin: Origin
) -> CompactionResult:
    """Carry out a plan. If no summary is available and the policy allows it, drop the oldest turns without one."""
    spending = SummarySpending(calls.summary_price)
    drops = state.tracker.policy.fallback == "drop_oldest" and action.method != "drop_oldest"
    try:
        return await run_compaction(
            plan, action.trigger, state, calls, may_extract=not drops, spending=spending, origin=origin
        )
    except (ModelError, RejectedSummary) as error:
        if not drops:
            raise
        logger.warning("no summary available (%s); dropping the oldest turns without one", error)
        is_refused = action.trigger == "overflow_error"
        dropping = state.plan_compaction(action.target_tokens, "drop_oldest", is_refused=is_refused)
        if not isinstance(dropping, CompactionPlan):
            raise
        return await run_compaction(dropping, action.trigger, state, calls, spending=spending, origin=origin)


def compacted_answer(result: CompactionResult, tracker: Tracker) -> CompactDone:
    """Return the answer to a completed compaction request."""
    outcome = result.outcome
    return CompactDone(
        status="compacted",
        skipped=False,
        freed_tokens=outcome.freed_tokens,
        freed_messages=outcome.freed_messages,
        tokens_before=outcome.tokens_before,
        tokens_after=outcome.tokens_after,
        max_tokens=tracker.window.max_tokens,
        basis=outcome.basis,
        summary_by=outcome.summary_by,
        summary_problem=outcome.summary_problem,
        cost=outcome.cost,
        approval=outcome.approval,
    )


def skipped_answer(reason: str, tracker: Tracker) -> CompactDone:
    """Return the answer to a request that changed nothing."""
    return CompactDone(
        status="skipped",
        skipped=True,
        reason=reason,
        tokens_before=tracker.measurement.tokens,
        tokens_after=tracker.measurement.tokens,
        max_tokens=tracker.window.max_tokens,
    )
