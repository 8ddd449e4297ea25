"""An agent's conversation with its model: turns, calls, controls, and the decisions of its policy.

Owns their order. Does not know chats, reasoning envelopes or the senders of controls.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, assert_never

import anyio.to_thread
from mew_protocol.payloads import participant as wire
from mew_protocol.payloads.participant import CompactDone, PrefixPart, Status
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.compaction.approval import CompactionDecision
from mew_agent.compaction.planner import CompactionPlan, NothingToDo
from mew_agent.context.archive import ITSELF, Origin
from mew_agent.context.policy import CompactAction, CompactionMethod, GenerationFlags, withheld_at
from mew_agent.context.policy import actions as acts
from mew_agent.context.policy.threshold import Fraction
from mew_agent.context.preamble import prefix_parts
from mew_agent.context.sqlite_store import Store
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import Compression, learn_from_overflow
from mew_agent.conversation import compactions, conversation_events, fit, texts
from mew_agent.conversation.compactions import halved, is_overflow, overflow_compaction
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.context_tools import ContextTools
from mew_agent.conversation.conversation_archive import ContextArchive
from mew_agent.conversation.conversation_events import (
    ConversationEvent,
    RedlineApproached,
    RedlineCrossed,
    ReplyNotice,
    SavingSuggested,
)
from mew_agent.conversation.message_forms import ContextReceipts
from mew_agent.conversation.model_calls import CallInterrupted, ConversationOptions, ModelCalls, ReplyListener
from mew_agent.errors import ContextOverflow, MewAgentError, ModelError, PolicyStopped, ToolsUnsupported
from mew_agent.model.interface import Model, ModelEvent, ModelReply, ReasoningDelta, TextDelta, ToolCall, Window
from mew_agent.participant.compaction_driver import (
    IN_PROGRESS,
    NOT_NEEDED,
    Begun,
    CompactionDriver,
    Requester,
    no_news,
)
from mew_agent.participant.controls import waiting_status
from mew_agent.participant.messenger import timestamp
from mew_agent.tokens.projection import StreamProjection
from mew_agent.tokens.sizes import Sizes
from mew_agent.tools.results import ToolResult

logger = logging.getLogger("mew_agent.conversation.conversation")

COUNT_PART = 20
"""The server counts again when 1/20 of the window is only projected, or where the policy would act."""

FEWEST_TOKENS = 16
"""Where the policy would act on fewer projected tokens than these, the server does not count again."""

MAX_COUNTS = 40
"""Limit of counts for one reply."""

CountText = Callable[[str], Awaitable[int | None]]
ReplySizeBasis = Literal["server_counted", "projected"]
Decide = Callable[[int, int, ReplySizeBasis], Awaitable[None]]


class ReplyWatch:
    """Follows one reply. After each piece of text, `decide` gets the size, the largest likely size, and the basis.

    `count_text` asks the server for the tokens of a text; it returns None if the server cannot count.
    """

    def __init__(self, listener: ReplyListener, state: ContextState, count_text: CountText, decide: Decide) -> None:
        tracker = state.tracker
        self._listener, self._events, self._count_text, self._decide = listener, state.events, count_text, decide
        self._limit_tokens = tracker.limit_tokens
        self._prompt_tokens = self._counted_tokens = tracker.ledger.next_prompt_tokens
        self._projection = StreamProjection(
            self._prompt_tokens, self._limit_tokens, tracker.ledger.calibration, state.sizes.count
        )
        self._acts_at_tokens = tracker.policy.acts_at_tokens("stream", self._limit_tokens)
        self._pieces: list[str] = []
        self._counts_left = MAX_COUNTS

    async def receive(self, event: ModelEvent) -> None:
        """Pass an event on, and follow its text. Raises the errors of `decide`."""
        await self._listener(event)
        if not isinstance(event, TextDelta | ReasoningDelta):
            return
        self._pieces.append(event.text)
        tokens = self._projection.add(event.text)
        basis: ReplySizeBasis = "projected"
        if self._is_count_due(tokens) and await self._count():
            tokens, basis = self._counted_tokens, "server_counted"
        if self._projection.crosses_step(tokens):
            notice = conversation_events.ReplyNotice("size", tokens=tokens, max_tokens=self._limit_tokens, basis=basis)
            await self._events.emit(notice)
        await self._decide(tokens, self._projection.likely_most_tokens, basis)

    def _is_count_due(self, tokens: int) -> bool:
        most = self._projection.likely_most_tokens
        if self._limit_tokens is None or not self._counts_left or most == tokens:  # a tokenizer counts already
            return False
        projected = most - self._counted_tokens
        acts = self._acts_at_tokens is not None and most >= self._acts_at_tokens and projected >= FEWEST_TOKENS
        return acts or projected * COUNT_PART >= self._limit_tokens

    async def _count(self) -> bool:
        """Let the server count the reply so far. Returns whether it did."""
        counted = await self._count_text("".join(self._pieces))
        self._counts_left = 0 if counted is None else self._counts_left - 1
        if counted is not None:
            self._counted_tokens = self._prompt_tokens + counted
            self._projection.restart(self._counted_tokens)
        return counted is not None


@dataclass
class PendingActions:
    """The rest of a decision: status words to announce in order, and at most one intervention."""

    words: list[StatusWord] = field(default_factory=list)
    compact: acts.CompactAction | None = None
    restart: acts.RestartAction | None = None
    stop: acts.StopAction | None = None
    revision: int = 0  # of the history that the decision is about


@dataclass(eq=False)
class ReplyStopped(MewAgentError):
    """The policy stopped a running reply, at this size of the context."""

    pending: PendingActions
    tokens: int
    basis: str

    def __str__(self) -> str:
        return f"stopped by the policy when the context held {self.tokens:,} tokens ({self.basis.replace('_', ' ')})"


async def carry_out(actions: Sequence[acts.Action], state: ContextState) -> PendingActions:
    """Apply a decision's reminders, prompts and plans, emit its events, and return the rest."""
    pending, happened = PendingActions(revision=state.history.revision), list[ConversationEvent]()
    for action in actions:
        if isinstance(action, acts.Notice):
            happened += _announce(action, pending, state)
        elif isinstance(action, acts.Prompt):
            _change_prompts(action, state)
        else:
            _intervene(action, pending, state)
    if actions or state.tracker.injection is not None:
        state.renew_injection()
    for event in happened:  # after all decisions about this history: listeners may change it
        await state.events.emit(event)
    return pending


_REDLINES: Final[Mapping[str, type[RedlineApproached | RedlineCrossed]]] = {
    "approaching_redline": RedlineApproached,
    "redlined": RedlineCrossed,
}


def _announce(notice: acts.Notice, pending: PendingActions, state: ContextState) -> Iterator[ConversationEvent]:
    """Add the status word of a notice, and yield its event."""
    match notice:
        case acts.AnnounceAction(word, before, after):
            pending.words.append(status_word(word, None if after is None else f"{before} -> {after}"))
            if (event := _REDLINES.get(word)) is not None:
                yield event(*state.context_usage)
        case acts.SuggestAction(suggestion):
            yield SavingSuggested(suggestion)
        case _:
            assert_never(notice)


def _change_prompts(prompt: acts.Prompt, state: ContextState) -> None:
    match prompt:
        case acts.RemindAction(owner, True):
            state.reminders.remind(owner, at=timestamp())
        case acts.RemindAction(owner):
            state.reminders.unremind(owner)
        case acts.InjectAction(level, remaining):
            state.queue_prompt(level, remaining)
        case _:
            assert_never(prompt)


def _intervene(intervention: acts.Intervention, pending: PendingActions, state: ContextState) -> None:
    match intervention:
        case acts.CompactAction():
            pending.compact = intervention
        case acts.StopAction("clear", reason):
            state.plan_clear(reason)
        case acts.RestartAction(attempt, most):
            logger.info("the reply starts over (attempt %d of %d)", attempt, most)
            pending.restart = intervention
        case acts.StopAction():
            pending.stop = intervention
        case _:
            assert_never(intervention)


async def report_stop(
    stop: acts.StopAction, state: ContextState, used_tokens: int | None = None, basis: str = "reported"
) -> str:
    """Report that the policy stopped a reply. Returns the reason, with figures if the window is full."""
    if stop.how == "error":
        logger.warning("context policy '%s': %s", state.tracker.policy.name, stop.reason)
        return stop.reason
    used = state.context_usage.used_tokens if used_tokens is None else used_tokens
    limit = state.tracker.limit_tokens
    logger.warning("%s: %s of %s tokens, %s", stop.reason, used, limit, basis)
    text = texts.aborted(used, limit, basis)
    await state.events.emit(ReplyNotice("aborted", text, tokens=used, max_tokens=limit, basis=basis))
    return f"{stop.reason} ({texts.tokens_of_limit(used, limit, basis)})"


CompactNow = Callable[[CompactAction], Awaitable[bool]]


def withhold_results(calls: Sequence[ToolCall], results: dict[str, ToolResult], state: ContextState) -> None:
    """Replace results that are too large for the current level with a notice that the call succeeded."""
    tracker = state.tracker
    snapshot, level = tracker.snapshot(), None
    for call in calls:
        result = results[call.id]
        size_bytes = len(result.prompt_text.encode())
        level = withheld_at(tracker.policy, tracker.policy_state, snapshot, size_bytes)
        if level is not None:
            text = texts.withheld_result(size_bytes, level, failed=result.is_error)
            results[call.id] = ToolResult(text, result.is_error)
    # The notice in place of the last result has the content of a prompt.
    if level is not None:
        state.drop_pending_prompts()


async def make_room_for_results(
    calls: Sequence[ToolCall], results: dict[str, ToolResult], state: ContextState, compact: CompactNow
) -> None:
    """Ask the policy about each result in turn, and compact if it decides so. Raises `PolicyStopped`."""
    tracker, policy = state.tracker, state.tracker.policy
    if "tool_result" not in policy.phases and "tool_result" not in policy.interventions:
        return
    earlier_tokens = 0
    for call in calls:
        size = await state.sizes.measure(results[call.id].prompt_text)
        calibration = tracker.ledger.calibration
        tokens = size.tokens(calibration) + round(calibration.overhead_tokens)
        asks_again = True
        while asks_again:
            used_tokens = tracker.ledger.next_prompt_tokens + earlier_tokens
            decision = tracker.decide("tool_result", time.time(), used_tokens=used_tokens, tool_result_tokens=tokens)
            pending = await carry_out(decision.actions, state)
            if pending.stop is not None:
                window_tokens = tracker.window.max_tokens
                results[call.id] = ToolResult(texts.oversized_result(tokens, window_tokens), is_error=True)
                takes = f"a result of {call.name} takes about {tokens:,} tokens of {window_tokens:,}"
                raise PolicyStopped(policy.name, f"{pending.stop.reason} ({takes}, projected)")
            if pending.compact is not None:
                await compact(halved(pending.compact, tracker.ledger.next_prompt_tokens))
            asks_again = pending.compact is not None and pending.restart is not None
        earlier_tokens += tokens


AWAITING_USER = GenerationFlags(user_prompt=True)
"""Unless a reply asks for tools, the next call answers the next message of a participant."""

Prepare = Callable[[], Awaitable[None]]


class Conversation:
    """One conversation. Read its context from `state`, its calls from `calls`; subscribe to `events`."""

    def __init__(self, model: Model, tracker: Tracker, store: Store, options: ConversationOptions) -> None:
        self.events = conversation_events.ConversationEvents()
        self.state = ContextState(
            tracker,
            store,
            self.events,
            result_bound=options.result_bound,
            sizes=Sizes(options.load_counter),
            shared_pins=options.shared_pins,
        )
        self.tracker, self.history = tracker, tracker.history  # to read
        self.calls = ModelCalls(model, self.state, options)
        self.archive = ContextArchive(self.state, lambda: self.calls.between_calls(stops_summary=True))
        """The removed messages, to read and search; `undo` restores them."""
        self.receipts = ContextReceipts(self.state, self.calls)
        self.context_tools = ContextTools(self.state)
        self.compaction_error: str | None = None
        """Why the newest compaction by the policy failed; None if it did not, or had nothing to remove."""
        self.gate: compactions.CompactionGate | None = None
        """Asks before compactions; None: they need no approval."""
        self._keep_newest_items = options.keep_newest_items
        self.compacting = CompactionDriver(
            self.emit_status,
            is_stalled=lambda: tracker.is_stalled,
            skipped=partial(compactions.skipped_answer, tracker=tracker),
            is_due=lambda: self._pending_compaction is not None,
            run_due=self.apply_pending,
        )
        self.pins = self.state.pins
        self._decided: tuple[CompactAction | None, int] = None, 0
        self._calls_in_turn = 0
        self._is_maintenance = False
        self._is_task_over = False  # the policy has not yet looked ahead to the next task
        self._level = "unknown"
        if tracker.policy.counts_messages:
            self.events.subscribe(self._after_item_added)

    async def load(self) -> None:
        """Load the stored session, if there is one."""
        self.calls.describe_prefix()
        await self.state.load()

    # -- status ------------------------------------------------------------------------------------------

    def status(self, word: StatusWord | None = None) -> Status:
        """Return the current status. Its default word is compacting, the newest call's error, a wait, or active, in
        this order.
        """
        self.calls.renew_prefix()
        stalled = status_word("compaction_stalled") if self.tracker.is_stalled else None
        failed = self.calls.last_error_status
        wait = waiting_status(self.tracker.waiting)
        word = word or self.compacting.word or (status_word(failed) if failed else None) or wait or stalled
        return self.tracker.status(str(word or status_word("active")), self.calls.latency_ms)

    async def prefix(self) -> tuple[PrefixPart, ...]:
        """See `Controllable.prefix`."""
        self.calls.renew_prefix()
        texts, ledger, count = self.calls.prefix.texts, self.tracker.ledger, self.state.sizes.count
        tokens, calibration = ledger.parts.prefix + ledger.prefix_growth_tokens, ledger.calibration
        return await anyio.to_thread.run_sync(lambda: prefix_parts(texts, tokens, calibration, count))

    async def emit_status(self, word: StatusWord | None = None, about: tuple[str, ...] = ()) -> None:
        """Emit the current status with this word (or the default) and a reference to these envelopes."""
        await self.events.emit(conversation_events.StatusChanged(await self.status_to_announce(word), word, about))

    async def status_to_announce(self, word: StatusWord | None = None) -> Status:
        """See `Controllable.status_to_announce`."""
        status, before = self.status(word), self._level
        report = status.context
        if report is not None and report.level != before:
            self._level = report.level
            severity = None if report.severity == "unknown" else report.severity
            figures = severity, status.tokens, status.max_tokens, report.basis
            await self.events.emit(conversation_events.LevelChanged(before, report.level, *figures))
        return status

    # -- controls (see `Controllable`) -------------------------------------------------------------------

    @property
    def pinned(self) -> tuple[wire.PinnedText, ...]:
        """See `Controllable.pinned`."""
        return self.pins.texts

    async def compact(self, request: wire.Compact, requester: Requester | None = None) -> CompactDone:
        """Compact on request, after any approval and the running call. The answer contains failures."""
        sender, decision = None if requester is None else requester.id, None
        if not self.compacting.is_running:
            decision = await compactions.ask_about_request(self.gate, request, sender, self.state)
        origin = Origin(sender, request.reason, None if decision is None else decision.sentence)
        target_tokens = request.target_in(self.tracker.window.max_tokens)
        work = partial(self._compact_to, target_tokens, self.tracker.policy.requested_method, decision, origin)
        return await self.compacting.run("requested", request.reason, work, requester)

    async def compress_to(self, part: Fraction) -> Compression:
        """Drop the oldest turns until at most this part of the window is used or only the newest turn remains."""
        self._decided = None, 0
        target_tokens = part.floor_of(self.tracker.window.max_tokens)
        work = partial(self._compact_to, target_tokens, "drop_oldest", None, ITSELF)
        before = self.tracker.ledger.projected_tokens
        while (done := await self.compacting.run("requested", None, work)).reason == IN_PROGRESS:
            await self.compacting.wait_until_idle()
            before = self.tracker.ledger.projected_tokens  # the other compaction changed it
        return Compression(before, self.tracker.ledger.projected_tokens, target_tokens, done.freed_messages or 0)

    async def _compact_to(
        self,
        target_tokens: int | None,
        method: CompactionMethod,
        decision: CompactionDecision | None,
        origin: Origin,
        begun: Begun,
    ) -> CompactDone:
        """Compact to this size, as requested. Returns the answer."""
        if decision is not None and not decision.allows:
            return self.compacting.skipped(decision.sentence)
        await begun()
        try:
            async with self.calls.between_calls():
                plan = compactions.plan_as_decided(decision, self.state, target_tokens, method)
                if isinstance(plan, NothingToDo):
                    return self.compacting.skipped(plan.reason)
                result = await compactions.run_compaction(plan, "requested", self.state, self.calls, origin=origin)
        except compactions.COMPACTION_FAILURES as error:
            return self.compacting.skipped(str(error))
        self.compaction_error = None
        return compactions.compacted_answer(result, self.tracker)

    @property
    def _pending_compaction(self) -> CompactAction | None:
        """The compaction decided by the policy; None if the history has changed since."""
        action, revision = self._decided
        return action if revision == self.history.revision else None

    async def forget(self, request: wire.Forget, asked_by: str | None = None, begun: Begun = no_news) -> int:
        """Remove entries from one end, but never half of a tool call or the running turn. Returns their number."""
        await begun()
        async with self.calls.between_calls():
            origin, count = Origin(asked_by), self.calls.count_cut
            return await self.state.forget(request.direction, request.entries, origin, count)

    async def clear(self, asked_by: str | None = None, reason: str | None = None, begun: Begun = no_news) -> None:
        """Remove everything except reminders. The running question enters again before the next call."""
        await begun()
        async with self.calls.between_calls(stops_summary=True):
            await self._clear(None, Origin(asked_by, reason))

    # -- turns -------------------------------------------------------------------------------------------

    async def begin_turn(self, *, is_maintenance: bool = False, resumed: int | None = None) -> int:
        """Begin to answer a message; returns the turn's number. With `is_maintenance` the turn answers no message."""
        await self.apply_pending()
        limit = self._keep_newest_items
        if limit is not None and len(self.history.items) > limit:
            async with self.calls.between_calls():
                await self.state.forget("oldest", len(self.history.items) - limit)
        self._calls_in_turn, self._is_maintenance = 0, is_maintenance
        self.compacting.is_held_up = False
        self.state.answering_turn = self.history.begin_turn(resumed)
        return self.state.answering_turn

    def end_turn(self) -> None:
        """End the turn, answered or not."""
        self.state.answering_turn = None
        looks_ahead = "task_end" in self.tracker.policy.interventions
        self._is_task_over, self._is_maintenance = looks_ahead and not self._is_maintenance, False

    async def remove_turn(self, turn: int) -> None:
        """Remove a whole turn, because a message that can never fit would fail all later requests."""
        if self.state.span_of_turn(turn) is not None:
            async with self.calls.between_calls():
                await self.state.remove_turn(turn)

    async def remove_unaccepted(self, problem: str) -> None:
        """Remove the items that no answered request contained: the provider rejected them, and would again.

        The archive has it, with this reason.
        """
        async with self.calls.between_calls():
            await self.state.remove(self.history.unaccepted, Origin(reason=problem))

    async def needs_maintenance(self) -> bool:
        """Return whether a maintenance turn is due. Its prompt enters with the next call."""
        state, pending = self.tracker.policy_state, self.state.pending_prompts
        if not state.due or state.prompted or self.tracker.measurement.basis != "reported":
            return False
        await self._after_call(GenerationFlags())
        return self.state.pending_prompts != pending

    # -- calls -------------------------------------------------------------------------------------------

    async def call(self, listener: ReplyListener, prepare: Prepare) -> ModelReply:
        """Make one main call with everything in context, and add its reply.

        `prepare` adds the question unless it is in context. It runs again right before the request, when no control can
        intervene. Raises a `ModelError`, after which the context is as before, `PolicyStopped`, or `CallInterrupted`.
        """
        await self._enter(prepare)
        await self.calls.count_if_close()
        is_repeated = False
        while True:
            if not is_repeated:
                await self._before_request(prepare)
            try:
                return await self._call_once(listener, prepare)
            except ReplyStopped as stopped:
                await self._after_stop(stopped)
                is_repeated = False
            except ModelError as error:
                if is_repeated or not await self._can_be_repeated(error):
                    raise
                is_repeated = True

    async def check_results(self, calls: Sequence[ToolCall], results: dict[str, ToolResult]) -> None:
        """Replace too large results of one reply's calls in place. Raises `PolicyStopped`."""
        withhold_results(calls, results, self.state)
        if self.context_tools.confirm_clear(calls, results):
            self.state.plan_clear(texts.CLEARED_BY_AGENT)
        await make_room_for_results(calls, results, self.state, self._compact)

    async def apply_pending(self) -> None:
        """Carry out the policy's decision about the last call: before the next call, or when the agent is idle."""
        if self._is_task_over and self.state.answering_turn is None:
            await self._look_ahead()
        reason = self.state.planned_clear
        if reason is not None:
            async with self.calls.between_calls():
                await self._clear(reason, Origin(reason=reason))
            await self.emit_status(status_word("cleared", reason))
            return
        action, revision = self._pending_compaction, self.history.revision
        if action is not None and not await self._waits(action):
            await self._compact(action, may_wait=True, revision=revision)

    async def change_window(self, window: Window) -> None:
        """Set the window that the server reported; levels follow at once."""
        if self.state.change_window(window):
            await self._after_call(AWAITING_USER)

    async def _enter(self, prepare: Prepare) -> None:
        """Add pending prompts and call `prepare`, but not during a compaction, whose counted history must not
        change.
        """
        async with self.calls.lock:
            await self.state.enter_pending_prompts()
            await prepare()

    async def _can_be_repeated(self, error: ModelError) -> bool:
        """Return whether the refused request may succeed now, without tools or after a compaction."""
        if isinstance(error, ToolsUnsupported):
            if not self.calls.stop_offering_tools():
                return False
            logger.warning("%s; continuing without tools", error)
            await self.emit_status(status_word(error.status))
            return True
        if not is_overflow(error, self.tracker):
            return False
        if isinstance(error, ContextOverflow):  # the error may name the real limit
            self.state.change_window(learn_from_overflow(self.tracker.window, error.limit_tokens))
        if fit.refused_message(self.state, error) is not None:
            return False
        return await self._compact(overflow_compaction(self.tracker))

    async def _call_once(self, listener: ReplyListener, prepare: Prepare) -> ModelReply:
        policy = self.tracker.policy
        async with self.calls.lock:
            await prepare()
            if "stream" in policy.phases or "stream" in policy.interventions:
                listener = ReplyWatch(listener, self.state, self.calls.count_text, self._during_reply).receive
            reply = await self.calls.main(listener)
        self._calls_in_turn += 1
        chained = bool(reply.tool_calls)
        await self._after_call(
            GenerationFlags(user_chain=chained and not self._is_maintenance, user_prompt=not chained)
        )
        return reply

    # -- what the policy decides -------------------------------------------------------------------------

    async def _before_request(self, prepare: Prepare) -> None:
        """Make room if the request would not fit. Raises `PolicyStopped`."""
        flags = GenerationFlags(user_chain=self._calls_in_turn > 0)
        pending = await carry_out(self.tracker.decide("pre_request", time.time(), flags).actions, self.state)
        for word in pending.words:
            await self.emit_status(word)
        if pending.stop is not None:
            raise PolicyStopped(self.tracker.policy.name, await report_stop(pending.stop, self.state))
        if self.state.planned_clear is not None:
            await self.apply_pending()
            await self._enter(prepare)
        elif pending.compact is not None and not fit.may_never_fit(self.state):  # else a model call is wasted
            may_wait = pending.compact.trigger != "would_overflow"
            await self._compact(pending.compact, may_wait=may_wait, revision=pending.revision)

    async def _during_reply(self, tokens: int, likely_most_tokens: int, basis: ReplySizeBasis) -> None:
        """Ask a policy that watches replies. Raises `ReplyStopped`."""
        actions = self.tracker.decide("stream", time.time(), used_tokens=likely_most_tokens).actions
        if not actions:
            return
        pending = await carry_out(actions, self.state)
        for word in pending.words:
            await self.emit_status(word)
        if pending.stop is not None or pending.restart is not None:
            raise ReplyStopped(pending, tokens, basis)
        self._decided = pending.compact or self._pending_compaction, pending.revision

    async def _after_stop(self, stopped: ReplyStopped) -> None:
        """Compact, so that the reply can start over. Raises `PolicyStopped` if no compaction is allowed."""
        stop = stopped.pending.stop
        if stop is not None:
            problem = await report_stop(stop, self.state, stopped.tokens, stopped.basis)
            raise PolicyStopped(self.tracker.policy.name, problem)
        if stopped.pending.compact is not None:
            action = halved(stopped.pending.compact, self.tracker.ledger.next_prompt_tokens)
            await self._compact(action, revision=stopped.pending.revision)

    async def _after_call(self, flags: GenerationFlags) -> None:
        """Ask the policy about the new figures and emit the status. Interventions wait for `apply_pending`."""
        cut = self.tracker.truncation
        if cut is not None and cut.window_tokens is not None:
            # The server's window is no larger than the prompt that it cut, even if its API or the configuration say so.
            self.state.change_window(learn_from_overflow(self.tracker.window, cut.window_tokens))
        pending = await carry_out(self.tracker.decide("after_call", time.time(), flags).actions, self.state)
        self._decided = pending.compact, pending.revision
        if pending.stop is not None:
            pending.words.append(status_word("policy_stopped", await report_stop(pending.stop, self.state)))
        await self.state.save_decisions()
        if cut is not None and (not pending.words or cut.window_tokens):
            pending.words.append(status_word("truncated_by_server"))
        for word in pending.words or (None,):
            await self.emit_status(word)

    async def _after_item_added(self, event: conversation_events.ConversationEvent) -> None:
        """Ask a policy that counts messages about each new item. Interventions wait for `apply_pending`."""
        if isinstance(event, conversation_events.ItemAdded):
            pending = await carry_out(self.tracker.decide("message_added", time.time()).actions, self.state)
            self._decided = pending.compact or self._pending_compaction, pending.revision
            for word in pending.words:
                await self.emit_status(word)

    async def _look_ahead(self) -> None:
        """Ask the policy, once after each task, whether the next one needs room."""
        self._is_task_over = False
        if self._pending_compaction is not None:
            return
        pending = await carry_out(self.tracker.decide("task_end", time.time()).actions, self.state)
        action = pending.compact
        # The newest turns cannot leave, and a compaction that frees nothing would count as a failed one.
        if action is not None:
            plan = self.state.plan_compaction(action.target_tokens, action.method)
            if isinstance(plan, CompactionPlan):
                self._decided = action, pending.revision
                pending.words.append(status_word("compaction_due", action.reason or action.trigger))
        for word in pending.words:
            await self.emit_status(word)

    # -- clearing and compacting -------------------------------------------------------------------------

    async def _clear(self, reason: str | None, origin: Origin) -> None:
        """Remove everything except reminders. The caller holds the history. The model will read the `reason`."""
        tokens = self.tracker.measurement.tokens
        await self.state.clear(reason, origin)
        await self.events.emit(conversation_events.ContextCleared(tokens, reason))

    async def _waits(self, action: CompactAction) -> bool:
        """Return whether a compaction should wait for the end of the task, or until fewer agents compact.

        It does not wait if the next request would not fit. If a participant approves compactions, its decision replaces
        the queue.
        """
        if action.moment == "at_once" or self.tracker.would_overflow():
            return False
        return self.state.answering_turn is not None or (self.gate is None and not await self.compacting.may_begin())

    async def _compact(self, action: CompactAction, *, may_wait: bool = False, revision: int | None = None) -> bool:
        """Compact as the policy decided about this revision of the history (default: the current one).

        Returns whether anything left. Nothing leaves while an approval is pending.
        """
        revision, decision = self.history.revision if revision is None else revision, None
        if self.gate is not None and not self.compacting.is_running:
            decision = self.gate.admit(action, is_urgent=not may_wait or self.tracker.would_overflow())
            if decision is None:
                return False
            if decision.outcome == "urgent":
                await self.emit_status(decision.status)
        return await self.compact_as_decided(action, decision, revision)

    async def compact_as_decided(
        self, action: CompactAction, decision: CompactionDecision | None, revision: int | None = None
    ) -> bool:
        """Compact as the policy decided, and a participant if one was asked. Returns whether anything left."""
        # During a reply people wait only if a policy stops replies.
        is_shown = "stream" in self.tracker.policy.interventions
        if is_shown:
            await self.events.emit(conversation_events.ReplyNotice("compacting", texts.COMPACTING))
        changed = await self._run_compaction(action, decision, self.history.revision if revision is None else revision)
        if is_shown and changed:
            await self.events.emit(conversation_events.ReplyNotice("compacted", texts.COMPACTED))
        elif is_shown:
            problem = self.compaction_error or "nothing can be removed"
            await self.events.emit(
                conversation_events.ReplyNotice("not_compacted", texts.NOT_COMPACTED.format(problem=problem))
            )
        return changed

    async def _run_compaction(self, action: CompactAction, decision: CompactionDecision | None, revision: int) -> bool:
        """Compact, or wait for the compaction that runs. Returns whether anything changed."""
        if self.compacting.is_running:
            await self.compacting.wait_until_idle()
            return True
        self._decided, self.compacting.is_held_up = (None, 0), False
        work = partial(self._compact_by_policy, action, decision, revision)
        done = await self.compacting.run(action.trigger, action.reason, work)
        return not done.skipped or done.reason == NOT_NEEDED

    async def _compact_by_policy(
        self, action: CompactAction, decision: CompactionDecision | None, revision: int, begun: Begun
    ) -> CompactDone:
        """Compact as decided about this revision of the history. Returns the answer, and records a failure."""
        failure: Exception | None = None
        try:
            async with self.calls.lock:
                if decision is None and compactions.is_outdated(action, self.tracker, revision):
                    return self.compacting.skipped(NOT_NEEDED)
                is_refused = action.trigger == "overflow_error"
                plan = compactions.plan_as_decided(
                    decision, self.state, action.target_tokens, action.method, is_refused=is_refused
                )
                if isinstance(plan, CompactionPlan):
                    await begun()
                    origin = Origin(None, action.reason, None if decision is None else decision.sentence)
                    result = await compactions.run_compaction_or_drop(plan, action, self.state, self.calls, origin)
                    self.compaction_error = None
                    return compactions.compacted_answer(result, self.tracker)
                problem = plan.reason
        except compactions.COMPACTION_FAILURES as error:
            failure, problem = error, str(error)
        self.compaction_error = None if failure is None else problem
        logger.warning("compaction (%s) changed nothing: %s", action.trigger, problem)
        if not isinstance(failure, CallInterrupted):
            await self.state.record_failed_compaction()
        return self.compacting.skipped(problem)
