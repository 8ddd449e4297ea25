"""Functions that listen: in order, one by one, and none of them stops another."""

import anyio
import pytest

from mew_agent.events import EVENT_BUFFER, Events, LevelChange
from mew_agent.peers import Peer, PeerContext
from protocol.context_report import ContextReport
from protocol.envelope import Envelope

CHAT = Envelope.write("chat", id="1", ts="t", sender="bob", payload={"text": "hi"})


def peer(level: str, severity: int | str) -> Peer:
    report = ContextReport.model_validate(
        {"basis": "unknown", "reason": "no_call_yet", "level": level, "severity": severity, "policy": "mew"}
        | {"max_tokens_basis": "assumed", "measure": "total", "stale_messages": 0, "revision": 0, "compactions": 0}
    )
    return Peer("coder", context=PeerContext(report=report))


UNKNOWN, HEALTHY, NEAR, FULL = peer("unknown", "unknown"), peer("healthy", 0), peer("near_limit", 2), peer("full", 3)


async def told(events: Events, *happened: tuple[Envelope | None, Peer | None, LevelChange | None]) -> None:
    """Tell these events and run until all are heard."""
    events.open()
    for one in happened:
        events.tell(*one)
    done = anyio.Event()

    async def last(_: Envelope) -> None:
        done.set()

    events.on("test/last", last)
    events.tell(Envelope.write("test/last", id="z", ts="t", sender="bob"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(events.run)
        with anyio.fail_after(5):
            await done.wait()
        tasks.cancel_scope.cancel()
    events.close()


@pytest.mark.parametrize(
    ("before", "after", "is_change", "is_low"),
    [
        (None, HEALTHY, True, False),
        (None, NEAR, True, True),
        (HEALTHY, HEALTHY, False, False),
        (HEALTHY, NEAR, True, True),
        (NEAR, FULL, True, True),
        (FULL, NEAR, True, False),
        (NEAR, HEALTHY, True, False),
        (NEAR, UNKNOWN, True, False),
        (UNKNOWN, NEAR, True, True),
        (None, UNKNOWN, False, False),
        (HEALTHY, None, False, False),
    ],
)
def test_a_change_is_another_level_and_low_is_a_worse_one(
    before: Peer | None, after: Peer | None, is_change: bool, is_low: bool
) -> None:
    change = LevelChange.between(after, before)
    assert (change is not None) == is_change
    assert (change is not None and change.is_low) == is_low


async def test_each_function_hears_what_it_asked_for_in_order() -> None:
    events, heard = Events(), list[str]()

    async def every(envelope: Envelope) -> None:
        heard.append(f"every {envelope.kind}")

    async def chat(envelope: Envelope) -> None:
        heard.append(f"chat {envelope.id}")

    async def context(one: Peer, context: PeerContext) -> None:
        heard.append(f"context {context.level}")

    async def level(one: Peer, now: PeerContext, before: PeerContext) -> None:
        heard.append(f"level {before.level} {now.level}")

    async def low(one: Peer, context: PeerContext) -> None:
        heard.append(f"low {one.id}")

    events.on(None, every)
    events.on("chat", chat)
    events.on_context(context)
    events.on_level(level)
    events.on_low(low)
    status = CHAT.model_copy(update={"kind": "participant/status"})
    await told(
        events,
        (CHAT, None, None),
        (status, NEAR, LevelChange.between(NEAR, HEALTHY)),
        (None, None, LevelChange.between(HEALTHY, NEAR)),
        (None, None, None),
    )
    assert heard == [
        "chat 1",
        "every chat",
        "every participant/status",
        "context near_limit",
        "level healthy near_limit",
        "low coder",
        "level near_limit healthy",
        "every test/last",
    ]


async def test_a_function_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    events, heard = Events(), list[str]()

    async def broken(_: Envelope) -> None:
        raise RuntimeError("mine")

    async def sound(envelope: Envelope) -> None:
        heard.append(envelope.id)

    events.on("chat", broken)
    events.on("chat", sound)
    await told(events, (CHAT, None, None))
    assert heard == ["1"]
    assert "a handler failed" in caplog.text


async def test_what_slow_functions_leave_waiting_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    events.open()
    for _ in range(EVENT_BUFFER + 1):
        events.tell(CHAT)
    assert "dropped 'chat' of 'bob'" in caplog.text
    events.close()
    events.tell(CHAT)
