"""Events go to every listener in order; nobody listening is no error."""

from mew_agent.conversation.events import ContextCleared, ContextEvent, Events


def test_every_listener_hears_every_event_in_order() -> None:
    events, first, second = Events(), list[ContextEvent](), list[ContextEvent]()
    events.tell(ContextCleared(1, None))
    events.listeners += [first.append, second.append]
    told = [ContextCleared(2, None), ContextCleared(None, "why")]
    for event in told:
        events.tell(event)
    assert first == second == told


def test_a_listener_may_leave_while_it_listens() -> None:
    events, heard = Events(), list[ContextEvent]()

    def once(event: ContextEvent) -> None:
        heard.append(event)
        events.listeners.remove(once)

    events.listeners += [once, heard.append]
    events.tell(ContextCleared(1, None))
    events.tell(ContextCleared(2, None))
    assert len(heard) == 3
