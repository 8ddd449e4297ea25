"""What happens in a space, as typed events: small, frozen, and with what one does about them.

Owns what the events are and how they are read from envelopes, and which proposals nobody has decided about yet. Who
listens, and in which order they are told, is `hearing`'s matter.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.participant.messenger import Voice
from mew_agent.participant.peers import Peer, PeerContext

LOW_SEVERITY = 1
"""From here on a context is getting full."""

MAX_OPEN_PROPOSALS = 1_000
"""Of more than that the oldest are taken for forgotten: their end is not told."""

HowClosed = Literal["fulfilled", "rejected", "withdrawn", "left"]


class SpaceEvent:
    """Something happened in the space. The base of all events: who listens to it hears every one of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ChatHeard(SpaceEvent):
    """Somebody else said something. In a space everybody hears everything; `is_to_me` tells whom it was said to."""

    text: str
    sender: str
    envelope: Envelope
    _me: Voice = field(repr=False, compare=False)

    @property
    def is_to_me(self) -> bool:
        """Whether it names us."""
        return self.envelope.names(self._me.id)

    @property
    def is_to_everybody(self) -> bool:
        """Whether it names nobody."""
        return not self.envelope.addressees

    @property
    def is_answer(self) -> bool:
        """Whether it answers something. Two programs that answer each other's answers never stop."""
        return bool(self.envelope.correlation_id)

    async def reply(self, text: str) -> Envelope:
        """Answer whoever said it, and say what is answered. Raises `NotPermitted` and `NotConnected`."""
        return await self._me.send(kinds.CHAT, {"text": text}, to=self.sender, correlation_id=(self.envelope.id,))


@dataclass(frozen=True, slots=True)
class PeerJoined(SpaceEvent):
    """Somebody came. Who was here before us is in `Participant.peers`, and brings no event."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class PeerLeft(SpaceEvent):
    """Somebody left; `peer` is what was known of them."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class ContextReported(SpaceEvent):
    """A peer said how full its context window is; `before` is what it had said last."""

    peer: Peer
    before: PeerContext

    @property
    def context(self) -> PeerContext:
        """The report."""
        return self.peer.context


@dataclass(frozen=True, slots=True)
class PeerLevelChanged(SpaceEvent):
    """A report has another level than the one before, which is `before`. Our own count, too; `peer.id` is then ours."""

    peer: Peer
    before: PeerContext

    @staticmethod
    def between(peer: Peer | None, before: Peer | None) -> "PeerLevelChanged | None":
        """The change from what was known of a peer before; None where there is none."""
        known = before.context if before is not None else PeerContext()
        return PeerLevelChanged(peer, known) if peer is not None and peer.context.level != known.level else None

    @property
    def context(self) -> PeerContext:
        """The report with the new level."""
        return self.peer.context

    @property
    def is_low(self) -> bool:
        """Whether there is less room than before, and not much."""
        now = self.peer.context.severity
        return now >= LOW_SEVERITY and now > self.before.severity


@dataclass(frozen=True, slots=True)
class ProposalMade(SpaceEvent):
    """Somebody else would like an MCP request to be made, and may not make it. `tool` is None but for `tools/call`.

    `arguments` are the tool's, or the parameters of another method. Whoever may make the request can `fulfil` it,
    everybody can `reject` it, while it `is_open`. See `Fulfiller` for deciding by rules.
    """

    sender: str
    peers: tuple[str, ...]
    """Who should do it."""
    method: str
    tool: str | None
    arguments: Mapping[str, Any]
    envelope: Envelope
    _me: Voice = field(repr=False, compare=False)
    _open: "OpenProposals" = field(repr=False, compare=False)

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided about it yet. A person takes their time: look again before you fulfil it."""
        return self in self._open

    def __str__(self) -> str:
        """For people: `coder proposes count_words of words with {"text": "one two"}`."""
        whom = " and ".join(self.peers) or "everybody"
        shown = f" with {json.dumps(self.arguments, ensure_ascii=False)}" if self.arguments else ""
        return f"{self.sender} proposes {self.tool or self.method} of {whom}{shown}"

    async def fulfil(self) -> Envelope:
        """Make the request; its answer goes to whoever proposed it. Raises `NotPermitted` and `NotConnected`."""
        about = (self.envelope.id,)
        return await self._me.send(kinds.MCP_REQUEST, self.envelope.payload, to=self.peers, correlation_id=about)

    async def reject(self, reason: str = "disagree") -> Envelope:
        """Say no, and why. Raises `NotPermitted` and `NotConnected`."""
        about = (self.envelope.id,)
        return await self._me.send(kinds.MCP_REJECT, {"reason": reason}, to=self.sender, correlation_id=about)


@dataclass(frozen=True, slots=True)
class ProposalClosed(SpaceEvent):
    """Nobody needs to decide about a proposal any more: somebody did, ourselves included, or it is not wanted now.

    `how` is `fulfilled` or `rejected` (by whom, and why, is told with it), `withdrawn` by its proposer, or `left`: the
    proposer did.
    """

    proposal: ProposalMade
    how: HowClosed
    by: str
    reason: str = ""


class OpenProposals:
    """The proposals of others that were heard and that nobody has decided about."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, ProposalMade] = OrderedDict()

    def __contains__(self, proposal: object) -> bool:
        return isinstance(proposal, ProposalMade) and self._by_id.get(proposal.envelope.id) is proposal

    def made(self, proposal: ProposalMade) -> None:
        """A proposal was heard."""
        self._by_id[proposal.envelope.id] = proposal
        if len(self._by_id) > MAX_OPEN_PROPOSALS:
            self._by_id.popitem(last=False)

    def closed_by(self, envelope: Envelope) -> Iterator[ProposalClosed]:
        """What an envelope decides. Only its proposer withdraws a proposal."""
        how = _CLOSING.get(envelope.kind)
        for name in envelope.correlation_ids if how is not None else ():
            proposal = self._by_id.get(name)
            if how is None or proposal is None or (how == "withdrawn" and envelope.sender != proposal.sender):
                continue
            yield ProposalClosed(self._by_id.pop(name), how, envelope.sender, str(envelope.body.get("reason") or ""))

    def left(self, proposer: str) -> Iterator[ProposalClosed]:
        """Somebody left: nobody waits for what they proposed."""
        for name, proposal in tuple(self._by_id.items()):
            if proposal.sender == proposer:
                yield ProposalClosed(self._by_id.pop(name), "left", proposer)


_CLOSING: Mapping[str, HowClosed] = {
    kinds.MCP_REQUEST: "fulfilled",
    kinds.MCP_REJECT: "rejected",
    kinds.MCP_WITHDRAW: "withdrawn",
}


class EventReader:
    """Reads the events in what one participant hears."""

    def __init__(self, me: Voice) -> None:
        self._me = me
        self._open = OpenProposals()

    def told(self, envelope: Envelope, reporter: Peer | None, before: PeerContext) -> Iterator[SpaceEvent]:
        """What one envelope tells, comings and goings apart; to be read of every envelope, in order.

        `reporter` is the peer whose context report it holds, None without one; `before` is that peer's report before.
        """
        if reporter is not None:
            yield ContextReported(reporter, before)
            if (change := PeerLevelChanged.between(reporter, Peer(reporter.id, context=before))) is not None:
                yield change
        yield from self._open.closed_by(envelope)
        if envelope.sender == self._me.id:
            return
        if envelope.kind == kinds.CHAT and isinstance(text := envelope.body.get("text"), str):
            yield ChatHeard(text, envelope.sender, envelope, self._me)
        elif envelope.kind == kinds.MCP_PROPOSAL:
            proposal = self._proposal(envelope)
            self._open.made(proposal)
            yield proposal

    def moved(self, before: Mapping[str, Peer], after: Mapping[str, Peer]) -> Iterator[SpaceEvent]:
        """Who left and who came between two moments, and what of theirs is over with that."""
        for name in (name for name in before if name not in after):
            yield PeerLeft(before[name])
            yield from self._open.left(name)
        yield from (PeerJoined(peer) for name, peer in after.items() if name not in before)

    def _proposal(self, envelope: Envelope) -> ProposalMade:
        method, params = str(envelope.body.get("method")), envelope.body.get("params")
        inside = params if isinstance(params, dict) else {}
        name = inside.get("name") if method == "tools/call" else None
        arguments = inside.get("arguments") if name is not None else inside
        return ProposalMade(
            sender=envelope.sender,
            peers=envelope.addressees,
            method=method,
            tool=None if name is None else str(name),
            arguments=arguments if isinstance(arguments, dict) else {},
            envelope=envelope,
            _me=self._me,
            _open=self._open,
        )
