"""[pure] What a participant knows of the others in its space: who is here, how full their windows are, and more.

Fed with welcomes, presences, statuses, and what discovery learnt that they offer; never asks anybody anything.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mew_protocol.capability import CapabilitySet
from mew_protocol.context_report import Basis, ContextReport
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.kinds import PARTICIPANT_STATUS, SYSTEM_PRESENCE, SYSTEM_WELCOME
from mew_protocol.payloads.participant import Status, is_whole_status
from mew_protocol.payloads.system import Member, Presence, Welcome
from pydantic import ValidationError

from mew_agent.tools.peer_offers import PeerPrompt, PeerResource, PeerTool


@dataclass(frozen=True, slots=True)
class PeerContext:
    """How full a peer's context window is, in tokens; None where the peer does not know it.

    `report` is everything it said about it; None for peers that send no report, whose figures are then of unknown
    making (`basis` None).
    """

    tokens: int | None = None
    max_tokens: int | None = None
    messages: int | None = None
    status: str = ""
    report: ContextReport | None = None
    at: str = ""

    @staticmethod
    def of(status: Status, at: str) -> "PeerContext":
        """What a status says; `at` is when it was said."""
        return PeerContext(
            tokens=status.tokens,
            max_tokens=status.max_tokens,
            messages=status.messages_in_context,
            status=status.status or "",
            report=status.context,
            at=at,
        )

    @property
    def basis(self) -> Basis | None:
        """How `tokens` is known."""
        return self.report.basis if self.report else None

    @property
    def level(self) -> str:
        """The peer's policy's own word for how full it is."""
        return self.report.level if self.report else "unknown"

    @property
    def severity(self) -> int:
        """0 to 3; -1 when it cannot be told."""
        severity = self.report.severity if self.report else "unknown"
        return severity if isinstance(severity, int) else -1

    @property
    def turns_to_compaction(self) -> int | None:
        """In how many turns it compacts by itself, by its trend; None while that is not known, or if it never does."""
        return self.report.turns_to_compaction if self.report else None

    def __str__(self) -> str:
        """For people: `98,412 of 128,000 tokens (reported)`; what is not known is `?`."""
        used, window = (f"{number:,}" if number is not None else "?" for number in (self.tokens, self.max_tokens))
        return f"{used} of {window} tokens ({self.basis or 'of unknown making'})"


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of the space. Until it sent a status nothing is known in its `context`.

    `tools`, `resources` and `prompts` are what it said that it offers; None where it was not asked, or did not tell.
    """

    id: str
    capabilities: tuple[dict[str, Any], ...] = ()
    context: PeerContext = PeerContext()
    tools: tuple[PeerTool, ...] | None = None
    resources: tuple[PeerResource, ...] | None = None
    prompts: tuple[PeerPrompt, ...] | None = None

    def may_send(self, kind: str, payload: Mapping[str, Any], to: str) -> bool:
        """Whether its capabilities, as the gateway told them last, let it send this; True where none are told."""
        said = Draft(kind=kind, payload=dict(payload), to=(to,))
        return not self.capabilities or CapabilitySet(self.capabilities).allows(said)


@dataclass
class Peers:
    """Everybody else in the space, by id. Read it like a dictionary."""

    me: str
    _by_id: dict[str, Peer] = field(default_factory=dict)

    def __getitem__(self, participant: str) -> Peer:
        return self._by_id[participant]

    def __contains__(self, participant: object) -> bool:
        return participant in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def get(self, participant: str) -> Peer | None:
        """The peer, or None."""
        return self._by_id.get(participant)

    def snapshot(self) -> dict[str, Peer]:
        """Everybody as known now; it does not change when they come and go."""
        return dict(self._by_id)

    def offers(self, participant: str, **told: tuple[Any, ...] | None) -> Peer | None:
        """Take in what a peer said that it offers (`tools`, `resources`, `prompts`). None: it is not here any more."""
        peer = self._by_id.get(participant)
        if peer is None:
            return None
        self._by_id[participant] = replace(peer, **told)  # type: ignore[arg-type]
        return self._by_id[participant]

    def receive(self, envelope: Envelope) -> Peer | None:
        """Take in an envelope. Returns the peer whose context report it brought, if it brought one."""
        try:
            match envelope.kind:
                case kind if kind in (SYSTEM_WELCOME, SYSTEM_PRESENCE) and not envelope.is_for(self.me):
                    return None
                case kind if kind == SYSTEM_WELCOME:
                    self._welcome(Welcome.model_validate(envelope.body))
                case kind if kind == SYSTEM_PRESENCE:
                    self._presence(Presence.model_validate(envelope.body))
                case kind if kind == PARTICIPANT_STATUS and envelope.sender != self.me and is_whole_status(envelope):
                    return self._status(envelope.sender, Status.model_validate(envelope.body), envelope.ts)
        except ValidationError:
            return None
        return None

    def _welcome(self, welcome: Welcome) -> None:
        members = {m.id: m for m in welcome.participants if m.id != self.me}
        known = self._by_id
        self._by_id = {
            name: replace(known.get(name, Peer(name)), capabilities=member.capabilities)
            for name, member in members.items()
        }
        for entry in welcome.board or ():
            if entry.status is not None and entry.id in self._by_id:
                self._status(entry.id, entry.status, entry.received_at or "")

    def _presence(self, presence: Presence) -> None:
        member: Member = presence.participant
        if member.id == self.me:
            return
        if presence.event == "join":
            known = self._by_id.get(member.id, Peer(member.id))
            self._by_id[member.id] = replace(known, capabilities=member.capabilities)
        elif presence.event == "leave":
            self._by_id.pop(member.id, None)

    def _status(self, participant: str, status: Status, at: str) -> Peer:
        peer = self._by_id.get(participant, Peer(participant))
        self._by_id[participant] = replace(peer, context=PeerContext.of(status, at))
        return self._by_id[participant]


def who_left(envelope: Envelope) -> str | None:
    """Whose leaving an envelope tells; None when it tells nobody's."""
    if envelope.kind != SYSTEM_PRESENCE or envelope.body.get("event") != "leave":
        return None
    participant = envelope.body.get("participant")
    name = participant.get("id") if isinstance(participant, dict) else None
    return name if isinstance(name, str) else None
