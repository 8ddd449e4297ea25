"""MCP requests to peers: made directly where our capabilities cover them, else proposed for somebody else to make.

Owns the way from a proposal to its result: who may fulfil, reject and answer it, and when it is withdrawn; and that a
request whose answer nobody waits for any more is taken back. What is offered by whom is discovery's matter.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import anyio
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Envelope
from mew_protocol.errors import CAPABILITY_VIOLATION

from mew_agent.errors import GatewayError, NotPermitted, PeerError, PeerFailed, Refused, Rejected
from mew_agent.participant.in_flight import CANCELLED
from mew_agent.participant.messenger import Voice
from mew_agent.participant.relaxed_capabilities import loosened
from mew_agent.participant.requests import Question, is_refusal

GOODBYE_SECONDS: Final = 2.0
"""How long taking something back may take: whoever does has been told to stop."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a peer is waited for, in seconds.

    `answer_seconds` once it has the request, `decision_seconds` until somebody fulfils a proposal: people take longer.
    """

    answer_seconds: float = 60.0
    decision_seconds: float = 300.0


class _Proposal(Question):
    """A proposal that waits to be fulfilled, and then for what the request that fulfils it is answered."""

    def __init__(self, sent: Envelope, peer: str) -> None:
        super().__init__(sent, peer, kinds.MCP_RESPONSE)
        self.decided = anyio.Event()
        self._fulfilments: dict[str, Envelope] = {}

    @property
    def is_fulfilled(self) -> bool:
        return bool(self._fulfilments)

    def take(self, envelope: Envelope) -> str | None:
        """See `Question.take`: the request that fulfils us is what answers name."""
        about = envelope.correlation_ids
        if is_refusal(envelope):
            self._settle(reply=envelope)
        elif envelope.kind == kinds.MCP_REQUEST and self._is_fulfilment(envelope):
            self._fulfilments[envelope.id] = envelope
            self.decided.set()
            return envelope.id
        elif envelope.kind == kinds.MCP_REJECT and self.sent.id in about and not self.is_fulfilled:
            method, reason = str(self.sent.body.get("method")), str(envelope.body.get("reason") or "no reason given")
            self.fail(Rejected(self.peer, method, envelope.sender, reason))
        elif envelope.kind == kinds.MCP_RESPONSE and self._is_answer(envelope, about):
            self._settle(reply=envelope)
        return None

    def _settle(self, reply: Envelope | None = None, failure: PeerError | None = None) -> None:
        super()._settle(reply, failure)
        self.decided.set()

    def _is_fulfilment(self, request: Envelope) -> bool:
        """Whether a request that names us asks for what we proposed; whoever makes it may have mended arguments."""
        mine, theirs = self.sent.body, request.body
        same_tool = _tool_of(mine) == _tool_of(theirs)
        return request.refers_to(self.sent.id) and mine.get("method") == theirs.get("method") and same_tool

    def _is_answer(self, response: Envelope, about: tuple[str, ...]) -> bool:
        """The peer answers the request or, as some do, the proposal itself; so may whoever made the request."""
        requests = [self._fulfilments[name] for name in about if name in self._fulfilments]
        answerers = {self.peer} | {one for request in requests for one in request.addressees}
        if self.sent.id in about:
            answerers |= {request.sender for request in self._fulfilments.values()}
        return response.sender in answerers


class PeerRequests:
    """MCP requests of one participant to its peers."""

    def __init__(self, me: Voice, waits: Waits) -> None:
        self._me = me
        self.waits = waits
        self._numbers = count(1)
        self._loosened: tuple[CapabilitySet, CapabilitySet] | None = None

    def may_ask(self, peer: str, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Whether we may make or propose such a request."""
        return self.may_request(peer, method, params) or self.may_propose(peer, method, params)

    def may_request(self, peer: str, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Whether we may make such a request ourselves."""
        return self._me.may_send(kinds.MCP_REQUEST, _payload(method, params), (peer,))

    def may_propose(self, peer: str, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Whether we may propose such a request."""
        return self._me.may_send(kinds.MCP_PROPOSAL, _payload(method, params), (peer,))

    def may_ask_some(self, peer: str, method: str, params: Mapping[str, Any] | None = None) -> bool:
        """Whether we may make or propose such a request with some arguments, whatever `params` leave open."""
        held = self._me.capabilities
        if self._loosened is None or self._loosened[0] is not held:
            self._loosened = (held, loosened(held.patterns))
        payload = _payload(method, params)
        drafts = (self._me.draft(kind, payload, to=(peer,)) for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL))
        return any(self._loosened[1].allows(draft) for draft in drafts)

    async def request(
        self,
        peer: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        waits: Waits | None = None,
        context: str | None = None,
        correlation_id: tuple[str, ...] = (),
    ) -> Any:
        """Request or propose; see `Participant.request`. `context` and `correlation_id` go into the envelope."""
        if not self.may_request(peer, method, params):
            if not self.may_propose(peer, method, params):
                raise NotPermitted(self._me.id, kinds.MCP_REQUEST)
            return await self.propose(peer, method, params, waits=waits, context=context, correlation_id=correlation_id)
        payload = {"jsonrpc": "2.0", "id": next(self._numbers), **_payload(method, params)}
        sent = self._draft(kinds.MCP_REQUEST, peer, payload, context, correlation_id)
        try:
            return _result(await self._asked(Question(sent, peer, kinds.MCP_RESPONSE), waits or self.waits))
        except Refused as refused:
            # A gateway may take a capability away without telling its holder.
            if refused.error != CAPABILITY_VIOLATION or not self.may_propose(peer, method, params):
                raise
        return await self.propose(peer, method, params, waits=waits, context=context, correlation_id=correlation_id)

    async def propose(
        self,
        peer: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        waits: Waits | None = None,
        context: str | None = None,
        correlation_id: tuple[str, ...] = (),
    ) -> Any:
        """Propose and wait until it was fulfilled and answered; see `Participant.propose`."""
        bounds = waits or self.waits
        sent = self._draft(kinds.MCP_PROPOSAL, peer, _payload(method, params), context, correlation_id)
        proposal = _Proposal(sent, peer)
        reason = "no_longer_needed"
        async with self._me.posing(proposal):
            try:
                with anyio.move_on_after(bounds.decision_seconds):
                    await proposal.decided.wait()
                if not proposal.decided.is_set():
                    reason = "timeout"
                    return _result(
                        proposal.answered(bounds.decision_seconds, self._state_of(peer, "nobody fulfilled it"))
                    )
                with anyio.move_on_after(bounds.answer_seconds):
                    await proposal.settled.wait()
                return _result(proposal.answered(bounds.answer_seconds, self._state_of(peer)))
            finally:
                if not proposal.is_fulfilled and not _is_closed(proposal):
                    await self._withdraw(proposal, reason)

    # -- inside ------------------------------------------------------------------------------------------

    def _draft(
        self, kind: str, peer: str, payload: dict[str, Any], context: str | None, correlation_id: tuple[str, ...]
    ) -> Envelope:
        return self._me.draft(kind, payload, to=(peer,), context=context, correlation_id=correlation_id)

    async def _asked(self, question: Question, waits: Waits) -> Envelope:
        reason = "no_longer_needed"
        async with self._me.posing(question):
            try:
                with anyio.move_on_after(waits.answer_seconds):
                    await question.settled.wait()
                reason = "timeout"
            finally:
                if not question.settled.is_set():
                    await self._take_back(question, reason)
        return question.answered(waits.answer_seconds, self._state_of(question.peer))

    def _state_of(self, peer: str, otherwise: str = "") -> str:
        """Why a peer may be silent, as far as we know."""
        known = self._me.peers.get(peer)
        return "it is paused" if known is not None and known.context.status == "paused" else otherwise

    async def _withdraw(self, proposal: _Proposal, reason: str) -> None:
        """Nobody needs to decide about it any more."""
        await self._say_goodbye(kinds.MCP_WITHDRAW, {"reason": reason}, proposal)

    async def _take_back(self, question: Question, reason: str) -> None:
        """Nobody waits for the answer any more: whoever works on it may stop."""
        params = {"requestId": question.sent.body.get("id"), "reason": reason}
        await self._say_goodbye(kinds.MCP_NOTIFICATION, {"method": CANCELLED, "params": params}, question)

    async def _say_goodbye(self, kind: str, payload: dict[str, Any], about: Question) -> None:
        """Never raises, also when we are being cancelled."""
        if not self._me.may_send(kind, payload, (about.peer,)):
            return
        with anyio.move_on_after(GOODBYE_SECONDS, shield=True), suppress(GatewayError, NotPermitted):
            await self._me.send(kind, payload, to=about.peer, correlation_id=(about.sent.id,))


def _payload(method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"method": method} if params is None else {"method": method, "params": dict(params)}


def _tool_of(body: Mapping[str, Any]) -> object:
    params = body.get("params")
    return params.get("name") if body.get("method") == "tools/call" and isinstance(params, Mapping) else None


def _is_closed(proposal: _Proposal) -> bool:
    """Whether everybody knows already that it is over: answered, rejected, refused by the gateway."""
    return proposal.reply is not None or isinstance(proposal.failure, Rejected)


def _result(reply: Envelope) -> Any:
    """The result in a response; None where it holds none. Raises `PeerFailed` for an error, whatever its shape."""
    error = reply.body.get("error")
    if error is None:
        return reply.body.get("result")
    if not isinstance(error, Mapping):
        raise PeerFailed(reply.sender, None, str(error))
    code, message = error.get("code"), error.get("message")
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    raise PeerFailed(reply.sender, number, str(message or "an error without a message"), error.get("data"))
