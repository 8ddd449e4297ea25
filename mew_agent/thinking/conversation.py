"""An agent's conversation with its model: calls, what the policy decides about them, and the controls of peers.

Owns the rule that the history changes only between model calls: a call holds the lock, a control waits for it and,
past a bound, cancels the call. It speaks to the space only through the `announce` it is given, and knows nothing
of chats, reasoning envelopes or who asked.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from mew_agent.agent_tools.bounds import ResultBound
from mew_agent.compaction.runner import Announce, CompactionRunner
from mew_agent.context.message_counts import Compression
from mew_agent.context.policy import Abort, Compact, Error, Flags, Phase
from mew_agent.context.policy.threshold import Fraction
from mew_agent.context.tracker import Tracker
from mew_agent.errors import MewAgentError, ModelError, PolicyStopped, ToolsUnsupported
from mew_agent.history import History, Pin
from mew_agent.model.interface import (
    Model,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolSpec,
    Window,
)
from mew_agent.remedies import texts
from mew_agent.remedies.advice import Advice
from mew_agent.remedies.carrying import Due, Remedies
from mew_agent.remedies.context_tools import ContextTools
from mew_agent.remedies.events import ContextCleared, Events
from mew_agent.remedies.notices import Notice, Notify, ignore_notice
from mew_agent.remedies.stream_watch import StreamWatch
from mew_agent.remedies.tool_results import ToolResults, halved
from mew_agent.store import CallRole, Store
from mew_agent.thinking.calls import NO_WINDOWS, Calls
from mew_agent.thinking.history_lock import HistoryLock
from mew_agent.thinking.model_calls import Listener
from mew_agent.thinking.overflow import is_overflow, learn_window, overflow_compaction
from mew_agent.thinking.sizes import Sizes, no_counter
from mew_agent.thinking.transcript import Transcript
from mew_agent.tokenizers import TextCounter
from protocol.payloads import participant as wire
from protocol.payloads.participant import CompactDone, Status

logger = logging.getLogger("mew_agent.thinking.conversation")

CALL_BOUND_SECONDS = 30.0
"""How long a control waits for the running model call before it is cancelled."""

Prepare = Callable[[], Awaitable[None]]

_FOR_A_PERSON = Flags(user_prompt=True)
"""Unless a reply asks for tools, the next generation is for whatever somebody says next."""


@dataclass(eq=False)
class _ReplyStopped(MewAgentError):
    """The policy stopped a running reply, at so many projected tokens."""

    due: Due
    tokens: int

    def __str__(self) -> str:
        return f"stopped by the policy when the context held about {self.tokens:,} tokens"


class Conversation:
    """See the module. `announce(word)` broadcasts the status of this moment; None: its own word.

    `transcript` holds what is in context; only what enters may be written to it from outside. `notify` hears what
    people who watch the reply should see. `summariser` writes summaries; None: the model itself.
    `load_counter` gets the model's tokenizer, if there is one; it is called once, in a thread.
    `windows` are those of models that may answer in place of the one asked for.
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
        summariser: Model | None = None,
        result_bound: ResultBound | None = None,
        load_counter: Callable[[], TextCounter | None] = no_counter,
        windows: Mapping[str, int] = NO_WINDOWS,
    ) -> None:
        self.transcript = Transcript(tracker, store, result_bound, Sizes(load_counter))
        self.tracker = tracker
        self.events = Events()
        self.remedies = Remedies(self.transcript, self.events)
        self.context_tools = ContextTools(self.remedies)
        self.notify: Notify = ignore_notice
        self._advice = Advice(tracker)
        self._calls = Calls(
            model,
            self.transcript,
            system_prompt=system_prompt,
            tools=tools,
            note=lambda: self.remedies.note,
            summariser=summariser,
            windows=windows,
        )
        self._announce = announce
        self._keep_newest_items = keep_newest_items
        self._lock = HistoryLock(self._calls.interrupt, call_bound_seconds)
        self._compactions = CompactionRunner(
            self.transcript, self._lock.lock, self._calls.summary, announce, self.events
        )
        self._results = ToolResults(self.transcript, self.remedies, self._compact)
        self._due: Compact | None = None
        self._calls_in_turn = 0
        self._is_upkeep = False
        if tracker.policy.counts_messages:
            self.transcript.on_entered = self._message_added

    @property
    def history(self) -> History:
        """The items in context."""
        return self.tracker.history

    @property
    def trouble(self) -> str | None:
        """The status word of the failure of the newest call; None while calls succeed."""
        return self._calls.trouble

    @property
    def lacks_window(self) -> bool:
        """Whether the policy cannot work, because nobody told how large the window is."""
        return self.tracker.limit_tokens is None and self.tracker.policy.limit_missing == "error"

    @property
    def takes_tools(self) -> bool:
        """False once the model's server has refused requests that offer tools."""
        return self._calls.takes_tools

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
        return self.tracker.status(word or own, self._calls.latency_ms)

    async def compact(self, request: wire.Compact, requester: str) -> CompactDone:
        """Compact because somebody asked, at the next call bound."""
        done = await self._compactions.requested(request.target_tokens, self._lock.between_calls)
        if not done.skipped:
            self._due = None
        return done

    async def compress_to(self, part: Fraction) -> Compression:
        """Drop the oldest turns until at most this part of the window is used; the answer says by how much not."""
        self._due = None
        return await self._compactions.drop_to(part.of(self.tracker.window.max_tokens), self._lock.between_calls)

    async def forget(self, request: wire.Forget) -> int:
        """Drop entries from one end, whole call/result pairs, never the turn being answered."""
        async with self._lock.between_calls():
            gone = await self.transcript.forget(request.direction, request.entries)
            self._due = None if gone else self._due
            return gone

    async def clear(self) -> None:
        """Forget everything but reminders; a question being answered is heard anew before the next call."""
        async with self._lock.between_calls():
            await self._forget_everything(None)

    # -- turns -------------------------------------------------------------------------------------------

    async def announce(self, word: str | None = None) -> None:
        """Tell everybody the status of this moment."""
        self.remedies.note_level()
        await self._announce(word)

    async def load(self) -> None:
        """Take up a stored session, if there is one."""
        self._calls.describe_prefix()
        await self.transcript.load()
        self.remedies.restored()

    def pin(self, pin: Pin) -> None:
        """Keep a text verbatim in every request."""
        self.transcript.pin(pin)

    async def begin_turn(self, *, is_upkeep: bool = False) -> int:
        """A question is going to be answered; older items beyond the configured length leave now.

        `is_upkeep`: nobody asked, the model puts its own context in order.
        """
        await self.settle()
        limit = self._keep_newest_items
        if limit is not None and len(self.history) > limit:
            async with self._lock.between_calls():
                await self.transcript.forget("oldest", len(self.history) - limit)
                self._due = None
        self._calls_in_turn, self._is_upkeep = 0, is_upkeep
        self.transcript.answering_turn = self.history.begin_turn()
        return self.transcript.answering_turn

    def end_turn(self) -> None:
        """The question is answered, or will not be."""
        self.transcript.answering_turn = None
        self._is_upkeep = False
        self.notify = ignore_notice

    async def withdraw_turn(self, turn: int) -> None:
        """Take a whole turn out again (a message that can never be sent must not poison all later requests)."""
        span = self.transcript.span_of_turn(turn)
        if span is not None:
            async with self._lock.between_calls():
                self._due = None
                await self.transcript.remove(span)

    async def wants_upkeep(self) -> bool:
        """Whether a prompt waits for a generation that is not for a person. If so it enters with the next call."""
        state, waiting = self.tracker.policy_state, self.remedies.notices
        if not state.due or state.prompted or self.tracker.basis != "reported":
            return False
        await self._decide("after_call", Flags())
        return self.remedies.notices != waiting

    # -- calling the model -------------------------------------------------------------------------------

    async def call(self, listen: Listener, prepare: Prepare) -> ModelReply:
        """Make one main call with everything in context, and keep its reply.

        `prepare` puts the question into the history unless it is there; it is called again when no control can
        come between it and the request. Compacts first if the request would not fit; an overflow answer means
        compact and try once more; a reply that the policy stops begins again as often as it allows. Raises a
        `ModelError`, after which figures and history are as before, `PolicyStopped`, or `CallInterrupted`.
        """
        await self._enter(prepare)
        await self._calls.count_if_close()
        while True:
            await self._before_request(prepare)
            try:
                return await self._call_fitting(listen, prepare)
            except _ReplyStopped as stopped:
                await self._after_stop(stopped)

    async def aside(self, request: ModelRequest, role: CallRole) -> ModelReply:
        """Ask the model something beside the conversation, between calls; recorded apart, no figure moves."""
        async with self._lock.lock:
            return await self._calls.aside(request, role)

    async def weigh_results(self, calls: Sequence[ToolCall], results: dict[str, str]) -> None:
        """Decide what becomes of the results of one reply's calls before they enter; changes `results` in place.

        Raises `PolicyStopped` when the reply cannot go on with them.
        """
        self._results.withhold(calls, results)
        if self.context_tools.verdict(calls, results):
            self.remedies.plan_clear(texts.CLEARED_ITSELF)
        await self._results.fit(calls, results)

    async def settle(self) -> None:
        """Do what was decided after the last call: before the next request, or when nothing waits any more."""
        reason = self.remedies.planned_clear
        if reason is not None:
            async with self._lock.between_calls():
                await self._forget_everything(reason)
            await self.announce(f"cleared:{reason}")
        elif self._due is not None:
            await self._compact(self._due)

    async def window_found(self, window: Window) -> None:
        """The server told how large its window is."""
        if window != self.tracker.window:
            self.tracker.window_changed(window)
            await self._decide("after_call", _FOR_A_PERSON)

    # -- inside: calls -----------------------------------------------------------------------------------

    async def _enter(self, prepare: Prepare) -> None:
        await self.remedies.enter_notices()
        await prepare()

    async def _before_request(self, prepare: Prepare) -> None:
        flags = Flags(user_chain=self._calls_in_turn > 0)
        due = self.remedies.carry_out(self.tracker.decide("pre_request", time.time(), flags).actions)
        await self._announce_words(due)
        if due.stop is not None:
            raise PolicyStopped(self.tracker.policy.name, await self._stopped(due.stop))
        if self.remedies.planned_clear is not None:
            await self.settle()
            await self._enter(prepare)
        elif due.compact is not None:
            await self._compact(due.compact)

    async def _call_fitting(self, listen: Listener, prepare: Prepare) -> ModelReply:
        try:
            return await self._call_once(listen, prepare)
        except ToolsUnsupported as error:
            if not self.takes_tools:
                raise
            self._calls.takes_tools = False
            logger.warning("%s; going on without tools", error)
            await self.announce(error.status)
        except ModelError as error:
            if not is_overflow(error, self.tracker):
                raise
            learn_window(error, self.tracker)
            if not await self._compact(overflow_compaction(self.tracker)):
                raise
        return await self._call_once(listen, prepare)

    async def _call_once(self, listen: Listener, prepare: Prepare) -> ModelReply:
        async with self._lock.lock:
            await prepare()
            reply = await self._calls.main(self._watched(listen))
        self._calls_in_turn += 1
        chained = bool(reply.tool_calls)
        flags = Flags(user_chain=chained and not self._is_upkeep, user_prompt=not chained)
        await self._decide("after_call", flags)
        return reply

    def _watched(self, listen: Listener) -> Listener:
        """The listener, and behind it the policy, if that looks at running replies. Raises `_ReplyStopped`."""
        policy = self.tracker.policy
        if "stream" not in policy.phases and "stream" not in policy.grouped.interventions:
            return listen
        limit = self.tracker.limit_tokens
        watch = StreamWatch(self.tracker.next_prompt_tokens, limit, self.tracker.ledger.calibration)

        async def hear(event: ModelEvent) -> None:
            await listen(event)
            if isinstance(event, TextDelta | ReasoningDelta):
                tokens = watch.arrived(event.text)
                if watch.is_worth_showing(tokens):
                    await self.notify(Notice("size", tokens=tokens, max_tokens=limit, basis="projected"))
                await self._decide_in_stream(tokens)

        return hear

    async def _decide_in_stream(self, tokens: int) -> None:
        actions = self.tracker.decide_while("stream", tokens).actions
        if not actions:
            return
        due = self.remedies.carry_out(actions)
        await self._announce_words(due)
        if due.stop is not None or due.restart is not None:
            raise _ReplyStopped(due, tokens)
        self._due = due.compact or self._due

    async def _after_stop(self, stopped: _ReplyStopped) -> None:
        """Compact, so that the reply can begin again, or give up."""
        stop = stopped.due.stop
        if stop is not None:
            problem = await self._stopped(stop, stopped.tokens, "projected")
            raise PolicyStopped(self.tracker.policy.name, problem)
        if stopped.due.compact is not None:
            await self._compact(halved(stopped.due.compact, self.tracker.next_prompt_tokens))

    # -- inside: decisions -------------------------------------------------------------------------------

    async def _decide(self, phase: Phase, flags: Flags) -> None:
        """Ask the policy after a call and tell everybody where we stand; interventions wait for `settle`."""
        before = (self.tracker.policy_state, self.transcript.standing)
        self._advice.renew()
        due = self.remedies.carry_out(self.tracker.decide(phase, time.time(), flags).actions)
        self._due = due.compact
        if due.stop is not None:
            due.words.append(f"policy_stopped:{await self._stopped(due.stop)}")
        if before != (self.tracker.policy_state, self.transcript.standing):
            await self.transcript.keep()
        if not due.words and self.tracker.is_truncated_by_server:
            due.words.append("truncated_by_server")
        if not due.words:
            await self.announce()
        await self._announce_words(due)

    async def _message_added(self) -> None:
        """A policy that counts messages looks at each one that enters; what it decides waits for `settle`."""
        self._advice.renew()
        due = self.remedies.carry_out(self.tracker.decide("message_added", time.time()).actions)
        self._due = due.compact or self._due
        await self._announce_words(due)

    async def _announce_words(self, due: Due) -> None:
        for word in due.words:
            await self.announce(word)

    async def _stopped(self, stop: Abort | Error, used_tokens: int | None = None, basis: str = "reported") -> str:
        """Tell that the policy stopped a reply; returns why, with the figures where it is the window that is full."""
        if isinstance(stop, Error):
            logger.warning("the context policy '%s' says: %s", self.tracker.policy.name, stop.problem)
            return stop.problem
        used = self.remedies.fullness.used_tokens if used_tokens is None else used_tokens
        limit = self.tracker.limit_tokens
        logger.warning("%s: %s of %s tokens, %s", stop.reason, used, limit, basis)
        text = texts.aborted(used, limit, basis)
        await self.notify(Notice("aborted", text, tokens=used, max_tokens=limit, basis=basis))
        return f"{stop.reason} ({texts.of_window(used, limit, basis)})"

    async def _compact(self, action: Compact) -> bool:
        """Compact unasked; who watches a reply of a policy that stops replies sees it begin and end."""
        if not self.is_compacting:
            self._due = None
        shows = "stream" in self.tracker.policy.grouped.interventions
        if shows:
            await self.notify(Notice("compacting", texts.COMPACTING))
        changed = await self._compactions.by_itself(action)
        self.remedies.note_level()
        if shows and changed:
            await self.notify(Notice("compacted", texts.COMPACTED))
        elif shows:
            problem = self.compaction_problem or "nothing can be taken out"
            await self.notify(Notice("not_compacted", texts.NOT_COMPACTED.format(problem=problem)))
        return changed

    async def _forget_everything(self, reason: str | None) -> None:
        """The caller holds the history between two calls. A `reason` of our own is told to the model, too."""
        tokens = self.tracker.tokens
        self._due = None
        await self.transcript.clear()
        self.remedies.new_course(reason)
        await self.transcript.keep()
        self.events.tell(ContextCleared(tokens, reason))
