"""Random histories of turns, compactions, forgets, clears, restarts and undos: an undo restores byte for byte."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mew_protocol.payloads.read_receipts import PromptCall
from mew_protocol.payloads.retrieval import Undo

from mew_agent.compaction.planner import CompactionPlan
from mew_agent.context.archive import Origin
from mew_agent.context.history import History, Item, Summary
from mew_agent.context.message_facts import Prompted
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore, Store
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation_archive import ContextArchive
from mew_agent.conversation.conversation_events import ConversationEvents
from mew_agent.model.interface import ModelReply, ToolCall, Window
from mew_agent.model.usage import Usage

MANY = 10_000 if settings().max_examples > 1_000 else 30
"""How many histories: all of them in `make test-long`."""

ROUNDING_TOKENS, ERROR_PART = 4, 25
"""The price of a note is a share of its interval, so what returns in its place may be off by this much."""

SYSTEM = "You keep records."
TEXTS = ("Where is the pier?", "é中😀\u2028 lone", "", "x" * 700, "The gateway refuses it. " * 30)


def truth(text: str) -> int:
    return 4 + len(text) // 3


@dataclass
class Past:
    """The context before a change, by which its undo is judged."""

    items: tuple[Item, ...]
    summary: Summary | None
    tokens: int | None
    next_tokens: int
    seq: int  # items from this one on came later
    step: int


@dataclass
class RandomHistory:
    """A context that random steps change, and what each recorded change has to restore."""

    rng: random.Random
    open_store: Callable[[], Store]
    pasts: dict[int, Past] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    entries: int = 0
    step: int = 0
    restored: int = 0

    async def start(self) -> None:
        self.store = self.open_store()
        tracker = Tracker(History(), MEW, Window(self.rng.choice((3_000, 100_000)), "configured"), "m")
        self.state = ContextState(tracker, self.store, ConversationEvents())
        self.state.tracker.describe_prefix(SYSTEM, "")
        await self.state.load()
        self.archive = ContextArchive(self.state)

    async def play(self, steps: int) -> None:
        await self.start()
        moves = (self.turn, self.turn, self.turn, self.compact, self.forget, self.clear, self.restart, self.undo)
        for self.step in range(steps):
            move = self.rng.choices(moves, (3, 3, 3, 4, 1, 1, 1, 5))[0]
            await move()
            self.check()
        await self.store.aclose()

    # -- moves -------------------------------------------------------------------------------------------

    async def turn(self) -> None:
        state, rng = self.state, self.rng
        state.answering_turn = state.history.begin_turn()
        await state.add_user_message(rng.choice(TEXTS), sender="ada", envelope_id=f"q{state.history.next_seq}")
        for _ in range(rng.choice((0, 0, 1, 2))):
            width = rng.randint(1, 3)
            # Some servers count their calls from 0 in every reply.
            start = rng.choice((0, 10 * state.history.next_seq))
            taken = {call.id for item in state.history.items for call in item.tool_calls}
            ids = [f"c{start + place}" for place in range(width)]
            ids = [f"{one}-{state.history.next_seq}" if one in taken else one for one in ids]
            await self.reply("", tuple(ToolCall(one, "r", "{}") for one in ids))
            if rng.random() < 0.05:
                await self.clear()  # while the tools run
            await state.close_open_calls("done", {i: rng.choice(TEXTS) for i in state.history.open_calls()})
        if state.history.items:
            await self.reply(rng.choice(TEXTS), ())
        state.answering_turn = None

    async def reply(self, text: str, calls: tuple[ToolCall, ...]) -> None:
        state, history = self.state, self.state.history
        prompt = truth(SYSTEM) + sum(truth(m.content) for m in history.request_messages(SYSTEM)[1:])
        usage = Usage(prompt, truth(text), prompt + truth(text)) if self.rng.random() < 0.8 else None
        reply = ModelReply(text, calls, "stop", usage, "m", backend="b")
        record = CallRecord(f"call{history.next_seq}", "main", "t", "m", history.revision, usage)
        prompted = Prompted(PromptCall(number=1, id=record.id, at="t"), history.last_seq)
        await state.add_reply(reply, record, prompted=prompted, fingerprint="f")

    async def compact(self) -> None:
        target = self.rng.choice((None, None, 200, 1_000))
        method = self.rng.choice(("staged", "summarise", "drop_oldest"))
        plan = self.state.plan_compaction(target, method)  # type: ignore[arg-type]
        if isinstance(plan, CompactionPlan):
            past = self.past()
            summary = Summary(f"Summary {self.step}.") if plan.evict and plan.summary_budget_tokens else None
            await self.state.apply_compaction(plan, summary, "requested", origin=Origin("ada"))
            self.record(past)

    async def forget(self) -> None:
        origin, past = self.rng.choice((None, Origin("ada"))), self.past()
        before = self.state.history.items
        if await self.state.forget(self.rng.choice(("oldest", "newest")), self.rng.randint(1, 4), origin):
            if origin is not None:
                self.record(past)
            else:  # not archived, so no undo brings these back
                gone = {item.seq for item in before} - {item.seq for item in self.state.history.items}
                for one in self.pasts.values():
                    one.items = tuple(item for item in one.items if item.seq not in gone)

    async def clear(self) -> None:
        past = self.past()
        await self.state.clear(None, Origin("ada"))
        if past.items or past.summary is not None:
            self.record(past)

    async def restart(self) -> None:
        if not isinstance(self.store, MemoryStore):  # closing it would end the session
            await self.store.aclose()
        await self.start()

    async def undo(self) -> None:
        in_force = [number for number in self.pasts if number not in self.undone]
        number = self.rng.choice((None, self.rng.randint(1, self.entries + 1)))
        done = await self.archive.undo(Undo(number=number), "ada")
        expected = in_force[-1] if in_force and number in (None, in_force[-1]) else None
        if done.status == "refused":
            assert expected is None or "would take about" in (done.reason or ""), done
            return
        assert done.number == expected
        self.entries += 1
        assert done.entry == self.entries
        past = self.pasts[done.number or 0]
        self.undone.add(done.number or 0)
        self.restored += 1
        items = self.state.history.items
        is_whole = self.check_restored(past, [item for item in items if item.seq < past.seq])
        assert self.state.history.summary == past.summary
        is_next = past.step == self.step - 1 and past.seq == self.state.history.next_seq
        if is_next and is_whole and past.tokens is not None:
            tracker = self.state.tracker
            error = max(ROUNDING_TOKENS, past.tokens // ERROR_PART)
            assert abs((tracker.measurement.tokens or 0) - past.tokens) <= error
            assert abs(tracker.ledger.next_prompt_tokens - past.next_tokens) <= error

    # -- what has to hold --------------------------------------------------------------------------------

    def past(self) -> Past:
        history, tracker = self.state.history, self.state.tracker
        tokens = tracker.measurement.tokens, tracker.ledger.next_prompt_tokens
        return Past(tuple(history.items), history.summary, *tokens, history.next_seq, self.step)

    def record(self, past: Past) -> None:
        self.entries += 1
        self.pasts[self.entries] = past

    def check_restored(self, past: Past, items: list[Item]) -> bool:
        """Every item is back as it was, except calls that were still open. Returns whether there were none."""
        open_calls = {call.id for item in past.items for call in item.tool_calls}
        open_calls -= {item.tool_call_id for item in past.items}
        split = [i for i in past.items if any(c.id in open_calls for c in i.tool_calls)]
        away = {call.id for item in split for call in item.tool_calls}
        whole = [i for i in past.items if i not in split and not (split and i.tool_call_id in away)]
        assert [without_call_ids(item) for item in items] == [without_call_ids(item) for item in whole]
        return not split

    def check(self) -> None:
        state, history = self.state, self.state.history
        assert not history.open_calls() or state.answering_turn is not None
        messages = history.request_messages(SYSTEM)
        results = [m for m in messages if m.role == "tool"]
        assert len(results) == sum(item.role == "tool" for item in history.items)  # no result without its call
        ids = [call.id for item in history.items for call in item.tool_calls]
        assert len(ids) == len(set(ids))
        assert [item.seq for item in history.items] == sorted({item.seq for item in history.items})
        ledger = state.tracker.ledger
        assert ledger.item_prices().keys() == {item.seq for item in history.items}
        assert ledger.next_prompt_tokens >= 0
        if ledger.prompt_tokens is not None:
            assert sum(ledger.parts[:5]) == ledger.prompt_tokens


def without_call_ids(item: Item) -> tuple[object, ...]:
    """All of an item but the ids of its calls, which change if a later call took the same ones."""
    calls = tuple((call.name, call.arguments) for call in item.tool_calls)
    return (item.seq, item.role, item.content, item.turn, item.id, item.known_tokens, item.stubbed, item.name, calls)


@settings(max_examples=MANY)
@example(40_487)  # items return into the middle of an interval
@example(1_640)  # a result returns whose call got another id
@given(st.integers(0, 2**32))
def test_an_undo_restores_removed_items_byte_for_byte(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.db"
        memory, in_file = MemoryStore(), seed % 16 == 0
        history = RandomHistory(random.Random(seed), lambda: SqliteStore(path) if in_file else memory)
        anyio.run(history.play, 24)
