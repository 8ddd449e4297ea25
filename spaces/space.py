"""[pure] One space: who is in it, who may say what, who hears it. Events in, effects out; time and ids come along.

Rules of delivery: every accepted envelope goes to every member, its sender included, whatever `to` says. Refusals
go to the refused alone. A participant without a program behind it (a person) may hold several connections and is
present from its first to its last; of anybody else the newest connection counts and the older one is told so.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from protocol import errors, kinds
from protocol.capability import CapabilitySet, normalise
from protocol.codec import StreamFrame
from protocol.envelope import Draft, Envelope
from protocol.ids import GATEWAY, STREAM_GATEWAY, ParticipantId, SpaceId
from protocol.payloads.system import Member as MemberPayload
from protocol.payloads.system import Presence
from protocol.payloads.system import SystemError as ErrorPayload
from protocol.timestamp import wire_timestamp
from spaces.board import StatusBoard
from spaces.effects import Admit, Broadcast, Close, ConnectionId, Dismiss, Effect, Receipt, Relay, Send
from spaces.settings import SpaceConfig
from spaces.snapshot import MemberView, Snapshot
from spaces.stream_rules import StreamRules
from spaces.streams import Streams

OWNER_GRACE = timedelta(seconds=5)
"""How long a vanished owner's streams wait for it to come back."""

NewId = Callable[[], str]


@dataclass(slots=True)
class _Member:
    """Somebody who is here, by at least one connection."""

    connections: list[ConnectionId] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seat:
    """What a participant may, present or not."""

    capabilities: CapabilitySet
    several_connections: bool

    @property
    def patterns(self) -> tuple[dict[str, Any], ...]:
        return tuple(dict(pattern) for pattern in self.capabilities.patterns)


class Space:
    """The state of one space. Every method is one event; none of them raises on what a client wrote."""

    def __init__(self, config: SpaceConfig, *, new_id: NewId) -> None:
        """`new_id` gives ids for the gateway's own envelopes."""
        self.id = SpaceId(config.space.id)
        self.name = config.space.name
        self.board = StatusBoard()
        self.streams = Streams()
        self._config = config
        self._new_id = new_id
        self._seats: dict[str, _Seat] = {}
        self._members: dict[ParticipantId, _Member] = {}
        self._absent_since: dict[ParticipantId, datetime] = {}
        self._stream_rules = StreamRules(
            self.streams,
            write=self._write_as_stream_gateway,
            is_member=self.is_member,
            streams_per_member=config.limits.streams_per_member,
        )

    # Who is here

    def is_member(self, participant: str) -> bool:
        """Whether a participant is connected."""
        return participant in self._members

    def connections_of(self, participants: Iterable[str]) -> tuple[ConnectionId, ...]:
        """The connections of those among them who are here."""
        return tuple(
            connection
            for name in participants
            if (member := self._members.get(ParticipantId(name))) is not None
            for connection in member.connections
        )

    def snapshot(self, *, now: datetime) -> Snapshot:
        """The space as it is now."""
        away = [name for name in (*self._config.participants, *self.board.participants) if name not in self._members]
        names = list(dict.fromkeys([*self._members, *away]))
        views = tuple(MemberView(name, name in self._members, self._seat(name).patterns) for name in names)
        return Snapshot(
            space=self.id,
            name=self.name,
            at=now,
            participants=views,
            active_streams=tuple(stream.describe() for stream in self.streams),
            board=self.board.entries(((view.id, view.connected) for view in views), now=now),
        )

    def welcome(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> Send:
        """What a joiner is told; joining again brings it again."""
        payload = self.snapshot(now=now).welcome(participant, self._seat(participant).patterns)
        return Send(self._write(kinds.SYSTEM_WELCOME, payload, now=now, to=(participant,)), (connection,))

    # Coming and going

    def join(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Somebody whose identity is proven comes in by a connection."""
        member = self._members.get(participant)
        if member is not None and connection in member.connections:
            return (self.welcome(connection, participant, now=now),)
        seat = self._seat(participant)
        problem = self._no_room(member, seat)
        if problem:
            return (*self.turn_away(connection, errors.LIMIT_EXCEEDED, problem, errors.CLOSE_LIMIT, now=now),)
        effects: list[Effect] = []
        is_new = member is None
        if member is None:
            member = self._members[participant] = _Member()
        elif not seat.several_connections:
            effects += self._supersede(member, participant, now=now)
            is_new = True
        member.connections.append(connection)
        self._absent_since.pop(participant, None)
        effects += [Admit(connection), self.welcome(connection, participant, now=now)]
        if is_new:
            presence = Presence(event="join", participant=MemberPayload(id=participant, capabilities=seat.patterns))
            own = frozenset(member.connections)
            effects.append(Broadcast(self._write(kinds.SYSTEM_PRESENCE, presence, now=now), without=own))
        return tuple(effects)

    def leave(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """A connection is gone. One that was superseded or never joined takes nobody along."""
        member = self._members.get(participant)
        if member is None or connection not in member.connections:
            return ()
        member.connections.remove(connection)
        if member.connections:
            return (Dismiss(connection),)
        del self._members[participant]
        self._absent_since[participant] = now
        presence = {"event": "leave", "participant": {"id": participant}}
        return Dismiss(connection), Broadcast(self._write(kinds.SYSTEM_PRESENCE, presence, now=now))

    def turn_away(
        self, connection: ConnectionId, error: str, message: str, code: int, *, now: datetime
    ) -> tuple[Effect, ...]:
        """Refuse a connection altogether: say why, then close it."""
        return self.refuse_connection(connection, error, message, now=now), Close(connection, code, error)

    def refuse_connection(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        *,
        now: datetime,
        participant: str | None = None,
        code: str | None = None,
        correlation_id: str | None = None,
    ) -> Send:
        """An error for one connection, about something that is no envelope of a member."""
        capabilities = () if error == errors.NOT_JOINED else None
        payload = ErrorPayload(error=error, message=message, code=code, your_capabilities=capabilities)
        return Send(self._error(payload, participant, correlation_id, now=now), (connection,))

    def expire(self, *, now: datetime) -> tuple[Effect, ...]:
        """End what waited long enough: streams of owners who did not come back, and their right to write."""
        effects: list[Effect] = []
        for participant, since in list(self._absent_since.items()):
            if now - since >= OWNER_GRACE:
                del self._absent_since[participant]
                effects += self._stream_rules.forget(participant, now=now)
        return tuple(effects)

    # What is said

    def receive(
        self,
        draft: Draft,
        *,
        sender: ParticipantId,
        now: datetime,
        connection: ConnectionId | None = None,
    ) -> Receipt:
        """An envelope of a participant, by one of its connections or by HTTP."""
        refused = self._out_of_place(sender, connection) or self._refusal(draft, sender)
        if refused is not None:
            return self._refuse(refused, draft, sender, connection, now=now)
        envelope = Envelope.complete(
            draft, id=draft.id or self._new_id(), ts=draft.ts or wire_timestamp(now), sender=sender
        )
        kind = envelope.kind
        if kind == kinds.SYSTEM_HEARTBEAT:
            return Receipt((), accepted=envelope)
        if kind.startswith("stream/"):
            receipt = self._stream_rules.receive(envelope, now=now)
            if receipt.refused is not None:
                return self._refuse(receipt.refused, draft, sender, connection, now=now)
            return receipt
        if kind == kinds.PARTICIPANT_STATUS:
            self.board.post(envelope, at=now)
        return Receipt((Broadcast(envelope),), accepted=envelope)

    def relay(
        self, frame: StreamFrame, *, sender: ParticipantId, connection: ConnectionId, now: datetime
    ) -> tuple[Effect, ...]:
        """A stream frame of a member."""
        misplaced = self._out_of_place(sender, connection)
        if misplaced is not None:
            return (Send(self._error(misplaced, sender, None, now=now), (connection,)),)
        stream = self.streams.get(frame.stream_id)
        if stream is None or sender not in stream.writers:
            what = f"there is no stream '{frame.stream_id}'" if stream is None else "its owner did not let you write"
            payload = ErrorPayload(
                error=errors.UNAUTHORIZED_STREAM_WRITE, stream_id=frame.stream_id, message=f"not written: {what}"
            )
            return (Send(self._error(payload, sender, None, now=now, speaker=STREAM_GATEWAY), (connection,)),)
        return (Relay(frame, self.connections_of(stream.targets) if stream.targets else None),)

    # Inner workings

    def _out_of_place(self, sender: ParticipantId, connection: ConnectionId | None) -> ErrorPayload | None:
        """Why this connection may not speak for its participant: a newer one does."""
        member = self._members.get(sender)
        if connection is None or (member is not None and connection in member.connections):
            return None
        text = f"a newer connection speaks for '{sender}'; join again to take over"
        return ErrorPayload(error=errors.SUPERSEDED, message=text)

    def _refusal(self, draft: Draft, sender: ParticipantId) -> ErrorPayload | None:
        """Why an envelope may not pass, in the order in which the reasons are looked for."""
        kind = draft.kind
        if not kind or kind.isspace():
            return _invalid(errors.INVALID_ENVELOPE, "'kind' is missing")
        if draft.sender is not None and draft.sender != sender:
            text = f"you are '{sender}' and cannot speak as '{draft.sender}'"
            return ErrorPayload(error=errors.IDENTITY_MISMATCH, message=text, attempted_kind=kind)
        if kind.startswith(kinds.SYSTEM_NAMESPACE):
            if kind == kinds.SYSTEM_HEARTBEAT:
                return None
            # The reference knows only one reserved kind, under this error; its clients look for these words.
            error = errors.INVALID_REQUEST if kind == kinds.SYSTEM_REGISTER else errors.RESERVED_KIND
            return ErrorPayload(error=error, message=f"{kind} is reserved for the gateway", attempted_kind=kind)
        if kind == kinds.CHAT and not _is_text(draft.body.get("text")):
            return _invalid(errors.INVALID_PAYLOAD, "chat: payload.text must be a text that is not empty")
        if kind == kinds.MCP_REQUEST and not _is_text(draft.body.get("method")):
            return _invalid(errors.INVALID_PAYLOAD, "mcp/request: payload.method must be a text that is not empty")
        seat = self._seat(sender)
        if seat.capabilities.allows(draft, ignore_to=self._config.capabilities.ignore_to):
            return None
        return ErrorPayload(
            error=errors.CAPABILITY_VIOLATION,
            message=f"no capability of '{sender}' allows this {kind}",
            attempted_kind=kind,
            your_capabilities=seat.patterns,
        )

    def _refuse(
        self,
        payload: ErrorPayload,
        draft: Draft,
        sender: ParticipantId,
        connection: ConnectionId | None,
        *,
        now: datetime,
    ) -> Receipt:
        """Tell the sender by the connection it used; one that used none hears it on those it has."""
        hearers = self.connections_of([sender]) if connection is None else (connection,)
        error = self._error(payload, sender, draft.id, now=now)
        return Receipt((Send(error, hearers),) if hearers else (), refused=payload)

    def _supersede(self, member: _Member, participant: ParticipantId, *, now: datetime) -> list[Effect]:
        effects: list[Effect] = []
        for older in member.connections:
            payload = ErrorPayload(error=errors.SUPERSEDED, message=f"'{participant}' joined by a newer connection")
            effects += [Send(self._error(payload, participant, None, now=now), (older,)), Dismiss(older)]
        member.connections.clear()
        return effects

    def _no_room(self, member: _Member | None, seat: _Seat) -> str | None:
        limits = self._config.limits
        if member is None:
            full = len(self._members) >= limits.members
            return f"the space is full: {limits.members} members" if full else None
        if seat.several_connections and len(member.connections) >= limits.sockets_per_member:
            return f"you hold {limits.sockets_per_member} connections already"
        return None

    def _seat(self, participant: str) -> _Seat:
        seat = self._seats.get(participant)
        if seat is None:
            capabilities = CapabilitySet(normalise(self._config.patterns_of(participant)))
            seat = self._seats[participant] = _Seat(capabilities, self._config.is_person(participant))
        return seat

    def _error(
        self,
        payload: ErrorPayload,
        participant: str | None,
        correlation_id: str | None,
        *,
        now: datetime,
        speaker: ParticipantId = GATEWAY,
    ) -> Envelope:
        to = (participant,) if participant else ()
        about = (correlation_id,) if correlation_id else ()
        return self._write(kinds.SYSTEM_ERROR, payload, now=now, to=to, correlation_id=about, speaker=speaker)

    def _write_as_stream_gateway(
        self, kind: str, payload: Mapping[str, Any], now: datetime, to: tuple[str, ...], about: tuple[str, ...]
    ) -> Envelope:
        everybody = to or tuple(self._members)
        return self._write(kind, payload, now=now, to=everybody, correlation_id=about, speaker=STREAM_GATEWAY)

    def _write(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any],
        *,
        now: datetime,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        speaker: ParticipantId = GATEWAY,
    ) -> Envelope:
        return Envelope.write(
            kind,
            id=self._new_id(),
            ts=wire_timestamp(now),
            sender=speaker,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _invalid(error: str, message: str) -> ErrorPayload:
    return ErrorPayload(error=error, message=message, code=errors.VALIDATION_ERROR)
