"""[pure] One space and its events in their order: the same events give the same state, on one gateway or on several.

An event is decided, stored and applied. Recognises envelopes that come twice, and joins with a token that was revoked
meanwhile. Knows the gateways that hold connections. Writes everything as a snapshot and continues from one. Does not
know how an event is stored, and performs nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from mew_protocol import errors, kinds
from mew_protocol.bounded_dict import BoundedDict, FairDict
from mew_protocol.codec import decode_complete, decode_envelope
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.errors import DecodeError
from mew_protocol.figure_age import Outdated
from mew_protocol.ids import ParticipantId
from mew_protocol.position import Position
from pydantic import BaseModel, ConfigDict, Field

from mew_spaces.core.admission import content_digest
from mew_spaces.core.board import Trend
from mew_spaces.core.effects import AddToken, Broadcast, ConnectionId, Effect, Receipt, RevokeTokens, refuse
from mew_spaces.core.events import (
    EPOCH,
    BatchHeader,
    ClockJumps,
    ConnectionJoins,
    ConnectionLeaves,
    DerivedIds,
    EnvelopeArrives,
    FrameArrives,
    GatewayIsGone,
    GatewayStarts,
    LogFileJoins,
    SpaceEvent,
    TimePasses,
    gateway_of,
)
from mew_spaces.core.membership import MemberConnections
from mew_spaces.core.space import Space
from mew_spaces.core.state import SpaceState
from mew_spaces.core.status_requests import Asked

REMEMBERED_ENVELOPES = 50_000
"""How many of the newest accepted envelopes are recognised when they come again."""

REMEMBERED_REVOCATIONS = 1_000
"""How many revocations are remembered: a join with a token checked earlier follows within a few batches."""

OVERTAKEN_SECONDS = 1.0
"""When a client is to try again after a join that may be older than another connection of its participant."""

_MAX_DEPTH = 2_000
"""The gateway that took an envelope has checked its size and depth."""


_REFUSED_TOKEN = "the gateway refused this token"  # noqa: S105 - a sentence


class Decided(NamedTuple):
    """The outcome of one event. `draft` is the envelope that came, with the bytes of it that `encode` returns if known.

    `problem` is a defect of the rules, which fails everywhere in the same way.
    """

    event: SpaceEvent
    receipt: Receipt
    now: datetime
    draft: Draft | None = None
    data: bytes | None = None
    problem: Exception | None = None

    @property
    def is_duplicate(self) -> bool:
        """Whether the envelope came before, so that nothing follows from it."""
        return self.receipt.answer.get("status") == "duplicate"


class KnownEnvelope(NamedTuple):
    """An accepted envelope: a digest of its contents, and its number; 0 if it was not broadcast.

    The digest is empty for one that an earlier run stored.
    """

    digest: str
    sequence: int


class ReplicaSnapshot(BaseModel):
    """Everything that the gateways of a space share, after one batch; by default, before the first."""

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
    asked: dict[str, Asked] = Field(default_factory=dict)
    known: list[tuple[str, str, str, int]] = Field(default_factory=list)
    tokens: dict[ParticipantId, str] = Field(default_factory=dict)
    revoked: dict[ParticipantId, int] = Field(default_factory=dict)
    joined: dict[ParticipantId, int] = Field(default_factory=dict)


@dataclass
class OrderedSpace:
    """See the module. `space` must take its ids and tokens from `ids`."""

    space: Space
    ids: DerivedIds
    epoch: str
    """Names the space's numbers of envelopes."""
    stored: Callable[[int], bytes | None] = lambda _: None
    """Returns the envelope with a number, as far as it is kept."""
    batch: int = 0
    """The newest batch that was applied."""
    now: datetime = EPOCH
    """Its time."""
    sequence: int = 0
    """The number of the newest broadcast."""
    gateways: dict[int, int] = field(default_factory=dict)
    """The gateways that hold connections, each with the number of its newest batch."""
    tokens: dict[ParticipantId, str] = field(default_factory=dict)
    """The tokens of invited participants."""
    _known: FairDict[tuple[str, str], KnownEnvelope] = field(
        default_factory=lambda: FairDict(REMEMBERED_ENVELOPES, lambda key, _: key[0])
    )
    _revoked: BoundedDict[ParticipantId, int] = field(default_factory=lambda: BoundedDict(REMEMBERED_REVOCATIONS))
    """In which batch the tokens of a participant were revoked, the newest last."""
    _joined: dict[ParticipantId, int] = field(default_factory=dict)
    """In which batch the newest connection of each member joined."""

    def decide(self, event: SpaceEvent, *, now: datetime) -> Decided:
        """Decide the next event. A fact, such as a join, holds at once; an envelope changes nothing until `apply`."""
        try:
            if isinstance(event, EnvelopeArrives):
                return self._decide_envelope(event, now)
            return Decided(event, Receipt(self._follow_fact(event, now)), now)
        except Exception as problem:  # without this, no gateway could ever get past the event
            refused = refuse(errors.INTERNAL_ERROR, "the gateway failed to process this message")
            return Decided(event, refused, now, problem=problem)

    def apply(self, decision: Decided, *, after: int) -> tuple[Effect, ...]:
        """Make a stored decision true. Returns further effects that follow from it.

        Its broadcasts have the numbers that follow `after`.
        """
        event, receipt, now = decision.event, decision.receipt, decision.now
        accepted = receipt.accepted
        if decision.is_duplicate:
            return ()
        if accepted is None or not isinstance(event, EnvelopeArrives):
            return ()
        follows = self.space.apply(receipt, now=now)
        draft = decision.draft
        if event.may_repeat and draft is not None and draft.id is not None:
            broadcasts = [one.envelope.id for one in receipt.effects if isinstance(one, Broadcast)]
            place = broadcasts.index(accepted.id) + 1 if accepted.id in broadcasts else -after
            self._known[event.sender, accepted.id] = KnownEnvelope(content_digest(draft), after + place)
        for effect in receipt.effects:
            if isinstance(effect, AddToken):
                self.tokens[effect.participant] = effect.token
            elif isinstance(effect, RevokeTokens):
                self.tokens.pop(effect.participant, None)
                self._revoked[effect.participant] = self.batch
        return follows

    def replay(self, batch: int, header: BatchHeader, events: list[SpaceEvent]) -> Iterator[Decided]:
        """Decide and apply a stored batch, and yield each decision; perform it before the next. `batch` is its place.

        Yields nothing for a batch of a gateway that is gone, or for one that was stored twice. If the first batch of a
        gateway is stored a second time after the gateway is gone, it counts as present until its lease is missed.
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
            yield decision._replace(receipt=receipt._replace(effects=(*receipt.effects, *follows)))

    def remember(self, stored: Iterable[tuple[str, str, int]]) -> None:
        """Recognise the envelopes that an earlier run stored: sender, id and number of each, the oldest first."""
        for sender, name, sequence in stored:
            self._known[sender, name] = KnownEnvelope("", sequence)

    def snapshot(self) -> ReplicaSnapshot:
        """Return everything that is shared. It refers to the state itself: serialise it before the next batch."""
        space = self.space
        return ReplicaSnapshot.model_construct(
            batch=self.batch,
            epoch=self.epoch,
            now=self.now,
            sequence=self.sequence,
            gateways=self.gateways,
            state=space.state,
            members={name: member.sockets for name, member in space.members.items()},
            logs={name: member.logs for name, member in space.members.items() if member.logs},
            absent_since=space.absent_since,
            not_back_yet=space.not_back_yet,
            trends=space.board.trends,
            measured_at=space.board.measured_at,
            outdated=space.board.outdated,
            asked=space.board.requests.asked,
            known=[(*key, *known) for key, known in self._known.items()],
            tokens=self.tokens,
            revoked=self._revoked,
            joined={name: batch for name, batch in self._joined.items() if name in space.members},
        )

    def restore(self, snapshot: ReplicaSnapshot) -> None:
        """Replace everything with the contents of a snapshot."""
        space = self.space
        self._joined = dict(snapshot.joined)
        self.batch, self.epoch, self.now = snapshot.batch, snapshot.epoch, snapshot.now
        self.sequence, self.gateways = snapshot.sequence, dict(snapshot.gateways)
        self.tokens = dict(snapshot.tokens)
        self._revoked.clear()
        self._revoked.update(snapshot.revoked)
        self._known.clear()
        for sender, name, digest, sequence in snapshot.known:
            self._known[sender, name] = KnownEnvelope(digest, sequence)
        for table in SpaceState.model_fields:
            setattr(space.state, table, copy(getattr(snapshot.state, table)))
        space.members.clear()
        for name, held in snapshot.members.items():
            space.members[name] = MemberConnections(list(held), list(snapshot.logs.get(name, ())))
        space.membership.reset()
        space.board.reset(snapshot.trends, snapshot.measured_at, snapshot.outdated)
        space.board.requests.reset(snapshot.asked)
        space.absent_since = dict(snapshot.absent_since)
        space.not_back_yet = set(snapshot.not_back_yet)

    def _follow_fact(self, event: SpaceEvent, now: datetime) -> tuple[Effect, ...]:
        space = self.space
        match event:
            case ConnectionJoins():
                return self._join(event, now)
            case ConnectionLeaves(connection, participant):
                effects = space.leave(connection, participant, now=now)
                if participant not in space.members:
                    self._joined.pop(participant, None)
                return effects
            case LogFileJoins(connection, participant):
                return space.join_virtually(connection, participant)
            case FrameArrives(connection, sender, frame):
                return space.relay(frame, sender=sender, connection=connection, now=now)
            case GatewayIsGone(gateway):
                self.gateways.pop(gateway, None)
                return space.leave_all(lambda one: gateway_of(one) == gateway, now=now)
            case TimePasses():
                return space.expire(now=now)
            case ClockJumps(by):
                return space.shift_deadlines(by)
            case _:  # `replay` has added a gateway that starts
                return ()

    def _join(self, event: ConnectionJoins, now: datetime) -> tuple[Effect, ...]:
        connection, participant, checked_at = event
        if self._is_revoked(participant, checked_at):
            error, code = errors.UNAUTHORIZED, errors.CLOSE_UNAUTHORIZED
            return self.space.reject_connection(connection, error, _REFUSED_TOKEN, code, now=now)
        if self._is_overtaken(connection, participant, checked_at):
            error, code = errors.NOT_STORED, errors.CLOSE_LIMIT
            text = "another connection joined meanwhile; try again"
            return self.space.reject_connection(connection, error, text, code, OVERTAKEN_SECONDS, now=now)
        self._joined[participant] = self.batch
        return self.space.join(connection, participant, now=now)

    def _decide_envelope(self, event: EnvelopeArrives, now: datetime) -> Decided:
        sender, connection = event.sender, event.connection
        try:
            draft, data = _read(event)
        except DecodeError as problem:
            return Decided(event, refuse(problem.error, problem.detail, code=problem.code), now)
        if connection is None and self._is_revoked(sender, event.token_checked_at):
            return Decided(event, refuse(errors.UNAUTHORIZED, _REFUSED_TOKEN), now, draft)
        known = self._known.get((sender, draft.id or "")) if event.may_repeat else None
        if known is not None and self._is_same(known, draft):
            return Decided(event, self._duplicate(sender, draft, known, now), now, draft)
        return Decided(event, self.space.decide(draft, sender=sender, connection=connection, now=now), now, draft, data)

    def _is_same(self, known: KnownEnvelope, draft: Draft) -> bool:
        if known.digest:
            return known.digest == content_digest(draft)
        stored = self.stored(known.sequence)
        if stored is None:  # no longer kept: a repetition is more likely than a new envelope
            return draft.kind != kinds.MCP_PROPOSAL  # the space compares it with the first
        return content_digest(decode_envelope(stored)) == content_digest(draft)

    def _duplicate(self, sender: ParticipantId, draft: Draft, known: KnownEnvelope, now: datetime) -> Receipt:
        where = {"position": str(Position(self.epoch, known.sequence))} if known.sequence else {}
        accepted = Envelope.complete(draft, id=draft.id or "", ts=wire_timestamp(now), sender=sender)
        return Receipt((), accepted=accepted, answer={"status": "duplicate", **where})

    def _is_overtaken(self, connection: ConnectionId, participant: ParticipantId, checked_at: int) -> bool:
        """Whether a join may be older than the newest connection of its participant, on another gateway, and would
        replace it: that of a client that has moved since, stored late.
        """
        member = self.space.members.get(participant)
        if (
            member is None
            or not member.sockets
            or self.space.membership.permissions_of(participant).several_connections
        ):
            return False
        is_elsewhere = gateway_of(member.sockets[-1]) != gateway_of(connection)
        return is_elsewhere and self._joined.get(participant, 0) > checked_at

    def _is_revoked(self, participant: ParticipantId, checked_at: int) -> bool:
        return self._revoked.get(participant, -1) > checked_at


def _read(event: EnvelopeArrives) -> tuple[Draft, bytes | None]:
    """Return the envelope of an event, with its bytes if they are what `encode` returns. Raises `DecodeError`."""
    if event.draft is not None:
        return event.draft, event.data
    data = event.data or b""
    complete = decode_complete(data, len(data), _MAX_DEPTH)
    return complete or (decode_envelope(data, max_bytes=len(data), max_depth=_MAX_DEPTH), None)
