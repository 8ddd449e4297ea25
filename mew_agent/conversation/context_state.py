"""The context of an agent: its history, its size, and its stored state.

Every change is counted and stored in the same step, so that they never disagree. Calls no model, makes no decision, and
does not wait for a running call (see `ModelCalls.between_calls`).
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from uuid import uuid4

import anyio.to_thread

from mew_agent.compaction.compactor import CompactionResult, apply_plan, cache_lost_tokens
from mew_agent.compaction.planner import CompactionPlan, MostTokens, NothingToDo, plan_compaction, plan_forget
from mew_agent.context import policy as policies
from mew_agent.context.archive import ITSELF, ArchivedCompaction, LeavingItems, Origin, entry_of, returning_items
from mew_agent.context.cuts import CountedCut, CutOutcome
from mew_agent.context.history import Item, ItemRole, Summary, replayable
from mew_agent.context.item_sizes import kept_reply_tokens
from mew_agent.context.message_facts import NO_RECEIPTS, MessageKey, Prompted, ReceiptChange
from mew_agent.context.persisted_state import CallRecord, PersistedState
from mew_agent.context.policy import CompactionMethod
from mew_agent.context.reminders import Reminders
from mew_agent.context.spending import SummarySpending, with_call
from mew_agent.context.sqlite_store import Store
from mew_agent.context.store import NO_CHANGE, UNCHANGED, InboxChange, Session, SessionChange
from mew_agent.context.tracker import Tracker
from mew_agent.conversation import texts
from mew_agent.conversation.conversation_events import ConversationEvents, HistoryChanged, ItemAdded, ResultCut
from mew_agent.conversation.pins import ContextPins
from mew_agent.model.image import Image
from mew_agent.model.interface import ModelReply, ToolCall, Window
from mew_agent.participant.messenger import timestamp
from mew_agent.tokens.sizes import INLINE_CHARS, Size, Sizes
from mew_agent.tools.bounds import ResultBound, Room

logger = logging.getLogger("mew_agent.conversation.context_state")

CountCut = Callable[[CompactionPlan, Summary | None], Awaitable[CountedCut | None]]

RESTARTED_RESULT = (
    "[The agent restarted before this tool answered. The call may have had its effect: check before you repeat it.]"
)


class ContextState:
    """The only writer of one context. Others read `tracker`, `history` and `store`, and write through this class.

    Only report fields from outside the context are set at the tracker: waits, progress, and unread chats.
    """

    def __init__(
        self,
        tracker: Tracker,
        store: Store,
        events: ConversationEvents,
        *,
        result_bound: ResultBound | None = None,
        sizes: Sizes | None = None,
        shared_pins: ContextPins | None = None,
    ) -> None:
        """`shared_pins` belong to another conversation and are stored there."""
        self.tracker, self.history = tracker, tracker.history
        self.store = store
        self.events = events
        self.sizes = sizes or Sizes()
        self.result_bound = result_bound or ResultBound()
        self.reminders = Reminders()
        self.pins = ContextPins(tracker, self.save) if shared_pins is None else shared_pins
        self._stores_pins = shared_pins is None
        self.history.pins = self.pins.all
        self.pending_prompts: tuple[str, ...] = ()  # prompts of the policy that enter the history before the next call
        self.planned_clear: str | None = None  # reason of a clear before the next call; None without one
        self.answering_turn: int | None = None  # the turn being answered, which must stay; None between turns
        self.prompts_made = 0
        """The number of main calls so far; receipts name calls by it."""
        self.shortened: tuple[int, int] | None = None
        """The revision and the newest item of a prompt that the server shortened; None if it shortened none."""
        self.kept_outside: set[ItemRole] = set()
        """The roles of items that are part of a longer text, which only the store has."""
        self._stored_decisions: tuple[policies.PolicyState, PersistedState] | None = None

    # -- loading and storing -----------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the stored session, if there is one. Raises `ConfigError` if the tokenizer is not available."""
        await self.sizes.load()
        session = await self.store.load()
        if session is None:
            return
        counted = await self.sizes.counts({item.seq: item.text() for item in session.items})
        history = self.history
        history.items, history.summary = list(session.items), session.summary
        history.revision, history.next_seq, history.turn = session.revision, session.next_seq, session.turn
        self.kept_outside |= {item.role for item in history.items if item.is_reference}
        self.tracker.restored(session.context, counted)
        self._restore(session.persisted)
        await self.save(SessionChange(receipts=ReceiptChange(is_restart=True)))
        # A process that dies during a tool call leaves a call without a result; providers refuse that.
        await self.close_open_calls(RESTARTED_RESULT)

    def _restore(self, persisted: PersistedState) -> None:
        """Restore the decisions of the policy; after a change of policy only pins and own reminders remain."""
        pins, made, self.prompts_made = persisted.pins, persisted.pins_made, persisted.prompts_made
        self.shortened = persisted.shortened
        if persisted.policy not in (None, self.tracker.policy.name):
            own = tuple(reminder for reminder in persisted.reminders if reminder.owner is None)
            persisted = PersistedState(reminders=own, reminders_made=persisted.reminders_made)
            self.tracker.policy_state = policies.PolicyState()
        if self._stores_pins:
            self.pins.restore(pins, made)
        self.reminders = Reminders(persisted.reminders, persisted.reminders_made)
        self.pending_prompts, self.planned_clear = persisted.pending_prompts, persisted.planned_clear
        self.tracker.injection = persisted.injection

    @property
    def persisted(self) -> PersistedState:
        """The stored state, except the history and its accounts."""
        made = self.pins.made if self._stores_pins else 0
        return PersistedState(
            reminders=self.reminders.all,
            reminders_made=self.reminders.made,
            pending_prompts=self.pending_prompts,
            planned_clear=self.planned_clear,
            injection=self.tracker.injection,
            policy=self.tracker.policy.name,
            pins=self.pins.made_here if made else (),
            pins_made=made,
            prompts_made=self.prompts_made,
            shortened=self.shortened,
        )

    async def save(self, change: SessionChange = NO_CHANGE) -> int | None:
        """Store a change together with the whole state. Returns the number of its compaction."""
        if (call := change.call) is not None:
            self.tracker.spending = with_call(self.tracker.spending, call.usage, call.amount, call.currency)
        session = Session(
            summary=self.history.summary,
            revision=self.history.revision,
            next_seq=self.history.next_seq,
            turn=self.history.turn,
            context=self.tracker.saved(),
            persisted=self.persisted,
        )
        number = await self.store.keep(session, change)
        self._stored_decisions = session.context.policy_state, session.persisted
        return number

    async def save_decisions(self) -> None:
        """Store the decisions of the policy, unless they are stored already."""
        if self._stored_decisions != (self.tracker.policy_state, self.persisted):
            await self.save()

    # -- what enters -------------------------------------------------------------------------------------

    async def add_user_message(
        self,
        text: str,
        *,
        sender: str,
        envelope_id: str,
        inbox: InboxChange = UNCHANGED,
        whole: tuple[str, str] | None = None,
        frame_chars: int = 0,
    ) -> Item:
        """Add a participant's message, and store the inbox change with it.

        If `text` is only a reference, `whole` has the id and the complete text for the store. The first `frame_chars`
        characters of `text` are the agent's own.
        """
        # Measured before it enters, so that the history never contains an item without its size.
        size = await self.sizes.measure(text)
        item_id = envelope_id if whole is None else whole[0]
        item = self.history.append(
            "user", text, id=item_id, at=timestamp(), name=sender, envelope_id=envelope_id, frame_chars=frame_chars
        )
        sources = (MessageKey(sender, envelope_id),)
        return await self._enter(item, size, inbox, None if whole is None else whole[1], sources)

    async def add_prompt(self, text: str) -> Item:
        """Add a prompt of the policy: a user message marked as a notice."""
        size = await self.sizes.measure(text)
        return await self._enter(self.history.append("user", text, id=str(uuid4()), at=timestamp(), notice=True), size)

    async def enter_pending_prompts(self) -> None:
        """Move the pending prompts into the history."""
        prompts, self.pending_prompts = self.pending_prompts, ()
        for text in prompts:
            await self.add_prompt(text)

    async def add_tool_result(
        self,
        call: ToolCall,
        result: str,
        limit_tokens: int | None = None,
        size: Size | None = None,
        images: tuple[Image, ...] = (),
        sources: Sequence[MessageKey] = (),
    ) -> Item:
        """Add a tool result, shortened to `limit_tokens`; the store keeps the whole. `size` is that of the full result.

        `sources` are the peers' messages that contained it.
        """
        item_id = str(uuid4())
        part = None if limit_tokens is None else await self._shortened(result, limit_tokens, item_id)
        content = result if part is None else part
        if size is None or part is not None:
            size = await self.sizes.measure(content)
        item = self.history.append("tool", content, id=item_id, at=timestamp(), tool_call_id=call.id, images=images)
        await self._enter(item, size, whole=None if part is None else result, sources=sources)
        if part is not None:
            await self.events.emit(ResultCut(call.name, self.project(result) - self.project(part)))
        return item

    async def close_open_calls(
        self,
        default: str,
        results: Mapping[str, str] = MappingProxyType({}),
        images: Mapping[str, tuple[Image, ...]] = MappingProxyType({}),
        sources: Mapping[str, Sequence[MessageKey]] = MappingProxyType({}),
    ) -> None:
        """Add a result to every open tool call, by call id and in call order; a missing one is `default`."""
        if not (open_calls := self.history.open_calls()):
            return
        sizes = {call_id: await self.sizes.measure(results[call_id]) for call_id in open_calls & results.keys()}
        still_open = self.history.open_calls()  # a control may have changed the history while texts were measured
        waiting = [call for item in self.history.items for call in item.tool_calls if call.id in still_open]
        limits = self._limits_of({call.id: sizes[call.id] for call in waiting if call.id in sizes})
        for call in waiting:
            if call.id not in self.history.open_calls():
                continue  # a control removed the call while earlier results entered
            text = results.get(call.id, default)
            limit, size, image = limits.get(call.id), sizes.get(call.id), images.get(call.id, ())
            await self.add_tool_result(call, text, limit, size, image, sources.get(call.id, ()))

    def _limits_of(self, sizes: Mapping[str, Size]) -> Mapping[str, int]:
        """Return the token limit of each of these tool results, by call id."""
        # If the policy itself makes room for tool results, they enter whole.
        makes_room = "tool_result" in self.tracker.policy.interventions
        if not sizes or (makes_room and self.result_bound.max_tokens is None):
            return {}
        calibration = self.tracker.ledger.calibration
        tokens = {call_id: size.tokens(calibration) for call_id, size in sizes.items()}
        return self.result_bound.limits(tokens, self.room())

    async def add_reply(self, reply: ModelReply, call: CallRecord, *, prompted: Prompted, fingerprint: str) -> Item:
        """Add the reply of a main call, its reported usage and its record. `prompted` is its prompt.

        Servers refuse later requests with an empty reply or an invalid tool call, so these enter in a valid form.
        """
        tracker, calls = self.tracker, tuple(map(replayable, reply.tool_calls))
        text = reply.text if calls or reply.text.strip() else texts.EMPTY_ANSWER
        is_as_sent = text == reply.text and calls == reply.tool_calls
        size = await self.sizes.measure("".join((text, *(f"{one.name}{one.arguments}" for one in calls))))
        problem = tracker.call_kept(call, last_seq=prompted.last_seq, fingerprint=fingerprint, backend=reply.backend)
        if problem is not None:
            logger.warning("implausible usage ignored (%s)", problem)
            reply, call = replace(reply, usage=None), replace(call, usage=None, amount=None, currency=None)
        call = replace(
            call, level=policies.level_of(tracker.policy, tracker.snapshot())[0], limit_tokens=tracker.limit_tokens
        )
        thinking, turn = bool(reply.reasoning_text), self.history.turn
        has_calls = thinking and (bool(calls) or any(one.tool_calls for one in self.history.items if one.turn == turn))
        item = self.history.append(
            "assistant",
            text,
            id=str(uuid4()),
            at=timestamp(),
            tool_calls=calls,
            known_tokens=kept_reply_tokens(reply.usage, thinking_seen=thinking) if is_as_sent else None,
            thinking=thinking,
            reasoning=reply.reasoning_text if has_calls else "",
            extra=reply.extra,
        )
        tracker.item_added(item, size.counted_tokens, size.units)
        is_shortened = tracker.truncation is not None
        if is_shortened:
            self.shortened = self.history.revision, prompted.last_seq
        await self.save(SessionChange(added=(item,), call=call, receipts=ReceiptChange(prompted=prompted)))
        if is_shortened:
            await self._announce_change()
        return item

    def may_be_left_out(self, seq: int) -> bool:
        """Return whether the server may omit an item: it shortened a prompt, and the history has not changed since."""
        revision, last_seq = self.shortened or (-1, -1)
        return self.history.revision == revision and seq <= last_seq

    async def _enter(
        self,
        item: Item,
        size: Size,
        inbox: InboxChange = UNCHANGED,
        whole: str | None = None,
        sources: Sequence[MessageKey] = (),
    ) -> Item:
        """Count and store an item. If it is part of a text, also store the `whole` text.

        `sources` are the messages that contained it.
        """
        self.tracker.item_added(item, size.counted_tokens, size.units)
        original = item if whole is None else replace(item, content=whole, frame_chars=0)
        replaced = () if whole is None else (item,)
        self.kept_outside |= {one.role for one in replaced}
        receipts = ReceiptChange(seqs=[(item.seq, one) for one in sources]) if sources else NO_RECEIPTS
        await self.save(SessionChange(added=(original,), replaced=replaced, inbox=inbox, receipts=receipts))
        await self.events.emit(ItemAdded(item.seq))
        return item

    # -- what leaves -------------------------------------------------------------------------------------

    async def _check_store(self) -> None:
        """Raise `StoreUnusable` before a change that the store would not take: a restart would take the change back."""
        await self.save()

    def plan_compaction(
        self, target_tokens: int | None, method: CompactionMethod = "staged", *, is_refused: bool = False
    ) -> CompactionPlan | NothingToDo:
        """Plan a compaction to `target_tokens`; None: everything but the protected tail.

        The newest turns may leave only if their texts are longer than the target, or if the server refused the prompt
        (`is_refused`).
        """
        ledger = self.tracker.ledger
        return plan_compaction(
            self.history,
            ledger.item_prices(),
            present_tokens=ledger.projected_tokens,
            window_tokens=self.tracker.window.max_tokens,
            target_tokens=target_tokens,
            summary_tokens=ledger.preamble.summary_tokens,
            answering_turn=self.answering_turn,
            method=method,
            most=None if is_refused else MostTokens(*ledger.most_tokens()),
        )

    async def apply_compaction(
        self,
        plan: CompactionPlan,
        summary: Summary | None,
        trigger: str,
        spending: SummarySpending | None = None,
        origin: Origin = ITSELF,
        counted: CountedCut | None = None,
    ) -> CompactionResult:
        """Carry out a plan with the summary written for it, and record it as the last compaction."""
        await self._check_store()
        tracker, spending = self.tracker, spending or SummarySpending()
        lost_tokens, leaving = cache_lost_tokens(plan, tracker), self._leaving(plan.evict, plan.stub_seqs)
        result = apply_plan(plan, summary, tracker, trigger=trigger, count=self.sizes.count, counted=counted)
        cost = spending.cost(result.outcome.freed_tokens, lost_tokens)
        outcome = replace(result.outcome, cost=cost, approval=origin.approval, reason=origin.reason)
        if summary is not None:
            outcome = replace(outcome, summary_by=summary.written_by, summary_problem=summary.problem)
        result = replace(result, outcome=outcome)
        progressed = outcome.freed_tokens > 0 and self._is_below_threshold
        at = timestamp()
        tracker.compacted(outcome, at=at, at_seconds=time.time(), progressed=progressed)
        compaction = leaving.archived(outcome.as_last_compaction(at), self.history.summary, origin)
        evicted = [item.seq for item in result.evicted]
        await self.save(SessionChange(evicted=evicted, replaced=result.stubs, compaction=compaction))
        await self._announce_change()
        return result

    @property
    def _is_below_threshold(self) -> bool:
        """Whether the next request is smaller than the size at which the policy compacts."""
        window_tokens = self.tracker.window.max_tokens
        threshold = self.tracker.policy.marks(window_tokens).compact_at_tokens or window_tokens
        return self.tracker.ledger.projected_tokens < threshold

    async def record_failed_compaction(self) -> None:
        """Record that a compaction changed nothing; the policy stops after several of them."""
        self.tracker.compaction_ended(progressed=False, at_seconds=time.time())
        await self.save()

    async def forget(
        self, direction: str, entries: int | None, origin: Origin | None = None, count: CountCut | None = None
    ) -> int:
        """Remove entries from one end, but never the running turn or half of a tool call. Returns their number."""
        span = plan_forget(self.history, direction, entries, answering_turn=self.answering_turn)
        return await self.remove(span, origin, count)

    async def remove(
        self, span: tuple[int, int] | None, origin: Origin | None = None, count: CountCut | None = None
    ) -> int:
        """Remove the items from the first to the last of these seqs. Returns their number.

        With an `origin` they are archived. `count` lets the server count the freed tokens.
        """
        if span is None:
            return 0
        await self._check_store()
        plan = CompactionPlan((), span, 0, 0)
        counted = None if count is None else await count(plan, None)
        leaving = self._leaving(span)
        result = apply_plan(plan, None, self.tracker, trigger="forget", counted=counted)
        last = result.outcome.as_last_compaction(timestamp())
        compaction = None if origin is None else leaving.archived(last, self.history.summary, origin)
        await self.save(SessionChange(evicted=[item.seq for item in result.evicted], compaction=compaction))
        await self._announce_change()
        return len(result.evicted)

    async def remove_turn(self, turn: int) -> None:
        """Remove a turn that can never fit. Its failed compactions do not count as stalls."""
        await self.remove(self.span_of_turn(turn))
        if self._is_below_threshold:
            self.tracker.forget_stalls()
        await self.save_decisions()

    def span_of_turn(self, turn: int) -> tuple[int, int] | None:
        """Return the first and the last seq of a turn's items; None if there are none."""
        seqs = [item.seq for item in self.history.items if item.turn == turn]
        return (seqs[0], seqs[-1]) if seqs else None

    async def clear(self, reason: str | None, origin: Origin = ITSELF) -> None:
        """Remove all items and pending prompts; reminders stay. The model reads a `reason` with the next call."""
        await self._check_store()
        history, tokens, ledger = self.history, self.tracker.measurement.tokens, self.tracker.ledger
        next_tokens = ledger.next_prompt_tokens
        is_empty, removed = not history.items and history.summary is None, [item.seq for item in history.items]
        leaving = self._leaving((0, history.last_seq))
        history.clear()
        self.tracker.cleared()
        freed = next_tokens - ledger.next_prompt_tokens
        outcome = CutOutcome("clear", tokens, None, freed, freed, 0, len(removed), "projected")
        last = outcome.as_last_compaction(timestamp())
        compaction = None if is_empty else leaving.archived(last, None, origin)
        self.renew_injection()
        self.pending_prompts = (texts.CONTEXT_CLEARED.format(reason=reason),) if reason else ()
        self.planned_clear = None
        await self.save(SessionChange(evicted=removed, compaction=compaction))
        await self._announce_change()

    async def put_back(self, archived: ArchivedCompaction, origin: Origin) -> tuple[int, CutOutcome]:
        """Undo a change: restore its items and the earlier summary. Returns the new entry's number and figures."""
        await self._check_store()
        counted = await self.sizes.counts({item.seq: item.text() for item in archived.items})
        back, before = returning_items(archived.items, self.history.items), self.history.summary
        self.history.put_back(back.merged, archived.before)
        outcome = self.tracker.put_back(back.returned, back.replaced, archived.point, counted)
        entry = entry_of(outcome.as_last_compaction(timestamp()), 0, origin, undoes=archived.entry.number)
        undo = ArchivedCompaction(entry, before=before, after=archived.before)
        number = await self.save(SessionChange(restored=(*back.returned, *back.replaced), compaction=undo))
        await self._announce_change()
        return number or 0, outcome

    async def _announce_change(self) -> None:
        await self.events.emit(HistoryChanged(self.history.revision))

    def _leaving(self, span: tuple[int, int] | None, stub_seqs: Sequence[int] = ()) -> LeavingItems:
        """Return the items removed by cutting this span and clearing these tool results."""
        (first, last), stubs = span or (0, -1), set(stub_seqs)
        items = tuple(item for item in self.history.items if first <= item.seq <= last or item.seq in stubs)
        return LeavingItems(items, self.history.summary, self.tracker.restore_point([item.seq for item in items]))

    # -- sizes and room ----------------------------------------------------------------------------------

    def project(self, text: str) -> int:
        """Project the tokens of a text for this model."""
        return self.sizes.project(text, self.tracker.ledger.calibration)

    def room(self) -> Room:
        """Return the free tokens now, and after removing everything removable."""
        turn = self.answering_turn
        free_tokens = self.tracker.free_tokens(None if turn is None else self.span_of_turn(turn))
        return Room(self.tracker.window.max_tokens, *free_tokens)

    async def _shortened(self, result: str, limit_tokens: int, item_id: str) -> str | None:
        """Return the shortened form of a result that is too long; None if it fits."""
        project = partial(self.sizes.project, calibration=self.tracker.ledger.calibration)
        shorten = partial(self.result_bound.bounded, result, limit_tokens, project, kept_as=item_id)
        return shorten() if len(result) <= INLINE_CHARS else await anyio.to_thread.run_sync(shorten)

    # -- window and requests -----------------------------------------------------------------------------

    def change_window(self, window: Window) -> bool:
        """Set the context window. Returns whether it differs."""
        if is_new := window != self.tracker.window:
            self.tracker.window_changed(window)
        return is_new

    # -- policy ------------------------------------------------------------------------------------------

    @property
    def context_usage(self) -> texts.ContextUsage:
        """How full the context is, by the policy's measure and from the sources it trusts."""
        now = policies.trusted(self.tracker.policy, self.tracker.snapshot())
        return texts.ContextUsage(now.used_tokens, now.limit_tokens)

    @property
    def reminder_text(self) -> str:
        """The reminders as they appear in the next request; empty without any."""
        if not self.reminders.all:
            return ""
        return self.reminders.shown(lambda _owner: texts.health_reminder(self.context_usage))

    def queue_prompt(self, level: str, remaining: int | None) -> None:
        """Queue the prompt of a level before the next call. In a countdown, `remaining` prompts follow it."""
        text = texts.prompt_text(self.tracker.policy, level, remaining, self.context_usage)
        self.pending_prompts = (*self.pending_prompts, text)
        self.tracker.injection = texts.prompt_injection(level, remaining)

    def drop_pending_prompts(self) -> None:
        """Drop the pending prompts. Their cadence or countdown continues as if the model had read them."""
        self.pending_prompts = ()

    def plan_clear(self, reason: str) -> None:
        """Clear the context before the next call, also after a restart."""
        self.planned_clear = reason

    def renew_injection(self) -> None:
        """Update the report's injection: a prompt lasts as long as its level, a reminder as long as it exists."""
        tracker, current = self.tracker, self.tracker.injection
        if current is not None and current.kind != "reminder" and tracker.policy_state.prompting is not None:
            return
        tracker.injection = texts.REMINDER_INJECTION if any(one.owner for one in self.reminders.all) else None
