"""Requests and proposals to peers: who may answer them, and how each of them ends."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.errors import (
    AnswerLost,
    BadAnswer,
    MewAgentError,
    NotAccepted,
    NotPermitted,
    PeerAbsent,
    PeerFailed,
    PeerTimeout,
    Rejected,
)
from mew_agent.participant.mcp_client import ApprovalProposal, PeerCall, PendingProposal, Timeouts
from mew_agent.participant.messenger import PendingRequest, PendingRequests
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerChanges
from tests.support.agents import EnvelopeRecorder
from tests.support.faulty_link import faulty_link
from tests.support.peers import PEERS, SOON, Join, space_of_peers, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

ADD = {"name": "add", "arguments": {"a": 2, "b": 3}}


@asynccontextmanager
async def scene(asker: str = "proposer") -> AsyncIterator[tuple[Participant, Participant, EnvelopeRecorder, Join]]:
    """The asking participant; `ada` with all capabilities and what she receives; and `tools`, which offers tools."""
    async with space_of_peers() as (_, join), join(asker) as me, join("ada") as ada, with_tools(join("tools")):
        await until(lambda: {"ada", "tools"} <= set(me.peers))
        yield me, ada, EnvelopeRecorder(ada), join


async def outcome(asking: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a request, or its error."""
    try:
        return await asking()
    except MewAgentError as error:
        return error


def answering(peer: Participant, payload: dict[str, Any], *, to: str = "proposal") -> None:
    """Answer each proposal, or each request, with this payload."""

    @peer.on(f"mcp/{to}")
    async def answer(requested: Envelope) -> None:
        if requested.sender != peer.id:
            await peer.send("mcp/response", payload, to=requested.sender, correlation_id=(requested.id,))


# -- requests ----------------------------------------------------------------------------------------------


async def test_permitted_request_is_sent_directly() -> None:
    async with scene("asker") as (me, _, recorder, _join):
        result = await me.call_tool("tools", "add", {"a": 2, "b": 3})
        assert (result.text, result.is_error) == ("5", False)
        request = await recorder.first("asker", "mcp/request")
        assert request.to == ("tools",)
        assert request.body["jsonrpc"] == "2.0"
        assert not recorder.sent_by("asker", "mcp/proposal")


async def test_failing_tool_has_an_error_result() -> None:
    async with scene("asker") as (me, *_):
        result = await me.call_tool("tools", "fail")
        assert result.is_error
        assert "out of order" in result.text


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"result": 3}, "3"),
        ({"result": {"sum": 3}}, '{"sum": 3}'),
        ({}, ""),
        ({"result": None}, ""),
        ({"result": {"content": [{"type": "text", "text": "ok"}]}, "jsonrpc": "2.0", "id": 9}, "ok"),
        ({"error": {"code": -32603, "message": "broken"}}, "'bob' answered: broken (error -32603)"),
        ({"error": {"message": "broken"}}, "'bob' answered: broken"),
        ({"error": {}}, "'bob' answered: an error without a message"),
        ({"error": "broken"}, "'bob' answered: broken"),
    ],
)
async def test_responses_of_any_shape_are_read(payload: dict[str, Any], expected: str) -> None:
    async with space_of_peers() as (_, join), join("asker") as me, join("bob") as bob:
        await until(lambda: "bob" in me.peers)
        answering(bob, payload, to="request")
        bob.mcp_server.offers = _Silence()
        came = await outcome(lambda: me.call_tool("bob", "x"))
        assert expected == (str(came) if isinstance(came, PeerFailed) else came.text)


class _Silence:
    """Offers that never answer; the test does."""

    async def request(self, method: str, params: Any) -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError


async def test_parallel_requests_each_get_their_own_response() -> None:
    async with scene("asker") as (me, *_):
        sums: dict[int, str] = {}

        async def ask(number: int) -> None:
            sums[number] = (await me.call_tool("tools", "add", {"a": number, "b": 0})).text

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, number)
        assert sums == {number: str(number) for number in range(20)}


async def test_request_to_an_absent_peer_fails_at_once() -> None:
    async with scene("asker") as (me, *_):
        for ask in (me.request, me.propose):
            with pytest.raises(PeerAbsent, match="'ghost' is not in the space"):
                await ask("ghost", "tools/list")


async def test_request_without_any_capability_is_not_permitted() -> None:
    async with scene("mute") as (me, *_):
        with pytest.raises(NotPermitted):
            await me.request("tools", "tools/list")


async def test_silent_peer_times_out() -> None:
    async with space_of_peers() as (_, join), join("asker") as me, join("bob", offers=_Silence()):
        await until(lambda: "bob" in me.peers)
        with pytest.raises(PeerTimeout, match=r"within 0\.05 seconds"):
            await me.request("bob", "tools/list", timeouts=Timeouts(answer_seconds=0.05))


async def test_timeout_names_a_paused_peer() -> None:
    async with scene("asker") as (me, ada, _, join):
        await ada.send("participant/pause", {}, to="tools")
        await until(lambda: me.peers["tools"].context.status == "paused")
        with pytest.raises(PeerFailed, match="paused"):
            await me.request("tools", "tools/list")
        async with join("more", offers=_Silence()):
            await until(lambda: "more" in me.peers)
            status = {"status": "paused", "messages_in_context": 0, "tokens": 1, "max_tokens": 2}
            await ada.send("participant/status", status)
            me.peers.receive(Envelope.write("participant/status", id="1", ts="t", sender="more", payload=status))
            with pytest.raises(PeerTimeout, match="it is paused"):
                await me.request("more", "tools/list", timeouts=SOON)


async def test_request_fails_at_once_when_its_peer_leaves() -> None:
    async with space_of_peers() as (_, join), join("asker") as me:
        async with anyio.create_task_group() as tasks, join("bob", offers=_Silence()) as bob:
            await until(lambda: "bob" in me.peers)
            failed: list[Any] = []

            async def call() -> None:
                failed.append(await outcome(lambda: me.call_tool("bob", "x")))

            tasks.start_soon(call)
            received = EnvelopeRecorder(bob)
            await received.first("asker", "mcp/request")
        assert isinstance(failed[0], PeerAbsent)
        assert failed[0].had_been_asked


class _Bench:
    """Offers a tool that runs until it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.stopped = anyio.Event(), anyio.Event()

    async def request(self, method: str, params: Any) -> dict[str, Any]:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped.set()
        raise AssertionError


NOTIFIERS = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  asker: {command: mew, capabilities: [{kind: mcp/request}, {kind: mcp/notification}]}
  silent: {command: mew, capabilities: [{kind: mcp/request}]}
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
"""


@pytest.mark.parametrize("reason", ["timeout", "no_longer_needed"])
async def test_abandoned_request_is_cancelled_at_its_peer(reason: str) -> None:
    bench = _Bench()
    async with space_of_peers(NOTIFIERS) as (_, join), join("asker") as me, join("ada") as ada:
        recorder = EnvelopeRecorder(ada)
        async with join("tools", offers=bench):
            await until(lambda: "tools" in me.peers)
            if reason == "timeout":
                with pytest.raises(PeerTimeout):
                    await me.call_tool("tools", "add", timeouts=Timeouts(answer_seconds=0.1))
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(me.call_tool, "tools", "add")
                    await bench.begun.wait()
                    tasks.cancel_scope.cancel()
            request = await recorder.first("asker", "mcp/request")
            notice = await recorder.first("asker", "mcp/notification", about=request)
            with anyio.fail_after(PATIENCE_SECONDS):
                await bench.stopped.wait()
            assert notice.addressees == ("tools",)
            reported = {"requestId": request.body["id"], "reason": reason}
            assert dict(notice.body) == {"method": "notifications/cancelled", "params": reported}
        assert not recorder.sent_by("tools", "mcp/response")


async def test_participant_without_the_capability_sends_no_cancellation() -> None:
    bench = _Bench()
    async with space_of_peers(NOTIFIERS) as (_, join), join("silent") as me, join("ada") as ada:
        recorder = EnvelopeRecorder(ada)
        async with join("tools", offers=bench):
            await until(lambda: "tools" in me.peers)
            with pytest.raises(PeerTimeout):
                await me.call_tool("tools", "add", timeouts=Timeouts(answer_seconds=0.1))
            assert not bench.stopped.is_set()
        assert not recorder.sent_by("silent", "mcp/notification")


async def test_answered_request_is_not_cancelled() -> None:
    async with space_of_peers(NOTIFIERS) as (_, join), join("asker") as me, join("ada") as ada:
        recorder = EnvelopeRecorder(ada)
        async with with_tools(join("tools")):
            await until(lambda: "tools" in me.peers)
            assert (await me.call_tool("tools", "where")).text == "tools"
            with pytest.raises(PeerFailed):
                await me.request("tools", "nothing/known")
        await until(lambda: "tools" not in ada.peers)
        assert not recorder.sent_by("asker", "mcp/notification")


# -- proposals ---------------------------------------------------------------------------------------------


async def test_proposal_is_answered_through_the_request_that_fulfils_it() -> None:
    async with scene() as (me, ada, recorder, _):

        @ada.on("mcp/proposal")
        async def fulfil(proposal: Envelope) -> None:
            await ada.send("mcp/request", proposal.payload, to=proposal.addressees, correlation_id=(proposal.id,))

        result = await me.call_tool("tools", "add", {"a": 2, "b": 3})
        assert result.text == "5"
        proposal = await recorder.first("proposer", "mcp/proposal")
        assert dict(proposal.body) == {"method": "tools/call", "params": ADD}
        assert not recorder.sent_by("proposer", "mcp/withdraw")


async def test_proposed_peer_answers_itself_or_passes_a_result_on() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("bob") as bob, join("ada") as ada:
        await until(lambda: {"bob", "ada"} <= set(me.peers))
        answering(bob, {"result": "from bob"})
        assert await me.request("bob", "tools/list") == "from bob"

        @ada.on("mcp/proposal")
        async def fulfil(proposal: Envelope) -> None:
            if proposal.addressees == ("ada",):
                about = (proposal.id,)
                await ada.send("mcp/request", proposal.payload, to="bob", correlation_id=about)
                await ada.send("mcp/response", {"result": "passed on"}, to="proposer", correlation_id=about)

        bob.mcp_server.offers = _Silence()
        assert await me.request("ada", "tools/list") == "passed on"


async def test_third_participant_cannot_answer_a_proposal() -> None:
    async with scene() as (me, ada, *_):
        ada.on("mcp/proposal")(lambda proposal: _forge(ada, proposal))
        with pytest.raises(PeerTimeout, match="no participant fulfilled the proposal"):
            await me.request("tools", "tools/list", timeouts=SOON)


async def _forge(attacker: Participant, proposal: Envelope) -> None:
    """Try every way to answer a proposal to another participant; the gateway refuses each."""
    about, payload = (proposal.id,), proposal.payload
    for kind, body, to in (
        ("mcp/response", {"result": "forged"}, proposal.sender),
        ("mcp/request", payload, attacker.id),
        ("mcp/request", payload, (*proposal.addressees, attacker.id)),
    ):
        with pytest.raises(NotAccepted, match="only the peers of the proposal"):
            await attacker.send(kind, body, to=to, correlation_id=about)


@contextmanager
def _proposed(
    fulfillers: tuple[str, ...] | None = None, made: type[PendingProposal] = PendingProposal
) -> Iterator[tuple[PendingProposal, PendingRequests]]:
    """A proposal of `add` to `tools`, and the requests that it is pending among."""
    body = {"method": "tools/call", "params": ADD}
    sent = Envelope.write("mcp/proposal", id="p", ts="t", sender="me", to=("tools",), payload=body)
    proposal, pending = made(sent, "tools", fulfillers), PendingRequests("me")
    with pending.tracking(proposal):
        yield proposal, pending


def _request(sender: str, *to: str, name: str = "r") -> Envelope:
    body = {"method": "tools/call", "params": ADD}
    return Envelope.write("mcp/request", id=name, ts="t", sender=sender, to=to, correlation_id=("p",), payload=body)


def _answer(kind: str, sender: str, about: str, **payload: Any) -> Envelope:
    return Envelope.write(kind, id="answer", ts="t", sender=sender, correlation_id=(about,), payload=payload)


FORGED = _answer("mcp/response", "eve", "r", result=999)


@pytest.mark.parametrize(
    "attack",
    [
        (_request("eve", "eve"), FORGED),
        (_request("eve", "tools", "eve"), FORGED),
        (_request("eve"), FORGED),
        (_request("ada", "tools"), FORGED),
        (_request("eve", "tools"), _answer("mcp/response", "eve", "p", result=999)),
        (_answer("mcp/response", "eve", "p", result=999),),
    ],
)
def test_only_the_proposed_peers_answer_counts_at_the_client(attack: tuple[Envelope, ...]) -> None:
    with _proposed() as (proposal, pending):
        for envelope in attack:
            pending.receive(envelope, PeerChanges())
        assert proposal.reply is None
        pending.receive(_request("ada", "tools", name="real"), PeerChanges())
        pending.receive(_answer("mcp/response", "tools", "real", result=5), PeerChanges())
    reply: Envelope | None = proposal.reply
    assert reply is not None
    assert reply.body["result"] == 5


def test_fulfilment_cannot_redirect_the_answers_to_another_request() -> None:
    request = PendingRequest(Envelope.write("mcp/request", id="mine", ts="t", sender="me"), "tools", "mcp/response")
    with _proposed() as (proposal, pending), pending.tracking(request):
        pending.receive(_request("eve", "tools", name="mine"), PeerChanges())
        pending.receive(_answer("mcp/response", "tools", "mine", result=1), PeerChanges())
    assert proposal.reply is None
    assert request.reply is not None


def test_only_named_fulfillers_decide() -> None:
    with _proposed(("ada",)) as (proposal, pending):
        pending.receive(_request("eve", "tools"), PeerChanges())
        pending.receive(_answer("mcp/reject", "eve", "p", reason="no"), PeerChanges())
        assert not proposal.decided.is_set()
        pending.receive(_request("ada", "tools"), PeerChanges())
        assert proposal.decided.is_set()


def _withdrawal(cause: str, sender: str = "system:gateway") -> Envelope:
    return _answer("mcp/withdraw", sender, "p", reason="why", cause=cause)


@pytest.mark.parametrize(
    ("cause", "error", "text"),
    [
        ("proposer_left", AnswerLost, "the connection was lost"),
        ("all_rejected", Rejected, "'system:gateway' rejected the proposal of 'tools/call' to 'tools': why"),
    ],
)
@pytest.mark.parametrize("made", [PendingProposal, ApprovalProposal])
def test_withdrawal_by_the_gateway_ends_the_wait(
    made: type[PendingProposal], cause: str, error: type[MewAgentError], text: str
) -> None:
    with _proposed(("ada",), made) as (proposal, pending):
        pending.receive(_withdrawal(cause, "eve"), PeerChanges())
        assert not proposal.decided.is_set()
        pending.receive(_withdrawal(cause), PeerChanges())
        assert proposal.decided.is_set()
        assert not proposal.needs_withdrawal
        with pytest.raises(error, match=text):
            proposal.reply_or_raise(1.0)


@pytest.mark.parametrize("made", [PendingProposal, ApprovalProposal])
def test_withdrawal_by_the_gateway_after_the_fulfilment_is_ignored(made: type[PendingProposal]) -> None:
    with _proposed(None, made) as (proposal, pending):
        pending.receive(_request("ada", "tools"), PeerChanges())
        pending.receive(_withdrawal("proposer_left"), PeerChanges())
        assert proposal.is_fulfilled
        assert proposal.failure is None


async def test_proposal_that_all_reject_fails_though_its_fulfiller_is_silent() -> None:
    text = PEERS.replace('{kind: "mcp/request"}, ', "")
    async with (
        space_of_peers(text) as (_, join),
        join("tools"),
        join("proposer") as me,
        join("ada") as ada,
        join("bob") as bob,
    ):
        for one in (ada, bob):
            one.on_proposal(lambda proposal: proposal.reject("no"))
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(Rejected, match="all who may approve it have rejected"):
            await me.propose("tools", "tools/list", fulfillers=("eve",))


async def test_request_for_something_else_does_not_fulfil_a_proposal() -> None:
    async with scene() as (me, ada, *_):

        @ada.on("mcp/proposal")
        async def look_first(proposal: Envelope) -> None:
            for params in ({"name": "where"}, {"name": "fail", "arguments": {}}):
                payload = {"method": "tools/call", "params": params}
                await ada.send("mcp/request", payload, to="tools", correlation_id=(proposal.id,))
            await ada.send("mcp/request", {"method": "tools/list"}, to="tools", correlation_id=(proposal.id,))

        with pytest.raises(PeerTimeout, match="no participant fulfilled the proposal"):
            await me.call_tool("tools", "add", {"a": 1, "b": 1}, timeouts=SOON)


async def test_rejection_names_its_sender_and_reason() -> None:
    async with scene() as (me, ada, recorder, _):

        @ada.on("mcp/proposal")
        async def reject(proposal: Envelope) -> None:
            await ada.send("mcp/reject", {"reason": "unsafe"}, to="proposer", correlation_id=(proposal.id,))

        with pytest.raises(Rejected, match="'ada' rejected the proposal of 'tools/call' to 'tools': unsafe"):
            await me.call_tool("tools", "add")
        assert not recorder.sent_by("proposer", "mcp/withdraw")


async def test_rejection_after_the_fulfilment_is_ignored() -> None:
    async with scene() as (me, ada, *_):

        @ada.on("mcp/proposal")
        async def change_mind(proposal: Envelope) -> None:
            about = (proposal.id,)
            await ada.send("mcp/request", proposal.payload, to="tools", correlation_id=about)
            await ada.send("mcp/reject", {"reason": "disagree"}, to="proposer", correlation_id=about)

        assert (await me.call_tool("tools", "where")).text == "tools"


async def test_unfulfilled_proposal_is_withdrawn() -> None:
    async with scene() as (me, _, recorder, _join):
        with pytest.raises(PeerTimeout, match="no participant fulfilled the proposal"):
            await me.call_tool("tools", "add", timeouts=Timeouts(decision_seconds=0.05))
        proposal = await recorder.first("proposer", "mcp/proposal")
        withdrawn = await recorder.first("proposer", "mcp/withdraw", about=proposal)
        assert withdrawn.body["reason"] == "timeout"


async def test_cancelled_caller_withdraws_its_proposal() -> None:
    async with scene() as (me, _, recorder, _join):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(me.call_tool, "tools", "add")
            proposal = await recorder.first("proposer", "mcp/proposal")
            tasks.cancel_scope.cancel()
        withdrawn = await recorder.first("proposer", "mcp/withdraw", about=proposal)
        assert withdrawn.body["reason"] == "no_longer_needed"


async def test_proposal_fails_and_is_withdrawn_when_its_peer_leaves() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada:
        recorder, came = EnvelopeRecorder(ada), list[Any]()

        async def call() -> None:
            came.append(await outcome(lambda: me.call_tool("tools", "add")))

        async with anyio.create_task_group() as tasks, join("tools"):
            await until(lambda: "tools" in me.peers)
            tasks.start_soon(call)
            proposal = await recorder.first("proposer", "mcp/proposal")
        assert isinstance(came[0], PeerAbsent)
        await recorder.first("proposer", "mcp/withdraw", about=proposal)


async def test_answer_timeout_starts_at_the_fulfilment() -> None:
    async with space_of_peers() as (_, join), join("proposer") as me, join("ada") as ada, join("bob") as bob:
        await until(lambda: {"ada", "bob"} <= set(me.peers))
        bob.mcp_server.offers = _Silence()

        @ada.on("mcp/proposal")
        async def fulfil(proposal: Envelope) -> None:
            await ada.send("mcp/request", proposal.payload, to="bob", correlation_id=(proposal.id,))

        recorder = EnvelopeRecorder(ada)
        with pytest.raises(PeerTimeout, match=r"within 0\.05 seconds$"):
            await me.request("bob", "tools/list", timeouts=Timeouts(answer_seconds=0.05, decision_seconds=30))
        assert not recorder.sent_by("proposer", "mcp/withdraw")


async def test_new_grant_turns_proposals_into_requests() -> None:
    async with scene() as (me, ada, recorder, _):
        granted = {"recipient": "proposer", "capabilities": [{"kind": "mcp/request"}]}
        await ada.send("capability/grant", granted, to="proposer")
        await until(lambda: me.mcp.may_request(PeerCall("tools", "tools/list")))
        await me.request("tools", "tools/list")
        await recorder.first("proposer", "mcp/request")
        revoked = {"recipient": "proposer", "capabilities": [{"kind": "mcp/request"}]}
        await ada.send("capability/revoke", revoked, to="proposer")
        await until(lambda: not me.mcp.may_request(PeerCall("tools", "tools/list")))
        with pytest.raises(PeerTimeout):
            await me.request("tools", "tools/list", timeouts=SOON)
        await recorder.first("proposer", "mcp/proposal")


async def test_request_refused_by_the_gateway_becomes_a_proposal() -> None:
    """Some gateways do not announce a revocation; the first sign is the refusal."""
    async with scene() as (me, ada, recorder, _):
        me.messenger.capabilities = ada.capabilities
        with pytest.raises(PeerTimeout, match="'mcp/proposal'"):
            await me.request("tools", "tools/list", timeouts=SOON)
        await recorder.first("proposer", "mcp/withdraw")


async def test_unreadable_list_raises_bad_answer() -> None:
    async with space_of_peers() as (_, join), join("asker") as me, join("bob") as bob:
        await until(lambda: "bob" in me.peers)
        bob.mcp_server.offers = _Silence()
        answering(bob, {"result": {"tools": "none"}}, to="request")
        with pytest.raises(BadAnswer, match="expected a list of tools"):
            await me.discover("bob")


async def test_a_proposal_given_up_without_a_gateway_is_withdrawn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.participant.messenger.CANCEL_SECONDS", 0.05)
    async with space_of_peers() as (gateway, join), faulty_link(gateway.port) as link, join("ada") as ada:
        token = gateway.token_of("proposer")
        async with join("bob"), Participant(link.url, space="demo", id="proposer", token=token) as proposer:
            await until(lambda: "bob" in proposer.peers)
            with anyio.fail_after(PATIENCE_SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(proposer.propose, "bob", "tools/list")
                    await until(lambda: len(ada.proposals) == 1)
                    link.go_dark()
                    tasks.cancel_scope.cancel()
                await link.cut()
                link.release()
                await until(lambda: not ada.proposals)
