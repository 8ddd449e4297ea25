"""[pure] One space that several gateways hold: the same batches, applied in the same order, give the same state.

Owns what the gateways share besides the space itself: which gateways there are, the number of the newest envelope,
the envelopes that may come again, and since which batch a revoked token is refused. Writes all of it as a snapshot and
continues from one. Does not know how a batch arrives, and performs nothing.
"""

from collections.abc import Iterator
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
    ConnectionJoins,
    ConnectionLeaves,
    DerivedIds,
    EnvelopeArrives,
    GatewayIsGone,
    GatewayStarts,
    SpaceEvent,
    TimePasses,
    gateway_of,
)
from mew_spaces.core.membership import MemberConnections
from mew_spaces.core.space import Space
from mew_spaces.core.state import SpaceState
from mew_spaces.core.status_requests import Asked

REMEMBERED_ENVELOPES = 20_000
"""How many of the newest accepted envelopes are recognised when they come again."""

REMEMBERED_REVOCATIONS = 1_000
"""A join whose token was checked before it was revoked is behind the revocation by a few batches at most."""

OVERTAKEN_SECONDS = 1.0
"""When a client is to try again whose join may be older than another connection of its participant."""

_MAX_DEPTH = 2_000
"""The gateway that took an envelope has checked its size and depth."""


class Applied(NamedTuple):
    """What one event did. `draft` is the envelope that came, with the bytes of it that `encode` returns if known.

    `problem` is a defect of the rules, which fails everywhere in the same way.
    """

    event: SpaceEvent
    receipt: Receipt
    draft: Draft | None = None
    data: bytes | None = None
    problem: Exception | None = None


class KnownEnvelope(NamedTuple):
    """An accepted envelope: a digest of what it said, and its number; 0 if it was not broadcast."""

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
class ReplicatedSpace:
    """See the module. `space` must take its ids and tokens from `ids`."""

    space: Space
    ids: DerivedIds
    epoch: str
    """Names the space's numbers of envelopes."""
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

    def apply(self, batch: int, header: BatchHeader, events: list[SpaceEvent]) -> Iterator[Applied]:
        """Apply a batch and yield what each event did; perform that before the next one. `batch` is its place.

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
                applied = self._apply(event)
            except Exception as problem:  # without this, no gateway could ever get past the event
                refused = refuse(errors.INTERNAL_ERROR, "the gateway failed to process this message")
                applied = Applied(event, refused, problem=problem)
            finally:
                self.ids.derive_from(None)
            for effect in applied.receipt.effects:
                self._follow(effect)
            yield applied

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
        space.members.update({name: MemberConnections(list(held)) for name, held in snapshot.members.items()})
        space.membership.reset()
        space.board.reset(snapshot.trends, snapshot.measured_at, snapshot.outdated)
        space.board.requests.reset(snapshot.asked)
        space.absent_since = dict(snapshot.absent_since)
        space.not_back_yet = set(snapshot.not_back_yet)

    def _apply(self, event: SpaceEvent) -> Applied:
        space, now = self.space, self.now
        effects: tuple[Effect, ...] = ()
        match event:
            case EnvelopeArrives():
                return self._receive(event)
            case ConnectionJoins(connection, participant, checked_at):
                if self._is_revoked(participant, checked_at):
                    text = "the gateway refused this token"
                    error, code = errors.UNAUTHORIZED, errors.CLOSE_UNAUTHORIZED
                    effects = space.reject_connection(connection, error, text, code, now=now)
                elif self._is_overtaken(connection, participant, checked_at):
                    text = "another connection joined meanwhile; try again"
                    error, code = errors.NOT_STORED, errors.CLOSE_LIMIT
                    effects = space.reject_connection(connection, error, text, code, OVERTAKEN_SECONDS, now=now)
                else:
                    effects = space.join(connection, participant, now=now)
                    self._joined[participant] = self.batch
            case ConnectionLeaves(connection, participant):
                effects = space.leave(connection, participant, now=now)
                if participant not in space.members:
                    self._joined.pop(participant, None)
            case GatewayIsGone(gateway):
                self.gateways.pop(gateway, None)
                effects = space.leave_all(lambda one: gateway_of(one) == gateway, now=now)
            case TimePasses():
                effects = space.expire(now=now)
            case GatewayStarts():
                pass  # `apply` has added it
        return Applied(event, Receipt(effects))

    def _receive(self, event: EnvelopeArrives) -> Applied:
        sender, connection = event.sender, event.connection
        try:
            draft, data = _read(event)
        except DecodeError as problem:
            return Applied(event, refuse(problem.error, problem.detail, code=problem.code))
        if connection is None and self._is_revoked(sender, event.token_checked_at):
            return Applied(event, refuse(errors.UNAUTHORIZED, "the gateway refused this token"), draft)
        digest = "" if draft.id is None else content_digest(draft)
        known = self._known.get((sender, draft.id or "")) if event.may_repeat else None
        if known is not None and known.digest == digest:
            return Applied(event, self._duplicate(sender, draft, known), draft)
        receipt = self.space.receive(draft, sender=sender, connection=connection, now=self.now, is_checked=True)
        accepted = receipt.accepted
        if accepted is not None and draft.id is not None and draft.kind != kinds.SYSTEM_HEARTBEAT:
            broadcasts = [one.envelope.id for one in receipt.effects if isinstance(one, Broadcast)]
            place = broadcasts.index(accepted.id) + 1 if accepted.id in broadcasts else -self.sequence
            self._known[sender, accepted.id] = KnownEnvelope(digest, self.sequence + place)
        return Applied(event, receipt, draft, data)

    def _duplicate(self, sender: ParticipantId, draft: Draft, known: KnownEnvelope) -> Receipt:
        where = {"position": str(Position(self.epoch, known.sequence))} if known.sequence else {}
        accepted = Envelope.complete(draft, id=draft.id or "", ts=wire_timestamp(self.now), sender=sender)
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

    def _follow(self, effect: Effect) -> None:
        match effect:
            case Broadcast():
                self.sequence += 1
            case AddToken(participant, token):
                self.tokens[participant] = token
            case RevokeTokens(participant):
                self.tokens.pop(participant, None)
                self._revoked[participant] = self.batch
            case _:
                pass


def _read(event: EnvelopeArrives) -> tuple[Draft, bytes | None]:
    """Return the envelope of an event, with its bytes if they are what `encode` returns. Raises `DecodeError`."""
    if event.envelope is not None:
        return event.envelope, event.data
    size = len(event.data)
    complete = decode_complete(event.data, size, _MAX_DEPTH)
    return complete or (decode_envelope(event.data, max_bytes=size, max_depth=_MAX_DEPTH), None)
