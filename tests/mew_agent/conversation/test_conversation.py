"""The figures of the report after each call, and how controls interrupt calls; the model is real HTTP."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.participant import Compact, CompactDone

from mew_agent.conversation.model_calls import CallInterrupted, with_unique_call_ids
from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import Window
from mew_agent.rehearsal.tokenizer import encode
from tests.support.talk import TOOL, Talk, Talking, filled


@pytest.mark.parametrize("place", ["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "every_chunk"])
async def test_after_each_call_tokens_is_the_providers_total(talking: Talking, place: str) -> None:
    totals = [(100, 20, 120), (130, 30, 165), (200, 1, 900)]
    async with talking(usage_on=place, fixed_usage=tuple(totals)) as talk:
        for _prompt, _completion, total in totals:
            await talk.turn("A word.")
            assert talk.statuses[-1].tokens == total
            assert talk.statuses[-1].context is not None
            assert talk.statuses[-1].context.basis == "reported"


async def test_without_a_total_tokens_is_prompt_and_completion(talking: Talking) -> None:
    async with talking(usage_on="no_total", fixed_usage=((100, 20, None), (150, 33, None))) as talk:
        await talk.turn("A word.")
        assert talk.now.tokens == 120
        await talk.turn("Another.")
        assert talk.now.tokens == 183


@pytest.mark.parametrize("options", [{"usage_on": "none"}, {"reject_stream_options": True}])
async def test_a_server_without_usage_leaves_the_figure_unknown(talking: Talking, options: dict[str, Any]) -> None:
    async with talking(**options) as talk:
        await talk.turn("A word.")
        status = talk.statuses[-1]
        assert status.tokens is None
        assert status.context is not None
        assert (status.context.basis, status.context.reason) == ("unknown", "usage_unavailable")
        assert status.context.last_reported is None
        assert status.messages_in_context == 2


async def test_a_server_without_streaming_still_reports_usage(talking: Talking) -> None:
    async with talking(refuse_streaming=True) as talk:
        await talk.turn("A word.")
        reported = talk.server.requests[-1].reported
        assert reported is not None
        assert talk.now.tokens == reported["total_tokens"]


async def test_missing_usage_keeps_the_last_report(talking: Talking) -> None:
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
        assert [call.failed is None for call in await talk.conversation.state.store.calls()] == [True, False]


async def test_an_overflow_reveals_the_window_and_the_call_is_repeated(
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
    """The configured window is a little larger than the server's, which ends an overflow with an empty stream."""
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
        assert talk.conversation.calls.last_error_status == "model_stream_cut"


async def test_a_message_larger_than_the_window_does_not_affect_the_next(
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
        assert talk.conversation.calls.last_error_status is None


async def test_a_control_within_the_bound_waits_for_the_call(talking: Talking) -> None:
    async with talking(chunk_delay_seconds=0.005) as talk:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, "A short thought.")
            await talk.server.wait_until(lambda: bool(talk.server.requests) and talk.server.requests[0].chunks_sent > 0)
            await talk.conversation.clear()
            assert talk.server.requests[0].is_complete
        assert talk.now.messages_in_context == 0
        assert talk.conversation.history.revision == 1
        # The call was reported before the clear, so its figure is not that of the empty history.
        assert talk.now.tokens is None


async def test_new_tools_count_between_calls_only(talking: Talking) -> None:
    def next_prompt_tokens(talk: Talk) -> int:
        assert talk.now.context is not None
        return talk.now.context.next_prompt_tokens or 0

    async with talking() as talk:
        without = next_prompt_tokens(talk)
        talk.tools = (TOOL,)
        assert next_prompt_tokens(talk) > without
        talk.tools = ()
        assert next_prompt_tokens(talk) == without
        talk.server.change(chunk_delay_seconds=0.01)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.turn, "A short thought.")
            await talk.server.wait_until(lambda: bool(talk.server.requests) and talk.server.requests[0].chunks_sent > 0)
            requested = next_prompt_tokens(talk)
            talk.tools = (TOOL,)
            assert next_prompt_tokens(talk) == requested
        await talk.turn("And another.")
        assert talk.now.context is not None
        assert talk.now.context.basis == "reported"


async def test_a_control_past_the_bound_also_cancels_a_summary(talking: Talking, text: Callable[[int], str]) -> None:
    async with talking(call_bound_seconds=0.05) as talk:
        for _ in range(4):
            await talk.turn(text(150))
        talk.server.change(chunk_delay_seconds=5.0)
        answers: list[CompactDone] = []

        async def compact() -> None:
            answers.append(await talk.conversation.compact(Compact()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await talk.server.wait_until(lambda: any(r.is_summary and r.chunks_sent for r in talk.server.requests))
            await talk.conversation.clear()
        assert answers[0].skipped
        assert answers[0].reason == "a control interrupted this call"
        assert talk.now.messages_in_context == 0


async def test_a_cleared_question_enters_again_before_its_call(talking: Talking, text: Callable[[int], str]) -> None:
    """A clear that waits for the compaction before a request runs right before that request."""
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


async def test_repeated_tool_call_ids_become_unique(talking: Talking) -> None:
    """Some servers number the calls of every reply from 0; results must still find their calls."""
    async with talking(tools=(TOOL,)) as talk:
        conversation = talk.conversation
        reply = await talk.turn('call look_up with {"q": "a"}, and call look_up with {"q": "b"}')
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
