"""Event handlers: called in order, one at a time, and independent of each other's failures."""

import threading
from collections.abc import Callable

import anyio
import pytest
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import Envelope

from mew_agent.errors import PeerTimeout, Rejected
from mew_agent.participant.event_handlers import (
    ChatReceived,
    ContextReported,
    PeerJoined,
    PeerLeft,
    PeerLevelChanged,
    ProposalClosed,
    ProposalMade,
)
from mew_agent.participant.gaps import SpaceEvent
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from tests.support.peers import space_of_peers, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

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


class Unjoined(Participant):
    """A participant that is not in a space."""

    def __init__(self) -> None:
        super().__init__("ws://h", space="demo", id="ada", token="t")
        self.failures: list[Exception] = []
        self.listeners.on_handled = lambda envelope, outcomes: None  # it has no session to send on

    async def handle(self, *happened: tuple[object, ...]) -> None:
        """Emit these (an envelope or None, then events) and run until all are handled."""
        done = anyio.Event()

        @self.on("test/last")
        async def last(_: Envelope) -> None:
            done.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(self.listeners.run, self.failures.append)
            for envelope, *events in (*happened, (LAST,)):
                assert envelope is None or isinstance(envelope, Envelope)
                self.listeners.emit(envelope, *events)
            with anyio.fail_after(PATIENCE_SECONDS):
                await done.wait()
            tasks.cancel_scope.cancel()


async def test_only_handled_events_are_queued_and_later_handlers_get_later_ones() -> None:
    me, seen = Unjoined(), list[str]()

    @me.on("system/presence")
    async def presence(envelope: Envelope) -> None:
        seen.append("presence")

    async with anyio.create_task_group() as tasks:
        await tasks.start(me.listeners.run, me.failures.append)
        await me.dispatcher.dispatch(CHAT)
        await anyio.wait_all_tasks_blocked()
        assert me.listeners.wanted == {"system/presence"}
        await me.dispatcher.dispatch(CHAT)
        me.listeners.emit(None, PeerJoined(HEALTHY))

        @me.on_chat
        async def chat(received: ChatReceived) -> None:
            seen.append(received.text)

        await me.dispatcher.dispatch(CHAT)
        await me.dispatcher.dispatch(CHAT.model_copy(update={"kind": "system/presence"}))
        await anyio.wait_all_tasks_blocked()
        assert me.listeners.wanted == {"system/presence", "chat"}
        tasks.cancel_scope.cancel()
    assert seen == [CHAT.body["text"], "presence"]


async def test_each_handler_gets_its_events_in_order() -> None:
    me, seen = Unjoined(), list[str]()

    @me.on()
    async def every(envelope: Envelope) -> None:
        seen.append(f"every {envelope.kind}")

    @me.on("chat")
    async def chat(envelope: Envelope) -> None:
        seen.append(f"chat {envelope.id}")

    @me.on_context
    async def context(one: Peer, context: PeerContext) -> None:
        seen.append(f"context {context.level}")

    @me.on_context_level
    async def level(one: Peer, now: PeerContext, before: PeerContext) -> None:
        seen.append(f"level {before.level} {now.level}")

    @me.on_context_low
    async def low(one: Peer, context: PeerContext) -> None:
        seen.append(f"low {one.id}")

    @me.on_join
    async def came(one: Peer) -> None:
        seen.append(f"came {one.id}")

    @me.on_leave
    async def left(one: Peer) -> None:
        seen.append(f"left {one.id}")

    @me.on(SpaceEvent)
    async def event(one: SpaceEvent) -> None:
        seen.append(type(one).__name__)

    status = CHAT.model_copy(update={"kind": "participant/status"})
    await me.handle(
        (CHAT,),
        (status, ContextReported(NEAR, HEALTHY.context), PeerLevelChanged(NEAR, HEALTHY.context)),
        (None, PeerLevelChanged(HEALTHY, NEAR.context)),
        (None,),
        (None, PeerJoined(Peer("bob")), PeerLeft(Peer("bob"))),
    )
    assert seen == [
        *("chat 1", "every chat"),
        *("every participant/status", "context near_limit", "ContextReported"),
        *("level healthy near_limit", "low coder", "PeerLevelChanged"),
        *("level near_limit healthy", "PeerLevelChanged"),
        *("came bob", "PeerJoined", "left bob", "PeerLeft"),
        "every test/last",
    ]


async def test_failing_handler_stops_no_other_handler() -> None:
    me, seen = Unjoined(), list[str]()

    @me.on(PeerJoined)
    async def broken(_: PeerJoined) -> None:
        raise RuntimeError("mine")

    @me.on(PeerJoined)
    async def sound(event: PeerJoined) -> None:
        seen.append(event.peer.id)

    await me.handle((None, PeerJoined(Peer("bob"))))
    assert seen == ["bob"]
    assert [str(failure) for failure in me.failures] == ["mine"]


@pytest.mark.parametrize("wrong", [5, lambda _: None])
def test_on_refuses_anything_but_a_kind_or_an_event_class(wrong: object) -> None:
    with pytest.raises(TypeError, match=r'a kind or an event class.*@me\.on\("chat"\), @me\.on\(ChatReceived\)'):
        Unjoined().on(wrong)  # type: ignore[call-overload]


async def test_reply_goes_to_the_sender_and_refers_to_the_chat(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @bob.on_chat
        async def answer(chat: ChatReceived) -> None:
            if chat.is_to_me:
                await chat.reply(f"{chat.text}? yes")

        reply = await ada.ask("chat", {"text": "here"}, to="bob", answer="chat", timeout_seconds=60)
        assert reply.body["text"] == "here? yes"
        assert reply.addressees == ("ada",)


async def test_peers_that_join_or_leave_cause_events_but_not_those_present(joined: Joined) -> None:
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
        with anyio.fail_after(PATIENCE_SECONDS):
            await gone.wait()
        assert seen == ["writer came", "writer left"]


async def test_withdrawn_proposal_causes_an_event_and_is_closed() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada, with_tools(join("tools")):
        closed = list[ProposalClosed]()
        done = anyio.Event()

        @ada.on_proposal_closed
        async def over(event: ProposalClosed) -> None:
            closed.append(event)
            done.set()

        with anyio.fail_after(PATIENCE_SECONDS):
            await until(lambda: {"ada", "tools"} <= set(me.peers))
            with pytest.raises(PeerTimeout):
                await me.propose("tools", "tools/list", timeouts=Timeouts(decision_seconds=0.01))
            await done.wait()
        (event,) = closed
        assert (event.how, event.by, event.reason) == ("withdrawn", "proposer", "timeout")
        assert (event.proposal.method, event.proposal.is_open) == ("tools/list", False)


async def test_handler_fulfils_or_rejects_a_proposal() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada, with_tools(join("tools")):

        @ada.on_proposal
        async def decide(proposal: ProposalMade) -> None:
            await (proposal.fulfil() if proposal.tool == "add" else proposal.reject(f"no {proposal.tool}"))

        await until(lambda: {"ada", "tools"} <= set(me.peers))
        assert (await me.call_tool("tools", "add", {"a": 2, "b": 3})).text == "5"
        with pytest.raises(Rejected, match="no fail"):
            await me.call_tool("tools", "fail")


async def test_plain_functions_handle_events_in_a_thread_and_in_order() -> None:
    me, seen = Unjoined(), list[tuple[str, bool]]()

    def note(text: str) -> None:
        seen.append((text, threading.current_thread() is threading.main_thread()))

    @me.on("chat")
    def chat(envelope: Envelope) -> None:
        note(f"chat {envelope.id}")

    @me.on_context_level
    def level(one: Peer, now: PeerContext, before: PeerContext) -> None:
        note(f"level {before.level} {now.level}")

    @me.on_context_low
    def low(one: Peer, context: PeerContext) -> None:
        note(f"low {one.id}")

    @me.on_join
    def came(one: Peer) -> None:
        note(f"came {one.id}")
        raise SystemExit(1)  # ends neither the program nor later handlers

    @me.on_leave
    async def left(one: Peer) -> None:
        note(f"left {one.id}")

    await me.handle((CHAT, PeerJoined(NEAR), PeerLevelChanged(NEAR, HEALTHY.context), PeerLeft(NEAR)))
    texts = ["chat 1", "came coder", "level healthy near_limit", "low coder", "left coder"]
    assert seen == [(text, text.startswith("left")) for text in texts]
