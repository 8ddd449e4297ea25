"""[pure] One space: events in, in one order, and effects out. The same events give the same state everywhere.

Events of connections are facts, and take effect at once. Deciding an envelope changes nothing; `apply` makes the
changes once it is stored. Recognises repeated envelopes. Time is an argument, several gateways derive ids from the
batch, and no method raises errors about client input. Writes and reads snapshots.

Delivery: every accepted envelope goes to every member, including its sender, whatever its `to`. A refusal goes only to
the sender.

`connections` has joining and leaving; `membership_rules` and `streams` decide the envelopes of their namespaces. Does
not store events or perform effects.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from mew_listener.bounded_dict import FairDict
from mew_protocol import errors, kinds
from mew_protocol.codec import decode_complete, decode_envelope
from mew_protocol.context_report import Outdated
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.errors import DecodeError
from mew_protocol.ids import STREAM_GATEWAY, ParticipantId, Position, SpaceId
from mew_protocol.payloads.mcp import UndecidedProposals
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.system import ErrorPayload
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.admission import RateLimit, content_digest, malformed
from mew_spaces.core.connections import REFUSED_TOKEN, ConnectionRules
from mew_spaces.core.effects import (
    NO_ANSWER,
    AddToken,
    Broadcast,
    Deliver,
    Effect,
    Receipt,
    Relay,
    RevokeTokens,
    SendWelcome,
    StateChanged,
    refuse,
    state_changed,
)
from mew_spaces.core.events import (
    EPOCH,
    BatchHeader,
    ClockJumps,
    ConnectionId,
    ConnectionJoins,
    ConnectionLeaves,
    EnvelopeArrives,
    FrameArrives,
    GatewayIsGone,
    GatewayStarts,
    InputEvent,
    LogFileJoins,
    TimePasses,
    gateway_of,
)
from mew_spaces.core.membership import MemberConnections, Membership, PermissionDecision
from mew_spaces.core.membership_rules import MembershipRules
from mew_spaces.core.state import SpaceState
from mew_spaces.core.status_board import StatusBoard, StatusRequest, StoredChats, Trend
from mew_spaces.core.streams import StreamRules
from mew_spaces.core.system_messages import DerivedIds, SystemMessages

REMEMBERED_ENVELOPES = 50_000
"""How many of the newest accepted envelopes are recognised when they come again."""

_KEPT_KINDS = frozenset({kinds.STREAM_REQUEST, kinds.CAPABILITY_GRANT, kinds.SPACE_INVITE, kinds.PARTICIPANT_STATUS})
"""Kinds with payloads that the space keeps for late joiners."""

ONLY_PASSED_ON = frozenset(
    {
        kinds.CHAT,
        kinds.CHAT_ACKNOWLEDGE,
        kinds.CHAT_CANCEL,
        kinds.REASONING_START,
        kinds.REASONING_THOUGHT,
        kinds.REASONING_CONCLUSION,
        kinds.REASONING_CANCEL,
    }
)
"""Most envelopes, which require nothing of the gateway itself."""


@dataclass(eq=False, slots=True)
class EventDecision:
    """The outcome of one event; that of an envelope has the `draft`, unless it could not be read.

    `is_duplicate`: the envelope came before, and has no effect. `problem` is a bug in the rules, which fails
    identically on all gateways.
    """

    event: InputEvent
    receipt: Receipt
    now: datetime
    is_duplicate: bool = False
    problem: Exception | None = None


class KnownEnvelope(NamedTuple):
    """An accepted envelope: a digest of its contents, and its number (0 if not broadcast).

    The digest is empty for envelopes of an earlier run.
    """

    digest: str
    sequence: int


class SpaceSnapshot(BaseModel):
    """The state that the gateways of a space share, after one batch (default: before the first)."""

    model_config = ConfigDict(extra="forbid")

    batch: int = 0
    epoch: str = ""
    now: datetime = EPOCH
    sequence: int = 0
    gateways: dict[int, int] = Field(default_factory=dict)
    state: SpaceState = Field(default_factory=SpaceState)
    members: dict[ParticipantId, list[ConnectionId]] = Field(default_factory=dict)
    logs: dict[ParticipantId, list[ConnectionId]] = Field(default_factory=dict)
    absent_since: dict[ParticipantId, datetime] = Field(default_factory=dict)
    not_back_yet: set[str] = Field(default_factory=set)
    trends: dict[str, Trend] = Field(default_factory=dict)
    measured_at: dict[str, datetime] = Field(default_factory=dict)
    outdated: dict[str, Outdated] = Field(default_factory=dict)
    asked: dict[str, StatusRequest] = Field(default_factory=dict)
    stored: dict[str, StoredChats] = Field(default_factory=dict)
    known: list[tuple[str, str, str, int]] = Field(default_factory=list)
    tokens: dict[ParticipantId, str] = Field(default_factory=dict)
    revoked: dict[ParticipantId, int] = Field(default_factory=dict)
    joined: dict[ParticipantId, int] = Field(default_factory=dict)

    @classmethod
    def begun_with(cls, state: SpaceState, **further: Any) -> Self:
        """Return the initial state after an earlier process: absent proposers wait for no decision."""
        waiting = {one.proposer for one in state.proposals.values() if one.envelope is not None}
        return cls(state=state, not_back_yet=waiting, **further)


class SpaceCore:
    """The state of one space and the rules that change it."""

    def __init__(
        self,
        config: SpaceConfig,
        ids: DerivedIds,
        *,
        clock: Callable[[], float],
        state: SpaceState | None = None,
        epoch: str = "",
        stored_envelope: Callable[[int], bytes | None] = lambda _: None,
    ) -> None:
        """`clock` returns monotonic seconds for the rate limit. `epoch` identifies the sequence of envelope numbers;
        `stored_envelope` returns the stored envelope with a number.
        """
        self.id = SpaceId(config.space.id)
        self.name = config.space.name
        self.ids = ids
        self.messages = SystemMessages(ids)
        self.connection_url: str | None = None
        """The address that invited participants connect to."""
        self._config = config
        self._limits = config.limits
        self._facts = config.facts
        self._ignore_to = config.capabilities.ignore_to
        self._may_open = config.is_reference
        self._rate, self._repetitions = (
            RateLimit(per_second=self._limits.envelopes_per_second, burst=self._limits.envelope_burst, clock=clock)
            for _ in range(2)
        )
        self._stored_envelope = stored_envelope
        self.restore(SpaceSnapshot.begun_with(SpaceState() if state is None else state, epoch=epoch))

    def restore(self, snapshot: SpaceSnapshot) -> None:
        """Replace the state with a snapshot's; do not use the snapshot again."""
        self.state, self.epoch = snapshot.state, snapshot.epoch
        self.batch = snapshot.batch
        """The newest batch that was applied."""
        self.now = snapshot.now
        """Its time."""
        self.sequence = snapshot.sequence
        """The number of the newest broadcast of it."""
        self.gateways = snapshot.gateways
        """The gateways that hold connections, each with the number of its newest batch."""
        self.tokens = snapshot.tokens
        """The tokens of invited participants."""
        self._known: FairDict[tuple[str, str], KnownEnvelope] = FairDict(REMEMBERED_ENVELOPES, lambda key, _: key[0])
        for sender, name, digest, sequence in snapshot.known:
            self._known[sender, name] = KnownEnvelope(digest, sequence)
        config = self._config
        self.membership = Membership(config, self.state)
        self.members = self.membership.connected
        for member, sockets in snapshot.members.items():
            self.members[member] = MemberConnections(sockets, snapshot.logs.get(member, []))
        self.board = board = StatusBoard(self.state)
        board.trends, board.measured_at, board.outdated = snapshot.trends, snapshot.measured_at, snapshot.outdated
        board.stored, board.requests.asked = snapshot.stored, snapshot.asked
        self.streams = StreamRules(self.membership, self.messages, config)
        self.connections = ConnectionRules(self.membership, board, self.streams, self.messages, config.limits)
        self.connections.absent_since, self.connections.joined = snapshot.absent_since, snapshot.joined
        self.connections.not_back_yet = snapshot.not_back_yet
        self.connections.revoked.update(snapshot.revoked)
        self.membership_rules = MembershipRules(self.membership, self.connections, self.messages, config)

    # Questions

    @property
    def names(self) -> tuple[str, ...]:
        """All participants: members in join order, then others that may join or sent a status."""
        names = dict.fromkeys([*self.members, *self.membership.names, *self.state.statuses])
        removed = self.state.removed
        return tuple(name for name in names if name not in removed)

    def describe(self, participant: str) -> dict[str, Any]:
        """Return a participant in the form for others."""
        return {"id": participant, "capabilities": list(self.membership.permissions_of(participant).patterns)}

    def read_board(self, *, now: datetime) -> Board:
        """Return the last status of every participant, with its age."""
        entries = (self.board.entry(name, connected=name in self.members, now=now) for name in self.names)
        board = Board(space=self.id, at=wire_timestamp(now), participants=tuple(entries))
        return board if self.name is None else board.model_copy(update={"name": self.name})

    def proposals(self, *, now: datetime) -> UndecidedProposals:
        """Return the proposals that need a decision, each with its possible approvers."""
        undecided = self.membership.proposals.undecided.values()
        described = [
            {**proposal.describe(now), "may_fulfil": may_fulfil}
            for proposal, may_fulfil in zip(undecided, self.membership.proposals.may_fulfil(), strict=True)
        ]
        return UndecidedProposals.model_validate({"space": self.id, "at": wire_timestamp(now), "proposals": described})

    def welcome(self, greet: SendWelcome, *, now: datetime) -> Deliver:
        """Send a participant's connections a welcome with the state of the space."""
        participant = greet.participant
        # Without models: when all members of a large space return at once, each of them receives all others.
        statuses = self.state.statuses
        entries = (
            self.board.entry_json(name, connected=name in self.members, now=now)
            for name in self.names
            if name in statuses
        )
        payload = {
            "you": self.describe(participant),
            "participants": [self.describe(name) for name in self.members if name != participant],
            "active_streams": [stream.describe() for stream in self.state.streams.values()],
            "board": [entry for entry in entries if entry is not None],
        }
        if proposals := self.membership.proposals.undecided:
            payload["proposals"] = [one.describe(now) for one in proposals.values()]
        if self._facts:
            payload["space"] = self._facts
        message = self.messages.compose(kinds.SYSTEM_WELCOME, payload, now=now, to=(participant,))
        return Deliver(message, greet.connections)

    # Events in their order

    def decide(self, event: InputEvent, *, now: datetime) -> EventDecision:
        """Decide the next event. A fact, such as a join, takes effect at once; an envelope changes nothing until
        `apply`.
        """
        try:
            if isinstance(event, EnvelopeArrives):
                return self._decide_envelope(event, now)
            if isinstance(event, FrameArrives):
                return EventDecision(event, Receipt(self._relay(event, now)), now)
            return EventDecision(event, Receipt(self._apply_fact(event, now)), now)
        except Exception as problem:  # without this, no gateway could ever get past the event
            refused = refuse(errors.INTERNAL_ERROR, "the gateway failed to process this message")
            return EventDecision(event, refused, now, problem=problem)

    def apply(self, decision: EventDecision, *, after: int) -> tuple[Effect, ...]:
        """Apply a stored decision. Returns further effects.

        Its broadcasts get the numbers after `after`.
        """
        event, receipt, now = decision.event, decision.receipt, decision.now
        envelope = receipt.accepted
        if envelope is None or decision.is_duplicate or not isinstance(event, EnvelopeArrives):
            return ()
        if event.may_repeat:
            self._remember(event, decision.receipt, after)
        kind = envelope.kind
        if kind in ONLY_PASSED_ON:
            self.board.observe(envelope, now=now)
            for name in dict.fromkeys(envelope.addressees) if kind == kinds.CHAT else ():
                if name not in self.members and self.membership.has(name):
                    self.board.store_for(name, now=now)
            return ()
        for effect in receipt.effects:
            self._apply_effect(effect)
        if kind == kinds.PARTICIPANT_STATUS:
            self.board.record(envelope, is_kept=bool(receipt.changes))
        elif kind == kinds.MCP_PROPOSAL:
            return state_changed(self.membership.proposals.apply_surplus())
        return ()

    def replay(self, batch: int, header: BatchHeader, events: list[InputEvent]) -> Iterator[EventDecision]:
        """Decide and apply a stored batch, and yield each decision; perform each before the next. `batch` is the
        batch's position.

        Yields nothing for a batch of a gateway that is gone, or for a batch stored twice. If a gateway's first batch is
        stored again after the gateway is gone, the gateway counts as present until its lease is missed.
        """
        self.batch = batch
        self.now = max(self.now, header.now)
        is_start = any(isinstance(one, GatewayStarts) for one in events)
        if self.gateways.get(header.gateway, 0 if is_start else header.number) >= header.number:
            return
        self.gateways[header.gateway] = header.number
        for index, event in enumerate(events):
            self.ids.derive_from(header.seed, index)
            try:
                decision = self.decide(event, now=self.now)
                follows = self.apply(decision, after=self.sequence)
            finally:
                self.ids.derive_from(None)
            receipt = decision.receipt
            self.sequence += sum(isinstance(one, Broadcast) for one in receipt.effects)
            receipt.effects += follows
            yield decision

    def remember(self, stored: Iterable[tuple[str, str, int]]) -> None:
        """Register the stored envelopes of an earlier run, oldest first, by sender, id and number."""
        for sender, name, sequence in stored:
            self._known[sender, name] = KnownEnvelope("", sequence)

    def snapshot(self) -> SpaceSnapshot:
        """Return the shared state by reference; serialise it before the next batch."""
        connections, board, members = self.connections, self.board, self.members
        return SpaceSnapshot.model_construct(
            batch=self.batch,
            epoch=self.epoch,
            now=self.now,
            sequence=self.sequence,
            gateways=self.gateways,
            state=self.state,
            members={name: member.sockets for name, member in members.items()},
            logs={name: member.logs for name, member in members.items() if member.logs},
            absent_since=connections.absent_since,
            not_back_yet=connections.not_back_yet,
            trends=board.trends,
            measured_at=board.measured_at,
            outdated=board.outdated,
            asked=board.requests.asked,
            stored=board.stored,
            known=[(*key, *known) for key, known in self._known.items()],
            tokens=self.tokens,
            revoked=connections.revoked,
            joined={name: batch for name, batch in connections.joined.items() if name in members},
        )

    def _apply_fact(self, event: InputEvent, now: datetime) -> tuple[Effect, ...]:
        connections = self.connections
        match event:
            case ConnectionJoins():
                return connections.join(event, self.batch, now=now)
            case ConnectionLeaves(connection, participant):
                return connections.leave(connection, participant, now=now)
            case LogFileJoins(connection, participant):
                return connections.join_virtually(connection, participant)
            case GatewayIsGone(gateway):
                self.gateways.pop(gateway, None)
                return connections.leave_all(lambda one: gateway_of(one) == gateway, now=now)
            case TimePasses():
                return connections.expire(now=now)
            case ClockJumps(by):
                return connections.shift_deadlines(by)
            case _:  # `replay` has added a gateway that starts
                return ()

    def _apply_effect(self, effect: Effect) -> None:
        match effect:
            case StateChanged(changes):
                self.membership.apply(*changes)
            case AddToken(participant, token):
                self.tokens[participant] = token
            case RevokeTokens(participant):
                self.connections.removed(participant, self.batch)
                self.tokens.pop(participant, None)
            case _:
                pass

    # Envelopes that come twice

    def _remember(self, event: EnvelopeArrives, receipt: Receipt, after: int) -> None:
        """Register an accepted envelope, which its sender may repeat."""
        draft, envelope = event.draft, receipt.accepted
        if draft is None or draft.id is None or envelope is None:
            return
        broadcasts = [one.envelope.id for one in receipt.effects if isinstance(one, Broadcast)]
        place = broadcasts.index(envelope.id) + 1 if envelope.id in broadcasts else -after
        self._known[event.sender, envelope.id] = KnownEnvelope(content_digest(draft), after + place)

    def _is_same(self, known: KnownEnvelope, draft: Draft) -> bool:
        if known.digest:
            return known.digest == content_digest(draft)
        stored = self._stored_envelope(known.sequence)
        if stored is None:  # no longer kept: a repetition is more likely than a new envelope
            return draft.kind != kinds.MCP_PROPOSAL  # a repeated proposal is compared with the first one
        return content_digest(decode_envelope(stored)) == content_digest(draft)

    def _duplicate(self, sender: ParticipantId, draft: Draft, known: KnownEnvelope, now: datetime) -> Receipt:
        where = {"position": str(Position(self.epoch, known.sequence))} if known.sequence else {}
        accepted = Envelope.complete(draft, id=draft.id or "", ts=wire_timestamp(now), sender=sender)
        return Receipt((), accepted=accepted, answer={"status": "duplicate", **where})

    # Envelopes and stream frames

    def check(self, event: EnvelopeArrives, *, now: datetime) -> EventDecision | None:
        """Return the outcome of an envelope that needs no storage; None for all others.

        That is a refusal above the rate limit or for its form, or the receipt of a heartbeat.

        A repetition above the rate limit is not refused, because its sender would conclude that the first one was
        refused.
        """
        connection, sender, draft = event.connection, event.sender, event.draft
        assert draft is not None
        # Before all other checks, so that refused envelopes count: this also slows a client in an error loop.
        if not self._rate.try_spend(sender):
            is_known = event.may_repeat and (sender, draft.id or "") in self._known
            if is_known and self._repetitions.try_spend(sender):
                decision = self.decide(event, now=now)
                if decision.is_duplicate:
                    return decision
            return EventDecision(event, self.refuse(self._too_often(sender), draft, sender, connection, now=now), now)
        refused = malformed(draft, sender, self._may_open)
        if refused is not None:
            return EventDecision(event, self.refuse(refused, draft, sender, connection, now=now), now)
        if draft.kind == kinds.SYSTEM_HEARTBEAT:
            return EventDecision(event, self._rule(draft, sender, connection, now), now)
        return None

    def _decide_envelope(self, event: EnvelopeArrives, now: datetime) -> EventDecision:
        connection, sender, checked_at, may_repeat, data, draft = event
        if draft is None:
            try:
                draft, data = _read(data or b"")
            except DecodeError as problem:
                return EventDecision(event, refuse(problem.error, problem.detail, code=problem.code), now)
            event = event._replace(data=data, draft=draft)
        if connection is None and self.connections.is_revoked(sender, checked_at):
            return EventDecision(event, refuse(errors.UNAUTHORIZED, REFUSED_TOKEN), now)
        known = self._known.get((sender, draft.id or "")) if may_repeat else None
        if known is not None and self._is_same(known, draft):
            return EventDecision(event, self._duplicate(sender, draft, known, now), now, is_duplicate=True)
        return EventDecision(event, self._rule(draft, sender, connection, now), now)

    def _rule(self, draft: Draft, sender: ParticipantId, connection: ConnectionId | None, now: datetime) -> Receipt:
        """Return the outcome of an envelope from a connection of its sender, or without one, from HTTP."""
        # Between two broadcasts, the kernel's work for each socket empties the CPU's caches. So the cost of an envelope
        # depends mostly on the number of functions here.
        refused = None if connection is None else self._superseded(sender, connection)
        if refused is None and (self.state.pauses or self.state.shut_down):
            refused = self._silenced(draft, sender, now)
        if refused is not None:
            return self.refuse(refused, draft, sender, connection, now=now)
        permissions = self.membership.permissions_of(sender)
        if draft.kind == kinds.SYSTEM_HEARTBEAT:
            allowed = PermissionDecision(permissions, {"kind": draft.kind}, "implicit")
            return Receipt((), accepted=self._complete(draft, sender, now), decision=allowed)
        decision = permissions.decide(draft, ignore_to=self._ignore_to)
        if decision.matched is None:
            return self._violation(draft, sender, connection, decision, now)
        envelope = draft if isinstance(draft, Envelope) else self._complete(draft, sender, now)
        if envelope.kind in ONLY_PASSED_ON:
            return Receipt((Broadcast(envelope),), envelope, None, NO_ANSWER, decision)
        return self._handle(envelope, connection, decision, now)

    def _complete(self, draft: Draft, sender: ParticipantId, now: datetime) -> Envelope:
        return Envelope.complete(draft, id=draft.id or self.ids.new_id(), ts=wire_timestamp(now), sender=sender)

    def _handle(
        self, envelope: Envelope, connection: ConnectionId | None, decision: PermissionDecision, now: datetime
    ) -> Receipt:
        """Decide an allowed envelope: handle it if it concerns the gateway, else relay it."""
        kind, sender = envelope.kind, ParticipantId(envelope.sender)
        limit = self._limits.kept_payload_bytes
        is_too_large = kind in _KEPT_KINDS and len(to_json(envelope.payload)) > limit
        receipt: Receipt | None
        if kind == kinds.PARTICIPANT_STATUS:
            # A large status is accepted, but not kept for the board.
            receipt = None if is_too_large else self.board.receive(envelope, now=now)
        elif is_too_large:
            receipt = refuse(errors.LIMIT_EXCEEDED, f"{kind}: the payload is larger than {limit:,} bytes")
        elif kind.startswith("stream/"):
            receipt = self.streams.receive(envelope, now=now)
        else:
            reply_to, url = self._reply_to(sender, connection), self.connection_url
            receipt = self.membership_rules.receive(envelope, reply_to=reply_to, connection_url=url, now=now)
        if receipt is None:
            return Receipt((Broadcast(envelope),), envelope, None, NO_ANSWER, decision)
        if receipt.refused is not None and not receipt.effects:
            answer = receipt.answer
            receipt = self.refuse(receipt.refused, envelope, sender, connection, now=now)
            receipt.answer = answer
        receipt.decision = decision
        return receipt

    def _relay(self, event: FrameArrives, now: datetime) -> tuple[Effect, ...]:
        """Handle a stream frame of a member."""
        connection, sender, frame = event
        is_below_limit = self._rate.try_spend(sender)
        refused = self._superseded(sender, connection) if is_below_limit else self._too_often(sender)
        if refused is not None:
            return (Deliver(self.messages.compose_error(refused, sender, now=now), (connection,)),)
        stream = self.state.streams.get(frame.stream_id)
        if stream is None or sender not in stream.writers:
            problem = f"no open stream '{frame.stream_id}'" if stream is None else "you are not one of its writers"
            text = f"frame not delivered: {problem}"
            payload = ErrorPayload(error=errors.UNAUTHORIZED_STREAM_WRITE, stream_id=frame.stream_id, message=text)
            error = self.messages.compose_error(payload, sender, now=now, sender=STREAM_GATEWAY)
            return (Deliver(error, (connection,)),)
        return (Relay(frame, self.membership.connections_of(stream.targets) if stream.targets else None),)

    # Refusals

    def refuse(
        self,
        payload: ErrorPayload,
        draft: Draft,
        sender: ParticipantId,
        connection: ConnectionId | None,
        *,
        now: datetime,
    ) -> Receipt:
        """Return the refusal of an envelope. The error goes to its connection, else to all connections of the
        sender.
        """
        reply_to = self._reply_to(sender, connection)
        error = self.messages.compose_error(payload, sender, now=now, envelope_id=draft.id)
        return Receipt((Deliver(error, reply_to),) if reply_to else (), refused=payload)

    def _reply_to(self, sender: str, connection: ConnectionId | None) -> tuple[ConnectionId, ...]:
        """Return the used connection, or for HTTP all connections of the sender."""
        return self.membership.connections_of((sender,)) if connection is None else (connection,)

    def _superseded(self, sender: ParticipantId, connection: ConnectionId) -> ErrorPayload | None:
        """Refuse envelopes on a connection after a newer one of its participant joined."""
        member = self.members.get(sender)
        if member is not None and connection in member.sockets:
            return None
        text = f"a newer connection of '{sender}' replaced this one; join again to take over"
        return ErrorPayload(error=errors.SUPERSEDED, message=text)

    def _silenced(self, draft: Draft, sender: ParticipantId, now: datetime) -> ErrorPayload | None:
        reason = self.membership.silenced_because(draft, sender, now=now)
        return None if reason is None else ErrorPayload(error=errors.PAUSED, message=reason, attempted_kind=draft.kind)

    def _too_often(self, sender: ParticipantId) -> ErrorPayload:
        text = f"'{sender}' may send {self._limits.envelopes_per_second:,g} envelopes and frames per second"
        return ErrorPayload(error=errors.RATE_LIMITED, message=f"{text}; this one was dropped, send it again later")

    def _violation(
        self,
        draft: Draft,
        sender: ParticipantId,
        connection: ConnectionId | None,
        decision: PermissionDecision,
        now: datetime,
    ) -> Receipt:
        payload = ErrorPayload(
            error=errors.CAPABILITY_VIOLATION,
            message=f"no capability of '{sender}' allows this {draft.kind}",
            attempted_kind=draft.kind,
            your_capabilities=decision.permissions.patterns,
        )
        receipt = self.refuse(payload, draft, sender, connection, now=now)
        receipt.decision = decision
        return receipt


def _read(data: bytes) -> tuple[Draft, bytes | None]:
    """Return an envelope from another gateway, with its bytes if `encode` returns them. Raises `DecodeError`."""
    complete = decode_complete(data, len(data))
    return complete or (decode_envelope(data, max_bytes=len(data)), None)
