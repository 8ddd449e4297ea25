"""What happens in a space, as typed events: small, frozen, and with what one does about them.

Owns what the events are and how they are read from envelopes. Who listens, and in which order they are told, is
`hearing`'s matter.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mew_agent.peers import Peer, PeerContext
from protocol import kinds
from protocol.envelope import Envelope

if TYPE_CHECKING:
    from mew_agent.saying import Saying

LOW_SEVERITY = 1
"""From here on a context is getting full."""


class SpaceEvent:
    """Something happened in the space. The base of all events: who listens to it hears every one of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ChatHeard(SpaceEvent):
    """Somebody else said something. In a space everybody hears everything; `is_to_me` tells whom it was said to."""

    text: str
    sender: str
    envelope: Envelope
    _me: "Saying" = field(repr=False, compare=False)

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
        return await self._me.chat(text, to=self.sender, correlation_id=(self.envelope.id,))


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
    everybody can `reject` it. See `Fulfiller` for deciding by rules, and for what happens when a proposal is withdrawn.
    """

    sender: str
    peers: tuple[str, ...]
    """Who should do it."""
    method: str
    tool: str | None
    arguments: Mapping[str, Any]
    envelope: Envelope
    _me: "Saying" = field(repr=False, compare=False)

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


def events_in(me: "Saying", envelope: Envelope, reporter: Peer | None, before: PeerContext) -> Iterator[SpaceEvent]:
    """The events that one envelope brings, comings and goings apart.

    `reporter` is the peer whose context report it holds, None without one; `before` is that peer's report before it.
    """
    if reporter is not None:
        yield ContextReported(reporter, before)
        if (change := PeerLevelChanged.between(reporter, Peer(reporter.id, context=before))) is not None:
            yield change
    if envelope.sender == me.id:
        return
    if envelope.kind == kinds.CHAT and isinstance(text := envelope.body.get("text"), str):
        yield ChatHeard(text, envelope.sender, envelope, me)
    elif envelope.kind == kinds.MCP_PROPOSAL:
        yield _proposal(me, envelope)


def comings_and_goings(before: Mapping[str, Peer], after: Mapping[str, Peer]) -> Iterator[SpaceEvent]:
    """Who left and who came between two moments."""
    yield from (PeerLeft(peer) for name, peer in before.items() if name not in after)
    yield from (PeerJoined(peer) for name, peer in after.items() if name not in before)


def _proposal(me: "Saying", envelope: Envelope) -> ProposalMade:
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
        _me=me,
    )
