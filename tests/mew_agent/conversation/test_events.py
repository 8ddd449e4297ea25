"""Events reach every listener in order, and the emitter waits for them."""

from mew_agent.conversation.conversation_events import (
    ContextCleared,
    ConversationEvent,
    ConversationEvents,
    ReplyNotice,
)


class Recorder:
    """A listener that keeps what it receives."""

    def __init__(self) -> None:
        self.events: list[ConversationEvent] = []

    async def __call__(self, event: ConversationEvent) -> None:
        self.events.append(event)


async def test_every_listener_receives_every_event_in_order() -> None:
    events, first, second = ConversationEvents(), Recorder(), Recorder()
    await events.emit(ContextCleared(1, None))
    events.subscribe(first)
    events.subscribe(second)
    emitted = [ContextCleared(2, None), ContextCleared(None, "why")]
    for event in emitted:
        await events.emit(event)
    assert first.events == second.events == emitted


async def test_a_listener_receives_events_only_while_subscribed() -> None:
    events, during, always = ConversationEvents(), Recorder(), Recorder()
    events.subscribe(always)
    with events.subscribed(during):
        await events.emit(ContextCleared(1, None))
    await events.emit(ContextCleared(2, None))
    assert len(during.events) == 1
    assert len(always.events) == 2


def test_empty_fields_of_a_notice_are_left_out() -> None:
    assert ReplyNotice("compacting", "Compacting ...").values() == {"text": "Compacting ..."}
    size = ReplyNotice("size", tokens=0, max_tokens=4096, basis="projected")
    assert size.values() == {"tokens": 0, "max_tokens": 4096, "basis": "projected"}
