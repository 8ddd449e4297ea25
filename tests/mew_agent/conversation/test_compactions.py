"""Requested and decided compactions: when they run, what they announce, what stops them; the model is real HTTP."""

from collections.abc import Callable

import anyio
import pytest
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent.context.policy import MEW
from mew_agent.context.policy.threshold import Fraction
from mew_agent.rehearsal.tokenizer import encode
from tests.support.talk import Talking, asked_tokens, filled, ignore


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
async def test_announced_freed_tokens_equal_the_real_drop(
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
                continue  # the next call has already ended
            # Compare the prompt of the uncut history with the real next prompt.
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


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_failed_summaries_change_nothing_and_two_stop_the_loop(
    talking: Talking, text: Callable[[int], str], behaviour: str
) -> None:
    usage = tuple((7400 + n, 50, 7450 + n) for n in range(4))
    async with talking(summary_behaviour=behaviour, fixed_usage=((900, 50, 950), *usage)) as talk:
        conversation = talk.conversation
        for _ in range(2):
            await talk.turn(text(120))
        assert len(conversation.history) == 4
        assert conversation.history.revision == 0
        assert conversation.compaction_error
        assert talk.words[-1] == f"compaction_failed:{conversation.compaction_error}"
        assert talk.now.status == "active"
        await talk.turn(text(120))
        assert f"compaction_stalled:{conversation.compaction_error}" in talk.words
        calls = len([r for r in talk.server.requests if r.is_summary])
        await talk.turn(text(120))
        assert len([r for r in talk.server.requests if r.is_summary]) == calls, "it must not try for ever"
        assert conversation.history.revision == 0
        # The summary calls are recorded apart and changed no figure.
        assert (talk.now.tokens, talk.now.status) == (7452, "compaction_stalled")


async def test_an_oversized_summary_is_cut_or_refused(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=2048, summary_behaviour="echo_everything") as talk:
        for _ in range(12):
            await talk.turn(text(150))
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert last.freed_tokens > 0
        assert all(r.prompt_tokens < 2048 for r in talk.server.requests)


async def test_compactions_that_free_too_little_stop_with_a_status(
    talking: Talking, text: Callable[[int], str]
) -> None:
    """A system prompt that nearly fills the window leaves nothing to free."""
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


async def test_a_due_compaction_does_not_repeat_a_requested_one(talking: Talking, text: Callable[[int], str]) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (5000, 50, 5050), (7400, 50, 7450))
    async with talking(fixed_usage=usage) as talk:
        for _ in range(3):
            await talk.turn(text(250))
        talk.server.change(chunk_delay_seconds=0.005)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact(target_tokens=2000)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, text(250))
            await talk.server.wait_until(lambda: len(talk.server.requests) == 4)
            tasks.start_soon(compact)
        assert not answers[0].skipped
        assert talk.conversation.tracker.compactions == 1
        assert not talk.conversation.tracker.is_stalled


async def test_a_call_below_the_threshold_ends_a_stall(talking: Talking, text: Callable[[int], str]) -> None:
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


async def test_hidden_reasoning_is_announced_but_not_compacted(talking: Talking) -> None:
    async with talking(window_tokens=2048, reasoning_tokens=1850) as talk:
        await talk.turn("Think hard about water.")
        assert talk.words == ["near_limit"]
        assert talk.now.context is not None
        assert talk.now.context.level == "near_limit"
        assert not [r for r in talk.server.requests if r.is_summary]


async def test_a_request_without_a_target_compacts_at_any_fill(talking: Talking) -> None:
    async with talking(window_tokens=100_000) as talk:
        for question in ("Hi.", "Who are you?", "Fine.", "And you?"):
            await talk.turn(question)
        before = talk.server.requests[-1].prompt_tokens
        done = await talk.conversation.compact(Compact())
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


async def test_a_requested_target_is_reached(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(window_tokens=8192) as talk:
        await filled(talk, text, below=0.5)
        done = await talk.conversation.compact(Compact(target_tokens=2000))
        assert not done.skipped
        await talk.turn("Go on.")
        assert talk.server.requests[-1].prompt_tokens <= 2000 + asked_tokens("Go on.") + 16


async def test_a_compaction_without_effect_is_skipped_with_its_reason(
    talking: Talking, text: Callable[[int], str]
) -> None:
    async with talking() as talk:
        assert (await talk.conversation.compact(Compact())).reason == "no_history"
        await talk.turn("One.")
        await talk.turn("Two.")
        assert (await talk.conversation.compact(Compact())).reason == "no_history"
        await talk.turn(text(100))
        done = await talk.conversation.compact(Compact(target_tokens=8000))
        assert (done.skipped, done.status, done.reason) == (True, "skipped", "already_below_target")
        assert done.tokens_before == done.tokens_after == talk.now.tokens


async def test_a_second_request_while_one_runs_is_skipped(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(chunk_delay_seconds=0.01) as talk:
        for _ in range(4):
            await talk.turn(text(150))
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            tasks.start_soon(compact)
        assert sorted(done.reason or "" for done in answers) == ["", "compaction_in_progress"]
        assert talk.conversation.tracker.compactions == 1


async def test_a_requested_compaction_cancels_a_due_one(talking: Talking, text: Callable[[int], str]) -> None:
    usage = ((900, 50, 950), (2500, 50, 2550), (7400, 50, 7450))
    async with talking(fixed_usage=usage) as talk:
        await talk.turn(text(250))
        await talk.turn(text(250))
        turn = await talk.conversation.begin_turn()

        async def prepare() -> None:
            if talk.conversation.history.last_seq < 4:
                await talk.conversation.state.add_user_message(text(250), sender="ada", envelope_id="q")

        await talk.conversation.call(ignore, prepare)
        assert turn
        talk.conversation.end_turn()
        done = await talk.conversation.compact(Compact(target_tokens=1000))
        assert not done.skipped
        words = list(talk.words)
        await talk.conversation.apply_pending()
        assert talk.words == words, "nothing is due any more"
        assert not talk.conversation.tracker.is_stalled


async def test_a_failed_summary_is_answered_and_changes_nothing(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking() as talk:
        for _ in range(4):
            await talk.turn(text(150))
        items, tokens = list(talk.conversation.history.items), talk.now.tokens
        for behaviour in ("fail", "empty"):
            talk.server.change(summary_behaviour=behaviour)
            done = await talk.conversation.compact(Compact())
            assert done.skipped
            assert done.reason
            assert talk.conversation.history.items == items
            assert talk.now.tokens == tokens
            assert not talk.conversation.is_compacting


@pytest.mark.parametrize("behaviour", ["fail", "empty"])
async def test_the_fallback_drops_the_oldest_turns_without_a_summary(
    talking: Talking, text: Callable[[int], str], behaviour: str
) -> None:
    policy = MEW.model_copy(update={"fallback": "drop_oldest"})
    usage = ((900, 50, 950), (2500, 50, 2550), (7400, 50, 7450))
    async with talking(policy=policy, summary_behaviour=behaviour, fixed_usage=usage) as talk:
        for _ in usage:
            await talk.turn(text(250))
        assert talk.words[-2:] == ["compacting", "compacted"]
        assert talk.conversation.history.summary is None
        assert 0 < len(talk.conversation.history) < 6
        assert talk.conversation.compaction_error is None
        last = talk.conversation.tracker.last_compaction
        assert last is not None
        assert (last.summary_tokens, last.trigger) == (0, "threshold")


async def test_dropping_to_a_size_reports_by_how_much_it_missed(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking() as talk:
        for _ in range(3):
            await talk.turn(text(150))
        whole = await talk.conversation.compress_to(Fraction(numerator=1, denominator=1))
        assert (whole.removed_messages, whole.missed_by_tokens) == (0, 0)
        dropped = await talk.conversation.compress_to(Fraction(numerator=1, denominator=100))
        assert dropped.removed_messages == 4
        assert dropped.missed_by_tokens == dropped.tokens_after - 81
        assert dropped.tokens_after == talk.conversation.tracker.next_prompt.tokens
        assert not [request for request in talk.server.requests if request.is_summary]
        assert talk.words[-1] == "compacted"
