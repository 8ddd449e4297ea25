"""Requested and decided compactions: when they run, what they announce, what stops them; the model is real HTTP."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from mew_protocol.payloads.participant import Compact, CompactDone, Forget
from mew_protocol.payloads.retrieval import RequestHistory

from mew_agent.context.policy import MEW
from mew_agent.context.policy.threshold import Fraction
from mew_agent.conversation.conversation import Conversation
from mew_agent.model.interface import ModelRequest, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal.tokenizer import TOKENS_PER_MESSAGE, encode
from tests.support.conversation_driver import StartConversation, asked_tokens, fill, ignore
from tests.support.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(("total", "compacts"), [(7372, False), (7373, True)])
async def test_compaction_starts_at_nine_tenths_and_never_below(
    start_conversation: StartConversation, text: Callable[[int], str], total: int, compacts: bool
) -> None:
    """8192 * 9 / 10 is 7372.8: the first integer at or above it is 7373."""
    usage = ((1000, 100, 1100), (2500, 100, 2600), (4500, 100, 4600), (total - 60, 60, total))
    async with start_conversation(fixed_usage=usage) as driver:
        for _ in usage:
            await driver.turn(text(300))
        assert ("compacting" in driver.words) == compacts
        assert bool([r for r in driver.server.requests if r.is_summary]) == compacts
        reported = [s for s in driver.statuses if s.tokens == total and s.context and s.context.basis == "reported"]
        assert reported
        if compacts:
            assert driver.words[-3:] == ["near_limit", "compacting", "compacted"]
            assert driver.now.context is not None
            assert driver.now.context.last_compaction is not None
            assert driver.now.context.last_compaction.trigger == "threshold"


@pytest.mark.parametrize(("window", "tokens"), [(2048, 90), (4096, 90), (4096, 260)])
async def test_announced_freed_tokens_equal_the_real_drop(
    start_conversation: StartConversation, text: Callable[[int], str], window: int, tokens: int
) -> None:
    async with start_conversation(window_tokens=window) as driver:
        conversation, tracker = driver.conversation, driver.conversation.tracker
        measured = 0
        for _ in range(3):
            compactions = tracker.compactions
            while tracker.compactions == compactions:
                await driver.turn(text(tokens))
            last = tracker.last_compaction
            assert last is not None
            assert last.trigger in ("threshold", "next_task", "would_overflow")
            if last.trigger == "would_overflow":
                continue  # the next call has already ended
            # Compare the prompt of the uncut history with the real next prompt.
            kept_before = last.tokens_before
            assert kept_before is not None
            question = "And now?"
            await driver.turn(question)
            request = driver.server.requests[-1]
            assert request.prompt_tokens <= window * 7 // 10
            assert last.tokens_after is not None
            assert last.freed_tokens is not None
            announced_after = last.tokens_after
            # A prompt holds the template's tokens around the newest reply, the reported total does not.
            real_after = request.prompt_tokens - asked_tokens(question) - TOKENS_PER_MESSAGE
            real_drop = kept_before - real_after
            assert (last.basis, last.freed_gross_basis) == ("server_counted", "server_counted")
            assert last.freed_tokens == real_drop
            assert kept_before - announced_after == last.freed_tokens
            measured += 1
        assert measured
        assert conversation.history.summary is not None


class SilentCounter(OpenAIModel):
    """A model whose server never ends a count."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        await anyio.sleep_forever()
        return None


class AbsentCounter(OpenAIModel):
    """A model whose server has no counter."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        return None


class WrongCounter(OpenAIModel):
    """A model whose server counts something else than the prompt."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        return 100_000 - len(request.messages)


@pytest.mark.parametrize("model", [SilentCounter, AbsentCounter, WrongCounter])
async def test_a_compaction_without_a_usable_count_is_projected(
    start_conversation: StartConversation, text: Callable[[int], str], model: type[OpenAIModel]
) -> None:
    async with start_conversation(window_tokens=4096, model_class=model, count_seconds=0.01) as driver:
        await fill(driver, text, below=0.5)
        done = await driver.conversation.compact(Compact(target_tokens=1000))
        assert done.basis == "projected"
        assert driver.now.context is not None
        assert driver.now.context.basis == "projected"


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_a_failed_summary_is_replaced_by_the_extract_and_labelled(
    start_conversation: StartConversation, text: Callable[[int], str], behaviour: str
) -> None:
    async with start_conversation(summary_behaviour=behaviour) as driver:
        for _ in range(4):
            await driver.turn(text(150))
        done = await driver.conversation.compact(Compact())
        assert (done.skipped, done.summary_by) == (False, "extract")
        assert done.summary_problem
        assert not driver.conversation.compacting.is_running
        shown = driver.now.context
        assert shown is not None
        assert shown.last_compaction is not None
        assert shown.last_compaction.summary_by == "extract"
        assert shown.last_compaction.summary_problem == done.summary_problem
        # An empty answer is refused with a reason, and asked for once more.
        assert len([r for r in driver.server.requests if r.is_summary]) == (2 if behaviour == "empty" else 1)


async def test_a_history_too_long_for_one_call_reports_each_piece(
    start_conversation: StartConversation,
) -> None:
    async with start_conversation(window_tokens=8192) as driver:
        for number in range(5):
            await driver.turn(f"Write down what the {number}. visitor of the garden said about roses. " * 40)
        driver.conversation.state.change_window(Window(2048, "configured"))
        done = await driver.conversation.compact(Compact())
        assert done.summary_by == "model"
        works = [one.context.progress for one in driver.statuses if one.context and one.context.progress]
        assert [work.done for work in works] == list(range(len(works)))
        assert len(works) > 2
        assert (works[-1].done, works[-1].total) == (len(works) - 1, len(works))
        assert {one.status for one in driver.statuses if one.context and one.context.progress} == {"compacting"}
        assert driver.now.context is not None
        assert driver.now.context.progress is None


async def test_an_oversized_summary_is_cut_or_refused(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=2048, summary_behaviour="echo_everything") as driver:
        for _ in range(12):
            await driver.turn(text(150))
        last = driver.conversation.tracker.last_compaction
        assert last is not None
        assert last.freed_tokens is not None
        assert last.freed_tokens > 0
        assert all(r.prompt_tokens < 2048 for r in driver.server.requests)


_WITHOUT_COOLDOWN = tuple(rule.model_copy(update={"cooldown_seconds": 0.0}) for rule in MEW.rules)
IMPATIENT = MEW.model_copy(update={"name": "impatient", "rules": _WITHOUT_COOLDOWN})
"""The policy `mew` without a cooldown."""


async def test_compactions_that_free_too_little_stop_with_a_status(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    """A system prompt that nearly fills the window leaves nothing to free."""
    prompt = "".join(encode(text(2500))[:1850])
    async with start_conversation(
        policy=IMPATIENT, window_tokens=2048, system_prompt=prompt, reply_tokens=20
    ) as driver:
        for _ in range(3):
            await driver.turn("What do you say?")
        assert any((word or "").startswith("compaction_stalled:") for word in driver.words)
        assert driver.now.status == "compaction_stalled"
        compactions = driver.conversation.tracker.compactions
        await driver.turn("What do you say?")
        assert driver.conversation.tracker.compactions == compactions


def question_of(conversation: Conversation) -> Callable[[], Awaitable[None]]:
    """Adds the question of a task unless it is in context."""

    async def prepare() -> None:
        if not any(item.envelope_id == "task" for item in conversation.history.items):
            await conversation.state.add_user_message("A task.", sender="ada", envelope_id="task")

    return prepare


async def test_a_threshold_reached_in_a_task_compacts_at_its_end(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    usage = (*((1000 * at, 50, 1000 * at + 50) for at in range(1, 4)), *((7400 + at, 50, 7450 + at) for at in range(3)))
    async with start_conversation(fixed_usage=usage) as driver:
        conversation = driver.conversation
        for _ in range(3):
            await driver.turn(text(250))
        await conversation.begin_turn()
        for _ in range(3):
            await conversation.call(ignore, question_of(conversation))
            await conversation.apply_pending()
        assert "compacting" not in driver.words
        conversation.end_turn()
        await conversation.apply_pending()
        assert driver.words.count("compacted") == 1
        last = conversation.tracker.last_compaction
        assert (last and last.trigger) == "threshold"


async def test_a_task_without_room_compacts_in_the_middle(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    usage = (*((1000 * at, 50, 1000 * at + 50) for at in range(1, 4)), (7700, 50, 7750))
    async with start_conversation(fixed_usage=usage) as driver:
        for _ in range(3):
            await driver.turn(text(250))
        conversation = driver.conversation
        await conversation.begin_turn()
        await conversation.call(ignore, question_of(conversation))
        await conversation.state.add_prompt(text(250))
        await conversation.apply_pending()
        assert driver.words.count("compacted") == 1


async def test_a_due_compaction_does_not_repeat_a_requested_one(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (5000, 50, 5050), (7400, 50, 7450))
    async with start_conversation(fixed_usage=usage) as driver:
        for _ in range(3):
            await driver.turn(text(250))
        driver.server.change(chunk_delay_seconds=0.005, tokens_per_chunk=6)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await driver.conversation.compact(Compact(target_tokens=2000)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, text(250))
            await driver.server.wait_until(lambda: len(driver.server.requests) == 4)
            tasks.start_soon(compact)
        assert not answers[0].skipped
        assert driver.conversation.tracker.compactions == 1
        assert not driver.conversation.tracker.is_stalled


async def test_a_call_below_the_threshold_ends_a_stall(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    full = (7400, 50, 7450)
    usage = (full, full, full, (500, 50, 550), (3000, 50, 3050), full)
    async with start_conversation(policy=IMPATIENT, fixed_usage=usage) as driver:
        await driver.turn(text(250))
        for _ in range(2):
            await driver.conversation.state.record_failed_compaction()
        assert driver.conversation.tracker.is_stalled
        for _ in range(5):
            await driver.turn(text(250))
        assert "compacted" in driver.words


async def test_hidden_reasoning_is_announced_but_not_compacted(start_conversation: StartConversation) -> None:
    async with start_conversation(window_tokens=2048, reasoning_tokens=1850) as driver:
        await driver.turn("Think hard about water.")
        assert driver.words == ["near_limit"]
        assert driver.now.context is not None
        assert driver.now.context.level == "near_limit"
        assert not [r for r in driver.server.requests if r.is_summary]


async def test_a_request_without_a_target_compacts_at_any_fill(start_conversation: StartConversation) -> None:
    async with start_conversation(window_tokens=100_000) as driver:
        for question in ("Hi.", "Who are you?", "Fine.", "And you?"):
            await driver.turn(question)
        before = driver.server.requests[-1].prompt_tokens
        done = await driver.conversation.compact(Compact())
        assert not done.skipped
        assert done.freed_messages == 4
        assert done.freed_tokens is not None
        assert done.freed_tokens > 0
        assert done.tokens_before is not None
        assert done.tokens_after == done.tokens_before - done.freed_tokens
        assert driver.now.tokens == done.tokens_after
        assert driver.now.messages_in_context == 4
        assert driver.now.context is not None
        assert driver.now.context.basis == done.basis == "server_counted"
        assert driver.now.context.last_compaction is not None
        assert driver.now.context.last_compaction.freed_tokens == done.freed_tokens
        await driver.turn("Go on.")
        assert driver.server.requests[-1].prompt_tokens < before


async def test_the_server_counts_the_tokens_a_forget_frees(start_conversation: StartConversation) -> None:
    async with start_conversation(window_tokens=100_000) as driver:
        for question in ("Hi.", "Who are you?", "Fine.", "And you?"):
            await driver.turn(question)
        assert await driver.conversation.forget(Forget(direction="oldest", entries=4), "ada") == 4
        (forgotten,) = (await driver.conversation.archive.history(RequestHistory())).entries
        assert (forgotten.basis, forgotten.freed_gross_basis) == ("server_counted", "server_counted")
        question = "Go on."
        await driver.turn(question)
        real_after = driver.server.requests[-1].prompt_tokens - asked_tokens(question) - TOKENS_PER_MESSAGE
        assert forgotten.tokens_before is not None
        assert forgotten.freed_tokens == forgotten.tokens_before - real_after


async def test_a_requested_target_is_reached(start_conversation: StartConversation, text: Callable[[int], str]) -> None:
    async with start_conversation(window_tokens=8192) as driver:
        await fill(driver, text, below=0.5)
        done = await driver.conversation.compact(Compact(target_tokens=2000))
        assert not done.skipped
        await driver.turn("Go on.")
        assert driver.server.requests[-1].prompt_tokens <= 2000 + asked_tokens("Go on.") + 16


async def test_a_compaction_without_effect_is_skipped_with_its_reason(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation() as driver:
        assert (await driver.conversation.compact(Compact())).reason == "no_history"
        await driver.turn("One.")
        await driver.turn("Two.")
        assert (await driver.conversation.compact(Compact())).reason == "no_history"
        await driver.turn(text(100))
        done = await driver.conversation.compact(Compact(target_tokens=8000))
        assert (done.skipped, done.status, done.reason) == (True, "skipped", "already_below_target")
        assert done.tokens_before == done.tokens_after == driver.now.tokens


async def test_a_second_request_while_one_runs_is_skipped(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(chunk_delay_seconds=0.01) as driver:
        for _ in range(4):
            await driver.turn(text(150))
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await driver.conversation.compact(Compact()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            tasks.start_soon(compact)
        assert sorted(done.reason or "" for done in answers) == ["", "compaction_in_progress"]
        assert driver.conversation.tracker.compactions == 1


class PatientCounter(OpenAIModel):
    """A model whose server begins the count of a long prompt, and ends it when it may."""

    is_counting = anyio.Event()
    may_end = anyio.Event()

    async def count_prompt(self, request: ModelRequest) -> int | None:
        if len(request.messages) > 2 and not self.may_end.is_set():
            self.is_counting.set()
            await self.may_end.wait()
        return await super().count_prompt(request)


async def test_a_chat_that_begins_during_a_compaction_leaves_it_its_count(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    PatientCounter.is_counting, PatientCounter.may_end = anyio.Event(), anyio.Event()
    async with start_conversation(model_class=PatientCounter, count_seconds=PATIENCE_SECONDS) as driver:
        for _ in range(4):
            await driver.turn(text(150))
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await driver.conversation.compact(Compact()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await PatientCounter.is_counting.wait()
            tasks.start_soon(driver.turn, "And now?")
            await anyio.wait_all_tasks_blocked()
            PatientCounter.may_end.set()
        assert [done.basis for done in answers] == ["server_counted"]
        assert driver.conversation.history.items[-2].content == "And now?"


async def test_a_requested_compaction_cancels_a_due_one(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (7400, 50, 7450))
    async with start_conversation(fixed_usage=usage) as driver:
        await driver.turn(text(250))
        await driver.turn(text(250))
        turn = await driver.conversation.begin_turn()

        async def prepare() -> None:
            if driver.conversation.history.last_seq < 4:
                await driver.conversation.state.add_user_message(text(250), sender="ada", envelope_id="q")

        await driver.conversation.call(ignore, prepare)
        assert turn
        driver.conversation.end_turn()
        done = await driver.conversation.compact(Compact(target_tokens=1000))
        assert not done.skipped
        words = list(driver.words)
        await driver.conversation.apply_pending()
        assert driver.words == words, "nothing is due any more"
        assert not driver.conversation.tracker.is_stalled


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_the_fallback_drops_the_oldest_turns_without_a_summary(
    start_conversation: StartConversation, text: Callable[[int], str], behaviour: str
) -> None:
    policy = MEW.model_copy(update={"fallback": "drop_oldest"})
    usage = ((900, 50, 950), (2500, 50, 2550), (4500, 50, 4550), (7400, 50, 7450))
    async with start_conversation(policy=policy, summary_behaviour=behaviour, fixed_usage=usage) as driver:
        for _ in usage:
            await driver.turn(text(250))
        assert driver.words[-2:] == ["compacting", "compacted"]
        assert driver.conversation.history.summary is None
        assert 0 < len(driver.conversation.history.items) < 8
        assert driver.conversation.compaction_error is None
        last = driver.conversation.tracker.last_compaction
        assert last is not None
        assert (last.summary_tokens, last.trigger) == (0, "threshold")


async def test_a_compaction_of_everything_is_counted_without_the_removed_items(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation() as driver:
        for _ in range(4):
            await driver.turn(text(100))
        done = await driver.conversation.compact(Compact(target_tokens=0))
        assert not done.skipped, done.reason
        assert (len(driver.conversation.history.items), (done.freed_tokens or 0) > 200) == (0, True)


@pytest.mark.parametrize("usage", [(1_249_000, 1, 1_249_001), (0, 5, 5), (900, 50, 40), (59_990, 9, 59_999)])
async def test_no_report_however_absurd_takes_the_newest_turns(
    start_conversation: StartConversation, text: Callable[[int], str], usage: tuple[int, int, int]
) -> None:
    async with start_conversation(window_tokens=60_000) as driver:
        for _ in range(6):
            await driver.turn(text(150))
        newest = [item.content for item in driver.conversation.history.items[-4:]]
        reported = driver.now.tokens
        driver.server.change(fixed_usage=(usage,))
        await driver.turn(text(150))
        kept = [item.content for item in driver.conversation.history.items]
        assert kept[-4:-2] == newest[2:]
        status = driver.now
        assert status.context is not None
        if usage[0] == 59_990:
            assert "compacted" in driver.words
            return
        assert (status.tokens, status.context.reason) == (None, "usage_implausible")
        assert status.context.last_reported is not None
        assert status.context.last_reported.tokens == reported
        assert len(kept) == 14, "an implausible report compacts nothing"


async def test_dropping_to_a_size_reports_by_how_much_it_missed(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation() as driver:
        for _ in range(3):
            await driver.turn(text(150))
        whole = await driver.conversation.compress_to(Fraction(numerator=1, denominator=1))
        assert (whole.removed_messages, whole.missed_by_tokens) == (0, 0)
        dropped = await driver.conversation.compress_to(Fraction(numerator=1, denominator=100))
        assert dropped.removed_messages == 4
        assert dropped.missed_by_tokens == dropped.tokens_after - 81
        assert dropped.tokens_after == driver.conversation.tracker.ledger.next_prompt_tokens
        assert not [request for request in driver.server.requests if request.is_summary]
        assert driver.words[-1] == "compacted"


async def test_dropping_to_a_size_waits_for_the_compaction_that_runs(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(chunk_delay_seconds=0.01) as driver:
        for _ in range(5):
            await driver.turn(text(150))
        words = len(driver.words)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.conversation.compact, Compact())
            tasks.start_soon(driver.conversation.compress_to, Fraction(numerator=1, denominator=100))
        assert driver.words[words:] == ["compacting", "compacted", "compacting", "compacted"]
        assert len({item.turn for item in driver.conversation.history.items}) == 1
