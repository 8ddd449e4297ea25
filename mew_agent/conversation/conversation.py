"""An agent's conversation with its model: turns, calls, and the controls of peers.

Owns the rule that the history changes only between model calls: a call holds the lock, a control waits for it and,
past a bound, cancels the call. What the policy says about it all is the matter of `decisions`. It knows nothing of
chats, reasoning envelopes or who asked.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mew_protocol.payloads import participant as wire
from mew_protocol.payloads.participant import CompactDone, Status

from mew_agent.context.history import History, Pin
from mew_agent.context.message_counts import Compression
from mew_agent.context.policy import GenerationFlags
from mew_agent.context.policy.threshold import Fraction
from mew_agent.context.store import CallRole, Store
from mew_agent.context.tracker import Tracker
from mew_agent.conversation import texts
from mew_agent.conversation.calls import NO_WINDOWS, Calls
from mew_agent.conversation.compactions import Announce, CompactionRunner
from mew_agent.conversation.context_tools import ContextTools
from mew_agent.conversation.decisions import FOR_A_PERSON, Decisions, ReplyStopped
from mew_agent.conversation.events import Events
from mew_agent.conversation.history_lock import HistoryLock
from mew_agent.conversation.model_calls import Listener
from mew_agent.conversation.notices import Notify, ignore_notice
from mew_agent.conversation.overflow import is_overflow, learn_window, overflow_compaction
from mew_agent.conversation.policy_executor import Remedies
from mew_agent.conversation.tool_results import ToolResults
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import ModelError, ToolsUnsupported
from mew_agent.model.interface import Model, ModelReply, ModelRequest, ToolCall, ToolSpec, Window
from mew_agent.tokens.sizes import Sizes, no_counter
from mew_agent.tokens.tokenizers import TextCounter
from mew_agent.tools.bounds import ResultBound
from mew_agent.tools.results import ToolResult

logger = logging.getLogger("mew_agent.conversation.conversation")

CALL_BOUND_SECONDS = 30.0
"""How long a control waits for the running model call before it is cancelled."""

Prepare = Callable[[], Awaitable[None]]


class Conversation:
    """See the module. `announce(word)` broadcasts the status of this moment; None: its own word.

    `transcript` holds what is in context; only what enters may be written to it from outside. `summariser` writes
    summaries; None: the model itself. `load_counter` gets the model's tokenizer, if there is one; it is called once, in
    a thread. `windows` are those of models that may answer in place of the one asked for.
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
        self._calls = Calls(
            model,
            self.transcript,
            system_prompt=system_prompt,
            tools=tools,
            note=lambda: self.remedies.note,
            summariser=summariser,
            windows=windows,
        )
        self._keep_newest_items = keep_newest_items
        self._lock = HistoryLock(self._calls.interrupt, call_bound_seconds)
        self._compactions = CompactionRunner(
            self.transcript, self._lock.lock, self._calls.summary, announce, self.events
        )
        self._decisions = Decisions(self.transcript, self.remedies, self._compactions, self._lock, announce)
        self._results = ToolResults(self.transcript, self.remedies, self._decisions.compact)
        self._calls_in_turn = 0
        self._is_upkeep = False

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
        if not self._lock.lock.locked():
            self._calls.describe_prefix()  # peers' tools come and go between two calls
        stalled = "compaction_stalled" if self.tracker.is_stalled else None
        own = "compacting" if self.is_compacting else self.trouble or stalled or "active"
        return self.tracker.status(word or own, self._calls.latency_ms)

    async def compact(self, request: wire.Compact, requester: str) -> CompactDone:
        """Compact because somebody asked, at the next call bound."""
        done = await self._compactions.requested(request.target_tokens, self._lock.between_calls)
        if not done.skipped:
            self._decisions.drop_compaction()
        return done

    async def compress_to(self, part: Fraction) -> Compression:
        """Drop the oldest turns until at most this part of the window is used; the answer says by how much not."""
        self._decisions.drop_compaction()
        return await self._compactions.drop_to(part.floor_of(self.tracker.window.max_tokens), self._lock.between_calls)

    async def forget(self, request: wire.Forget) -> int:
        """Drop entries from one end, whole call/result pairs, never the turn being answered."""
        async with self._lock.between_calls():
            gone = await self.transcript.forget(request.direction, request.entries)
            if gone:
                self._decisions.drop_compaction()
            return gone

    async def clear(self) -> None:
        """Forget everything but reminders; a question being answered is heard anew before the next call."""
        async with self._lock.between_calls():
            await self._decisions.clear(None)

    # -- turns -------------------------------------------------------------------------------------------

    async def announce(self, word: str | None = None) -> None:
        """Tell everybody the status of this moment; `word` replaces its own word for what it is doing."""
        await self._decisions.announce(word)

    async def load(self) -> None:
        """Take up a stored session, if there is one."""
        self._calls.describe_prefix()
        await self.transcript.load()
        self.remedies.restored()

    def pin(self, pin: Pin) -> None:
        """Keep a text verbatim in every request."""
        self.transcript.pin(pin)

    async def begin_turn(self, notify: Notify = ignore_notice, *, is_upkeep: bool = False) -> int:
        """A question is going to be answered; older items beyond the configured length leave now.

        `notify` hears what people who watch the reply should see. `is_upkeep`: nobody asked, the model puts its own
        context in order.
        """
        await self.settle()
        limit = self._keep_newest_items
        if limit is not None and len(self.history) > limit:
            async with self._lock.between_calls():
                await self.transcript.forget("oldest", len(self.history) - limit)
                self._decisions.drop_compaction()
        self._calls_in_turn, self._is_upkeep = 0, is_upkeep
        self._decisions.notify = notify
        self.transcript.answering_turn = self.history.begin_turn()
        return self.transcript.answering_turn

    def end_turn(self) -> None:
        """The question is answered, or will not be."""
        self.transcript.answering_turn = None
        self._is_upkeep = False
        self._decisions.notify = ignore_notice

    async def withdraw_turn(self, turn: int) -> None:
        """Take a whole turn out again (a message that can never be sent must not poison all later requests)."""
        span = self.transcript.span_of_turn(turn)
        if span is not None:
            async with self._lock.between_calls():
                self._decisions.drop_compaction()
                await self.transcript.remove(span)

    async def wants_upkeep(self) -> bool:
        """Whether a prompt waits for a generation that is not for a person. If so it enters with the next call."""
        return await self._decisions.wants_upkeep()

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
            if await self._decisions.before_request(is_chained=self._calls_in_turn > 0):
                await self._enter(prepare)
            try:
                return await self._call_fitting(listen, prepare)
            except ReplyStopped as stopped:
                await self._decisions.after_stop(stopped)

    async def aside(self, request: ModelRequest, role: CallRole) -> ModelReply:
        """Ask the model something beside the conversation, between calls; recorded apart, no figure moves."""
        async with self._lock.lock:
            return await self._calls.aside(request, role)

    async def weigh_results(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> None:
        """Decide what becomes of the results of one reply's calls before they enter; changes `results` in place.

        Raises `PolicyStopped` when the reply cannot go on with them.
        """
        self._results.withhold(calls, results)
        if self.context_tools.verdict(calls, results):
            self.remedies.plan_clear(texts.CLEARED_ITSELF)
        await self._results.fit(calls, results)

    async def settle(self) -> None:
        """Do what was decided after the last call: before the next request, or when nothing waits any more."""
        await self._decisions.settle()

    async def window_found(self, window: Window) -> None:
        """The server told how large its window is."""
        if window != self.tracker.window:
            self.tracker.window_changed(window)
            await self._decisions.after_call(FOR_A_PERSON)

    # -- inside ------------------------------------------------------------------------------------------

    async def _enter(self, prepare: Prepare) -> None:
        await self.remedies.enter_notices()
        await prepare()

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
            if not await self._decisions.compact(overflow_compaction(self.tracker)):
                raise
        return await self._call_once(listen, prepare)

    async def _call_once(self, listen: Listener, prepare: Prepare) -> ModelReply:
        async with self._lock.lock:
            await prepare()
            reply = await self._calls.main(self._decisions.watching(listen))
        self._calls_in_turn += 1
        chained = bool(reply.tool_calls)
        flags = GenerationFlags(user_chain=chained and not self._is_upkeep, user_prompt=not chained)
        await self._decisions.after_call(flags)
        return reply
