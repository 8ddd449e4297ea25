"""Sends MCP requests to peers, or proposes them for another participant to send if our capabilities do not cover them.

Owns the path from a request or proposal to its result: the rules of fulfilling, rejecting and answering, and the
cancellation or withdrawal when the caller stops waiting. `discovery` knows the offers of peers.

Any participant can refer to a proposal, so a reference alone proves nothing. A fulfilment must request the proposed
call from the proposed peer, and only that peer's response is the result.
"""

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from mew_listener.bounded_dict import BoundedDict
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.context_report import Waiting
from mew_protocol.envelope import Envelope
from mew_protocol.errors import CAPABILITY_VIOLATION
from mew_protocol.ids import GATEWAY
from mew_protocol.payloads.mcp import CallSubject, arguments_of, fulfils, is_same_call

from mew_agent import tracing
from mew_agent.errors import AnswerLost, PeerFailed, Refused, Rejected
from mew_agent.participant.messenger import Messenger, PendingRequest

if TYPE_CHECKING:
    from mew_agent.tools.sources import CallContext

CANCELLED: Final = "notifications/cancelled"
KEPT_APPROVALS: Final = 100
"""How many of our proposals to ourselves are remembered, for participants that decide about one too late."""

MAX_REPORTED_CHARS: Final = 2_000
"""Longer arguments of a proposal are left out of reports; the proposal itself contains them."""

CHOSEN_BY_CALLER: Final = ("arguments", "uri")
"""The parts of a request that its sender chooses: the arguments of a tool, or the URI of a resource."""


class Timeouts(NamedTuple):
    """The waiting times for a peer, in seconds.

    `answer_seconds` begins when the peer has the request. `decision_seconds`, for a proposal, is longer because people
    decide.
    """

    answer_seconds: float = 60.0
    decision_seconds: float = 300.0


class PeerCall(NamedTuple):
    """An MCP request to a peer, before it is sent or proposed. Its envelope refers to the ids in `made_for`."""

    peer: str
    method: str
    params: Mapping[str, Any] | None = None
    made_for: "CallContext | None" = None

    def note(self, *messages: Envelope | None) -> None:
        """Record the envelopes that decided or answered this call."""
        if self.made_for is not None:
            self.made_for.messages.extend(one for one in messages if one is not None)

    @property
    def payload(self) -> dict[str, Any]:
        """The common part of the payloads of a request and of a proposal."""
        return {"method": self.method} if self.params is None else {"method": self.method, "params": dict(self.params)}


class PendingProposal(PendingRequest):
    """A proposal that waits for its fulfilment (by `fulfillers`, if given), and then for the answer."""

    def __init__(self, sent: Envelope, peer: str, fulfillers: Collection[str] | None = None) -> None:
        super().__init__(sent, peer, kinds.MCP_RESPONSE)
        self.decision: Envelope | None = None
        """The request that fulfils it, or the rejection."""
        self._fulfillers = fulfillers
        self._is_withdrawn = False

    def may_be_decided_by(self, participant: str) -> bool:
        """Return whether the proposer accepts this participant's decision."""
        return self._fulfillers is None or participant in self._fulfillers

    def is_fulfilled_by(self, envelope: Envelope) -> bool:
        """Return whether this is a request that fulfils it."""
        subject, peers = CallSubject.read(self.sent.body), self.sent.addressees
        return envelope.kind == kinds.MCP_REQUEST and fulfils(envelope, subject, peers)

    @property
    def is_fulfilled(self) -> bool:
        """Whether a participant sent the proposed request."""
        return self.decision is not None and self.decision.kind == kinds.MCP_REQUEST

    @property
    def needs_withdrawal(self) -> bool:
        """Whether the proposal is still open: not fulfilled, answered or refused.

        We give up at the first rejection, although others could still fulfil it.
        """
        return not self.is_fulfilled and self.reply is None and not self._is_withdrawn

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`. Also follows the id of the fulfilling request, because the answer may refer to
        it.
        """
        if self._may_decide(envelope) and self.is_fulfilled_by(envelope):
            self.decision = envelope
            self.decided.set()
            return envelope.id
        if envelope.kind == kinds.MCP_REJECT and self._may_decide(envelope) and not self.is_fulfilled:
            method, reason = str(self.sent.body.get("method")), str(envelope.body.get("reason") or "no reason given")
            self.decision = envelope
            self.complete(failure=Rejected(self.peer, method, envelope.sender, reason))
            return None
        self._follow_withdrawal(envelope)
        return super().receive(envelope)

    def _follow_withdrawal(self, envelope: Envelope) -> None:
        """Fail a proposal that the gateway withdraws: all rejected it, or we were away. Nobody can fulfil it then."""
        if (envelope.kind, envelope.sender) != (kinds.MCP_WITHDRAW, GATEWAY) or self.is_fulfilled:
            return
        self._is_withdrawn = True
        if envelope.body.get("cause") == "all_rejected":
            method, reason = str(self.sent.body.get("method")), str(envelope.body.get("reason"))
            self.complete(failure=Rejected(self.peer, method, envelope.sender, reason))
        else:
            self.complete(failure=AnswerLost(self.peer, self.sent.kind))

    def _may_decide(self, envelope: Envelope) -> bool:
        return self.may_be_decided_by(envelope.sender) and envelope.refers_to(self.sent.id)


class ApprovalProposal(PendingProposal):
    """A proposal to ourselves. Any participant's request that fulfils it ends it, and a rejection by an approver."""

    @property
    def needs_withdrawal(self) -> bool:
        """See `PendingProposal.needs_withdrawal`."""
        return not self.is_fulfilled and self.failure is None

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`. Keeps the first decision that refers to the proposal."""
        is_rejection = envelope.kind == kinds.MCP_REJECT and self.may_be_decided_by(envelope.sender)
        is_decision = is_rejection or self.is_fulfilled_by(envelope)
        if is_decision and self.decision is None and envelope.refers_to(self.sent.id):
            self.decision = envelope
            self.decided.set()
        self._follow_withdrawal(envelope)
        return None


class McpClient:
    """The MCP requests of one participant to its peers.

    `waits_changed` is called when a proposal starts or stops waiting for a decision.
    """

    def __init__(self, messenger: Messenger, timeouts: Timeouts, waits_changed: Callable[[], None]) -> None:
        self._messenger = messenger
        self.timeouts = timeouts
        self._waits_changed = waits_changed
        self._undecided: dict[str, PendingProposal] = {}
        self._approvals: BoundedDict[str, ApprovalProposal] = BoundedDict(KEPT_APPROVALS)
        self._numbers = count(1)
        self._relaxed: tuple[CapabilitySet, CapabilitySet] | None = None

    @property
    def waits(self) -> tuple[Waiting, ...]:
        """The undecided proposals, in the form of a report."""
        return tuple(self._wait_for(proposal) for proposal in self._undecided.values())

    def may_request(self, call: PeerCall) -> bool:
        """Return whether we may send such a request directly."""
        return self._messenger.may_send(kinds.MCP_REQUEST, call.payload, (call.peer,))

    def may_propose(self, call: PeerCall) -> bool:
        """Return whether we may propose such a request."""
        return self._messenger.may_send(kinds.MCP_PROPOSAL, call.payload, (call.peer,))

    def may_ask_with_any_arguments(self, call: PeerCall) -> bool:
        """Return whether we may send or propose such a request with some arguments in addition to its `params`.

        Before a model has chosen arguments, a capability for certain arguments covers no draft of the call.
        """
        held = self._messenger.capabilities
        if self._relaxed is None or self._relaxed[0] is not held:
            self._relaxed = (held, held.ignoring(CHOSEN_BY_CALLER))
        return any(self._relaxed[1].allows(self._draft(kind, call)) for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL))

    async def request(self, call: PeerCall, timeouts: Timeouts | None = None) -> Any:
        """Send or propose a request; see `Participant.request`."""
        if self.may_request(call):
            try:
                return await self._send_request(call, timeouts or self.timeouts)
            except Refused as refused:
                # The gateway can withdraw a capability before it announces this.
                if refused.error != CAPABILITY_VIOLATION or not self.may_propose(call):
                    raise
        elif not self.may_propose(call):
            asks_otherwise = self.may_ask_with_any_arguments(call)
            raise self._messenger.not_permitted(kinds.MCP_REQUEST, other_arguments=asks_otherwise)
        return await self.propose(call, timeouts)

    async def propose(
        self, call: PeerCall, timeouts: Timeouts | None = None, fulfillers: Collection[str] | None = None
    ) -> Any:
        """Propose a request and wait until it is fulfilled and answered; see `Participant.propose`."""
        limits = timeouts or self.timeouts
        proposal = PendingProposal(self._draft(kinds.MCP_PROPOSAL, call), call.peer, fulfillers)
        async with self._decided(proposal, limits.decision_seconds):
            if not proposal.decided.is_set():
                detail = self._why_silent(call.peer, "no participant fulfilled the proposal")
                return _result(proposal.reply_or_raise(limits.decision_seconds, detail))
            with anyio.move_on_after(limits.answer_seconds):
                await proposal.done.wait()
            call.note(proposal.decision, proposal.reply)
            return _result(proposal.reply_or_raise(limits.answer_seconds, self._why_silent(call.peer)))

    async def propose_to_self(
        self, params: Mapping[str, Any], approvers: Collection[str], timeout_seconds: float
    ) -> Envelope | None:
        """Propose a tool call to ourselves, and wait for the request or rejection that decides it.

        Returns None without a timely decision. Then, or if the caller is cancelled, the proposal is withdrawn. Anyone
        may send the request, so check its sender. Raises `NotPermitted`, `GatewayError` and `PeerError` if the proposal
        cannot be made.
        """
        me = self._messenger.id
        draft = self._draft(kinds.MCP_PROPOSAL, PeerCall(me, "tools/call", params))
        proposal = ApprovalProposal(draft, me, approvers)
        self._approvals[proposal.sent.id] = proposal
        async with self._decided(proposal, timeout_seconds):
            if proposal.failure is not None:
                raise proposal.failure
            return proposal.decision

    def decision_before(self, request: Envelope) -> Envelope | None:
        """Return the decision about our own proposal to which a request refers; it may be this request."""
        known = (self._approvals.get(name) for name in request.correlation_ids)
        return next((one.decision for one in known if one is not None), None)

    def is_as_proposed(self, request: Envelope) -> bool:
        """Return whether a request repeats, unchanged, the call of our proposal to ourselves."""
        known = (self._approvals.get(name) for name in request.correlation_ids)
        return any(is_same_call(request.body, one.sent.body) for one in known if one is not None)

    def fail_closed_proposals(self, still_open: Collection[str]) -> None:
        """Fail our proposals to ourselves that the gateway closed during a lost connection."""
        for name, proposal in tuple(self._undecided.items()):
            if isinstance(proposal, ApprovalProposal) and proposal.is_echoed and name not in still_open:
                proposal.complete(failure=AnswerLost(proposal.peer, proposal.sent.kind))

    @asynccontextmanager
    async def _decided(self, proposal: PendingProposal, wait_seconds: float) -> AsyncIterator[None]:
        """Send a proposal and wait for its decision. Withdraw it at the end of the block if necessary."""
        reason = "no_longer_needed"
        async with self._messenger.sent_request(proposal):
            try:
                with self._undecided_while_open(proposal), anyio.move_on_after(wait_seconds):
                    await proposal.decided.wait()
                reason = reason if proposal.decided.is_set() else "timeout"
                yield
            finally:
                if proposal.needs_withdrawal:
                    await self._send_even_if_cancelled(kinds.MCP_WITHDRAW, {"reason": reason}, proposal)

    @contextmanager
    def _undecided_while_open(self, proposal: PendingProposal) -> Iterator[None]:
        self._undecided[proposal.sent.id] = proposal
        self._waits_changed()
        facts = CallSubject.read(proposal.sent.body)._asdict()
        with tracing.span("approval", {"proposal_id": proposal.sent.id}, peer=proposal.peer, **facts) as span:
            try:
                yield
            finally:
                del self._undecided[proposal.sent.id]
                self._waits_changed()
                if proposal.decision is not None:
                    outcome = "fulfilled" if proposal.is_fulfilled else "rejected"
                    span.facts |= {"decision": outcome, "by": proposal.decision.sender}

    def _wait_for(self, proposal: PendingProposal) -> Waiting:
        sent, peers = proposal.sent, self._messenger.peers
        method, tool = CallSubject.read(sent.body)
        arguments = arguments_of(sent.body)
        is_short = isinstance(arguments, Mapping) and len(json.dumps(arguments)) <= MAX_REPORTED_CHARS
        return Waiting(
            kind="approval",
            what=f"approval of {tool or method}{'' if proposal.peer == self._messenger.id else f' on {proposal.peer}'}",
            since=sent.ts,
            peer=proposal.peer,
            who_may_answer=tuple(
                name for name in sorted(peers) if proposal.may_be_decided_by(name) and peers[name].may_approve(sent)
            ),
            proposal=sent.id,
            tool=tool,
            arguments=dict(arguments) if is_short and isinstance(arguments, Mapping) else None,
        )

    def _draft(self, kind: str, call: PeerCall, **jsonrpc: object) -> Envelope:
        about = call.made_for
        return self._messenger.draft(
            kind,
            {**jsonrpc, **call.payload},
            to=(call.peer,),
            context=about.reasoning_id if about is not None else None,
            correlation_id=(about.chat_id,) if about is not None else (),
        )

    async def _send_request(self, call: PeerCall, limits: Timeouts) -> Any:
        number = next(self._numbers)
        sent = self._draft(kinds.MCP_REQUEST, call, jsonrpc="2.0", id=number)
        request = PendingRequest(sent, call.peer, kinds.MCP_RESPONSE)
        reason = "no_longer_needed"
        async with self._messenger.sent_request(request):
            try:
                with anyio.move_on_after(limits.answer_seconds):
                    await request.done.wait()
                reason = "timeout"
            finally:
                if not request.done.is_set():
                    cancelled = {"method": CANCELLED, "params": {"requestId": number, "reason": reason}}
                    await self._send_even_if_cancelled(kinds.MCP_NOTIFICATION, cancelled, request)
        call.note(request.reply)
        return _result(request.reply_or_raise(limits.answer_seconds, self._why_silent(call.peer)))

    def _why_silent(self, peer: str, otherwise: str = "") -> str:
        known = self._messenger.peers.get(peer)
        return "it is paused" if known is not None and known.context.is_paused else otherwise

    async def _send_even_if_cancelled(self, kind: str, payload: dict[str, Any], about: PendingRequest) -> None:
        if self._messenger.may_send(kind, payload, (about.peer,)):
            draft = self._messenger.draft(kind, payload, to=(about.peer,), correlation_id=(about.sent.id,))
            await self._messenger.send_even_if_cancelled(draft)


def _result(reply: Envelope) -> Any:
    """Return the result in a response; None if there is none. Raises `PeerFailed` for an error of any shape."""
    error = reply.body.get("error")
    if error is None:
        return reply.body.get("result")
    if not isinstance(error, Mapping):
        raise PeerFailed(reply.sender, None, str(error))
    code, message = error.get("code"), error.get("message")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    raise PeerFailed(reply.sender, number, str(message or "an error without a message"), error.get("data"))
