"""Calls to a model: one at a time, interruptible, recorded with their role; the model is real HTTP."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mew_agent.context.history import History
from mew_agent.context.persisted_state import CallRole
from mew_agent.context.policy import MEW
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.tracker import Tracker
from mew_agent.conversation.context_state import ContextState
from mew_agent.conversation.conversation_events import ConversationEvents
from mew_agent.conversation.model_calls import CallInterrupted, ConversationOptions, ModelCalls, with_unique_call_ids
from mew_agent.errors import ModelError, ModelStreamCut, ModelUnreachable
from mew_agent.model.interface import (
    Message,
    Model,
    ModelEvent,
    ModelIdentity,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolSpec,
    Window,
)
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.conversation_driver import ConversationDriver, StartConversation, ignore, without_spending
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

StartAgent = Callable[..., Any]
"""`start_agent(...)` of the conftest."""

REQUEST = ModelRequest((Message("user", "Say something about water."),))
SIDE_REQUEST = ModelRequest((Message("user", "Is this for you?"),))
OWN_WINDOW = Window(128_000, "loaded", "/v1/models")


def calls_of(model: Model, tracker: Tracker | None = None, **options: Any) -> ModelCalls:
    accounts = tracker or Tracker(History(), MEW, OWN_WINDOW, "big")
    state = ContextState(accounts, MemoryStore(), ConversationEvents())
    return ModelCalls(model, state, ConversationOptions(system_prompt="You keep records.", **options))


@asynccontextmanager
async def calling(
    call_bound_seconds: float = 30.0, **options: Any
) -> AsyncIterator[tuple[ModelCalls, RehearsalServer]]:
    async with serve_rehearsal(RehearsalOptions(**options)) as server:
        model = rehearsal_model(server.base_url)
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                yield calls_of(model, call_bound_seconds=call_bound_seconds), server
        finally:
            await model.aclose()


class ScriptedModel:
    """A model whose events are given, since no rehearsal server sends text that cannot be encoded."""

    identity = ModelIdentity("m", "http://h/v1")

    def __init__(self, *events: ModelEvent) -> None:
        self.events = events

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self.events:
            yield event

    async def discover_window(self) -> Window | None:
        return None

    async def count_prompt(self, request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None: ...


# -- one call ----------------------------------------------------------------------------------------------


async def test_a_call_returns_its_reply_after_every_event() -> None:
    received: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        received.append(event)

    async with calling(visible_reasoning="I think first.") as (calls, _):
        reply = await calls.main(listen)
    assert received[-1] == reply
    assert "".join(event.text for event in received if isinstance(event, TextDelta)) == reply.text
    assert (
        "".join(e.text for e in received if isinstance(e, ReasoningDelta)) == reply.reasoning_text == "I think first."
    )


async def test_an_interrupted_call_stops_at_the_server_and_the_next_works() -> None:
    async with calling(chunk_delay_seconds=5.0) as (calls, server):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                with pytest.raises(CallInterrupted):
                    await calls.summary(REQUEST)

            tasks.start_soon(call)
            await server.wait_until(lambda: bool(server.requests) and server.requests[0].chunks_sent > 0)
            calls.interrupt()
        await server.wait_until(lambda: server.requests[0].is_disconnected)
        server.change(chunk_delay_seconds=0.0)
        assert (await calls.summary(REQUEST)).text


async def test_an_interrupt_without_a_call_does_nothing() -> None:
    async with calling() as (calls, _):
        calls.interrupt()
        assert (await calls.summary(REQUEST)).text
        calls.interrupt()
        assert (await calls.summary(REQUEST)).text


async def test_an_interrupt_after_the_reply_is_too_late() -> None:
    async with calling() as (calls, _):

        async def interrupt_at_the_end(event: ModelEvent) -> None:
            if isinstance(event, ModelReply):
                calls.interrupt()
                await anyio.lowlevel.checkpoint()

        assert (await calls.main(interrupt_at_the_end)).text


async def test_after_a_failed_call_the_next_one_works() -> None:
    async with calling(cut_after_chunks=1) as (calls, server):
        with pytest.raises(ModelStreamCut):
            await calls.main(ignore)
        assert calls.last_error_status == "model_stream_cut"
        calls.interrupt()
        server.change(cut_after_chunks=None)
        assert (await calls.main(ignore)).text
        assert calls.last_error_status is None


async def test_a_missing_server_raises_its_own_error(free_port: int) -> None:
    model = OpenAIModel("m", f"http://127.0.0.1:{free_port}/v1", max_retries=0)
    try:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ModelUnreachable):
            await calls_of(model).main(ignore)
    finally:
        await model.aclose()


async def test_lone_surrogates_are_replaced_everywhere_in_a_reply() -> None:
    half = "a\ud800b"
    reply = ModelReply(half, (ToolCall(half, half, half),), "stop", None, "m", reasoning_text=half)
    received: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        received.append(event)

    kept = await calls_of(ScriptedModel(TextDelta(half), ReasoningDelta(half), reply)).main(listen)
    assert received == [TextDelta("a?b"), ReasoningDelta("a?b"), kept]
    assert (kept.text, kept.reasoning_text, kept.tool_calls) == ("a?b", "a?b", (ToolCall("a?b", "a?b", "a?b"),))


async def test_a_stream_without_a_reply_is_an_error() -> None:
    with pytest.raises(ModelStreamCut, match="no reply"):
        await calls_of(ScriptedModel(TextDelta("and then"))).main(ignore)


# -- the lock ----------------------------------------------------------------------------------------------


async def test_a_change_waits_for_the_running_call() -> None:
    order: list[str] = []
    calls, holds = calls_of(ScriptedModel()), anyio.Event()

    async def call() -> None:
        async with calls.lock:
            holds.set()
            await anyio.lowlevel.checkpoint()
            order.append("called")

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await holds.wait()
            async with calls.between_calls():
                order.append("changed")
    assert order == ["called", "changed"]


async def test_past_the_bound_a_change_interrupts_the_call() -> None:
    async with calling(call_bound_seconds=0.001, chunk_delay_seconds=5.0) as (calls, server):
        order: list[str] = []

        async def call() -> None:
            with pytest.raises(CallInterrupted):
                await calls.side_call(REQUEST, "utility")
            order.append("interrupted")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await server.wait_until(lambda: bool(server.requests) and server.requests[0].chunks_sent > 0)
            async with calls.between_calls():
                order.append("changed")
        assert sorted(order) == ["changed", "interrupted"]
        assert not calls.lock.statistics().locked


# -- fallback models ---------------------------------------------------------------------------------------


async def test_only_configured_fallback_models_change_the_window() -> None:
    model = ScriptedModel()
    tracker = Tracker(History(), MEW, OWN_WINDOW, "big")
    calls = calls_of(model, tracker, windows={"small": 8000, "tiny": 2000, "big": 999})
    windows = []
    for name in ("big", "big-2026-01-01", "small", "small", "tiny", "big-2026-01-01", "small", "big"):
        model.events = (ModelReply("Yes.", (), "stop", None, name),)
        await calls.main(ignore)
        windows.append(tracker.window)
    small, tiny = Window(8000, "configured", "models.small"), Window(2000, "configured", "models.tiny")
    assert windows == [OWN_WINDOW, OWN_WINDOW, small, small, tiny, OWN_WINDOW, small, OWN_WINDOW]


async def test_the_limit_of_the_report_follows_the_model_that_answered(start_agent: StartAgent) -> None:
    agent = {"models": {"small": {"context_length": 4000}}}
    async with start_agent(agent=agent, fixed_usage=((3590, 10, 3600),) * 3) as s:
        for name, limit, level in ((None, 8192, "healthy"), ("small", 4000, "near_limit"), (None, 8192, "healthy")):
            s.server.change(served_model=name)
            await s.ask("Go on.")
            status = s.reported[-1]
            assert (status["tokens"], status["max_tokens"]) == (3600, limit)
            assert status["context"]["level"] == level


# -- calls of a conversation -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["classification", "utility"])
async def test_m12_a_side_call_is_recorded_and_changes_no_figure(
    start_conversation: StartConversation, role: CallRole
) -> None:
    async with start_conversation(fixed_usage=((100, 20, 120), (500, 10, 510), (150, 20, 170))) as driver:
        await driver.turn("One.")
        before = driver.now
        await driver.conversation.calls.side_call(SIDE_REQUEST, role)
        after = driver.now
        assert after.context is not None
        assert str(after.context.spending) == "630 tokens in 2 calls"
        assert without_spending(after) == without_spending(before)
        await driver.turn("Two.")
        assert driver.now.tokens == 170
        calls = await driver.conversation.state.store.calls()
        assert [(call.role, call.usage and call.usage.total_tokens) for call in calls] == [
            ("main", 120),
            (role, 510),
            ("main", 170),
        ]
        assert [call.level for call in calls] == ["healthy", None, "healthy"]
        assert [call.limit_tokens for call in calls] == [8192, None, 8192]


async def test_a_failed_side_call_is_recorded_and_leaves_the_status(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        driver.server.change(status=500)
        with pytest.raises(ModelError):
            await driver.conversation.calls.side_call(SIDE_REQUEST, "classification")
        (call,) = await driver.conversation.state.store.calls()
        assert (call.role, call.usage) == ("classification", None)
        assert call.failed
        assert driver.conversation.calls.last_error_status is None


async def test_a_new_reminder_makes_prices_projected(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    """A reminder is part of the request, so prices across its arrival are projected, never exact."""
    async with start_conversation() as driver:
        for _ in range(3):
            await driver.turn(text(60))
        ledger = driver.conversation.tracker.ledger
        items = driver.conversation.history.items
        assert ledger.price(items[1].seq, items[2].seq).basis == "exact"
        driver.conversation.state.reminders.add(text(40), at="t")
        await driver.turn(text(60))
        requested = driver.conversation.history.items[6]
        assert ledger.price(requested.seq - 1, requested.seq).basis == "projected"
        predicted = driver.conversation.tracker.ledger.evidence.drift
        assert predicted is not None
        assert abs(predicted.tokens) <= 30
        assert "- r1: Report" in str(driver.server.requests[-1].body["messages"])


def test_repeated_ids_of_tool_calls_are_replaced() -> None:
    history = History()
    call = ToolCall("0", "look", "{}")
    history.append("assistant", "", id="a", at="t", tool_calls=(call,))
    reply = with_unique_call_ids(ModelReply("", (call, ToolCall("1", "look", "{}")), "tool_calls", None, "m"), history)
    assert reply.tool_calls[0].id.startswith("call_")
    assert reply.tool_calls[1].id == "1"


async def test_only_the_kept_attempt_at_an_answer_counts(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    """The first attempt is refused as too large; it and the summary that follows are recorded apart."""
    async with start_conversation(window=100_000, window_tokens=2048) as driver:
        while all(request.status == 200 for request in driver.server.requests):
            await driver.turn(text(200))
        calls = await driver.conversation.state.store.calls()
        assert [call.role for call in calls if call.usage is None] == ["main"], "the refused attempt"
        at = next(place for place, call in enumerate(calls) if call.failed)
        refused, *between, last = (call.role for call in calls[at:])
        assert (refused, set(between), last) == ("main", {"summary"}, "main")
        kept = [call.usage.total_tokens for call in calls if call.role == "main" and call.usage is not None]
        assert driver.now.tokens == kept[-1]
        assert driver.conversation.tracker.measurement.spent_since_clear == sum(kept)


async def test_interrupted_and_cancelled_calls_are_recorded(start_conversation: StartConversation) -> None:
    async with start_conversation(call_bound_seconds=0.05, chunk_delay_seconds=5.0) as driver:

        def begun(count: int) -> Callable[[], bool]:
            return lambda: len(driver.server.requests) == count and driver.server.requests[-1].chunks_sent > 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.turn, "A long thought.")
            await driver.server.wait_until(begun(1))
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupted, driver)
            await driver.server.wait_until(begun(2))
            await driver.conversation.clear()
        calls = await driver.conversation.state.store.calls()
        assert [(call.role, call.usage, call.failed) for call in calls] == [
            ("main", None, "cancelled"),
            ("main", None, "a control interrupted this call"),
        ]


async def interrupted(driver: ConversationDriver) -> None:
    with pytest.raises(CallInterrupted):
        await driver.turn("Another one.")


def test_tools_are_collected_again_only_after_a_change() -> None:
    collected, version = [], [0]

    def tools() -> tuple[ToolSpec, ...]:
        collected.append(version[0])
        return (ToolSpec(f"tool_{version[0]}", "", {}),)

    calls = calls_of(ScriptedModel(), tools=tools, tools_version=lambda: version[0])
    tracker = calls._state.tracker
    assert calls.describe_prefix() is calls.describe_prefix()
    version[0] = 1
    assert [one.name for one in calls.describe_prefix().tools] == ["tool_1"]
    tracker.history.clear()
    calls.describe_prefix()
    calls._state.kept_outside.add("tool")
    calls.describe_prefix()
    tracker.window_changed(Window(64_000, "loaded", "/v1/models"))
    calls.describe_prefix()
    assert collected == [0, 1, 1, 1, 1]
    assert calls.stop_offering_tools()
    assert calls.describe_prefix().tools == ()
    assert collected == [0, 1, 1, 1, 1]
