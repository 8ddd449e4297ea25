"""An agent's conversation with its model: history, calls, accounting, compaction, and the store behind them.

Owns the rule that the history changes only between model calls: a call holds the lock, a control waits for it and,
past a bound, cancels the call. It speaks to the space only through the `announce` it is given, and knows nothing
of chats, reasoning envelopes or who asked.
"""

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import anyio

from mew_agent.compaction.compactor import Compacted, carry_out
from mew_agent.compaction.planner import Nothing, Plan, plan, plan_forget
from mew_agent.compaction.summary import RejectedSummary
from mew_agent.context.measures import kept_reply_tokens
from mew_agent.context.policy import AnnounceNearLimit, Compact, Phase
from mew_agent.context.policy import compact_at_tokens as threshold_of
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.history import History, Item, Pin
from mew_agent.model.interface import Model, ModelReply, ModelRequest, ToolCall, ToolSpec, Window
from mew_agent.model_calls import CallInterrupted, Listener, ModelCaller
from mew_agent.participant import timestamp
from mew_agent.store import CallRecord, CallRole, Session, Store
from protocol.payloads import participant as wire
from protocol.payloads.participant import CompactDone, Status

logger = logging.getLogger("mew_agent.conversation")

CALL_BOUND_SECONDS = 30.0
"""How long a control waits for the running model call before it is cancelled."""

Announce = Callable[[str | None], Awaitable[None]]
Prepare = Callable[[], Awaitable[None]]


class Conversation:
    """See the module. `announce(word)` broadcasts the status of this moment; None: its own word."""

    def __init__(
        self,
        model: Model,
        tracker: Tracker,
        store: Store,
        *,
        system_prompt: str,
        tools: Callable[[], tuple[ToolSpec, ...]],
        announce: Announce,
        keep_newest_items: int | None = None,
        call_bound_seconds: float = CALL_BOUND_SECONDS,
    ) -> None:
        self.tracker = tracker
        self.store = store
        self.system_prompt = system_prompt
        self.answering_turn: int | None = None
        self.trouble: str | None = None
        """The status word of the failure of the newest call; None while calls succeed."""
        self._model = model
        self._caller = ModelCaller(model)
        self._tools = tools
        self._announce = announce
        self._keep_newest_items = keep_newest_items
        self._call_bound_seconds = call_bound_seconds
        self._lock = anyio.Lock()
        self._compacting = False
        self._latency_ms: int | None = None
        self._due: Compact | None = None
        self.compaction_problem: str | None = None
        """Why the newest compaction failed; None when it went well or there was nothing to take out."""

    @property
    def history(self) -> History:
        """The items in context."""
        return self.tracker.history

    # -- controls (see `control.Controllable`) -----------------------------------------------------------

    @property
    def is_compacting(self) -> bool:
        return self._compacting

    def status(self, word: str | None = None) -> Status:
        """The status of this moment. Its own word: compacting, else what troubles it, else active."""
        stalled = "compaction_stalled" if self.tracker.is_stalled else None
        own = "compacting" if self._compacting else self.trouble or stalled or "active"
        return self.tracker.status(word or own, self._latency_ms)

    async def compact(self, request: wire.Compact, requester: str) -> CompactDone:
        """Compact because somebody asked, at the next call bound."""
        if self._compacting:
            return self._skipped("compaction_in_progress")
        self._compacting = True
        try:
            async with self._between_calls():
                planned = self._plan(request.target_tokens)
                if isinstance(planned, Nothing):
                    return self._skipped(planned.reason)
                booked = (await self._carry_out(planned, "requested")).outcome
        except (ModelError, RejectedSummary, CallInterrupted) as error:
            return self._skipped(str(error))
        finally:
            self._compacting = False
        return CompactDone(
            status="compacted",
            skipped=False,
            freed_tokens=booked.freed_tokens,
            freed_messages=booked.freed_messages,
            tokens_before=booked.tokens_before,
            tokens_after=booked.tokens_after,
            max_tokens=self.tracker.window.max_tokens,
            basis=booked.basis,
        )

    def _skipped(self, reason: str) -> CompactDone:
        return CompactDone(
            status="skipped",
            skipped=True,
            reason=reason,
            tokens_before=self.tracker.tokens,
            tokens_after=self.tracker.tokens,
            max_tokens=self.tracker.window.max_tokens,
        )

    async def forget(self, request: wire.Forget) -> int:
        """Drop entries from one end, whole call/result pairs, never the turn being answered."""
        async with self._between_calls():
            return await self._forget(
                plan_forget(self.history, request.direction, request.entries, answering_turn=self.answering_turn)
            )

    async def clear(self) -> None:
        """Forget everything; a question being answered is heard anew before the next call."""
        async with self._between_calls():
            gone = [item.seq for item in self.history.items]
            self.history.clear()
            self.tracker.cleared()
            self._due = None
            await self._keep(evicted=gone)

    # -- what enters -------------------------------------------------------------------------------------

    async def announce(self, word: str | None = None) -> None:
        """Tell everybody the status of this moment."""
        await self._announce(word)

    async def load(self) -> None:
        """Take up a stored session, if there is one."""
        self._describe_prefix()
        session = await self.store.load()
        if session is None:
            return
        history = self.history
        history.items, history.summary = list(session.items), session.summary
        history.revision, history.next_seq, history.turn = session.revision, session.next_seq, session.turn
        self.tracker.restored(session.context)
        await self._mend_open_calls()

    def pin(self, pin: Pin) -> None:
        """Keep a text verbatim in every request."""
        self.history.pins.append(pin)

    async def begin_turn(self) -> int:
        """A question is going to be answered; older items beyond the configured length leave now."""
        limit = self._keep_newest_items
        if limit is not None and len(self.history) > limit:
            async with self._between_calls():
                await self._forget(plan_forget(self.history, "oldest", len(self.history) - limit))
        self.answering_turn = self.history.begin_turn()
        return self.answering_turn

    def end_turn(self) -> None:
        """The question is answered, or will not be."""
        self.answering_turn = None

    async def hear(self, text: str, *, sender: str, envelope_id: str) -> Item:
        """Something was said to us."""
        item = self.history.append("user", text, id=envelope_id, at=timestamp(), name=sender, envelope_id=envelope_id)
        return await self._enter(item)

    async def observe(self, call: ToolCall, result: str) -> Item:
        """A tool answered."""
        item = self.history.append("tool", result, id=str(uuid4()), at=timestamp(), tool_call_id=call.id)
        return await self._enter(item)

    async def close_open_calls(self, otherwise: str, results: Mapping[str, str] | None = None) -> None:
        """Give every open tool call its result by id, in the order of the calls; `otherwise` where there is none."""
        still_open = self.history.open_calls()
        for call in [call for item in self.history.items for call in item.tool_calls if call.id in still_open]:
            await self.observe(call, (results or {}).get(call.id, otherwise))

    async def withdraw_turn(self, turn: int) -> None:
        """Take a whole turn out again (a message that can never be sent must not poison all later requests)."""
        seqs = [item.seq for item in self.history.items if item.turn == turn]
        if seqs:
            async with self._between_calls():
                await self._forget((seqs[0], seqs[-1]))

    # -- calling the model -------------------------------------------------------------------------------

    async def call(self, listen: Listener, prepare: Prepare) -> ModelReply:
        """Make one main call with everything in context, and keep its reply.

        `prepare` puts the question into the history unless it is there; it is called again when no control can
        come between it and the request. Compacts first if the request would not fit; an overflow answer means
        compact and try once more. Raises a `ModelError`, after which figures and history are as before, or
        `CallInterrupted`.
        """
        await prepare()
        await self._count_if_close()
        await self._act(self.tracker.decide("pre_request", time.time()).actions)
        try:
            return await self._call_once(listen, prepare)
        except ModelError as error:
            if not self._is_overflow(error):
                raise
            await self._learn_window(error)
            if not await self._compact_by_itself(self._overflow_compaction()):
                raise
        return await self._call_once(listen, prepare)

    async def settle(self) -> None:
        """Do what the policy decided after the last call: before the next request, or when nothing waits any more."""
        if self._due is not None:
            await self._compact_by_itself(self._due)

    async def window_found(self, window: Window) -> None:
        """The server told how large its window is."""
        if window != self.tracker.window:
            self.tracker.window_changed(window)
            await self._decide("after_call")

    # -- inside: calls -----------------------------------------------------------------------------------

    async def _call_once(self, listen: Listener, prepare: Prepare) -> ModelReply:
        async with self._lock:
            await prepare()
            history = self.history
            tools, tools_text = self._describe_prefix()
            request = ModelRequest(history.request_messages(self.system_prompt), tools)
            last_seq, revision, call_id = history.last_seq, history.revision, str(uuid4())
            started = anyio.current_time()
            try:
                reply = self._with_own_ids(await self._caller.run(request, listen))
            except ModelError as error:
                self.trouble = error.status
                await self._record_failure(call_id, "main", revision, error)
                raise
            self.trouble = None
            self._latency_ms = round((anyio.current_time() - started) * 1000)
            self.tracker.call_kept(
                reply.usage,
                call_id=call_id,
                at=timestamp(),
                last_seq=last_seq,
                revision=revision,
                served_model=reply.served_model,
                fingerprint=_fingerprint(self.system_prompt, tools_text, history.pins),
            )
            item = self._append_reply(reply)
            record = CallRecord(
                call_id,
                "main",
                timestamp(),
                reply.served_model,
                revision,
                reply.usage,
                self._latency_ms,
                reply.finish_reason,
            )
            await self._keep(added=(item,), call=record)
        await self._decide("after_call")
        return reply

    async def _count_if_close(self) -> None:
        """Where the projection's error could decide, let the server count, if it can."""
        tools, _ = self._describe_prefix()
        if self.tracker.is_close_call:
            request = ModelRequest(self.history.request_messages(self.system_prompt), tools)
            tokens = await self._model.count_prompt(request)
            if tokens is not None:
                self.tracker.server_counted(tokens)

    def _describe_prefix(self) -> tuple[tuple[ToolSpec, ...], str]:
        """Tell the accounts what is sent beside the items now; returns the tools and their text."""
        tools = self._tools()
        tools_text = "".join(f"{tool.name}{tool.description}{tool.parameters}" for tool in tools)
        self.tracker.describe_prefix(self.system_prompt, tools_text)
        return tools, tools_text

    def _with_own_ids(self, reply: ModelReply) -> ModelReply:
        """Tool calls under ids that no other call of the history has: servers exist that count from 0 in each reply."""
        taken = {call.id for item in self.history.items for call in item.tool_calls}
        calls: list[ToolCall] = []
        for call in reply.tool_calls:
            new = call if call.id not in taken else replace(call, id=f"call_{uuid4().hex[:24]}")
            taken.add(new.id)
            calls.append(new)
        return replace(reply, tool_calls=tuple(calls))

    def _append_reply(self, reply: ModelReply) -> Item:
        thinking = bool(reply.reasoning_text)
        item = self.history.append(
            "assistant",
            reply.text,
            id=str(uuid4()),
            at=timestamp(),
            tool_calls=reply.tool_calls,
            known_tokens=kept_reply_tokens(reply.usage, thinking_seen=thinking),
            thinking=thinking,
        )
        self.tracker.reply_added(item)
        return item

    async def _summary_call(self, request: ModelRequest) -> ModelReply:
        """One summary call: recorded apart, it never moves the report."""
        call_id, started = str(uuid4()), anyio.current_time()
        revision = self.history.revision
        try:
            reply = await self._caller.run(request)
        except ModelError as error:
            await self._record_failure(call_id, "summary", revision, error)
            raise
        latency_ms = round((anyio.current_time() - started) * 1000)
        record = CallRecord(
            call_id,
            "summary",
            timestamp(),
            reply.served_model,
            revision,
            reply.usage,
            latency_ms,
            reply.finish_reason,
        )
        await self._keep(call=record)
        return reply

    async def _record_failure(self, call_id: str, role: CallRole, revision: int, error: ModelError) -> None:
        await self._keep(call=CallRecord(call_id, role, timestamp(), error.model, revision, failed=str(error)))

    def _is_overflow(self, error: ModelError) -> bool:
        """A named overflow, or a server that ends the stream before it began when the window is nearly full."""
        if isinstance(error, ContextOverflow):
            return True
        nearly_full = self.tracker.ledger.next_prompt_tokens * 10 >= self.tracker.window.max_tokens * 9
        return isinstance(error, ModelStreamCut) and error.chunks == 0 and nearly_full

    async def _learn_window(self, error: ModelError) -> None:
        if isinstance(error, ContextOverflow):
            self.tracker.window_changed(learn_from_overflow(self.tracker.window, error.limit_tokens))

    # -- inside: decisions and compaction ----------------------------------------------------------------

    async def _decide(self, phase: Phase) -> None:
        """Ask the policy after a call and tell everybody where we stand; a compaction waits for `settle`."""
        actions = self.tracker.decide(phase, time.time()).actions
        near = any(isinstance(action, AnnounceNearLimit) for action in actions)
        self._due = next((action for action in actions if isinstance(action, Compact)), None)
        cut = self.tracker.is_truncated_by_server
        await self._announce("near_limit" if near else "truncated_by_server" if cut else None)

    async def _act(self, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, Compact):
                await self._compact_by_itself(action)

    def _overflow_compaction(self) -> Compact:
        window = self.tracker.window.max_tokens
        present = self.tracker.ledger.next_prompt_tokens
        return Compact("overflow_error", min(window, present) // 2, window * 7 // 10)

    async def _compact_by_itself(self, action: Compact) -> bool:
        """Compact unasked, announced before and after. Returns whether anything changed; never raises for failures."""
        if self._compacting:
            async with self._lock:
                return True
        self._compacting = True
        self._due = None
        failure: Exception | None = None
        planned: Plan | Nothing | None = None
        try:
            async with self._lock:
                planned = self._plan(action.target_tokens)
                if isinstance(planned, Plan):
                    await self._announce("compacting")
                    await self._carry_out(planned, action.trigger)
        except (ModelError, RejectedSummary, CallInterrupted) as error:
            failure = error
        finally:
            self._compacting = False
        if isinstance(planned, Plan) and failure is None:
            await self._announce("compacted")
            if self.tracker.is_stalled:
                await self._announce("compaction_stalled:compacting does not free enough")
            return True
        problem = planned.reason if isinstance(planned, Nothing) else str(failure)
        self.compaction_problem = None if failure is None else problem
        logger.warning("a compaction (%s) changed nothing: %s", action.trigger, problem)
        self.tracker.compaction_failed(at_seconds=time.time())
        await self._keep()
        await self._announce(f"{'compaction_stalled' if self.tracker.is_stalled else 'compaction_failed'}:{problem}")
        return False

    def _plan(self, target_tokens: int | None) -> Plan | Nothing:
        ledger = self.tracker.ledger
        return plan(
            self.history,
            ledger.item_prices(),
            present_tokens=ledger.next_prompt_tokens,
            window_tokens=self.tracker.window.max_tokens,
            target_tokens=target_tokens,
            summary_tokens=ledger.summary_tokens,
            answering_turn=self.answering_turn,
        )

    async def _carry_out(self, planned: Plan, trigger: str) -> Compacted:
        """The caller holds the lock. Raises `ModelError` or `RejectedSummary`, and then nothing has changed."""
        tracker = self.tracker
        done = await carry_out(planned, tracker, self._summary_call, trigger=trigger)
        threshold = threshold_of(tracker.policy, tracker.window.max_tokens) or tracker.window.max_tokens
        progressed = done.outcome.freed_tokens > 0 and tracker.ledger.next_prompt_tokens < threshold
        tracker.compacted(done.outcome, at=timestamp(), at_seconds=time.time(), progressed=progressed)
        stubbed = {item.seq for item in done.stubbed}
        stubs = [item for item in self.history.items if item.seq in stubbed]
        self._due, self.compaction_problem = None, None
        await self._keep(evicted=[item.seq for item in done.evicted], replaced=stubs)
        return done

    async def _forget(self, span: tuple[int, int] | None) -> int:
        if span is None:
            return 0
        gone = self.history.evict(span[0], span[1], self.history.summary)
        self.tracker.cut(span[0], span[1], trigger="forget", freed_messages=len(gone))
        self._due = None
        await self._keep(evicted=[item.seq for item in gone])
        return len(gone)

    # -- inside: lock and store --------------------------------------------------------------------------

    @asynccontextmanager
    async def _between_calls(self) -> AsyncIterator[None]:
        """Hold the history between two calls; a call that runs past the bound is cancelled and made again later."""
        with anyio.move_on_after(self._call_bound_seconds) as wait:
            await self._lock.acquire()
        if wait.cancelled_caught:
            self._caller.interrupt()
            await self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    async def _enter(self, item: Item) -> Item:
        self.tracker.item_added(item)
        await self._keep(added=(item,))
        return item

    async def _mend_open_calls(self) -> None:
        """A process that died between a tool call and its result left a history no provider accepts."""
        await self.close_open_calls("[the agent restarted before this tool answered]")

    async def _keep(
        self,
        *,
        added: Sequence[Item] = (),
        call: CallRecord | None = None,
        evicted: Sequence[int] = (),
        replaced: Sequence[Item] = (),
    ) -> None:
        history = self.history
        session = Session(
            summary=history.summary,
            revision=history.revision,
            next_seq=history.next_seq,
            turn=history.turn,
            context=self.tracker.saved(),
        )
        await self.store.keep(session, added=added, call=call, evicted=evicted, replaced=replaced)


def _fingerprint(system_prompt: str, tools_text: str, pins: Sequence[Pin]) -> str:
    """Names everything that is sent beside the items; a change means that prompts are not comparable."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (system_prompt, tools_text, *(pin.text for pin in pins)):
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text.encode(errors="surrogatepass"))
    return digest.hexdigest()
