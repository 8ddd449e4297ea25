"""The figures of the report after each call, and how controls interrupt calls; the model is real HTTP."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent.conversation.model_calls import CallInterrupted, with_unique_call_ids
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import Window
from mew_agent.parts.rehearsal.tokenizer import encode
from tests.support.conversation_driver import TOOL, ConversationDriver, StartConversation, fill


@pytest.mark.parametrize("place", ["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "every_chunk"])
async def test_after_each_call_tokens_is_the_providers_total(start_conversation: StartConversation, place: str) -> None:
    totals = [(100, 20, 120), (130, 30, 165), (200, 1, 900)]
    async with start_conversation(usage_on=place, fixed_usage=tuple(totals)) as driver:
        for _prompt, _completion, total in totals:
            await driver.turn("A word.")
            assert driver.statuses[-1].tokens == total
            assert driver.statuses[-1].context is not None
            assert driver.statuses[-1].context.basis == "reported"


async def test_without_a_total_tokens_is_prompt_and_completion(start_conversation: StartConversation) -> None:
    async with start_conversation(usage_on="no_total", fixed_usage=((100, 20, None), (150, 33, None))) as driver:
        await driver.turn("A word.")
        assert driver.now.tokens == 120
        await driver.turn("Another.")
        assert driver.now.tokens == 183


@pytest.mark.parametrize("options", [{"usage_on": "none"}, {"reject_stream_options": True}])
async def test_a_server_without_usage_leaves_the_figure_unknown(
    start_conversation: StartConversation, options: dict[str, Any]
) -> None:
    async with start_conversation(**options) as driver:
        await driver.turn("A word.")
        status = driver.statuses[-1]
        assert status.tokens is None
        assert status.context is not None
        assert (status.context.basis, status.context.reason) == ("unknown", "usage_unavailable")
        assert status.context.last_reported is None
        assert status.messages_in_context == 2


async def test_a_server_without_streaming_still_reports_usage(start_conversation: StartConversation) -> None:
    async with start_conversation(refuse_streaming=True) as driver:
        await driver.turn("A word.")
        reported = driver.server.requests[-1].reported
        assert reported is not None
        assert driver.now.tokens == reported["total_tokens"]


async def test_missing_usage_keeps_the_last_report(start_conversation: StartConversation) -> None:
    async with start_conversation(fixed_usage=((100, 20, 120), None, (140, 20, 160))) as driver:
        await driver.turn("One.")
        call_id = driver.now.context.call_id if driver.now.context else None
        await driver.turn("Two.")
        context = driver.now.context
        assert driver.now.tokens is None
        assert context is not None
        assert context.reason == "usage_unavailable"
        assert context.last_reported is not None
        assert (context.last_reported.tokens, context.last_reported.call_id) == (120, call_id)
        await driver.turn("Three.")
        assert driver.now.tokens == 160


@pytest.mark.parametrize("style", ["connection", "end_of_stream"])
@pytest.mark.parametrize("chunks", [0, 2])
async def test_a_cut_stream_changes_no_figure(start_conversation: StartConversation, style: str, chunks: int) -> None:
    async with start_conversation() as driver:
        await driver.turn("One.")
        before = driver.now
        driver.server.change(cut_after_chunks=chunks, cut_style=style)
        with pytest.raises(ModelError):
            await driver.turn("Two.")
        after = driver.now
        assert after.tokens == before.tokens
        assert before.context is not None
        assert after.context is not None
        assert (after.context.basis, after.context.call_id) == ("reported", before.context.call_id)
        assert after.context.stale_messages == before.context.stale_messages + 1
        assert after.status == "model_stream_cut" or chunks == 0
        assert [call.failed is None for call in await driver.conversation.state.store.calls()] == [True, False]


async def test_an_overflow_reveals_the_window_and_the_call_is_repeated(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window=100_000, window_tokens=2048) as driver:
        driver.conversation.tracker.window_changed(Window(128_000, "assumed", "default"))
        while len([r for r in driver.server.requests if r.status == 400]) == 0:
            await driver.turn(text(200))
        window = driver.conversation.tracker.window
        assert (window.max_tokens, window.basis) == (2048, "loaded")
        last = driver.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "overflow_error"
        assert driver.server.requests[-1].status == 200
        assert driver.now.max_tokens == 2048


async def test_an_empty_stream_of_a_full_window_is_an_overflow(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    """The configured window is a little larger than the server's, which ends an overflow with an empty stream."""
    async with start_conversation(
        window=2270, window_tokens=2048, empty_stream_on_overflow=True, reply_tokens=20
    ) as driver:
        await fill(driver, text, below=0.82, tokens=40)
        assert driver.now.tokens is not None
        await driver.turn("".join(encode(text(500))[: 2100 - driver.now.tokens]))
        last = driver.conversation.tracker.last_compaction
        assert last is not None
        assert last.trigger == "overflow_error"
        assert driver.now.context is not None
        assert driver.now.context.basis == "reported"


async def test_an_empty_stream_despite_room_is_a_failed_call(start_conversation: StartConversation) -> None:
    async with start_conversation(cut_after_chunks=0, cut_style="end_of_stream") as driver:
        with pytest.raises(ModelStreamCut):
            await driver.turn("A word.")
        assert driver.conversation.calls.last_error_status == "model_stream_cut"


async def test_a_message_larger_than_the_window_does_not_affect_the_next(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=2048) as driver:
        await driver.turn("One.")
        await driver.turn("Two.")
        with pytest.raises(ContextOverflow):
            await driver.turn(text(3000))
        assert all("Report" not in item.content for item in driver.conversation.history.items)
        reply = await driver.turn("Three.")
        assert reply.text
        assert driver.now.tokens is not None
        assert driver.now.tokens < 2048


async def test_a_control_past_the_bound_cancels_the_call_at_the_server(start_conversation: StartConversation) -> None:
    async with start_conversation(call_bound_seconds=0.05, chunk_delay_seconds=5.0) as driver:
        interrupted = anyio.Event()

        async def think() -> None:
            with pytest.raises(CallInterrupted):
                await driver.turn("A long thought.")
            interrupted.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(think)
            await driver.server.wait_until(
                lambda: bool(driver.server.requests) and driver.server.requests[0].chunks_sent > 0
            )
            await driver.conversation.clear()
            await interrupted.wait()
        await driver.server.wait_until(lambda: driver.server.requests[0].is_disconnected)
        assert driver.now.messages_in_context == 0
        assert driver.conversation.calls.last_error_status is None


async def test_a_control_within_the_bound_waits_for_the_call(start_conversation: StartConversation) -> None:
    async with start_conversation(chunk_delay_seconds=0.005) as driver:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, "A short thought.")
            await driver.server.wait_until(
                lambda: bool(driver.server.requests) and driver.server.requests[0].chunks_sent > 0
            )
            await driver.conversation.clear()
            assert driver.server.requests[0].is_complete
        assert driver.now.messages_in_context == 0
        assert driver.conversation.history.revision == 1
        # The call was reported before the clear, so its figure is not that of the empty history.
        assert driver.now.tokens is None


async def test_new_tools_count_between_calls_only(start_conversation: StartConversation) -> None:
    def next_prompt_tokens(driver: ConversationDriver) -> int:
        assert driver.now.context is not None
        return driver.now.context.next_prompt_tokens or 0

    async with start_conversation() as driver:
        without = next_prompt_tokens(driver)
        driver.tools = (TOOL,)
        assert next_prompt_tokens(driver) > without
        driver.tools = ()
        assert next_prompt_tokens(driver) == without
        driver.server.change(chunk_delay_seconds=0.01, tokens_per_chunk=6)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, "A short thought.")
            await driver.server.wait_until(
                lambda: bool(driver.server.requests) and driver.server.requests[0].chunks_sent > 0
            )
            requested = next_prompt_tokens(driver)
            driver.tools = (TOOL,)
            assert next_prompt_tokens(driver) == requested
        await driver.turn("And another.")
        assert driver.now.context is not None
        assert driver.now.context.basis == "reported"


async def test_a_control_past_the_bound_also_cancels_a_summary(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(call_bound_seconds=0.05) as driver:
        for _ in range(4):
            await driver.turn(text(150))
        driver.server.change(chunk_delay_seconds=5.0)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await driver.conversation.compact(Compact()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await driver.server.wait_until(lambda: any(r.is_summary and r.chunks_sent for r in driver.server.requests))
            await driver.conversation.clear()
        assert answers[0].skipped
        assert answers[0].reason == "a control interrupted this call"
        assert driver.now.messages_in_context == 0


async def test_a_cleared_question_enters_again_before_its_call(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    """A clear that waits for the compaction before a request runs right before that request."""
    async with start_conversation(window_tokens=2048) as driver:
        await fill(driver, text, below=0.6)
        driver.server.change(chunk_delay_seconds=0.01, tokens_per_chunk=6)
        question = text(700)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, question)
            await driver.server.wait_until(lambda: any(r.is_summary and r.chunks_sent for r in driver.server.requests))
            await driver.conversation.clear()
        sent = str(driver.server.requests[-1].body["messages"])
        assert question in sent
        assert driver.server.requests[-1].status == 200


async def test_repeated_tool_call_ids_become_unique(start_conversation: StartConversation) -> None:
    """Some servers number the calls of every reply from 0; results must still find their calls."""
    async with start_conversation(tools=(TOOL,)) as driver:
        conversation = driver.conversation
        reply = await driver.turn('call look_up with {"q": "a"}, and call look_up with {"q": "b"}')
        assert len(reply.tool_calls) == 2
        await conversation.state.close_open_calls(
            "?", {call.id: f"found {call.arguments}" for call in reply.tool_calls}
        )
        again = with_unique_call_ids(reply, conversation.history)
        ids = [call.id for call in (*reply.tool_calls, *again.tool_calls)]
        assert len(set(ids)) == 4
        assert [item.content for item in conversation.history.items if item.role == "tool"] == [
            'found {"q": "a"}',
            'found {"q": "b"}',
        ]
