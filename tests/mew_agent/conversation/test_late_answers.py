"""What was read before a wait is not written over what changed meanwhile: counts, decisions and cuts come too late."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.participant import Forget
from mew_protocol.payloads.retrieval import RequestHistory

from mew_agent.context.policy import CompactAction
from mew_agent.conversation.conversation_events import ConversationEvent
from mew_agent.model.interface import Message, ModelRequest, ToolCall, Window
from mew_agent.model.openai_client import OpenAIModel
from tests.support.conversation_driver import ConversationDriver, StartConversation, fill
from tests.support.waiting import until

OLDEST = Forget(direction="oldest", entries=4)


class HeldCounter(OpenAIModel):
    """A model whose server takes its time to count."""

    is_held = False

    def hold(self) -> None:
        self.is_held, self.asked, self.release = True, anyio.Event(), anyio.Event()

    async def count_prompt(self, request: ModelRequest) -> int | None:
        tokens = await super().count_prompt(request)
        if self.is_held:
            self.is_held = False
            self.asked.set()
            await self.release.wait()
        return tokens


def model_of(driver: ConversationDriver) -> HeldCounter:
    model = driver.conversation.calls._model
    assert isinstance(model, HeldCounter)
    return model


@asynccontextmanager
async def counting(driver: ConversationDriver) -> AsyncIterator[None]:
    """While the server counts the next request; afterwards the count has arrived."""
    model = model_of(driver)
    model.hold()
    driver.conversation.tracker.is_close_call = lambda: True  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.conversation.calls.count_if_close)
        await model.asked.wait()
        yield
        model.release.set()


@pytest.mark.parametrize("control", ["forget", "clear"])
async def test_a_count_in_flight_is_not_that_of_a_changed_history(
    start_conversation: StartConversation, text: Callable[[int], str], control: str
) -> None:
    async with start_conversation(window_tokens=4096, model_class=HeldCounter) as driver:
        await fill(driver, text, below=0.5)
        async with counting(driver):
            before = driver.conversation.tracker.ledger.next_prompt_tokens
            if control == "forget":
                await driver.conversation.forget(OLDEST, "ada")
            else:
                await driver.conversation.clear("ada")
            after = driver.conversation.tracker.ledger.next_prompt_tokens
        assert driver.conversation.tracker.ledger.next_prompt_tokens == after < before
        await driver.turn("Go on.")
        assert "compacting" not in driver.words, "a count of what left compacts nothing"


@pytest.mark.parametrize("direction", ["newest", "oldest"])
@pytest.mark.parametrize("entries", [1, 2, 3, 4])
async def test_a_forget_frees_the_servers_count_with_any_last_item(
    start_conversation: StartConversation, direction: str, entries: int
) -> None:
    async with start_conversation(window_tokens=100_000) as driver:
        for question in ("Hi.", "Who are you?", "Fine.", "And you?"):
            await driver.turn(question)
        before = await counted_with_a_question(driver)
        assert await driver.conversation.forget(Forget(direction=direction, entries=entries), "ada")
        *_, forgotten = (await driver.conversation.archive.history(RequestHistory())).entries
        assert forgotten.basis == "server_counted"
        assert forgotten.freed_tokens == before - await counted_with_a_question(driver)


async def counted_with_a_question(driver: ConversationDriver) -> int:
    request, _ = driver.conversation.calls._request()
    asked = replace(request, messages=(*request.messages, Message("user", "Hi.")))
    tokens = await driver.conversation.calls._model.count_prompt(asked)
    assert tokens is not None
    return tokens


async def test_a_decision_about_a_forgotten_history_compacts_nothing(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=4096) as driver:
        conversation = driver.conversation
        await fill(driver, text, below=0.6)
        action = CompactAction("threshold", 500)
        async with anyio.create_task_group() as tasks:
            await conversation.calls.lock.acquire()
            changes: list[bool] = []

            async def compact() -> None:
                changes.append(await conversation._compact(action))

            async def forget() -> None:
                await conversation.forget(OLDEST, "ada")

            tasks.start_soon(forget)
            await until(lambda: conversation.calls.lock.statistics().tasks_waiting == 1)
            tasks.start_soon(compact)
            await until(lambda: conversation.calls.lock.statistics().tasks_waiting == 2)
            held = len(conversation.history.items)
            conversation.calls.lock.release()
        assert changes == [True]
        assert held - len(conversation.history.items) == 4
        assert conversation.history.summary is None


async def test_a_cleared_turn_is_removed_once(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=8192) as driver:
        conversation = driver.conversation
        await driver.turn("Hi.")
        await driver.turn("Who are you?")
        turn = conversation.history.turn
        async with anyio.create_task_group() as tasks:
            await conversation.calls.lock.acquire()
            tasks.start_soon(conversation.clear, "ada")
            await until(lambda: conversation.calls.lock.statistics().tasks_waiting == 1)
            tasks.start_soon(conversation.remove_turn, turn)
            await until(lambda: conversation.calls.lock.statistics().tasks_waiting == 2)
            conversation.calls.lock.release()
        revision = conversation.history.revision
        await conversation.remove_turn(turn)
        assert conversation.history.revision == revision == 1


async def test_a_result_of_a_cleared_call_does_not_enter(
    start_conversation: StartConversation, text: Callable[[int], str]
) -> None:
    async with start_conversation(window_tokens=8192) as driver:
        conversation, state = driver.conversation, driver.conversation.state
        await driver.turn("Hi.")
        asked = (ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))
        item = state.history.append("assistant", "", id="r", at="", tool_calls=asked)
        state.tracker.item_added(item)

        async def clear_once(event: ConversationEvent) -> None:
            if not cleared:
                cleared.append(True)
                await conversation.clear("ada")

        cleared: list[bool] = []
        conversation.events.subscribe(clear_once)
        await state.close_open_calls("[none]", {"a": "one", "b": "two"})
        assert [one.tool_call_id for one in conversation.history.items] == []


async def test_a_window_reported_late_does_not_replace_the_real_one(
    start_agent: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_agent(agent={"context_token_limit": None}) as s:
        await s.ask("One.")
        sessions, asked, release = s.agent._sessions, anyio.Event(), anyio.Event()

        async def discover() -> Window:
            asked.set()
            await release.wait()
            return Window(128_000, "trained", "/v1/models")

        monkeypatch.setattr(sessions._resources.model, "discover_window", discover)
        learnt = Window(2048, "loaded", "overflow error")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sessions.discover_window)
            await asked.wait()
            await sessions.main.conversation.change_window(learnt)
            release.set()
        assert s.agent.conversation.tracker.window == learnt
