"""What enters and leaves a context is counted and stored; the model is real HTTP."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.payloads.participant import Compact, Forget
from mew_protocol.payloads.retrieval import Undo

from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.context.store import StoreUnusable
from mew_agent.conversation.conversation_events import ConversationEvent, ItemAdded
from mew_agent.model.interface import ModelEvent, TextDelta
from tests.support.conversation_driver import TOOL, StartConversation


async def test_a_clear_leaves_no_item_and_no_figure(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        await driver.turn("One.")
        await driver.conversation.clear()
        assert driver.now.tokens is None
        assert driver.now.messages_in_context == 0
        assert driver.now.context is not None
        assert (driver.now.context.basis, driver.now.context.reason) == ("unknown", "cleared")
        await driver.turn("Two.")
        sent = driver.server.requests[-1]
        reported = sent.reported
        assert reported is not None
        assert driver.now.tokens == reported["total_tokens"]
        assert "One." not in str(sent.body["messages"])


class FullStore(MemoryStore):
    """A store whose disk may be full."""

    is_full = False

    async def keep(self, *change: Any) -> int | None:
        if self.is_full:
            raise StoreUnusable(self._path, "database or disk is full")
        return await super().keep(*change)


@pytest.mark.parametrize("what", ["clear", "forget", "undo"])
async def test_a_removal_that_cannot_be_stored_does_not_happen(
    start_conversation: StartConversation, text: Callable[[int], str], what: str
) -> None:
    store = FullStore()
    async with start_conversation(store=store) as driver:
        conversation = driver.conversation
        for _ in range(4):
            await driver.turn(text(100))
        assert not (await conversation.compact(Compact())).skipped
        before, items = driver.now, list(conversation.history.items)
        controls: dict[str, Callable[[], Awaitable[object]]] = {
            "clear": conversation.clear,
            "forget": lambda: conversation.forget(Forget(direction="oldest", entries=2)),
            "undo": lambda: conversation.archive.undo(Undo()),
        }
        store.is_full = True
        with pytest.raises(StoreUnusable):
            await controls[what]()
        assert (driver.now, conversation.history.items) == (before, items)


async def test_without_reminders_nothing_is_shown(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        assert driver.conversation.state.reminder_text == ""


@pytest.mark.parametrize(("direction", "left"), [("oldest", ["q2", None]), ("newest", ["q1", None])])
async def test_forgetting_removes_from_the_requested_end(
    start_conversation: StartConversation, direction: Any, left: list[str | None]
) -> None:
    async with start_conversation() as driver:
        await driver.turn("One.")
        await driver.turn("Two.")
        before = driver.now.tokens
        assert await driver.conversation.forget(Forget(direction=direction, entries=2)) == 2
        assert [item.envelope_id for item in driver.conversation.history.items] == left
        assert driver.now.context is not None
        assert driver.now.context.basis == "server_counted"
        assert driver.now.tokens is not None
        assert before is not None
        assert driver.now.tokens < before
        assert await driver.conversation.forget(Forget(direction=direction)) > 0
        assert await driver.conversation.forget(Forget(direction=direction, entries=50)) >= 0
        assert await driver.conversation.forget(Forget(direction=direction)) == 0


async def test_open_calls_are_closed_in_their_order(start_conversation: StartConversation) -> None:
    async with start_conversation(tools=(TOOL,)) as driver:
        reply = await driver.turn('call look_up with {"q": "a"}, and call look_up with {"q": "b"}')
        first, second = reply.tool_calls
        await driver.conversation.state.close_open_calls("cancelled", {second.id: "b was there"})
        results = [(i.tool_call_id, i.content) for i in driver.conversation.history.items if i.role == "tool"]
        assert results == [(first.id, "cancelled"), (second.id, "b was there")]
        await driver.conversation.state.close_open_calls("cancelled")
        assert len(driver.conversation.history.items) == 4


async def test_a_configured_length_drops_the_oldest_before_each_question(start_conversation: StartConversation) -> None:
    async with start_conversation(keep_newest_items=2) as driver:
        for question in ("One.", "Two.", "Three."):
            await driver.turn(question)
        sent = str(driver.server.requests[-1].body["messages"])
        assert "One." not in sent
        assert "Two." in sent
        assert driver.now.messages_in_context == 4


async def test_pins_stay_in_every_request(start_conversation: StartConversation, text: Callable[[int], str]) -> None:
    async with start_conversation() as driver:
        assert await driver.conversation.pins.add("The house rule is quiet.", "ada")
        for _ in range(4):
            await driver.turn(text(100))
        await driver.conversation.compact(Compact())
        await driver.conversation.clear()
        await driver.turn("Still?")
        assert "The house rule is quiet." in str(driver.server.requests[-1].body["messages"])


async def test_a_stored_session_continues(
    start_conversation: StartConversation, text: Callable[[int], str], tmp_path: Path
) -> None:
    path = tmp_path / "session.sqlite"
    async with start_conversation(store=SqliteStore(path), tools=(TOOL,)) as driver:
        for _ in range(4):
            await driver.turn(text(150))
        await driver.conversation.compact(Compact())
        reply = await driver.turn('call look_up with {"q": "a"}')
        assert reply.tool_calls
        kept, tokens = list(driver.conversation.history.items), driver.now.tokens
        summary = driver.conversation.history.summary
    async with start_conversation(store=SqliteStore(path), tools=(TOOL,)) as driver:
        await driver.conversation.load()
        history = driver.conversation.history
        assert history.items[:-1] == kept
        assert history.summary == summary
        assert history.items[-1].tool_call_id == reply.tool_calls[0].id, "an open call must not stay open"
        assert not history.open_calls()
        status = driver.now
        assert status.tokens is None
        assert status.messages_in_context == len(kept) + 1
        assert status.context is not None
        assert (status.context.basis, status.context.reason) == ("unknown", "restarted")
        assert status.context.last_reported is not None
        assert status.context.last_reported.tokens == tokens
        assert status.context.compactions == 1
        await driver.turn("Go on.")
        reported = driver.server.requests[-1].reported
        assert reported is not None
        assert driver.now.tokens == reported["total_tokens"]
        assert driver.now.context is not None
        assert driver.now.context.basis == "reported"


async def test_a_reply_reaches_the_listener_as_it_is_stored(start_conversation: StartConversation) -> None:
    received: list[ModelEvent] = []

    async def listen(event: ModelEvent) -> None:
        received.append(event)

    async with start_conversation() as driver:
        conversation = driver.conversation
        await conversation.begin_turn()
        await conversation.state.add_user_message("Say it.", sender="ada", envelope_id="q")

        async def nothing_to_prepare() -> None: ...

        reply = await conversation.call(listen, nothing_to_prepare)
        assert any(isinstance(event, TextDelta) for event in received)
        assert received[-1] == reply


async def test_every_added_item_emits_an_event(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        state = driver.conversation.state
        added: list[int] = []

        async def record(event: ConversationEvent) -> None:
            if isinstance(event, ItemAdded):
                added.append(event.seq)

        state.events.subscribe(record)
        await state.add_user_message("One.", sender="ada", envelope_id="e")
        notice = await state.add_prompt("A prompt of our own.")
        assert (notice.notice, notice.role, notice.name, notice.envelope_id) == (True, "user", None, None)
        assert added == [0, 1]
        loaded = await state.store.load()
        assert loaded is not None
        assert [item.notice for item in loaded.items] == [False, True]
