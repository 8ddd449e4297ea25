"""Runs compactions between two model calls: plan, summary call, change of the context, answer.

The caller holds the lock of the calls. Does not know who asked for a compaction, nor why the policy decided on one.
"""

import logging
from dataclasses import replace

from mew_protocol.context_report import Progress
from mew_protocol.payloads.participant import CompactDone

from mew_agent import tracing
from mew_agent.compaction.compactor import CompactionResult, write_summary
from mew_agent.compaction.planner import CompactionPlan
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.archive import ITSELF, Origin
from mew_agent.context.policy import CompactAction
from mew_agent.context.spending import SummarySpending
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.compaction_gate import plan_action
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.events import ContextCompacted, StatusChanged
from mew_agent.conversation.model_calls import CallInterrupted, ModelCalls
from mew_agent.errors import ModelError
from mew_agent.model.interface import ModelReply, ModelRequest
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.compaction")

COMPACTION_FAILURES = (ModelError, RejectedSummary, CallInterrupted)
"""Failures of a compaction that leave the context unchanged."""


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
    """Carry out a plan. Raises one of `COMPACTION_FAILURES`, after which nothing has changed.

    `spending` has the summary calls of attempts before this one, and gets those of this one.
    """
    tracker, begun, spending = state.tracker, timestamp(), spending or SummarySpending(calls.summary_price)

    async def summarise(request: ModelRequest) -> ModelReply:
        spending.calls += 1
        reply = await calls.summary(request)
        spending.record(reply.usage)
        return reply

    async def report_piece(done: int, total: int) -> None:
        tracker.progress = Progress(kind="compaction", done=done, total=total, unit="pieces", since=begun)
        await state.events.emit(StatusChanged(tracker.status("compacting", calls.latency_ms), "compacting"))

    with tracing.compaction_span(tracker.model, trigger, tracker.tokens) as span:
        try:
            summary = await write_summary(
                plan,
                tracker,
                summarise,
                conversation=None if plan.evict is None else calls.request_up_to(plan.evict[1]),
                timeout_seconds=calls.summary_timeout_seconds,
                may_extract=may_extract,
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
        span.set(mew__compaction__tokens_after=outcome.tokens_after, mew__compaction__freed_tokens=outcome.freed_tokens)
    return result


async def run_compaction_or_drop(
    plan: CompactionPlan, action: CompactAction, state: ContextState, calls: ModelCalls, origin: Origin = ITSELF
) -> None:
    """Carry out a plan. If no summary is available and the policy allows it, drop the oldest turns without one."""
    spending = SummarySpending(calls.summary_price)
    drops = state.tracker.policy.fallback == "drop_oldest" and action.method != "drop_oldest"
    try:
        await run_compaction(
            plan, action.trigger, state, calls, may_extract=not drops, spending=spending, origin=origin
        )
    except (ModelError, RejectedSummary) as error:
        if not drops:
            raise
        logger.warning("no summary available (%s); dropping the oldest turns without one", error)
        dropping = plan_action(replace(action, method="drop_oldest"), None, state)
        if not isinstance(dropping, CompactionPlan):
            raise
        await run_compaction(dropping, action.trigger, state, calls, spending=spending, origin=origin)


def compacted_answer(result: CompactionResult, tracker: Tracker) -> CompactDone:
    """Return the answer to a request that was carried out."""
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
        tokens_before=tracker.tokens,
        tokens_after=tracker.tokens,
        max_tokens=tracker.window.max_tokens,
    )
