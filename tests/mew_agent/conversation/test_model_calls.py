"""One call at a time, interruptible, and only text that can be sent."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mew_agent.conversation.model_calls import CallInterrupted, ModelCaller
from mew_agent.errors import ModelStreamCut, ModelUnreachable
from mew_agent.model.interface import (
    Message,
    ModelEvent,
    ModelIdentity,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    Window,
)
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal

REQUEST = ModelRequest((Message("user", "Say something about water."),))


@asynccontextmanager
async def calling(**options: Any) -> AsyncIterator[tuple[ModelCaller, RehearsalServer]]:
    async with serve_rehearsal(RehearsalOptions(**options)) as server:
        model = OpenAIModel("rehearsal", server.base_url, "key", max_retries=0)
        try:
            with anyio.fail_after(15):
                yield ModelCaller(model), server
        finally:
            await model.aclose()


class Spoken:
    """A model whose events are given; not every server's text is one that can be sent."""

    identity = ModelIdentity("m", "http://h/v1")

    def __init__(self, *events: ModelEvent) -> None:
        self._events = events

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self._events:
            yield event

    async def discover_window(self) -> Window | None:
        return None

    async def count_prompt(self, request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None: ...


async def test_a_call_ends_with_its_reply_and_every_event_is_heard() -> None:
    heard: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        heard.append(event)

    async with calling(visible_reasoning="I think first.") as (caller, _):
        reply = await caller.run(REQUEST, listen)
    assert heard[-1] == reply
    assert "".join(event.text for event in heard if isinstance(event, TextDelta)) == reply.text
    assert "".join(e.text for e in heard if isinstance(e, ReasoningDelta)) == reply.reasoning_text == "I think first."


async def test_an_interrupted_call_stops_at_the_server_and_the_next_one_works() -> None:
    async with calling(chunk_delay_seconds=5.0) as (caller, server):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                with pytest.raises(CallInterrupted):
                    await caller.run(REQUEST)

            tasks.start_soon(call)
            await server.wait_until(lambda: bool(server.requests) and server.requests[0].chunks_sent > 0)
            caller.interrupt()
        await server.wait_until(lambda: server.requests[0].is_disconnected)
        server.change(chunk_delay_seconds=0.0)
        assert (await caller.run(REQUEST)).text


async def test_interrupting_nothing_does_nothing() -> None:
    async with calling() as (caller, _):
        caller.interrupt()
        assert (await caller.run(REQUEST)).text
        caller.interrupt()
        assert (await caller.run(REQUEST)).text


async def test_an_interruption_after_the_reply_came_too_late() -> None:
    async with calling() as (caller, _):

        async def interrupt_at_the_end(event: ModelEvent) -> None:
            if isinstance(event, ModelReply):
                caller.interrupt()
                await anyio.lowlevel.checkpoint()

        assert (await caller.run(REQUEST, interrupt_at_the_end)).text


async def test_a_failed_call_raises_its_error_and_leaves_nothing_to_interrupt() -> None:
    async with calling(cut_after_chunks=1) as (caller, server):
        with pytest.raises(ModelStreamCut):
            await caller.run(REQUEST)
        caller.interrupt()
        server.change(cut_after_chunks=None)
        assert (await caller.run(REQUEST)).text


async def test_no_server_is_an_error_of_its_own(free_port: int) -> None:
    model = OpenAIModel("m", f"http://127.0.0.1:{free_port}/v1", max_retries=0)
    try:
        with anyio.fail_after(10), pytest.raises(ModelUnreachable):
            await ModelCaller(model).run(REQUEST)
    finally:
        await model.aclose()


async def test_half_characters_are_replaced_everywhere_in_a_reply() -> None:
    half = "a\ud800b"
    reply = ModelReply(half, (ToolCall(half, half, half),), "stop", None, "m", reasoning_text=half)
    heard: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        heard.append(event)

    kept = await ModelCaller(Spoken(TextDelta(half), ReasoningDelta(half), reply)).run(REQUEST, listen)
    assert heard == [TextDelta("a?b"), ReasoningDelta("a?b"), kept]
    assert (kept.text, kept.reasoning_text, kept.tool_calls) == ("a?b", "a?b", (ToolCall("a?b", "a?b", "a?b"),))


async def test_a_stream_without_a_reply_is_a_cut_one() -> None:
    with pytest.raises(ModelStreamCut, match="no reply"):
        await ModelCaller(Spoken(TextDelta("and then"))).run(REQUEST)
