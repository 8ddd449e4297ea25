"""Runs compactions, asked for or decided, one at a time: plan, announce, carry out, keep, announce.

Owns what is told about them, and the count of those that did not help. The history it changes must not be in use by a
model call: the caller's `lock` is held meanwhile. It does not know who asked, nor why the policy decided.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import anyio
from mew_protocol.payloads.participant import CompactDone

from mew_agent.compaction.compactor import Call, Compacted, carry_out
from mew_agent.compaction.planner import Nothing, Plan
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.message_counts import Compression
from mew_agent.context.policy import CompactAction
from mew_agent.context.policy import compact_at_tokens as threshold_of
from mew_agent.conversation.events import ContextCompacted, Events
from mew_agent.conversation.model_calls import CallInterrupted
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import ModelError
from mew_agent.participant.messenger import timestamp

logger = logging.getLogger("mew_agent.compaction")

Announce = Callable[[str | None], Awaitable[None]]
BetweenCalls = Callable[[], AbstractAsyncContextManager[None]]


class CompactionRunner:
    """See the module. `summarise` makes one summary call; `announce(word)` broadcasts the status of this moment."""

    def __init__(
        self, transcript: Transcript, lock: anyio.Lock, summarise: Call, announce: Announce, events: Events
    ) -> None:
        self._transcript = transcript
        self._events = events
        self._tracker = transcript.tracker
        self._lock = lock
        self._summarise = summarise
        self._announce = announce
        self._is_running = False
        self.problem: str | None = None
        """Why the newest one failed; None when it went well or there was nothing to take out."""

    @property
    def is_running(self) -> bool:
        return self._is_running

    async def requested(self, target_tokens: int | None, between_calls: BetweenCalls) -> CompactDone:
        """Compact because somebody asked, at the next call bound. Failures are in the answer."""
        if self._is_running:
            return self._skipped("compaction_in_progress")
        self._is_running = True
        try:
            async with between_calls():
                planned = self._transcript.plan_compaction(target_tokens)
                if isinstance(planned, Nothing):
                    return self._skipped(planned.reason)
                booked = (await self._carry_out(planned, "requested")).outcome
        except (ModelError, RejectedSummary, CallInterrupted) as error:
            return self._skipped(str(error))
        finally:
            self._is_running = False
        return CompactDone(
            status="compacted",
            skipped=False,
            freed_tokens=booked.freed_tokens,
            freed_messages=booked.freed_messages,
            tokens_before=booked.tokens_before,
            tokens_after=booked.tokens_after,
            max_tokens=self._tracker.window.max_tokens,
            basis=booked.basis,
        )

    async def by_itself(self, action: CompactAction) -> bool:
        """Compact unasked, announced before and after. Returns whether anything changed; never raises for failures."""
        if self._is_running:
            async with self._lock:
                return True
        self._is_running = True
        failure: Exception | None = None
        planned: Plan | Nothing | None = None
        try:
            async with self._lock:
                planned = self._transcript.plan_compaction(action.target_tokens, action.method)
                if isinstance(planned, Plan):
                    await self._announce("compacting")
                    await self._carry_out_or_drop(planned, action)
        except (ModelError, RejectedSummary, CallInterrupted) as error:
            failure = error
        finally:
            self._is_running = False
        if isinstance(planned, Plan) and failure is None:
            await self._announce("compacted")
            if self._tracker.is_stalled:
                await self._announce("compaction_stalled:compacting does not free enough")
            return True
        await self._changed_nothing(action.trigger, planned, failure)
        return False

    async def drop_to(self, target_tokens: int, between_calls: BetweenCalls) -> Compression:
        """Drop the oldest turns until the next prompt holds at most so much, or only the newest turn is left.

        The answer says by how much the target was missed, and that nothing was dropped where there was nothing to drop.
        """
        ledger = self._tracker.ledger
        async with between_calls():
            before = ledger.next_prompt_tokens
            planned = self._transcript.plan_compaction(target_tokens, "drop_oldest")
            removed = 0
            if isinstance(planned, Plan):
                removed = len((await self._carry_out(planned, "requested")).evicted)
        if removed:
            await self._announce("compacted")
        return Compression(before, ledger.next_prompt_tokens, target_tokens, removed)

    async def _carry_out_or_drop(self, planned: Plan, action: CompactAction) -> None:
        """Where no summary can be had and the policy says so, the oldest turns leave without one."""
        try:
            await self._carry_out(planned, action.trigger)
        except (ModelError, RejectedSummary) as error:
            if self._tracker.policy.fallback != "drop_oldest" or action.method == "drop_oldest":
                raise
            logger.warning("no summary could be had (%s): the oldest turns leave without one", error)
            dropping = self._transcript.plan_compaction(action.target_tokens, "drop_oldest")
            if not isinstance(dropping, Plan):
                raise
            await self._carry_out(dropping, action.trigger)

    async def _changed_nothing(self, trigger: str, planned: Plan | Nothing | None, failure: Exception | None) -> None:
        problem = planned.reason if isinstance(planned, Nothing) else str(failure)
        self.problem = None if failure is None else problem
        logger.warning("a compaction (%s) changed nothing: %s", trigger, problem)
        self._tracker.compaction_failed(at_seconds=time.time())
        await self._transcript.keep()
        await self._announce(f"{'compaction_stalled' if self._tracker.is_stalled else 'compaction_failed'}:{problem}")

    async def _carry_out(self, planned: Plan, trigger: str) -> Compacted:
        """The caller holds the lock. Raises `ModelError` or `RejectedSummary`, and then nothing has changed."""
        tracker = self._tracker
        done = await carry_out(planned, tracker, self._summarise, trigger=trigger, count=self._transcript.sizes.count)
        threshold = threshold_of(tracker.policy, tracker.window.max_tokens) or tracker.window.max_tokens
        progressed = done.outcome.freed_tokens > 0 and tracker.ledger.next_prompt_tokens < threshold
        tracker.compacted(done.outcome, at=timestamp(), at_seconds=time.time(), progressed=progressed)
        stubbed = {item.seq for item in done.stubbed}
        stubs = [item for item in tracker.history.items if item.seq in stubbed]
        self.problem = None
        await self._transcript.keep(evicted=[item.seq for item in done.evicted], replaced=stubs)
        self._events.tell(ContextCompacted(done.outcome.tokens_before, done.outcome.tokens_after, trigger))
        return done

    def _skipped(self, reason: str) -> CompactDone:
        tokens = self._tracker.tokens
        return CompactDone(
            status="skipped",
            skipped=True,
            reason=reason,
            tokens_before=tokens,
            tokens_after=tokens,
            max_tokens=self._tracker.window.max_tokens,
        )
