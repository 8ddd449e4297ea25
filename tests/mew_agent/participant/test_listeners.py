"""Functions that listen: in order, one by one, and none of them stops another."""

from collections.abc import Callable

import anyio
import pytest
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope

from mew_agent.errors import PeerTimeout, Rejected
from mew_agent.participant.events import (
    ChatReceived,
    ContextReported,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
    SpaceEvent,
)
from mew_agent.participant.listeners import EVENT_BUFFER, Listeners
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from tests.support.peers import space_of_peers, with_tools

Joined = Callable[..., Participant]

CHAT = Envelope.write("chat", id="1", ts="t", sender="bob", payload={"text": "hi"})
LAST = Envelope.write("test/last", id="z", ts="t", sender="bob")


def peer(level: str, severity: int | str) -> Peer:
    report = ContextReport.model_validate(
        {"basis": "unknown", "reason": "no_call_yet", "level": level, "severity": severity, "policy": "mew"}
        | {"max_tokens_basis": "assumed", "measure": "total", "stale_messages": 0, "revision": 0, "compactions": 0}
    )
    return Peer("coder", context=PeerContext(report=report))


HEALTHY, NEAR = peer("healthy", 0), peer("near_limit", 2)


class Ears(Participant):
    """A participant that is not in a space."""

    def __init__(self) -> None:
        super().__init__("ws://h", space="demo", id="ada", token="t")

    async def hear(self, *happened: tuple[object, ...]) -> None:
        """Tell these (an envelope or None, then events) and run until all are heard."""
        self.listeners.open()
        done = anyio.Event()

        @self.on("test/last")
        async def last(_: Envelope) -> None:
            done.set()

        for envelope, *events in (*happened, (LAST,)):
            assert envelope is None or isinstance(envelope, Envelope)
            self.listeners.emit(envelope, *events)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.listeners.run)
            with anyio.fail_after(20):
                await done.wait()
            tasks.cancel_scope.cancel()
        self.listeners.close()


async def test_each_function_hears_what_it_asked_for_in_order() -> None:
    ears, heard = Ears(), list[str]()

    @ears.on()
    async def every(envelope: Envelope) -> None:
        heard.append(f"every {envelope.kind}")

    @ears.on("chat")
    async def chat(envelope: Envelope) -> None:
        heard.append(f"chat {envelope.id}")

    @ears.on_context
    async def context(one: Peer, context: PeerContext) -> None:
        heard.append(f"context {context.level}")

    @ears.on_context_level
    async def level(one: Peer, now: PeerContext, before: PeerContext) -> None:
        heard.append(f"level {before.level} {now.level}")

    @ears.on_context_low
    async def low(one: Peer, context: PeerContext) -> None:
        heard.append(f"low {one.id}")

    @ears.on_join
    async def came(one: Peer) -> None:
        heard.append(f"came {one.id}")

    @ears.on_leave
    async def left(one: Peer) -> None:
        heard.append(f"left {one.id}")

    @ears.on(SpaceEvent)
    async def event(one: SpaceEvent) -> None:
        heard.append(type(one).__name__)

    status = CHAT.model_copy(update={"kind": "participant/status"})
    await ears.hear(
        (CHAT,),
        (status, ContextReported(NEAR, HEALTHY.context), PeerLevelChanged(NEAR, HEALTHY.context)),
        (None, PeerLevelChanged(HEALTHY, NEAR.context)),
        (None,),
        (None, PeerJoined(Peer("bob")), PeerLeft(Peer("bob"))),
    )
    assert heard == [
        *("chat 1", "every chat"),
        *("every participant/status", "context near_limit", "ContextReported"),
        *("level healthy near_limit", "low coder", "PeerLevelChanged"),
        *("level near_limit healthy", "PeerLevelChanged"),
        *("came bob", "PeerJoined", "left bob", "PeerLeft"),
        "every test/last",
    ]


async def test_a_function_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    ears, heard = Ears(), list[str]()

    @ears.on(PeerJoined)
    async def broken(_: PeerJoined) -> None:
        raise RuntimeError("mine")

    @ears.on(PeerJoined)
    async def sound(event: PeerJoined) -> None:
        heard.append(event.peer.id)

    await ears.hear((None, PeerJoined(Peer("bob"))))
    assert heard == ["bob"]
    assert "event handler failed" in caplog.text


async def test_what_slow_functions_leave_waiting_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    events = Listeners()
    events.emit(CHAT)  # nobody runs yet: it is nobody's
    events.open()
    for _ in range(EVENT_BUFFER + 1):
        events.emit(CHAT)
    events.emit(None, PeerLeft(Peer("bob")))
    assert "dropped 'chat' from 'bob'" in caplog.text
    assert "dropped (PeerLeft(" in caplog.text
    events.close()
    events.emit(CHAT)


@pytest.mark.parametrize("wrong", [5, lambda _: None])
def test_listening_to_what_is_no_event_is_refused_with_the_right_way(wrong: object) -> None:
    with pytest.raises(TypeError, match=r'a kind or an event class.*@me\.on\("chat"\), @me\.on\(ChatReceived\)'):
        Ears().on(wrong)  # type: ignore[call-overload]


async def test_a_reply_names_who_and_what_it_answers(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @bob.on_chat
        async def answer(chat: ChatReceived) -> None:
            if chat.is_to_me:
                await chat.reply(f"{chat.text}? yes")

        reply = await ada.ask("chat", {"text": "here"}, to="bob", answer="chat", timeout_seconds=10)
        assert reply.body["text"] == "here? yes"
        assert reply.addressees == ("ada",)


async def test_who_comes_and_goes_is_told_but_not_who_was_here(joined: Joined) -> None:
    async with joined("bob"), joined("ada") as ada:
        seen: list[str] = []
        gone = anyio.Event()

        @ada.on_join
        async def came(peer: Peer) -> None:
            seen.append(f"{peer.id} came")

        @ada.on_leave
        async def left(peer: Peer) -> None:
            seen.append(f"{peer.id} left")
            gone.set()

        async with joined("writer"):
            pass
        with anyio.fail_after(10):
            await gone.wait()
        assert seen == ["writer came", "writer left"]


async def test_a_proposal_that_its_proposer_gives_up_is_told_and_not_open_any_more() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada, with_tools(join("tools")):
        closed = list[ProposalClosed]()
        done = anyio.Event()

        @ada.on_proposal_closed
        async def over(event: ProposalClosed) -> None:
            closed.append(event)
            done.set()

        with anyio.fail_after(10):
            while not {"ada", "tools"} <= set(me.peers):
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(PeerTimeout):
                await me.propose("tools", "tools/list", timeouts=Timeouts(decision_seconds=0.01))
            await done.wait()
        (event,) = closed
        assert (event.how, event.by, event.reason) == ("withdrawn", "proposer", "timeout")
        assert (event.proposal.method, event.proposal.is_open) == ("tools/list", False)


async def test_a_proposal_is_fulfilled_or_rejected_by_a_function() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada, with_tools(join("tools")):

        @ada.on_proposal
        async def decide(proposal: ProposalMade) -> None:
            await (proposal.fulfil() if proposal.tool == "add" else proposal.reject(f"no {proposal.tool}"))

        with anyio.fail_after(10):
            while not {"ada", "tools"} <= set(me.peers):
                await anyio.wait_all_tasks_blocked()
        assert (await me.call_tool("tools", "add", {"a": 2, "b": 3})).text == "5"
        with pytest.raises(Rejected, match="no fail"):
            await me.call_tool("tools", "fail")
