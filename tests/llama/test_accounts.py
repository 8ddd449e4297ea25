"""A conversation's accounts against what llama.cpp's own server counts: prices of cuts, compaction, drift."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations

import anyio
import pytest
from mew_protocol.context_report import answer_reserve_tokens
from mew_protocol.payloads.participant import Compact, Status

from mew_agent.context.history import History, Item
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.conversation import Conversation, Prepare
from mew_agent.conversation.conversation_events import ConversationEvent, StatusChanged
from mew_agent.conversation.model_calls import ConversationOptions
from mew_agent.model.interface import ModelEvent, ModelReply, ModelRequest, ToolSpec, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from tests.llama.conftest import Serving
from tests.llama.server import LlamaServer
from tests.support.texts import paragraphs

PATIENCE_SECONDS = 120.0
OUTPUT_RESERVE_TOKENS = answer_reserve_tokens(4096)
SYSTEM = "You keep records of what the stations measured."
ADD = ToolSpec(
    "add",
    "Adds two whole numbers.",
    {
        "type": "object",
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
        "required": ["left", "right"],
    },
)
PLAIN = ("",)
MIXED = ("", "!babble ", "!act ", "", "!think ", "!act ")
TEXTS = [text[:400] for text in paragraphs(60)]


async def ignore(_event: ModelEvent) -> None:
    """Ignore the event."""


@dataclass
class ServerConversation:
    """One conversation with the server, and what each of its calls was counted and reported."""

    conversation: Conversation
    model: OpenAIModel
    statuses: list[Status] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    sent_up_to: list[int] = field(default_factory=list)
    """The newest item that each call sent."""

    @property
    def history(self) -> History:
        return self.conversation.history

    @property
    def tracker(self) -> Tracker:
        return self.conversation.tracker

    @property
    def words(self) -> list[str | None]:
        """The status words announced so far."""
        return [status.status for status in self.statuses]

    async def count(self, items: list[Item] | None = None) -> int:
        """The server's count of the next request, or of one with these items instead."""
        history = self.history if items is None else History(items, summary=self.history.summary)
        tokens = await self.model.count_prompt(ModelRequest(history.request_messages(SYSTEM), (ADD,)))
        assert tokens is not None
        return tokens

    async def receive(self, text: str) -> Prepare:
        """A question enters; returns what a call needs to put it in again."""
        number = f"q{self.history.next_seq}"

        async def prepare() -> None:
            if not any(item.envelope_id == number for item in self.history.items):
                await self.conversation.state.add_user_message(text, sender="ada", envelope_id=number)

        await self.conversation.begin_turn()
        await prepare()
        return prepare

    async def turn(self, text: str) -> None:
        """One question and its answer; tools answer with a short text."""
        prepare = await self.receive(text)
        reply = await self.call(prepare)
        while reply.tool_calls:
            for call in reply.tool_calls:
                await self.conversation.state.add_tool_result(call, f"the sum of {call.arguments} is known")
            reply = await self.call(prepare)
        self.conversation.end_turn()
        await self.conversation.apply_pending()

    async def call(self, prepare: Prepare) -> ModelReply:
        """One call of the conversation, counted by the server beforehand."""
        counted = await self.count()
        reply = await self.conversation.call(ignore, prepare)
        assert reply.usage is not None
        self.counted.append(counted)
        self.usages.append(reply.usage)
        self.sent_up_to.append(self.history.last_seq - 1)
        return reply

    async def converse(self, turns: int, ways: tuple[str, ...]) -> None:
        """So many turns about as many texts, in these ways."""
        for number in range(turns):
            await self.turn(ways[number % len(ways)] + TEXTS[number])


StartConversation = Callable[..., AbstractAsyncContextManager[ServerConversation]]


@pytest.fixture
def start_conversation(server: LlamaServer) -> StartConversation:
    """`start_conversation(server=..., window_tokens=...)`: a conversation with the server, in its window."""

    @asynccontextmanager
    async def build(at: LlamaServer = server, window: Window | None = None) -> AsyncIterator[ServerConversation]:
        model = OpenAIModel("tiny", at.base_url, max_retries=0)
        found = window or await model.discover_window()
        tracker = Tracker(History(), MEW, found or resolve_window(), "tiny")
        driver: ServerConversation

        async def record(event: ConversationEvent) -> None:
            if isinstance(event, StatusChanged):
                driver.statuses.append(event.status)

        options = ConversationOptions(system_prompt=SYSTEM, tools=lambda: (ADD,))
        conversation = Conversation(model, tracker, MemoryStore(), options)
        conversation.events.subscribe(record)
        driver = ServerConversation(conversation, model)
        with anyio.fail_after(PATIENCE_SECONDS):
            yield driver
        await model.aclose()

    return build


@pytest.mark.parametrize("ways", [PLAIN, MIXED], ids=["plain", "mixed"])
async def test_every_call_is_counted_beforehand_as_it_is_then_reported(
    start_conversation: StartConversation, ways: tuple[str, ...]
) -> None:
    async with start_conversation() as t:
        await t.converse(12, ways)
        assert len(t.usages) >= 12
        assert t.counted == [usage.prompt_tokens for usage in t.usages]
        assert all(
            (status.tokens, status.context and status.context.basis) == (usage.total_tokens, "reported")
            for status, usage in zip(t.statuses, t.usages, strict=True)
        )


async def test_a_prompt_holds_at_least_the_total_before_it(start_conversation: StartConversation) -> None:
    """Nothing of a plain reply is left out of the next prompt, and the template only adds."""
    async with start_conversation() as t:
        await t.converse(12, PLAIN)
        pairs = list(zip(t.usages, t.usages[1:], strict=False))
        assert all(before.total_tokens < after.prompt_tokens for before, after in pairs)


# -- prices ------------------------------------------------------------------------------------------------


async def prices(t: ServerConversation) -> dict[tuple[int, int], tuple[bool, int]]:
    """For each cut from call to call: whether the ledger calls its price exact, and how many tokens it is off."""
    t.conversation.end_turn()
    await t.receive("What follows from all that?")
    whole, found = await t.count(), {}
    for first, last in combinations(range(len(t.sent_up_to)), 2):
        cut = range(t.sent_up_to[first] + 1, t.sent_up_to[last] + 1)
        price = t.tracker.ledger.price(cut.start, cut.stop - 1)
        left = await t.count([item for item in t.history.items if item.seq not in cut])
        found[first, last] = (price.basis == "exact", price.tokens - (whole - left))
    return found


async def test_each_exact_cut_equals_the_servers_difference(
    start_conversation: StartConversation,
) -> None:
    """The model's factor settles in the first calls; from then on no interval gives reason to doubt."""
    async with start_conversation() as t:
        await t.converse(14, PLAIN)
        found = await prices(t)
        assert [cut for cut, (exact, off) in found.items() if exact and off] == []
        settled = {cut: exact for cut, (exact, _) in found.items() if cut[0] >= 4}
        assert len(settled) == 45
        assert sum(settled.values()) >= 30


@pytest.mark.parametrize("ways", [("", "!babble "), MIXED], ids=["pieces of words", "thinking and tools"])
async def test_no_price_is_called_exact_and_wrong(start_conversation: StartConversation, ways: tuple[str, ...]) -> None:
    """Replies that tokenize differently when read again, thinking that is left out, calls in another form."""
    async with start_conversation() as t:
        await t.converse(12, ways)
        found = await prices(t)
        assert len(found) >= 66
        assert [cut for cut, (exact, off) in found.items() if exact and off] == []


async def test_an_exact_cut_frees_the_drop_of_the_next_report(start_conversation: StartConversation) -> None:
    async with start_conversation() as t:
        await t.converse(12, PLAIN)
        first, last = next(cut for cut, (exact, _) in reversed((await prices(t)).items()) if exact)
        before = await t.count()
        start, end = t.sent_up_to[first] + 1, t.sent_up_to[last]
        gone = t.history.evict(start, end, None)
        outcome = t.tracker.cut(start, end, trigger="requested", freed_messages=len(gone))
        assert outcome.basis == "exact"
        assert outcome.freed_tokens > 100
        reply = await t.call(ignore_question)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == before - outcome.freed_tokens


async def ignore_question() -> None:
    """The question is in the history already."""


# -- compaction --------------------------------------------------------------------------------------------


async def test_a_requested_compaction_announces_nearly_the_later_drop(
    server: LlamaServer, start_conversation: StartConversation
) -> None:
    async with start_conversation() as t:
        await t.converse(12, PLAIN)
        before = t.usages[-1].total_tokens
        done = await t.conversation.compact(Compact())
        assert (done.skipped, done.tokens_before, done.basis) == (False, before, "projected")
        assert done.tokens_after is not None
        assert done.freed_tokens == before - done.tokens_after > 1000
        prepare = await t.receive("And now?")
        reply = await t.call(prepare)
        assert reply.usage is not None
        assert t.counted[-1] == reply.usage.prompt_tokens
        question = len(server.tokenize("<|im_start|>user\nAnd now?<|im_end|>\n", with_marks=True))
        assert reply.usage.prompt_tokens - done.tokens_after == pytest.approx(question, abs=before // 10)


async def test_the_window_never_overflows_and_compaction_comes_when_it_must(
    start_conversation: StartConversation,
) -> None:
    """At nine tenths of the window after a call; before one only where the request would not fit."""
    async with start_conversation() as t:
        await t.converse(50, MIXED)
        assert max(usage.total_tokens for usage in t.usages) <= 4096
        assert not [word for word in t.words if word and word.startswith(("compaction_", "context_", "truncated"))]
        triggers = []
        for before, after in zip(t.statuses, t.statuses[1:], strict=False):
            if before.status == "compacting":
                assert after.status == "compacted"
                assert before.context is not None
                assert after.context is not None
                assert after.context.last_compaction is not None
                triggers.append(after.context.last_compaction.trigger)
                if triggers[-1] == "would_overflow":
                    assert (before.context.next_prompt_tokens or 0) + OUTPUT_RESERVE_TOKENS > 4096
                else:
                    assert (before.tokens or 0) * 10 >= 4096 * 9
                assert (after.tokens or 0) < 4096 * 7 // 10
        assert len(triggers) == t.tracker.compactions >= 2
        smaller = [counted for counted, usage in zip(t.counted, t.usages, strict=True) if usage.prompt_tokens < counted]
        assert len(smaller) == triggers.count("would_overflow")
        assert all(usage.prompt_tokens <= counted for counted, usage in zip(t.counted, t.usages, strict=True))


async def test_a_limit_from_an_overflow_is_kept_for_the_answer(
    start_conversation: StartConversation,
) -> None:
    """The configured window is eight times the window of the server."""
    async with start_conversation(window=Window(32_768, "configured", "configuration")) as t:
        number = 0
        while t.tracker.window.max_tokens > 4096:
            await t.turn(TEXTS[number])
            number += 1
        assert t.tracker.window == Window(4096, "loaded", "overflow error")
        assert t.tracker.compactions == 1
        assert t.tracker.last_compaction is not None
        assert t.tracker.last_compaction.trigger == "overflow_error"
        assert t.history.items[-1].role == "assistant"
        assert t.history.items[-2].content == TEXTS[number - 1]
        assert t.usages[-1].total_tokens < 4096
        await t.converse(3, PLAIN)
        assert t.tracker.compactions == 1


async def test_a_server_that_shifts_its_context_is_noticed(
    serving: Serving, start_conversation: StartConversation
) -> None:
    """With `--context-shift` a reply runs on past the window; the next request is compacted before it is sent."""
    with serving(extra=("--context-shift", "--predict", "5000")) as shifting:
        async with start_conversation(at=shifting) as t:
            await t.converse(2, PLAIN)
            await t.turn("!sing")
            assert t.usages[-1].completion_tokens == 5000
            report = next(status for status in reversed(t.statuses) if status.tokens == t.usages[-1].total_tokens)
            assert (report.tokens or 0) > 4096
            assert t.tracker.compactions == 1
            await t.turn("What now?")
            assert t.usages[-1].total_tokens < 4096
            assert t.counted[-1] == t.usages[-1].prompt_tokens
