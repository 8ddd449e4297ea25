"""[pure] One space: who is in it, who may say what, who hears it. Events in, effects out; time and ids come along.

Rules of delivery: every accepted envelope goes to every member, its sender included, whatever `to` says. Refusals
go to the refused alone. A participant without a program behind it (a person) may hold several connections and is
present from its first to its last; of anybody else the newest connection counts and the older one is told so.
A virtual connection (a log file that listens) is beside all that: it supersedes nobody and nobody supersedes it.

What envelopes of single namespaces do stands in `stream_rules`, `delegation`, `controls` and `proposals`.
"""

from datetime import datetime, timedelta

from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import STREAM_GATEWAY, ParticipantId, SpaceId
from mew_protocol.payloads.system import Member as MemberPayload
from mew_protocol.payloads.system import Presence
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.timestamp import wire_timestamp
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.board import StatusBoard
from mew_spaces.core.controls import Controls
from mew_spaces.core.delegation import DelegationRules
from mew_spaces.core.effects import (
    Admit,
    Broadcast,
    Close,
    ConnectionId,
    Dismiss,
    Effect,
    Expel,
    Receipt,
    Relay,
    Send,
    refusal,
)
from mew_spaces.core.members import Member, Members
from mew_spaces.core.permissions import PermissionDecision, Seat, Seats
from mew_spaces.core.proposals import Proposals
from mew_spaces.core.rate import TokenBucket
from mew_spaces.core.roster import Roster
from mew_spaces.core.snapshot import MemberView, Snapshot
from mew_spaces.core.stream_rules import StreamRules
from mew_spaces.core.streams import Streams
from mew_spaces.core.system_messages import NewId, Voice
from mew_spaces.core.validity import problem_of

OWNER_GRACE = timedelta(seconds=5)
"""How long a vanished participant's streams and grants wait for it to come back."""

_NO_ROSTER = Roster()

_KEPT = frozenset({kinds.STREAM_REQUEST, kinds.CAPABILITY_GRANT, kinds.SPACE_INVITE})
"""Kinds whose payloads late joiners are told of, long after they were said."""


class Space:
    """The state of one space. Every method is one event; none of them raises on what a client wrote."""

    def __init__(self, config: SpaceConfig, *, new_id: NewId, new_token: NewId, roster: Roster = _NO_ROSTER) -> None:
        """`new_id` gives ids for the gateway's own envelopes, `new_token` tokens for who is invited."""
        self.id = SpaceId(config.space.id)
        self.name = config.space.name
        self.members = Members()
        self.board = StatusBoard()
        self.streams = Streams()
        self._config = config
        self._ignore_to = config.capabilities.ignore_to
        self._voice = Voice(new_id)
        self._seats = Seats(config, roster)
        self._proposals = Proposals()
        self._buckets: dict[str, TokenBucket] = {}
        self._absent_since: dict[ParticipantId, datetime] = {}
        self._stream_rules = StreamRules(
            self.streams, self.members, self._voice, streams_per_member=config.limits.streams_per_member
        )
        self._controls = Controls(
            enforce_pause=config.control.enforce_pause,
            enforce_shutdown=config.control.enforce_shutdown,
            is_known=lambda name: self._seats.has(name) or name in self.members,
        )
        self.delegation = DelegationRules(
            config, self._seats, self.members, self._voice, presences=self, new_token=new_token
        )

    # Who is here

    def resolve(self, name: str) -> ParticipantId | None:
        """The participant of this id or display name; None when nobody with a place is meant."""
        return self._seats.resolve(name)

    def snapshot(self, *, now: datetime) -> Snapshot:
        """The space as it is now."""
        removed = self._seats.roster.removed
        names = dict.fromkeys([*self.members, *self._seats.names, *self.board.participants])
        views = tuple(
            MemberView(name, name in self.members, self._seats.of(name).patterns)
            for name in names
            if name not in removed
        )
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
        return Send(self._welcome(participant, now=now), (connection,))

    def welcome_again(self, participant: ParticipantId, /, *, now: datetime) -> tuple[Effect, ...]:
        """Tell somebody who is here what it may send now."""
        hearing = self.members.connections_of((participant,))
        return (Send(self._welcome(participant, now=now), hearing),) if hearing else ()

    # Coming and going

    def join(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Somebody whose identity is proven comes in by a connection."""
        member = self.members.get(participant)
        if member is not None and connection in member.connections:
            return (self.welcome(connection, participant, now=now),)
        seat = self._seats.of(participant)
        problem = self._no_room(member, seat)
        if problem:
            return (*self.turn_away(connection, errors.LIMIT_EXCEEDED, problem, errors.CLOSE_LIMIT, now=now),)
        self._controls.joined(participant)
        effects: list[Effect] = []
        is_new = member is None or not member.connections
        if member is None:
            member = self.members[participant] = Member()
        elif not seat.several_connections:
            effects += self._supersede(member, participant, now=now)
            is_new = True
        member.connections.append(connection)
        self._absent_since.pop(participant, None)
        effects += [Admit(connection), self.welcome(connection, participant, now=now)]
        if is_new:
            presence = Presence(event="join", participant=MemberPayload(id=participant, capabilities=seat.patterns))
            own = frozenset(member.connections)
            effects.append(Broadcast(self._voice.say(kinds.SYSTEM_PRESENCE, presence, now=now), without=own))
        pause = self._controls.pause_of(participant, now=now)
        if pause is not None:  # whoever starts anew does not know of it
            effects.append(
                Send(self._voice.say(kinds.PARTICIPANT_PAUSE, pause, now=now, to=(participant,)), (connection,))
            )
        return tuple(effects)

    def join_virtually(
        self, connection: ConnectionId, participant: ParticipantId, *, now: datetime
    ) -> tuple[Effect, ...]:
        """A log begins to listen as a participant. It is a member from then on; nobody is told."""
        member = self.members.setdefault(participant, Member())
        if member.virtual is not None:
            return ()
        member.virtual = connection
        return Admit(connection), self.welcome(connection, participant, now=now)

    def leave(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """A connection is gone. One that was superseded or never joined takes nobody along."""
        member = self.members.get(participant)
        if member is None or connection not in member.connections:
            return ()
        member.connections.remove(connection)
        if member.connections:
            return (Dismiss(connection),)
        if member.virtual is None:
            del self.members[participant]
        self._absent_since[participant] = now
        return Dismiss(connection), self._gone(participant, now=now)

    def expel(self, participant: ParticipantId, reason: str, /, *, now: datetime) -> tuple[Effect, ...]:
        """Somebody is sent out: its place, its connections, its streams and its say elsewhere end at once."""
        member = self.members.pop(participant, None)
        self._absent_since.pop(participant, None)
        self._controls.forget(participant)
        self._buckets.pop(participant, None)
        hearing = () if member is None else member.hearing
        effects: list[Effect] = []
        for connection in hearing:
            effects += [Dismiss(connection), Close(connection, errors.CLOSE_REMOVED, errors.REMOVED)]
        effects.append(Expel(participant, self._seats.remove(participant), reason))
        if member is not None:
            effects.append(self._gone(participant, now=now))
        return (*effects, *self._stream_rules.forget(participant, now=now))

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
        return Send(self._voice.complain(payload, participant, now=now, about=correlation_id), (connection,))

    def expire(self, *, now: datetime) -> tuple[Effect, ...]:
        """End what waited long enough: streams of owners who did not come back, their right to write, their grants."""
        for stream in self.streams:
            if stream.owner not in self.members:  # opened by HTTP: its owner may still come
                self._absent_since.setdefault(stream.owner, now)
        effects: list[Effect] = []
        for participant, since in list(self._absent_since.items()):
            if now - since >= OWNER_GRACE:
                del self._absent_since[participant]
                self._buckets.pop(participant, None)
                self._seats.forget_grants(participant)
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
        refused = (
            self._out_of_turn(sender, connection, now)
            or problem_of(draft, sender, name_chars=self._config.limits.name_chars)
            or (self._quiet(draft, sender, now) if self._controls.is_anybody_quiet else None)
        )
        if refused is not None:
            return self._refuse(refused, draft, sender, connection, now=now)
        kind = draft.kind or ""
        seat = self._seats.of(sender)
        if kind == kinds.SYSTEM_HEARTBEAT:
            return Receipt((), accepted=self._complete(draft, sender, now), decision=_heartbeat(seat))
        decision = seat.decide(draft, ignore_to=self._ignore_to)
        if decision.matched is None:
            violation = ErrorPayload(
                error=errors.CAPABILITY_VIOLATION,
                message=f"no capability of '{sender}' allows this {kind}",
                attempted_kind=kind,
                your_capabilities=seat.patterns,
            )
            return self._refuse(violation, draft, sender, connection, now=now, decision=decision)
        envelope = draft if isinstance(draft, Envelope) else self._complete(draft, sender, now)
        receipt = self._act(envelope, connection, now)
        if receipt is None:
            return Receipt((Broadcast(envelope),), accepted=envelope, decision=decision)
        if receipt.refused is not None and not receipt.effects:
            refused_receipt = self._refuse(receipt.refused, draft, sender, connection, now=now, decision=decision)
            return refused_receipt._replace(answer=receipt.answer)
        return receipt._replace(decision=decision)

    def relay(
        self, frame: StreamFrame, *, sender: ParticipantId, connection: ConnectionId, now: datetime
    ) -> tuple[Effect, ...]:
        """A stream frame of a member."""
        misplaced = self._out_of_turn(sender, connection, now)
        if misplaced is not None:
            return (Send(self._voice.complain(misplaced, sender, now=now), (connection,)),)
        stream = self.streams.get(frame.stream_id)
        if stream is None or sender not in stream.writers:
            what = f"there is no stream '{frame.stream_id}'" if stream is None else "its owner did not let you write"
            payload = ErrorPayload(
                error=errors.UNAUTHORIZED_STREAM_WRITE, stream_id=frame.stream_id, message=f"not written: {what}"
            )
            return (Send(self._voice.complain(payload, sender, now=now, speaker=STREAM_GATEWAY), (connection,)),)
        return (Relay(frame, self.members.connections_of(stream.targets) if stream.targets else None),)

    # Inner workings

    def _complete(self, draft: Draft, sender: ParticipantId, now: datetime) -> Envelope:
        return Envelope.complete(
            draft, id=draft.id or self._voice.new_id(), ts=draft.ts or wire_timestamp(now), sender=sender
        )

    def _act(self, envelope: Envelope, connection: ConnectionId | None, now: datetime) -> Receipt | None:
        """Do what an envelope asks of the gateway itself. None when that is nothing but passing it on."""
        match envelope.kind.partition("/")[0]:
            case "chat" | "reasoning":
                return None
            case "stream" | "capability" | "space" if envelope.kind in _KEPT and self._is_too_long_to_keep(envelope):
                text = f"{envelope.kind}: of a payload {self._config.limits.kept_payload_bytes:,} bytes can be kept"
                return refusal(errors.LIMIT_EXCEEDED, text)
            case "stream":
                return self._stream_rules.receive(envelope, now=now)
            case "capability" | "space":
                hearers = self.members.connections_of((envelope.sender,)) if connection is None else (connection,)
                return self.delegation.receive(envelope, hearers=hearers, now=now)
            case "participant":
                if envelope.kind == kinds.PARTICIPANT_STATUS and not self._is_too_long_to_keep(envelope):
                    self.board.post(envelope, at=now)
                self._controls.observe(envelope, now=now)
            case "mcp":
                return self._proposals.receive(envelope)
            case _:
                pass
        return None

    def _is_too_long_to_keep(self, envelope: Envelope) -> bool:
        return len(to_json(envelope.payload)) > self._config.limits.kept_payload_bytes

    def _out_of_turn(
        self, sender: ParticipantId, connection: ConnectionId | None, now: datetime
    ) -> ErrorPayload | None:
        """Why this connection may not speak for its participant now: too much was said, or a newer one does."""
        bucket = self._buckets.get(sender)
        if bucket is None:
            limits = self._config.limits
            bucket = TokenBucket(per_second=limits.envelopes_per_second, burst=limits.envelope_burst, now=now)
            self._buckets[sender] = bucket
        if not bucket.take(now):
            text = f"'{sender}' may send {self._config.limits.envelopes_per_second:,g} envelopes and frames a second"
            return ErrorPayload(error=errors.RATE_LIMITED, message=f"{text}; this one was dropped")
        member = self.members.get(sender)
        if connection is None or (member is not None and connection in member.connections):
            return None
        text = f"a newer connection speaks for '{sender}'; join again to take over"
        return ErrorPayload(error=errors.SUPERSEDED, message=text)

    def _quiet(self, draft: Draft, sender: ParticipantId, now: datetime) -> ErrorPayload | None:
        objection = self._controls.objection(draft, sender, now=now)
        if objection is None:
            return None
        return ErrorPayload(error=errors.PAUSED, message=objection, attempted_kind=draft.kind)

    def _refuse(
        self,
        payload: ErrorPayload,
        draft: Draft,
        sender: ParticipantId,
        connection: ConnectionId | None,
        *,
        now: datetime,
        decision: PermissionDecision | None = None,
    ) -> Receipt:
        """Tell the sender by the connection it used; one that used none hears it on those it has."""
        hearers = self.members.connections_of([sender]) if connection is None else (connection,)
        error = self._voice.complain(payload, sender, now=now, about=draft.id)
        return Receipt((Send(error, hearers),) if hearers else (), refused=payload, decision=decision)

    def _supersede(self, member: Member, participant: ParticipantId, *, now: datetime) -> list[Effect]:
        effects: list[Effect] = []
        for older in member.connections:
            payload = ErrorPayload(error=errors.SUPERSEDED, message=f"'{participant}' joined by a newer connection")
            effects += [Send(self._voice.complain(payload, participant, now=now), (older,)), Dismiss(older)]
        member.connections.clear()
        return effects

    def _no_room(self, member: Member | None, seat: Seat) -> str | None:
        limits = self._config.limits
        if member is None:
            full = len(self.members) >= limits.members
            return f"the space is full: {limits.members} members" if full else None
        if seat.several_connections and len(member.connections) >= limits.sockets_per_member:
            return f"you hold {limits.sockets_per_member} connections already"
        return None

    def _welcome(self, participant: ParticipantId, *, now: datetime) -> Envelope:
        payload = self.snapshot(now=now).welcome(participant, self._seats.of(participant).patterns)
        return self._voice.say(kinds.SYSTEM_WELCOME, payload, now=now, to=(participant,))

    def _gone(self, participant: ParticipantId, *, now: datetime) -> Broadcast:
        presence = {"event": "leave", "participant": {"id": participant}}
        return Broadcast(self._voice.say(kinds.SYSTEM_PRESENCE, presence, now=now))


def _heartbeat(seat: Seat) -> PermissionDecision:
    return PermissionDecision(seat, {"kind": kinds.SYSTEM_HEARTBEAT}, "implicit")
