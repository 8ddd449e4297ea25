"""What is in an agent's context: every item that enters or leaves is counted and kept in the same step.

Owns that history, accounts (`Tracker`) and store never disagree. It calls no model, decides nothing, and its methods
do not wait for a running call: whoever changes what a call was made from waits first (see `conversation`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from mew_agent.compaction.planner import Nothing, Plan, plan, plan_forget
from mew_agent.context.history import History, Item, Pin
from mew_agent.context.measures import kept_reply_tokens
from mew_agent.context.persisted_state import NOTHING, PersistedState
from mew_agent.context.policy import CompactionMethod, output_reserve_tokens
from mew_agent.context.store import CallRecord, Session, Store
from mew_agent.context.tracker import Tracker
from mew_agent.model.interface import ModelReply, ToolCall
from mew_agent.participant.messenger import timestamp
from mew_agent.tokens.sizes import INLINE_CHARS, Size, Sizes, in_thread
from mew_agent.tools.bounds import ResultBound, Room

RESTARTED_RESULT = "[the agent restarted before this tool answered]"


class Transcript:
    """See the module. `answering_turn` is the turn being answered, which nothing may take out; None between turns.

    `standing` is kept with every change. `on_entered` is awaited after each item that no model wrote. `sizes` are taken
    of each text before it enters, so that no item is ever there without its price.
    """

    def __init__(
        self, tracker: Tracker, store: Store, result_bound: ResultBound | None = None, sizes: Sizes | None = None
    ) -> None:
        self.tracker = tracker
        self.sizes = sizes or Sizes()
        self.store = store
        self.result_bound = result_bound or ResultBound()
        self.has_cut_results = False
        """Whether a result that a tool gave stands here shortened; the whole of it is in the store."""
        self.answering_turn: int | None = None
        self.standing: PersistedState = NOTHING
        self.on_entered: Callable[[], Awaitable[None]] | None = None

    @property
    def history(self) -> History:
        """The items in context."""
        return self.tracker.history

    async def load(self) -> None:
        """Take up a stored session, if there is one. Calls that it left open get a result that says so.

        A process that died between a tool call and its result left a history that no provider accepts. Raises the
        `ConfigError` of a tokenizer that was asked for and cannot be had.
        """
        await self.sizes.load()
        session = await self.store.load()
        if session is None:
            return
        counted = await self.sizes.counts({item.seq: item.text() for item in session.items})
        history = self.history
        history.items, history.summary = list(session.items), session.summary
        history.revision, history.next_seq, history.turn = session.revision, session.next_seq, session.turn
        self.standing = session.persisted
        self.tracker.restored(session.context, counted)
        await self.close_open_calls(RESTARTED_RESULT)

    # -- what enters -------------------------------------------------------------------------------------

    def pin(self, pin: Pin) -> None:
        """Keep a text verbatim in every request."""
        self.history.pins.append(pin)

    async def hear(self, text: str, *, sender: str, envelope_id: str) -> Item:
        """Something was said to us."""
        size = await self.sizes.measure(text)
        item = self.history.append("user", text, id=envelope_id, at=timestamp(), name=sender, envelope_id=envelope_id)
        return await self._enter(item, size)

    async def notice(self, text: str) -> Item:
        """A prompt of our own enters, in the role of a user, marked as what it is."""
        size = await self.sizes.measure(text)
        return await self._enter(self.history.append("user", text, id=str(uuid4()), at=timestamp(), notice=True), size)

    async def observe(
        self, call: ToolCall, result: str, limit_tokens: int | None = None, size: Size | None = None
    ) -> Item:
        """A tool answered. Of a result that is longer than `limit_tokens`, only a part enters the context."""
        name = str(uuid4())
        part = None if limit_tokens is None else await self._bounded(result, limit_tokens, kept_as=name)
        content = result if part is None else part
        if size is None or part is not None:
            size = await self.sizes.measure(content)
        item = self.history.append("tool", content, id=name, at=timestamp(), tool_call_id=call.id)
        if part is None:
            return await self._enter(item, size)
        self.has_cut_results = True
        self.tracker.item_added(item, size.counted_tokens, size.units)
        await self.keep(added=(replace(item, content=result),), replaced=(item,))
        if self.on_entered is not None:
            await self.on_entered()
        return item

    async def close_open_calls(self, otherwise: str, results: Mapping[str, str] | None = None) -> None:
        """Give every open tool call its result by id, in the order of the calls; `otherwise` where there is none."""
        given = results or {}
        sizes = {name: await self.sizes.measure(given[name]) for name in self.history.open_calls() & given.keys()}
        still_open = self.history.open_calls()  # a control may have come meanwhile
        waiting = [call for item in self.history.items for call in item.tool_calls if call.id in still_open]
        calibration = self.tracker.ledger.calibration
        tokens = {call.id: sizes[call.id].tokens(calibration) for call in waiting if call.id in sizes}
        is_bounded = self.result_bound.max_tokens is not None or not self._policy_makes_room
        limits = self.result_bound.limits(tokens, self.room()) if tokens and is_bounded else {}
        for call in waiting:
            await self.observe(call, given.get(call.id, otherwise), limits.get(call.id), sizes.get(call.id))

    async def size_of_reply(self, reply: ModelReply) -> Size:
        """The size of a reply as it will stand in the history."""
        calls = "".join(f"{call.name}{call.arguments}" for call in reply.tool_calls)
        return await self.sizes.measure(f"{reply.text}{calls}")

    async def add_reply(self, reply: ModelReply, call: CallRecord, size: Size) -> Item:
        """The model answered; the call is kept with its reply, whose `size` was taken before the call was booked."""
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
        self.tracker.reply_added(item, size.counted_tokens, size.units)
        await self.keep(added=(item,), call=call)
        return item

    # -- what leaves -------------------------------------------------------------------------------------

    def plan_compaction(self, target_tokens: int | None, method: CompactionMethod = "staged") -> Plan | Nothing:
        """What a compaction to `target_tokens` would take out; None: all but the protected tail."""
        ledger = self.tracker.ledger
        return plan(
            self.history,
            ledger.item_prices(),
            present_tokens=ledger.next_prompt_tokens,
            window_tokens=self.tracker.window.max_tokens,
            target_tokens=target_tokens,
            summary_tokens=ledger.summary_tokens,
            answering_turn=self.answering_turn,
            method=method,
        )

    async def forget(self, direction: str, entries: int | None) -> int:
        """Drop entries from one end, whole call/result pairs, never the turn being answered; returns how many."""
        return await self.remove(plan_forget(self.history, direction, entries, answering_turn=self.answering_turn))

    async def remove(self, span: tuple[int, int] | None) -> int:
        """Take the items of these seqs out, from the first to the last; returns how many there were."""
        if span is None:
            return 0
        gone = self.history.evict(span[0], span[1], self.history.summary)
        self.tracker.cut(span[0], span[1], trigger="forget", freed_messages=len(gone))
        await self.keep(evicted=[item.seq for item in gone])
        return len(gone)

    def span_of_turn(self, turn: int) -> tuple[int, int] | None:
        """The first and the last seq of a turn's items; None if there are none."""
        seqs = [item.seq for item in self.history.items if item.turn == turn]
        return (seqs[0], seqs[-1]) if seqs else None

    async def clear(self) -> None:
        """Forget every item."""
        gone = [item.seq for item in self.history.items]
        self.history.clear()
        self.tracker.cleared()
        await self.keep(evicted=gone)

    # -- what there is room for --------------------------------------------------------------------------

    def project(self, text: str) -> int:
        """Tokens that a text will probably take, by what was learnt of the model."""
        return self.sizes.project(text, self.tracker.ledger.calibration)

    def room(self) -> Room:
        """What there is room for now, and if everything left that may leave."""
        tracker, window_tokens = self.tracker, self.tracker.window.max_tokens
        usable_tokens = window_tokens - output_reserve_tokens(window_tokens)
        parts = tracker.ledger.parts
        staying_tokens = parts.prefix + parts.summary + parts.pins
        turn = self.answering_turn
        span = None if turn is None else self.span_of_turn(turn)
        if span is not None:
            staying_tokens += tracker.ledger.price(*span).tokens
        free_tokens = usable_tokens - tracker.next_prompt_tokens
        return Room(window_tokens, max(0, free_tokens), max(0, usable_tokens - staying_tokens))

    async def _bounded(self, result: str, limit_tokens: int, *, kept_as: str) -> str | None:
        """What enters in place of a result that is too long; None for one that is not."""
        calibration = self.tracker.ledger.calibration

        def bounded() -> str | None:
            return self.result_bound.bounded(
                result, limit_tokens, lambda text: self.sizes.project(text, calibration), kept_as=kept_as
            )

        return bounded() if len(result) <= INLINE_CHARS else await in_thread(bounded)

    @property
    def _policy_makes_room(self) -> bool:
        """Whether the policy itself looks at results and makes room for them, so that they stay whole."""
        return "tool_result" in self.tracker.policy.rule_index.interventions

    # -- the store ---------------------------------------------------------------------------------------

    async def keep(
        self,
        *,
        added: Sequence[Item] = (),
        call: CallRecord | None = None,
        evicted: Sequence[int] = (),
        replaced: Sequence[Item] = (),
    ) -> None:
        """Store what changed (see `Store.keep`), and with it the state of the accounts."""
        history = self.history
        session = Session(
            summary=history.summary,
            revision=history.revision,
            next_seq=history.next_seq,
            turn=history.turn,
            context=self.tracker.saved(),
            persisted=self.standing,
        )
        await self.store.keep(session, added=added, call=call, evicted=evicted, replaced=replaced)

    async def _enter(self, item: Item, size: Size) -> Item:
        self.tracker.item_added(item, size.counted_tokens, size.units)
        await self.keep(added=(item,))
        if self.on_entered is not None:
            await self.on_entered()
        return item
