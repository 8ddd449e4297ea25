"""What a conversation says of a message while calls begin and end, turns are cancelled and the context changes."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.payloads.participant import Forget

from mew_agent.context.message_facts import MessageKey, MessageRecord
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore
from mew_agent.context.store import NO_CHANGE, Session, SessionChange
from mew_agent.conversation.conversation_events import ConversationEvent, HistoryChanged
from mew_agent.conversation.message_forms import SHORTENED, Holding
from mew_agent.errors import ModelStreamCut
from mew_agent.model.interface import ModelEvent, ModelReply, TextDelta
from mew_agent.tokens.sizes import INLINE_CHARS
from tests.mew_agent.conversation.test_model_calls import ScriptedModel
from tests.support.conversation_driver import ConversationDriver, StartConversation, ignore
from tests.support.waiting import until

FIRST = MessageKey("ada", "q1")
LONG_REPLY = ModelReply("Noted. " * INLINE_CHARS, (), "stop", None, "rehearsal")


class InterruptedStore(MemoryStore):
    """Lets something happen before it stores a call, or after it has read a message."""

    before_call: Callable[[], object] | None = None
    after_reading: Sequence[Callable[[], Awaitable[object]]] = ()

    async def keep(self, session: Session, change: SessionChange = NO_CHANGE) -> int | None:
        act = self.before_call
        if change.call is not None and act is not None:
            self.before_call = None
            act()
        return await super().keep(session, change)

    async def message(self, key: MessageKey) -> MessageRecord:
        found = await super().message(key)
        acts, self.after_reading = self.after_reading, ()
        for act in acts:
            await act()
        return found


async def holding(driver: ConversationDriver, key: MessageKey = FIRST) -> Holding:
    return await driver.conversation.receipts.of(partial(driver.conversation.state.store.message, key))


async def call_number(driver: ConversationDriver, key: MessageKey = FIRST) -> int | None:
    call = (await holding(driver, key)).call
    return None if call is None else call.number


async def say(
    driver: ConversationDriver, name: str, listener: Callable[[ModelEvent], Awaitable[None]] = ignore
) -> None:
    """Add a message and make one call."""
    await driver.conversation.state.add_user_message("The code is K-47.", sender="ada", envelope_id=name)

    async def nothing_more() -> None:
        return None

    await driver.conversation.call(listener, nothing_more)


async def test_a_reply_that_arrived_is_kept_although_its_turn_is_cancelled(
    start_conversation: StartConversation,
) -> None:
    store = InterruptedStore()
    async with start_conversation(store=store) as driver:
        with anyio.CancelScope() as turn:
            store.before_call = turn.cancel
            await say(driver, "q1")
        assert turn.cancel_called
        assert await call_number(driver) == 1
        await driver.turn("And now?")
        assert await call_number(driver) == 1
        stored = await store.load()
        assert stored is not None
        assert list(stored.items) == driver.conversation.history.items


async def test_a_prompt_is_read_although_its_reply_is_long_and_its_turn_cancelled(
    start_conversation: StartConversation,
) -> None:
    async with start_conversation(store=MemoryStore()) as driver:
        calls: Any = driver.conversation.calls
        real, calls._model = calls._model, ScriptedModel(TextDelta("Noted. "), LONG_REPLY)
        with anyio.CancelScope() as turn:

            async def cancel_at_the_end(event: ModelEvent) -> None:
                if isinstance(event, ModelReply):
                    turn.cancel()

            await say(driver, "q1", cancel_at_the_end)
        assert turn.cancel_called
        calls._model = real
        await driver.turn("And now?")
        assert await call_number(driver) == 1


async def test_a_call_that_ends_while_the_store_is_read_is_the_one_that_read_it(
    start_conversation: StartConversation,
) -> None:
    store = InterruptedStore()
    async with start_conversation(store=store, chunk_delay_seconds=0.02) as driver, anyio.create_task_group() as tasks:
        tasks.start_soon(say, driver, "q1")
        await until(lambda: driver.conversation.calls.prompted is not None)
        store.after_reading = [lambda: until(lambda: driver.conversation.calls.prompted is None)]
        found = await holding(driver)
        assert not store.after_reading
        assert (found.in_context, found.call and found.call.number) == ("whole", 1)


async def test_a_message_is_not_given_to_a_later_call(
    start_conversation: StartConversation,
) -> None:
    store = InterruptedStore()
    async with start_conversation(store=store, chunk_delay_seconds=0.02) as driver, anyio.create_task_group() as tasks:

        async def say_both() -> None:
            await say(driver, "q1")
            await say(driver, "q2")

        def is_second_read() -> bool:
            running = driver.conversation.calls.prompted
            return running is not None and running.call.number == 2 and running.is_read

        tasks.start_soon(say_both)
        await until(lambda: driver.conversation.calls.prompted is not None)
        store.after_reading = [lambda: until(is_second_read)]
        assert await call_number(driver) == 1
        await until(lambda: driver.conversation.calls.prompted is None)
        assert await call_number(driver) == 1
        assert await call_number(driver, MessageKey("ada", "q2")) == 2


@pytest.mark.parametrize("ends", ["cut", "cancelled"])
async def test_output_before_the_end_of_a_failed_call_is_a_reading(
    start_conversation: StartConversation, ends: str
) -> None:
    store = InterruptedStore()
    async with start_conversation(store=store, cut_after_chunks=3) as driver:
        with anyio.CancelScope() as turn:
            if ends == "cancelled":  # while the failure is stored
                store.before_call = turn.cancel
            with pytest.raises(ModelStreamCut):
                await say(driver, "q1")
        driver.server.change(cut_after_chunks=None)
        await driver.turn("And now?")
        assert await call_number(driver) == 1


async def test_a_prompt_that_the_server_shortened_leaves_the_older_messages_in_doubt(
    start_conversation: StartConversation, text: Callable[[int], str], tmp_path: Path
) -> None:
    changes, store = list[HistoryChanged](), SqliteStore(tmp_path / "coder.db")

    async def record(event: ConversationEvent) -> None:
        if isinstance(event, HistoryChanged):
            changes.append(event)

    async with start_conversation(store=store, window=8_192, window_tokens=8_192, shortens_prompts=True) as driver:
        driver.conversation.events.subscribe(record)
        for _ in range(8):
            await driver.turn(text(250))
        assert (await holding(driver)).in_context == "whole"
        driver.server.change(window_tokens=1_500)
        await driver.turn("And now?")
        sent = driver.server.requests[-1]
        assert sent.left_out
        assert "truncated_by_server" in driver.words
        assert changes
        found = await holding(driver)
        assert (found.in_context, found.call and found.call.number, found.reason) == ("unknown", 1, SHORTENED)
        async with start_conversation(store=SqliteStore(tmp_path / "coder.db")) as restarted:
            await restarted.conversation.load()
            assert (await holding(restarted)).in_context == "unknown"
        await driver.turn("Then?")
        assert (await holding(driver, MessageKey("ada", "q10"))).in_context == "whole"
        await driver.conversation.forget(Forget(direction="oldest", entries=4), "ada")
        assert (await holding(driver)).in_context == "recoverable"
        assert (await holding(driver, MessageKey("ada", "q9"))).in_context == "whole"
