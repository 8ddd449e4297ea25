"""[pure] The peers of a participant: presence, capabilities, offers, contexts and streams.

Reads welcomes, presences and statuses, and stores the results of discovery. Sends nothing.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from mew_board.figures import context_size
from mew_listener.bounded_dict import BoundedDict, cached_by_text
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.context_report import Basis, ContextReport, Outdated, outdated_by, reports_only_when_asked
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import GATEWAY_IDS
from mew_protocol.json_values import objects_at
from mew_protocol.payloads.chat import MAIN_SESSION
from mew_protocol.payloads.participant import Status, basis_label, is_whole_status
from mew_protocol.payloads.system import Presence, Welcome
from mew_protocol.status_word import StatusWord
from pydantic import ValidationError

from mew_agent.participant.gaps import HistoryGap
from mew_agent.tools.peer_offers import PeerPrompt, PeerResource, PeerTool


@dataclass(frozen=True, slots=True)
class PeerContext:
    """How full a peer's context window is. Each figure is None if the peer does not know it.

    `tokens` and `max_tokens` are tokens, `messages` counts history items, `at` is when the peer sent this. `report` is
    the peer's whole context report; for peers without reports it is None, and so is `basis`. `outdated` says why
    `tokens` may be outdated; None if it is from the last turn.
    """

    tokens: int | None = None
    max_tokens: int | None = None
    messages: int | None = None
    status: str = ""
    report: ContextReport | None = None
    at: str = ""
    outdated: Outdated | None = None

    @staticmethod
    def from_status(status: Status | None, at: str, outdated: Outdated | None = None) -> "PeerContext":
        """Read a status sent at the time `at`. Without a status there are no figures."""
        if status is None:
            return PeerContext()
        count, word = status.messages_in_context, status.status or ""
        return PeerContext(status.tokens, status.max_tokens, count, word, status.context, at, outdated)

    def as_status(self) -> Status | None:
        """Return the figures as a status; None if the peer has sent none."""
        if self.messages is None:
            return None
        return Status.model_construct(
            messages_in_context=self.messages,
            tokens=self.tokens,
            max_tokens=self.max_tokens,
            status=self.status or None,
            context=self.report,
        )

    @property
    def word(self) -> StatusWord:
        """The parsed `status`."""
        return StatusWord.read(self.status)

    @property
    def basis(self) -> Basis | None:
        """How `tokens` is known."""
        return self.report.basis if self.report else None

    @property
    def basis_label(self) -> str:
        """The basis of the figure: `estimate` for one without a context report."""
        return basis_label(self.tokens, self.report)

    @property
    def level(self) -> str:
        """The name of the peer's level in its own policy."""
        return self.report.level if self.report else "unknown"

    @property
    def severity(self) -> int:
        """The level as a number from 0 to 3; -1 if it is unknown."""
        severity = self.report.severity if self.report else "unknown"
        return severity if isinstance(severity, int) else -1

    @property
    def turns_to_compaction(self) -> int | None:
        """The projected number of turns until the peer compacts; None if unknown, or if it never does on its own."""
        return self.report.turns_to_compaction if self.report else None

    @property
    def is_paused(self) -> bool:
        """Whether the peer is paused and will answer only after a resume. False if it only stopped a loop of agents."""
        is_loop = self.report is not None and any(one.kind == "loop" for one in self.report.waiting or ())
        return self.word.word == "paused" and not (is_loop and self.status != "paused")

    def in_session(self, participant: str, session: str | None) -> "PeerContext":
        """Return the context of a session of `participant` (None: this context). An unknown session has no figures."""
        if session in (None, MAIN_SESSION):
            return self
        sessions = (self.report.sessions if self.report is not None else None) or ()
        found = next((one for one in sessions if (one.participant, one.session) == (participant, session)), None)
        # A status of the whole agent also holds for its sessions.
        is_shared = self.word.has("shared")
        if found is None:
            return PeerContext(max_tokens=self.max_tokens, status=self.status if is_shared else "", at=self.at)
        waiting = self.report.waiting if self.report is not None else None
        report = found.context.model_copy(update={"waiting": waiting})
        status = self.status if is_shared else found.status or ""
        return PeerContext(found.tokens, found.max_tokens, found.messages_in_context, status, report, self.at)

    def __str__(self) -> str:
        """For people: `98,412 of 128,000 tokens (reported)`; estimates carry a `~`, unknown figures are `?`."""
        return context_size(self.tokens, self.max_tokens, self.report)


@dataclass(frozen=True, slots=True)
class Peer:
    """Another participant of the space. Before its first status, its `context` has no figures.

    `tools`, `resources` and `prompts` are its offers; None if it was not asked or did not answer. At least
    `tools_left_out` more tools were not read, because its list is too large.
    """

    id: str
    capabilities: tuple[dict[str, Any], ...] = ()
    context: PeerContext = PeerContext()
    tools: tuple[PeerTool, ...] | None = None
    resources: tuple[PeerResource, ...] | None = None
    prompts: tuple[PeerPrompt, ...] | None = None
    tools_left_out: int = 0

    def may_send(self, kind: str, payload: Mapping[str, Any], to: str) -> bool:
        """Return whether the peer's announced capabilities cover this; True if none were announced."""
        draft = Draft(kind=kind, payload=dict(payload), to=(to,))
        return not self.capabilities or _announced(json.dumps(self.capabilities)).allows(draft)

    def may_approve(self, proposal: Envelope) -> bool:
        """Return whether the peer's announced capabilities allow it to approve this; True if none were announced."""
        draft = Draft(kind=kinds.MCP_REQUEST, payload=proposal.payload, to=proposal.to)
        return not self.capabilities or _announced(json.dumps(self.capabilities)).allows(draft, approving=True)


@cached_by_text(1_000_000)
def _announced(capabilities: str) -> CapabilitySet:
    """Compile capabilities in JSON. Most peers share the capabilities of one role."""
    return CapabilitySet(json.loads(capabilities))


class PeerChanges(NamedTuple):
    """The changes that one envelope made to the known peers, and the gap before it."""

    joined: tuple[Peer, ...] = ()
    left: tuple[Peer, ...] = ()
    """Peers that left, as they were known."""
    reported: Peer | None = None
    """The peer of this context report."""
    context_before: PeerContext = PeerContext()
    """That peer's context before the report."""
    gap: HistoryGap | None = None
    """The envelopes missed before this one; their effects are unknown."""


NO_CHANGES = PeerChanges()

REMEMBERED_CONTEXTS = 10_000
"""How many participants' last contexts are kept, those of absent ones included."""


class Peers(dict[str, Peer]):
    """Everyone else in the space, by id. Do not change it: the envelopes of the space update it.

    A returning peer keeps its last context, as on the gateway's board, because it sends no new status after a lost
    connection.
    """

    def __init__(self, me: str) -> None:
        super().__init__()
        self.me = me
        self.version = 0
        """Counts the changes of the present peers and their offers."""
        self._contexts: BoundedDict[str, PeerContext] = BoundedDict(REMEMBERED_CONTEXTS)
        self._early: set[str] = set()
        """The peers with a status before their presence, which a gateway may batch."""
        self._asked_only: set[str] = set()
        """The peers that sent their newest figure only on request."""

    def last_context(self, participant: str) -> PeerContext | None:
        """Return the last context of a participant (our own as on the gateway's board); None without one."""
        return self._contexts.get(participant)

    def set_offers(self, participant: str, **offers: tuple[Any, ...] | int | None) -> None:
        """Store the offers of a peer (`tools`, `resources`, `prompts`), unless it has left."""
        if participant in self:
            self[participant] = replace(self[participant], **offers)  # type: ignore[arg-type]
            self.version += 1

    def receive(self, envelope: Envelope) -> PeerChanges:
        """Read an envelope and return its changes. An unreadable one changes nothing."""
        with suppress(ValidationError):
            match envelope.kind:
                case kinds.SYSTEM_WELCOME if envelope.is_for(self.me):
                    return self._receive_welcome(Welcome.model_validate(envelope.body))
                case kinds.SYSTEM_PRESENCE if envelope.is_for(self.me):
                    return self._receive_presence(Presence.model_validate(envelope.body))
                case kinds.PARTICIPANT_STATUS if envelope.sender != self.me and is_whole_status(envelope):
                    return self._receive_status(envelope.sender, Status.model_validate(envelope.body), envelope.ts)
                case kinds.CHAT if self._asked_only:
                    names = {envelope.sender, *envelope.to} if envelope.to else self._asked_only
                    for name in names & self._asked_only:
                        self._mark(name, "chat")
        return NO_CHANGES

    def _receive_welcome(self, welcome: Welcome) -> PeerChanges:
        known = dict(self)
        self.version += 1
        self.clear()
        self._early.clear()
        for member in welcome.participants:
            if member.id != self.me:
                peer = known.get(member.id) or self._returned(member.id)
                self[member.id] = replace(peer, capabilities=member.capabilities)
        for entry in welcome.board or ():
            if entry.status is None:
                continue
            context = PeerContext.from_status(entry.status, entry.received_at or "", entry.outdated)
            self._keep(entry.id, context)
        return PeerChanges(
            joined=tuple(peer for name, peer in self.items() if name not in known),
            left=tuple(peer for name, peer in known.items() if name not in self),
        )

    def _receive_presence(self, presence: Presence) -> PeerChanges:
        member = presence.participant
        known = self.get(member.id)
        if member.id == self.me:
            return NO_CHANGES
        self.version += 1
        if presence.event == "join":
            peer = replace(known or self._returned(member.id), capabilities=member.capabilities)
            self[member.id] = peer
            if not presence.has_reported:
                self._mark(member.id, "join")
            peer = self[member.id]
            is_new = known is None or member.id in self._early
            self._early.discard(member.id)
            return PeerChanges(joined=(peer,)) if is_new else NO_CHANGES
        if presence.event == "leave" and known is not None:
            self._early.discard(member.id)
            del self[member.id]
            return PeerChanges(left=(known,))
        return NO_CHANGES

    def _receive_status(self, participant: str, status: Status, at: str) -> PeerChanges:
        if participant not in self:
            self._early.add(participant)
            self.version += 1
        known = self[participant] = self.get(participant) or self._returned(participant)
        self._keep(participant, PeerContext.from_status(status, at))
        return PeerChanges(reported=self[participant], context_before=known.context)

    def _mark(self, participant: str, event: Literal["join", "chat"]) -> None:
        """Mark a peer's figure as possibly old after an event."""
        if (known := self._contexts.get(participant)) is not None:
            outdated = outdated_by(event, known.tokens, known.report, known.outdated)
            self._keep(participant, replace(known, outdated=outdated))

    def _keep(self, participant: str, context: PeerContext) -> None:
        self._contexts[participant] = context
        is_asked_only = reports_only_when_asked(context.tokens, context.report)
        (self._asked_only.add if is_asked_only else self._asked_only.discard)(participant)
        if participant in self:
            self[participant] = replace(self[participant], context=context)

    def _returned(self, participant: str) -> Peer:
        return Peer(participant, context=self._contexts.get(participant, PeerContext()))


class StreamOwners:
    """The owners of streams, as announced by the gateway. Frames of other senders are not trusted."""

    received_kinds = (kinds.SYSTEM_WELCOME, kinds.STREAM_OPEN, kinds.STREAM_CLOSE)

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def receive(self, envelope: Envelope) -> None:
        """Follow the opening and the closing of streams."""
        kind, is_gateway = envelope.kind, envelope.sender in GATEWAY_IDS
        if kind == kinds.STREAM_CLOSE:
            closed = str(envelope.body.get("stream_id"))
            if is_gateway or envelope.sender == self._owners.get(closed):
                self._owners.pop(closed, None)
        elif is_gateway and kind in self.received_kinds:
            opened: list[Mapping[str, Any]] = [envelope.body]
            if kind == kinds.SYSTEM_WELCOME:
                self._owners.clear()
                opened = objects_at(envelope.body, "active_streams")
            for stream in opened:
                if isinstance(name := stream.get("stream_id"), str):
                    self._owners[name] = str(stream.get("owner") or "")

    def owner(self, stream_id: str) -> str | None:
        """Return the participant that opened a stream; None if unknown."""
        return self._owners.get(stream_id)
