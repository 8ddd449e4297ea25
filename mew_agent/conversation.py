"""An agent's conversation with its model: calls, what the policy decides about them, and the controls of peers.

Owns the rule that the history changes only between model calls: a call holds the lock, a control waits for it and,
past a bound, cancels the call. It speaks to the space only through the `announce` it is given, and knows nothing
of chats, reasoning envelopes or who asked.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import anyio

from mew_agent.compaction.runner import Announce, CompactionRunner
from mew_agent.context.policy import AnnounceNearLimit, Compact, Phase
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import learn_from_overflow
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.history import History, Pin
from mew_agent.model.interface import Model, ModelReply, ModelRequest, ToolCall, ToolSpec, Window
from mew_agent.model_calls import Listener, ModelCaller
from mew_agent.participant import timestamp
from mew_agent.store import CallRecord, CallRole, Store
from mew_agent.transcript import Transcript
from protocol.payloads import participant as wire
from protocol.payloads.participant import CompactDone, Status

CALL_BOUND_SECONDS = 30.0
"""How long a control waits for the running model call before it is cancelled."""

Prepare = Callable[[], Awaitable[None]]


class Conversation:
    """See the module. `announce(word)` broadcasts the status of this moment; None: its own word.

    `transcript` holds what is in context; only what enters may be written to it from outside.
    """

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
        self.transcript = Transcript(tracker, store)
        self.tracker = tracker
        self.system_prompt = system_prompt
        self.trouble: str | None = None
        """The status word of the failure of the newest call; None while calls succeed."""
        self._model = model
        self._caller = ModelCaller(model)
        self._tools = tools
        self._announce = announce
        self._keep_newest_items = keep_newest_items
        self._call_bound_seconds = call_bound_seconds
        self._lock = anyio.Lock()
        self._compactions = CompactionRunner(self.transcript, self._lock, self._summary_call, announce)
        self._latency_ms: int | None = None
        self._due: Compact | None = None

    @property
    def history(self) -> History:
        """The items in context."""
        return self.tracker.history

    @property
    def compaction_problem(self) -> str | None:
        """Why the newest compaction failed; None when it went well or there was nothing to take out."""
        return self._compactions.problem

    # -- controls (see `control.Controllable`) -----------------------------------------------------------

    @property
    def is_compacting(self) -> bool:
        return self._compactions.is_running

    def status(self, word: str | None = None) -> Status:
        """The status of this moment. Its own word: compacting, else what troubles it, else active."""
        stalled = "compaction_stalled" if self.tracker.is_stalled else None
        own = "compacting" if self.is_compacting else self.trouble or stalled or "active"
        return self.tracker.status(word or own, self._latency_ms)

    async def compact(self, request: wire.Compact, requester: str) -> CompactDone:
        """Compact because somebody asked, at the next call bound."""
        done = await self._compactions.requested(request.target_tokens, self._between_calls)
        if not done.skipped:
            self._due = None
        return done

    async def forget(self, request: wire.Forget) -> int:
        """Drop entries from one end, whole call/result pairs, never the turn being answered."""
        async with self._between_calls():
            gone = await self.transcript.forget(request.direction, request.entries)
            self._due = None if gone else self._due
            return gone

    async def clear(self) -> None:
        """Forget everything; a question being answered is heard anew before the next call."""
        async with self._between_calls():
            self._due = None
            await self.transcript.clear()

    # -- turns -------------------------------------------------------------------------------------------

    async def announce(self, word: str | None = None) -> None:
        """Tell everybody the status of this moment."""
        await self._announce(word)

    async def load(self) -> None:
        """Take up a stored session, if there is one."""
        self._describe_prefix()
        await self.transcript.load()

    def pin(self, pin: Pin) -> None:
        """Keep a text verbatim in every request."""
        self.transcript.pin(pin)

    async def begin_turn(self) -> int:
        """A question is going to be answered; older items beyond the configured length leave now."""
        limit = self._keep_newest_items
        if limit is not None and len(self.history) > limit:
            async with self._between_calls():
                await self.transcript.forget("oldest", len(self.history) - limit)
                self._due = None
        self.transcript.answering_turn = self.history.begin_turn()
        return self.transcript.answering_turn

    def end_turn(self) -> None:
        """The question is answered, or will not be."""
        self.transcript.answering_turn = None

    async def withdraw_turn(self, turn: int) -> None:
        """Take a whole turn out again (a message that can never be sent must not poison all later requests)."""
        span = self.transcript.span_of_turn(turn)
        if span is not None:
            async with self._between_calls():
                self._due = None
                await self.transcript.remove(span)

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
            self._latency_ms = _milliseconds_since(started)
            self.tracker.call_kept(
                reply.usage,
                call_id=call_id,
                at=timestamp(),
                last_seq=last_seq,
                revision=revision,
                served_model=reply.served_model,
                fingerprint=_fingerprint(self.system_prompt, tools_text, history.pins),
            )
            await self.transcript.add_reply(reply, _record(call_id, "main", revision, reply, self._latency_ms))
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

    async def _summary_call(self, request: ModelRequest) -> ModelReply:
        """One summary call: recorded apart, it never moves the report."""
        call_id, started = str(uuid4()), anyio.current_time()
        revision = self.history.revision
        try:
            reply = await self._caller.run(request)
        except ModelError as error:
            await self._record_failure(call_id, "summary", revision, error)
            raise
        await self.transcript.keep(call=_record(call_id, "summary", revision, reply, _milliseconds_since(started)))
        return reply

    async def _record_failure(self, call_id: str, role: CallRole, revision: int, error: ModelError) -> None:
        record = CallRecord(call_id, role, timestamp(), error.model, revision, failed=str(error))
        await self.transcript.keep(call=record)

    def _is_overflow(self, error: ModelError) -> bool:
        """A named overflow, or a server that ends the stream before it began when the window is nearly full."""
        if isinstance(error, ContextOverflow):
            return True
        nearly_full = self.tracker.ledger.next_prompt_tokens * 10 >= self.tracker.window.max_tokens * 9
        return isinstance(error, ModelStreamCut) and error.chunks == 0 and nearly_full

    async def _learn_window(self, error: ModelError) -> None:
        if isinstance(error, ContextOverflow):
            self.tracker.window_changed(learn_from_overflow(self.tracker.window, error.limit_tokens))

    # -- inside: decisions -------------------------------------------------------------------------------

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

    async def _compact_by_itself(self, action: Compact) -> bool:
        if not self.is_compacting:
            self._due = None
        return await self._compactions.by_itself(action)

    def _overflow_compaction(self) -> Compact:
        window = self.tracker.window.max_tokens
        present = self.tracker.ledger.next_prompt_tokens
        return Compact("overflow_error", min(window, present) // 2, window * 7 // 10)

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


def _record(call_id: str, role: CallRole, revision: int, reply: ModelReply, latency_ms: int) -> CallRecord:
    return CallRecord(
        call_id, role, timestamp(), reply.served_model, revision, reply.usage, latency_ms, reply.finish_reason
    )


def _milliseconds_since(started: float) -> int:
    return round((anyio.current_time() - started) * 1000)


def _fingerprint(system_prompt: str, tools_text: str, pins: Sequence[Pin]) -> str:
    """Names everything that is sent beside the items; a change means that prompts are not comparable."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (system_prompt, tools_text, *(pin.text for pin in pins)):
        digest.update(len(text).to_bytes(8, "big"))
        digest.update(text.encode(errors="surrogatepass"))
    return digest.hexdigest()
