"""The figures of the report at every moment, compaction by itself, and what interrupts what; the model is real HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from mew_agent.context.policy import PRESETS
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation import Conversation
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.history import History, Pin
from mew_agent.model.interface import ModelEvent, ModelReply, TextDelta, ToolSpec, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from mew_agent.model.rehearsal.tokenizer import count_message, encode
from mew_agent.model_calls import CallInterrupted
from mew_agent.store import MemoryStore, SqliteStore, Store
from protocol.payloads.participant import Compact, CompactDone, Forget, Status

TOOL = ToolSpec("look_up", "Looks something up.", {"type": "object", "properties": {"q": {"type": "string"}}})


async def ignore(_event: ModelEvent) -> None:
    """Nobody listens."""


@dataclass
class Talk:
    """One conversation with one rehearsal model; every announced status is kept."""

    server: RehearsalServer
    conversation: Conversation
    statuses: list[Status] = field(default_factory=list)
    turns: int = 0

    async def announce(self, word: str | None) -> None:
        self.statuses.append(self.conversation.status(word))

    @property
    def words(self) -> list[str | None]:
        return [status.status for status in self.statuses]

    @property
    def now(self) -> Status:
        return self.conversation.status()

    async def turn(self, text: str) -> ModelReply:
        """One question, one call, and what the policy wants afterwards."""
        self.turns += 1
        number = self.turns
        turn = await self.conversation.begin_turn()

        async def prepare() -> None:
            if not any(item.envelope_id == f"q{number}" for item in self.conversation.history.items):
                await self.conversation.hear(text, sender="ada", envelope_id=f"q{number}")

        try:
            return await self.conversation.call(ignore, prepare)
        except ContextOverflow:
            await self.conversation.withdraw_turn(turn)
            raise
        finally:
            self.conversation.end_turn()
            await self.conversation.settle()


class Talking(Protocol):
    def __call__(
        self,
        *,
        window: int | None = None,
        store: Store | None = None,
        call_bound_seconds: float = 30.0,
        keep_newest_items: int | None = None,
        tools: tuple[ToolSpec, ...] = (),
        system_prompt: str = "You keep records.",
        **options: Any,
    ) -> AbstractAsyncContextManager[Talk]: ...


@pytest.fixture
def talking() -> Talking:
    @asynccontextmanager
    async def build(
        *,
        window: int | None = None,
        store: Store | None = None,
        call_bound_seconds: float = 30.0,
        keep_newest_items: int | None = None,
        tools: tuple[ToolSpec, ...] = (),
        system_prompt: str = "You keep records.",
        **options: Any,
    ) -> AsyncIterator[Talk]:
        async with serve_rehearsal(RehearsalOptions(**options)) as server:
            model = OpenAIModel("rehearsal", server.base_url, "key", max_retries=0)
            tracker = Tracker(
                history=History(),
                policy=PRESETS["mew"],
                window=resolve_window(window or server.options.window_tokens),
                model="rehearsal",
            )
            talk: Talk

            async def announce(word: str | None) -> None:
                await talk.announce(word)

            conversation = Conversation(
                model,
                tracker,
                store or MemoryStore(),
                system_prompt=system_prompt,
                tools=lambda: tools,
                announce=announce,
                keep_newest_items=keep_newest_items,
                call_bound_seconds=call_bound_seconds,
            )
            talk = Talk(server, conversation)
            try:
                with anyio.fail_after(30):
                    yield talk
            finally:
                await model.aclose()
                if store is not None:
                    await store.aclose()

    return build


async def filled(talk: Talk, text: Callable[[int], str], *, below: float, tokens: int = 150) -> None:
    """Talk until the reported figure is at least this part of the window."""
    while (talk.now.tokens or 0) < below * talk.conversation.tracker.window.max_tokens:
        await talk.turn(text(tokens))


# -- figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "every_chunk"])
async def test_after_each_call_the_figure_is_the_providers_total(talking: Talking, place: str) -> None:
    totals = [(100, 20, 120), (130, 30, 165), (200, 1, 900)]
    async with talking(usage_on=place, fixed_usage=tuple(totals)) as talk:
        for _prompt, _completion, total in totals:
            await talk.turn("A word.")
            assert talk.statuses[-1].tokens == total
            assert talk.statuses[-1].context is not None
            assert talk.statuses[-1].context.basis == "reported"


async def test_without_a_total_the_figure_is_prompt_and_completion(talking: Talking) -> None:
    async with talking(usage_on="no_total", fixed_usage=((100, 20, None), (150, 33, None))) as talk:
        await talk.turn("A word.")
        assert talk.now.tokens == 120
        await talk.turn("Another.")
        assert talk.now.tokens == 183


@pytest.mark.parametrize("options", [{"usage_on": "none"}, {"reject_stream_options": True}])
async def test_a_server_that_reports_nothing_leaves_the_figure_unknown(
    talking: Talking, options: dict[str, Any]
) -> None:
    async with talking(**options) as talk:
        await talk.turn("A word.")
        status = talk.statuses[-1]
        assert status.tokens is None
        assert status.context is not None
        assert (status.context.basis, status.context.reason) == ("unknown", "usage_unavailable")
        assert status.context.last_reported is None
        assert status.messages_in_context == 2


async def test_a_server_that_does_not_stream_still_reports(talking: Talking) -> None:
    async with talking(refuse_streaming=True) as talk:
        await talk.turn("A word.")
        reported = talk.server.requests[-1].reported
        assert reported is not None
        assert talk.now.tokens == reported["total_tokens"]


async def test_usage_that_stops_coming_keeps_the_last_report_beside_unknown(talking: Talking) -> None:
    async with talking(fixed_usage=((100, 20, 120), None, (140, 20, 160))) as talk:
        await talk.turn("One.")
        call_id = talk.now.context.call_id if talk.now.context else None
        await talk.turn("Two.")
        context = talk.now.context
        assert talk.now.tokens is None
        assert context is not None
        assert context.reason == "usage_unavailable"
        assert context.last_reported is not None
        assert (context.last_reported.tokens, context.last_reported.call_id) == (120, call_id)
        await talk.turn("Three.")
        assert talk.now.tokens == 160


@pytest.mark.parametrize("style", ["connection", "end_of_stream"])
@pytest.mark.parametrize("chunks", [0, 2])
async def test_a_cut_stream_changes_no_figure(talking: Talking, style: str, chunks: int) -> None:
    async with talking() as talk:
        await talk.turn("One.")
        before = talk.now
        talk.server.change(cut_after_chunks=chunks, cut_style=style)
        with pytest.raises(ModelError):
            await talk.turn("Two.")
        after = talk.now
        assert after.tokens == before.tokens
        assert before.context is not None
        assert after.context is not None
        assert (after.context.basis, after.context.call_id) == ("reported", before.context.call_id)
        assert after.context.stale_messages == before.context.stale_messages + 1
        assert after.status == "model_stream_cut" or chunks == 0
        assert [call.failed is None for call in await talk.conversation.store.calls()] == [True, False]


# -- compaction by itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "compacts"), [(7372, False), (7373, True)])
async def test_compaction_starts_at_nine_tenths_and_never_below(
    talking: Talking, text: Callable[[int], str], total: int, compacts: bool
) -> None:
    """8192 * 9 / 10 is 7372.8: the first integer at or above it is 7373."""
    usage = ((1000, 100, 1100), (2500, 100, 2600), (4500, 100, 4600), (total - 60, 60, total))
    async with talking(fixed_usage=usage) as talk:
        for _ in usage:
            await talk.turn(text(300))
        assert ("compacting" in talk.words) == compacts
        assert bool([r for r in talk.server.requests if r.is_summary]) == compacts
        reported = [s for s in talk.statuses if s.tokens == total and s.context and s.context.basis == "reported"]
        assert reported
        if compacts:
            assert talk.words[-3:] == ["near_limit", "compacting", "compacted"]
            assert talk.now.context is not None
            assert talk.now.context.last_compaction is not None
            assert talk.now.context.last_compaction.trigger == "threshold"


@pytest.mark.parametrize("window", [2048, 4096])
@pytest.mark.parametrize("tokens", [90, 260])
async def test_announced_freed_tokens_are_the_real_drop_and_seven_tenths_remain_at_most(
    talking: Talking, text: Callable[[int], str], window: int, tokens: int
) -> None:
    async with talking(window_tokens=window) as talk:
        conversation, tracker = talk.conversation, talk.conversation.tracker
        measured = 0
        for _ in range(3):
            compactions = tracker.compactions
            while tracker.compactions == compactions:
                await talk.turn(text(tokens))
            last = tracker.last_compaction
            assert last is not None
            assert last.trigger in ("threshold", "would_overflow")
            if last.trigger == "would_overflow":
                continue  # the call that followed it is over already
            # What the same history would have been as a prompt, had nothing been cut, against the real next prompt.
            kept_before = last.tokens_before
            assert kept_before is not None
            question = "And now?"
            await talk.turn(question)
            request = talk.server.requests[-1]
            assert request.prompt_tokens <= window * 7 // 10
            assert last.tokens_after is not None
            announced_after = last.tokens_after
            real_after = request.prompt_tokens - asked_tokens(question)
            real_drop = kept_before - real_after
            assert abs(last.freed_tokens - real_drop) <= max(16, real_drop // 100)
            assert kept_before - announced_after == last.freed_tokens
            measured += 1
        assert measured
        assert conversation.history.summary is not None


def asked_tokens(question: str) -> int:
    """What one more question by ada takes in a prompt of the rehearsal model."""
    return count_message({"role": "user", "content": question, "name": "ada"})


async def test_a_request_that_would_not_fit_is_compacted_first(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=2048) as talk:
        await filled(talk, text, below=0.6)
        assert "compacting" not in talk.words
        await talk.turn(text(700))
        assert talk.words.count("compacting") == 1
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "would_overflow"
        assert all(request.status == 200 for request in talk.server.requests)


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_a_summary_that_fails_changes_nothing_and_two_stop_the_loop(
    talking: Talking, text: Callable[[int], str], behaviour: str
) -> None:
    usage = tuple((7400 + n, 50, 7450 + n) for n in range(4))
    async with talking(summary_behaviour=behaviour, fixed_usage=((900, 50, 950), *usage)) as talk:
        conversation = talk.conversation
        for _ in range(2):
            await talk.turn(text(120))
        assert len(conversation.history) == 4
        assert conversation.history.revision == 0
        assert conversation.compaction_problem
        assert talk.words[-1] == f"compaction_failed:{conversation.compaction_problem}"
        assert talk.now.status == "active"
        await talk.turn(text(120))
        assert f"compaction_stalled:{conversation.compaction_problem}" in talk.words
        calls = len([r for r in talk.server.requests if r.is_summary])
        await talk.turn(text(120))
        assert len([r for r in talk.server.requests if r.is_summary]) == calls, "it must not try for ever"
        assert conversation.history.revision == 0
        # The summary calls are recorded apart and moved no figure.
        assert (talk.now.tokens, talk.now.status) == (7452, "compaction_stalled")


async def test_a_summary_of_everything_is_cut_to_its_room_or_refused(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking(window_tokens=2048, summary_behaviour="echo_everything") as talk:
        for _ in range(12):
            await talk.turn(text(150))
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.freed_tokens > 0
        assert all(r.prompt_tokens < 2048 for r in talk.server.requests)


async def test_compactions_that_cannot_free_enough_stop_with_a_clear_status(
    talking: Talking, text: Callable[[int], str]
) -> None:
    """A system prompt that nearly fills the window leaves nothing to win."""
    prompt = "".join(encode(text(2500))[:1840])
    async with talking(window_tokens=2048, system_prompt=prompt, reply_tokens=20) as talk:
        for _ in range(3):
            await talk.turn("What do you say?")
        assert talk.words.count("compacted") == 2
        assert "compaction_stalled:compacting does not free enough" in talk.words
        assert talk.now.status == "compaction_stalled"
        compactions = talk.conversation.tracker.compactions
        await talk.turn("What do you say?")
        assert talk.conversation.tracker.compactions == compactions


async def test_a_due_compaction_waits_for_a_requested_one_and_is_not_made_twice(
    talking: Talking, text: Callable[[int], str]
) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (5000, 50, 5050), (7400, 50, 7450))
    async with talking(fixed_usage=usage) as talk:
        for _ in range(3):
            await talk.turn(text(250))
        talk.server.change(chunk_delay_seconds=0.005)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact(target_tokens=2000), "ada"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, text(250))
            await talk.server.wait_until(lambda: len(talk.server.requests) == 4)
            tasks.start_soon(compact)
        assert not answers[0].skipped
        assert talk.conversation.tracker.compactions == 1
        assert not talk.conversation.tracker.is_stalled


async def test_after_a_stall_a_call_below_the_threshold_lets_it_compact_again(
    talking: Talking, text: Callable[[int], str]
) -> None:
    full = (7400, 50, 7450)
    usage = (full, full, full, (500, 50, 550), (3000, 50, 3050), full)
    async with talking(summary_behaviour="fail", fixed_usage=usage) as talk:
        for _ in range(3):
            await talk.turn(text(250))
        assert talk.conversation.tracker.is_stalled
        talk.server.change(summary_behaviour="extract")
        for _ in range(3):
            await talk.turn(text(250))
        assert "compacted" in talk.words


async def test_reasoning_that_is_not_sent_again_is_announced_but_not_compacted(talking: Talking) -> None:
    async with talking(window_tokens=2048, reasoning_tokens=1850) as talk:
        await talk.turn("Think hard about water.")
        assert talk.words == ["near_limit"]
        assert talk.now.context is not None
        assert talk.now.context.level == "near_limit"
        assert not [r for r in talk.server.requests if r.is_summary]


# -- compaction on request ---------------------------------------------------------------------------------


async def test_a_request_without_a_target_compacts_at_any_fill(talking: Talking) -> None:
    async with talking(window_tokens=100_000) as talk:
        for question in ("Hi.", "Who are you?", "Fine.", "And you?"):
            await talk.turn(question)
        before = talk.server.requests[-1].prompt_tokens
        done = await talk.conversation.compact(Compact(), "ada")
        assert not done.skipped
        assert done.freed_messages == 4
        assert done.freed_tokens is not None
        assert done.freed_tokens > 0
        assert done.tokens_before is not None
        assert done.tokens_after == done.tokens_before - done.freed_tokens
        assert talk.now.tokens == done.tokens_after
        assert talk.now.messages_in_context == 4
        assert talk.now.context is not None
        assert talk.now.context.basis == "projected"
        assert talk.now.context.last_compaction is not None
        assert talk.now.context.last_compaction.freed_tokens == done.freed_tokens
        await talk.turn("Go on.")
        assert talk.server.requests[-1].prompt_tokens < before


async def test_a_target_is_reached(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=8192) as talk:
        await filled(talk, text, below=0.5)
        done = await talk.conversation.compact(Compact(target_tokens=2000), "ada")
        assert not done.skipped
        await talk.turn("Go on.")
        assert talk.server.requests[-1].prompt_tokens <= 2000 + asked_tokens("Go on.") + 16


async def test_what_cannot_be_compacted_is_skipped_with_its_reason(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking() as talk:
        assert (await talk.conversation.compact(Compact(), "ada")).reason == "no_history"
        await talk.turn("One.")
        await talk.turn("Two.")
        assert (await talk.conversation.compact(Compact(), "ada")).reason == "no_history"
        await talk.turn(text(100))
        done = await talk.conversation.compact(Compact(target_tokens=8000), "ada")
        assert (done.skipped, done.status, done.reason) == (True, "skipped", "already_below_target")
        assert done.tokens_before == done.tokens_after == talk.now.tokens


async def test_a_second_request_while_one_runs_is_skipped(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(chunk_delay_seconds=0.01) as talk:
        for _ in range(4):
            await talk.turn(text(150))
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact(), "ada"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            tasks.start_soon(compact)
        assert sorted(done.reason or "" for done in answers) == ["", "compaction_in_progress"]
        assert talk.conversation.tracker.compactions == 1


async def test_a_compaction_that_was_due_is_dropped_when_a_requested_one_came_first(
    talking: Talking, text: Callable[[int], str]
) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (7400, 50, 7450))
    async with talking(fixed_usage=usage) as talk:
        await talk.turn(text(250))
        await talk.turn(text(250))
        turn = await talk.conversation.begin_turn()

        async def prepare() -> None:
            if talk.conversation.history.last_seq < 4:
                await talk.conversation.hear(text(250), sender="ada", envelope_id="q")

        await talk.conversation.call(ignore, prepare)
        assert turn
        talk.conversation.end_turn()
        done = await talk.conversation.compact(Compact(target_tokens=1000), "ada")
        assert not done.skipped
        words = list(talk.words)
        await talk.conversation.settle()
        assert talk.words == words, "nothing is due any more"
        assert not talk.conversation.tracker.is_stalled


async def test_a_failed_summary_answers_the_request_and_leaves_everything(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking() as talk:
        for _ in range(4):
            await talk.turn(text(150))
        items, tokens = list(talk.conversation.history.items), talk.now.tokens
        for behaviour in ("fail", "empty"):
            talk.server.change(summary_behaviour=behaviour)
            done = await talk.conversation.compact(Compact(), "ada")
            assert done.skipped
            assert done.reason
            assert talk.conversation.history.items == items
            assert talk.now.tokens == tokens
            assert not talk.conversation.is_compacting


# -- overflow ----------------------------------------------------------------------------------------------


async def test_an_overflow_teaches_the_window_and_the_call_is_made_again(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking(window=100_000, window_tokens=2048) as talk:
        talk.conversation.tracker.window = Window(128_000, "assumed", "default")
        while len([r for r in talk.server.requests if r.status == 400]) == 0:
            await talk.turn(text(200))
        window = talk.conversation.tracker.window
        assert (window.max_tokens, window.basis) == (2048, "loaded")
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "overflow_error"
        assert talk.server.requests[-1].status == 200
        assert talk.now.max_tokens == 2048


async def test_an_empty_stream_of_a_full_window_is_an_overflow(talking: Talking, text: Callable[[int], str]) -> None:
    """The agent believes in a window a little larger than the server's, which ends an overflow without a word."""
    async with talking(window=2270, window_tokens=2048, empty_stream_on_overflow=True, reply_tokens=20) as talk:
        await filled(talk, text, below=0.82, tokens=40)
        assert talk.now.tokens is not None
        await talk.turn("".join(encode(text(500))[: 2100 - talk.now.tokens]))
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "overflow_error"
        assert talk.now.context is not None
        assert talk.now.context.basis == "reported"


async def test_an_empty_stream_of_a_window_with_room_is_a_failed_call(talking: Talking) -> None:
    async with talking(cut_after_chunks=0, cut_style="end_of_stream") as talk:
        with pytest.raises(ModelStreamCut):
            await talk.turn("A word.")
        assert talk.conversation.trouble == "model_stream_cut"


async def test_one_message_larger_than_the_window_does_not_spoil_the_next(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking(window_tokens=2048) as talk:
        await talk.turn("One.")
        await talk.turn("Two.")
        with pytest.raises(ContextOverflow):
            await talk.turn(text(3000))
        assert all("Report" not in item.content for item in talk.conversation.history.items)
        reply = await talk.turn("Three.")
        assert reply.text
        assert talk.now.tokens is not None
        assert talk.now.tokens < 2048


# -- controls between calls --------------------------------------------------------------------------------


async def test_clearing_leaves_nothing_and_no_figure(talking: Talking) -> None:
    async with talking() as talk:
        await talk.turn("One.")
        await talk.conversation.clear()
        assert talk.now.tokens is None
        assert talk.now.messages_in_context == 0
        assert talk.now.context is not None
        assert (talk.now.context.basis, talk.now.context.reason) == ("unknown", "cleared")
        await talk.turn("Two.")
        sent = talk.server.requests[-1]
        reported = sent.reported
        assert reported is not None
        assert talk.now.tokens == reported["total_tokens"]
        assert "One." not in str(sent.body["messages"])


@pytest.mark.parametrize(("direction", "left"), [("oldest", ["q2", None]), ("newest", ["q1", None])])
async def test_forgetting_takes_from_the_end_that_was_named(
    talking: Talking, direction: Any, left: list[str | None]
) -> None:
    async with talking() as talk:
        await talk.turn("One.")
        await talk.turn("Two.")
        before = talk.now.tokens
        assert await talk.conversation.forget(Forget(direction=direction, entries=2)) == 2
        assert [item.envelope_id for item in talk.conversation.history.items] == left
        assert talk.now.context is not None
        assert talk.now.context.basis == "projected"
        assert talk.now.tokens is not None
        assert before is not None
        assert talk.now.tokens < before
        assert await talk.conversation.forget(Forget(direction=direction)) > 0
        assert await talk.conversation.forget(Forget(direction=direction, entries=50)) >= 0
        assert await talk.conversation.forget(Forget(direction=direction)) == 0


async def test_a_control_past_the_bound_cancels_the_call_at_the_server(talking: Talking) -> None:
    async with talking(call_bound_seconds=0.05, chunk_delay_seconds=5.0) as talk:
        interrupted = anyio.Event()

        async def think() -> None:
            with pytest.raises(CallInterrupted):
                await talk.turn("A long thought.")
            interrupted.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(think)
            await talk.server.wait_until(lambda: bool(talk.server.requests) and talk.server.requests[0].chunks_sent > 0)
            await talk.conversation.clear()
            await interrupted.wait()
        await talk.server.wait_until(lambda: talk.server.requests[0].is_disconnected)
        assert talk.now.messages_in_context == 0
        assert talk.conversation.trouble is None


async def test_a_control_within_the_bound_waits_for_the_call(talking: Talking) -> None:
    async with talking(chunk_delay_seconds=0.005) as talk:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, "A short thought.")
            await talk.server.wait_until(lambda: bool(talk.server.requests) and talk.server.requests[0].chunks_sent > 0)
            await talk.conversation.clear()
            assert talk.server.requests[0].is_complete
        assert talk.now.messages_in_context == 0
        assert talk.conversation.history.revision == 1
        # The report of the call came before the clearing, and is not taken for the empty history's.
        assert talk.now.tokens is None


async def test_a_control_past_the_bound_also_cancels_a_summary(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(call_bound_seconds=0.05) as talk:
        for _ in range(4):
            await talk.turn(text(150))
        talk.server.change(chunk_delay_seconds=5.0)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact(), "ada"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await talk.server.wait_until(lambda: any(r.is_summary and r.chunks_sent for r in talk.server.requests))
            await talk.conversation.clear()
        assert answers[0].skipped
        assert answers[0].reason == "a control interrupted this call"
        assert talk.now.messages_in_context == 0


async def test_a_question_cleared_between_its_hearing_and_its_call_is_heard_again(
    talking: Talking, text: Callable[[int], str]
) -> None:
    """A clear that waits behind the compaction before a request comes right before that request."""
    async with talking(window_tokens=2048) as talk:
        await filled(talk, text, below=0.6)
        talk.server.change(chunk_delay_seconds=0.01)
        question = text(700)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, question)
            await talk.server.wait_until(lambda: any(r.is_summary and r.chunks_sent for r in talk.server.requests))
            await talk.conversation.clear()
        sent = str(talk.server.requests[-1].body["messages"])
        assert question in sent
        assert talk.server.requests[-1].status == 200


# -- tool calls, limits, restarts --------------------------------------------------------------------------


async def test_tool_calls_that_repeat_an_id_get_ids_of_their_own(talking: Talking) -> None:
    """Servers exist that number the calls of every reply from the beginning; results must still find their calls."""
    async with talking(tools=(TOOL,)) as talk:
        conversation = talk.conversation
        reply = await talk.turn('call look_up with {"q": "a"}, and call look_up with {"q": "b"}')
        assert len(reply.tool_calls) == 2
        await conversation.close_open_calls("?", {call.id: f"found {call.arguments}" for call in reply.tool_calls})
        again = conversation._with_own_ids(reply)
        ids = [call.id for call in (*reply.tool_calls, *again.tool_calls)]
        assert len(set(ids)) == 4
        assert [item.content for item in conversation.history.items if item.role == "tool"] == [
            'found {"q": "a"}',
            'found {"q": "b"}',
        ]


async def test_open_calls_are_closed_in_their_order(talking: Talking) -> None:
    async with talking(tools=(TOOL,)) as talk:
        reply = await talk.turn('call look_up with {"q": "a"}, and call look_up with {"q": "b"}')
        first, second = reply.tool_calls
        await talk.conversation.close_open_calls("cancelled", {second.id: "b was there"})
        results = [(i.tool_call_id, i.content) for i in talk.conversation.history.items if i.role == "tool"]
        assert results == [(first.id, "cancelled"), (second.id, "b was there")]
        await talk.conversation.close_open_calls("cancelled")
        assert len(talk.conversation.history) == 4


async def test_a_configured_length_drops_the_oldest_before_each_question(talking: Talking) -> None:
    async with talking(keep_newest_items=2) as talk:
        for question in ("One.", "Two.", "Three."):
            await talk.turn(question)
        sent = str(talk.server.requests[-1].body["messages"])
        assert "One." not in sent
        assert "Two." in sent
        assert talk.now.messages_in_context == 4


async def test_pins_stay_in_every_request(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking() as talk:
        talk.conversation.pin(Pin("p", "The house rule is quiet."))
        for _ in range(4):
            await talk.turn(text(100))
        await talk.conversation.compact(Compact(), "ada")
        await talk.conversation.clear()
        await talk.turn("Still?")
        assert "The house rule is quiet." in str(talk.server.requests[-1].body["messages"])


async def test_a_found_window_moves_the_threshold_at_once(talking: Talking) -> None:
    async with talking() as talk:
        await talk.turn("One.")
        tokens = talk.now.tokens
        await talk.conversation.window_found(Window(4000, "loaded", "server"))
        status = talk.statuses[-1]
        assert (status.tokens, status.max_tokens) == (tokens, 4000)
        assert status.context is not None
        assert (status.context.compact_at_tokens, status.context.max_tokens_basis) == (3600, "loaded")
        count = len(talk.statuses)
        await talk.conversation.window_found(Window(4000, "loaded", "server"))
        assert len(talk.statuses) == count


async def test_a_stored_session_goes_on_where_it_was(
    talking: Talking, text: Callable[[int], str], tmp_path: Path
) -> None:
    path = tmp_path / "session.sqlite"
    async with talking(store=SqliteStore(path), tools=(TOOL,)) as talk:
        for _ in range(4):
            await talk.turn(text(150))
        await talk.conversation.compact(Compact(), "ada")
        reply = await talk.turn('call look_up with {"q": "a"}')
        assert reply.tool_calls
        kept, tokens = list(talk.conversation.history.items), talk.now.tokens
        summary = talk.conversation.history.summary
    async with talking(store=SqliteStore(path), tools=(TOOL,)) as talk:
        await talk.conversation.load()
        history = talk.conversation.history
        assert history.items[:-1] == kept
        assert history.summary == summary
        assert history.items[-1].tool_call_id == reply.tool_calls[0].id, "an open call must not stay open"
        assert not history.open_calls()
        status = talk.now
        assert status.tokens is None
        assert status.messages_in_context == len(kept) + 1
        assert status.context is not None
        assert (status.context.basis, status.context.reason) == ("unknown", "restarted")
        assert status.context.last_reported is not None
        assert status.context.last_reported.tokens == tokens
        assert status.context.compactions == 1
        await talk.turn("Go on.")
        reported = talk.server.requests[-1].reported
        assert reported is not None
        assert talk.now.tokens == reported["total_tokens"]
        assert talk.now.context is not None
        assert talk.now.context.basis == "reported"


async def test_text_with_half_a_character_is_kept_as_text_that_can_be_sent(talking: Talking) -> None:
    heard: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        heard.append(event)

    async with talking() as talk:
        conversation = talk.conversation
        await conversation.begin_turn()
        await conversation.hear("Say it.", sender="ada", envelope_id="q")

        async def nothing_to_prepare() -> None: ...

        reply = await conversation.call(listen, nothing_to_prepare)
        assert any(isinstance(event, TextDelta) for event in heard)
        assert heard[-1] == reply


async def test_a_server_that_leaves_out_part_of_what_we_sent_is_told_on(talking: Talking) -> None:
    async with talking(window=8192, fixed_usage=[(2000, 20, 2020), (1200, 20, 1220), (1250, 20, 1270)]) as talk:
        for number in range(3):
            await talk.turn(f"Question {number}?")
    assert talk.words == ["active", "truncated_by_server", "active"]
