"""[pure] The members of a space: connections that join and leave, and the departure of absent participants.

These are facts, and take effect at once. A person may have several connections, and is present from the first to the
last. Other participants have one: a newer connection supersedes the older, which is notified. A virtual connection (a
log file) is exempt: it neither supersedes nor is superseded.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from mew_listener.bounded_dict import BoundedDict
from mew_protocol import errors, kinds
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import GATEWAY, ParticipantId
from mew_protocol.payloads.capability import EndedRights
from mew_protocol.payloads.mcp import WithdrawalCause
from mew_protocol.payloads.participant import Resume
from mew_protocol.payloads.system import ErrorPayload, Member, Presence

from mew_spaces.config.settings import Limits
from mew_spaces.core.effects import (
    Broadcast,
    CloseConnection,
    Deliver,
    Effect,
    RevokeTokens,
    SendWelcome,
    StartDelivery,
    StopDelivery,
    state_changed,
)
from mew_spaces.core.events import ConnectionId, ConnectionJoins, gateway_of
from mew_spaces.core.membership import MemberConnections, Membership, Permissions
from mew_spaces.core.state import Changes
from mew_spaces.core.status_board import StatusBoard
from mew_spaces.core.streams import StreamRules
from mew_spaces.core.system_messages import SystemMessages

OWNER_GRACE = timedelta(seconds=5)
"""How long the streams, grants and proposals of a participant that left wait for it to come back."""

OVERTAKEN_SECONDS = 1.0
"""When a client is to try again after a join that may be older than another connection of its participant."""

REMEMBERED_REVOCATIONS = 1_000
"""How many revocations are remembered: a join with a token checked earlier follows within a few batches."""

REFUSED_TOKEN = "the gateway refused this token"  # noqa: S105 - a sentence


class ConnectionRules:
    """The rules of joining and leaving one space."""

    def __init__(
        self, membership: Membership, board: StatusBoard, streams: StreamRules, messages: SystemMessages, limits: Limits
    ) -> None:
        self._membership = membership
        self._members = membership.connected
        self._messages = messages
        self._board = board
        self._streams = streams
        self._limits = limits
        self.absent_since: dict[ParticipantId, datetime] = {}
        self.not_back_yet: set[str] = set()
        """Proposers of an earlier process of the gateway; those that stay away do not wait for a decision."""
        self.joined: dict[ParticipantId, int] = {}
        """In which batch the newest connection of each member joined."""
        self.revoked: BoundedDict[ParticipantId, int] = BoundedDict(REMEMBERED_REVOCATIONS)
        """In which batch the tokens of a participant were revoked, the newest last."""

    # Joining

    def is_revoked(self, participant: ParticipantId, checked_at: int) -> bool:
        """Return whether the tokens of a participant were revoked after the batch of a check."""
        return self.revoked.get(participant, -1) > checked_at

    def join(self, event: ConnectionJoins, batch: int, *, now: datetime) -> tuple[Effect, ...]:
        """Admit a participant whose token was checked. A second join on a connection repeats the welcome."""
        connection, participant, checked_at = event
        if self.is_revoked(participant, checked_at):
            return self.reject(connection, errors.UNAUTHORIZED, REFUSED_TOKEN, errors.CLOSE_UNAUTHORIZED, now=now)
        if self._is_overtaken(connection, participant, checked_at):
            text = "another connection joined meanwhile; try again"
            return self.reject(connection, errors.NOT_STORED, text, errors.CLOSE_LIMIT, OVERTAKEN_SECONDS, now=now)
        self.joined[participant] = batch
        member = self._members.get(participant)
        if member is not None and connection in member.sockets:
            return (SendWelcome(participant, (connection,)),)
        permissions = self._membership.permissions_of(participant)
        problem = self._limit_reached(member, permissions)
        if problem:
            return self.reject(connection, errors.LIMIT_EXCEEDED, problem, errors.CLOSE_LIMIT, now=now)
        return self._enter(connection, participant, member, permissions, now)

    def _enter(
        self,
        connection: ConnectionId,
        participant: ParticipantId,
        member: MemberConnections | None,
        permissions: Permissions,
        now: datetime,
    ) -> tuple[Effect, ...]:
        effects = list(self._change(self._membership.end_shutdown(participant)))
        is_new = member is None or not member.sockets
        if member is None:
            member = self._members[participant] = MemberConnections()
        elif not permissions.several_connections:
            effects += self._supersede(member, participant, now=now)
            is_new = True
        member.sockets.append(connection)
        self.absent_since.pop(participant, None)
        # Delivery starts first: the welcome describes the space, and all later changes must arrive after it.
        effects += [StartDelivery(connection), SendWelcome(participant, (connection,))]
        if is_new:
            self._board.joined(participant, now=now, is_asked=not permissions.several_connections)
            joined = Member(id=participant, capabilities=permissions.patterns)
            presence = Presence(event="join", participant=joined)
            message = self._messages.compose(kinds.SYSTEM_PRESENCE, presence, now=now)
            effects.append(Broadcast(message, without=frozenset(member.sockets)))
        pause = self._membership.pause_of(participant, now=now)
        if pause is not None:  # a restarted program does not know that it is paused
            message = self._messages.compose(kinds.PARTICIPANT_PAUSE, pause, now=now, to=(participant,))
            effects.append(Deliver(message, (connection,)))
        return tuple(effects)

    def join_virtually(self, connection: ConnectionId, participant: ParticipantId) -> tuple[Effect, ...]:
        """Connect a log file as a receiver for a participant, which becomes a member. Sends no presence."""
        member = self._members.setdefault(participant, MemberConnections())
        if any(gateway_of(one) == gateway_of(connection) for one in member.logs):
            return ()
        member.logs.append(connection)
        return StartDelivery(connection), SendWelcome(participant, (connection,))

    def reject(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        code: int,
        retry_after_seconds: float | None = None,
        envelope_id: str | None = None,
        *,
        now: datetime,
    ) -> tuple[Effect, ...]:
        """Send an error to a refused connection, then close it."""
        payload = ErrorPayload(error=error, message=message, retry_after_seconds=retry_after_seconds)
        envelope = self._messages.compose_error(payload, None, now=now, envelope_id=envelope_id)
        return Deliver(envelope, (connection,)), CloseConnection(connection, code, error)

    def _is_overtaken(self, connection: ConnectionId, participant: ParticipantId, checked_at: int) -> bool:
        """Return whether a join may be older than the participant's newest connection, on another gateway.

        A client may have moved after sending a join that was stored late.
        """
        member = self._members.get(participant)
        if member is None or not member.sockets or self._membership.permissions_of(participant).several_connections:
            return False
        is_elsewhere = gateway_of(member.sockets[-1]) != gateway_of(connection)
        return is_elsewhere and self.joined.get(participant, 0) > checked_at

    def _limit_reached(self, member: MemberConnections | None, permissions: Permissions) -> str | None:
        limits = self._limits
        if member is None:
            return f"the space is full: {limits.members} members" if len(self._members) >= limits.members else None
        if permissions.several_connections and len(member.sockets) >= limits.sockets_per_member:
            return f"you already have {limits.sockets_per_member} connections, which is the limit; close one first"
        return None

    def _supersede(self, member: MemberConnections, participant: ParticipantId, *, now: datetime) -> list[Effect]:
        # Notify the old connection, but keep it open: TypeScript clients always reconnect after a close, and two
        # programs with one id would replace each other forever.
        effects: list[Effect] = []
        payload = ErrorPayload(error=errors.SUPERSEDED, message=f"'{participant}' joined with a newer connection")
        for older in member.sockets:
            message = self._messages.compose_error(payload, participant, now=now)
            effects += [Deliver(message, (older,)), StopDelivery(older)]
        member.sockets.clear()
        return effects

    # Leaving

    def leave(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Handle a closed connection. A superseded or never joined one changes nothing."""
        member = self._members.get(participant)
        if member is None or connection not in member.sockets:
            return ()
        member.sockets.remove(connection)
        if member.sockets:
            return (StopDelivery(connection),)
        if not member.logs:
            del self._members[participant]
            self.joined.pop(participant, None)
        self._board.left(participant)
        # Keep its streams and grants for OWNER_GRACE: most participants that leave only reconnect
        # (docs/reference/wire.md, row 14).
        self.absent_since[participant] = now
        return StopDelivery(connection), self._left(participant, now=now)

    def leave_all(self, is_closed: Callable[[ConnectionId], bool], *, now: datetime) -> tuple[Effect, ...]:
        """Handle all closed connections of members at once."""
        closed: list[tuple[ConnectionId, ParticipantId]] = []
        for name, member in tuple(self._members.items()):
            member.logs = [one for one in member.logs if not is_closed(one)]
            closed += [(one, name) for one in member.sockets if is_closed(one)]
            if not member.all:
                del self._members[name]
                self.joined.pop(name, None)
        return tuple(effect for connection, name in closed for effect in self.leave(connection, name, now=now))

    def remove(
        self, participant: ParticipantId, *, now: datetime
    ) -> tuple[Changes, tuple[Effect, ...], tuple[EndedRights, ...]]:
        """Return the removal of a participant with its connections, tokens, streams and rights to write.

        Returns the changes, their effects, and the rights of others that end with it.
        """
        member = self._members.get(participant)
        effects: list[Effect] = []
        for connection in () if member is None else member.all:
            effects += [StopDelivery(connection), CloseConnection(connection, errors.CLOSE_REMOVED, errors.REMOVED)]
        effects.append(RevokeTokens(participant))
        if member is not None:
            effects.append(self._left(participant, now=now))
        removed, ended = self._membership.remove(participant)
        changes, closing = self._close_all_of(participant, now=now)
        rejected, withdrawn = self.close_rejected(removed, now=now)
        return (*removed, *rejected, *changes), (*effects, *withdrawn, *closing), ended

    def close_rejected(self, changes: Changes, *, now: datetime) -> tuple[Changes, tuple[Effect, ...]]:
        """Close proposals that all who may fulfil them have rejected. Returns the changes and the announcement.

        `changes` are changes of rights that are not applied yet.
        """
        after = self._membership.after(changes).proposals if changes else self._membership.proposals
        closed = self._membership.proposals.close_rejected(after)
        return closed, self._withdraw(closed, "all_rejected", now=now)

    def _withdraw(self, closed: Changes, cause: WithdrawalCause, *, now: datetime) -> tuple[Effect, ...]:
        names = tuple(one.key for one in closed)
        return (Broadcast(self._messages.withdraw(names, cause, now=now)),) if names else ()

    def removed(self, participant: ParticipantId, batch: int) -> None:
        """Forget a removed participant and its tokens."""
        self.revoked[participant] = batch
        self._members.pop(participant, None)
        self.absent_since.pop(participant, None)
        self.joined.pop(participant, None)
        self._board.removed(participant)

    def _left(self, participant: ParticipantId, *, now: datetime) -> Broadcast:
        presence = {"event": "leave", "participant": {"id": participant}}
        return Broadcast(self._messages.compose(kinds.SYSTEM_PRESENCE, presence, now=now))

    def _close_all_of(self, participant: ParticipantId, *, now: datetime) -> tuple[Changes, tuple[Effect, ...]]:
        """Return the changes and announcements that close a participant's proposals and streams."""
        closed = self._membership.proposals.close_of(participant)
        changes, effects = self._streams.end_streams_of(participant, now=now)
        return (*closed, *changes), (*self._withdraw(closed, "proposer_left", now=now), *effects)

    # Time

    def expire(self, *, now: datetime) -> tuple[Effect, ...]:
        """End expired pauses, and the streams and grants of participants that did not return."""
        for stream in self._membership.state.streams.values():
            if stream.owner not in self._members:  # opened over HTTP: the owner may still join
                self.absent_since.setdefault(stream.owner, now)
        for proposer in sorted(self.not_back_yet - self._members.keys()):
            self.absent_since.setdefault(ParticipantId(proposer), now)
        self.not_back_yet.clear()
        expired = self._membership.expired_pauses(now=now)
        gone = [name for name, since in self.absent_since.items() if now - since >= OWNER_GRACE]
        changed = [*self._change((*self._membership.resume(expired), *self._membership.drop_grants(gone)))]
        effects: list[Effect] = [self._resumed(name, pause.envelope_id, now) for name, pause in expired.items()]
        for participant in gone:
            del self.absent_since[participant]
            changes, closing = self._close_all_of(participant, now=now)
            changed += self._change(changes)
            effects += closing
        if gone:
            changes, withdrawn = self.close_rejected((), now=now)
            changed += self._change(changes)
            effects += withdrawn
        return (*changed, *effects, *self._request_statuses(now))

    @property
    def waits_for_time(self) -> bool:
        """Whether `expire` has future work without further events."""
        state = self._membership.state
        is_owner_absent = any(stream.owner not in self._members for stream in state.streams.values())
        is_pause_limited = any(pause.until is not None for pause in state.pauses.values())
        is_asking = self._board.requests.is_waiting
        return bool(self.absent_since or self.not_back_yet or is_owner_absent or is_pause_limited or is_asking)

    def shift_deadlines(self, by: timedelta) -> tuple[Effect, ...]:
        """Shift every deadline by a jump of the wall clock."""
        self.absent_since = {name: since + by for name, since in self.absent_since.items()}
        self._board.shift(by)
        return self._change(self._membership.shift_pauses(by))

    def _change(self, changes: Changes) -> tuple[Effect, ...]:
        """Apply the changes of a fact, and return the effect that stores them."""
        self._membership.apply(*changes)
        return state_changed(changes)

    def _request_statuses(self, now: datetime) -> Iterator[Deliver]:
        """Request outdated figures, from their participants only."""
        for name in self._board.requests.take_due(self._may_report, now=now):
            request = self._messages.compose(kinds.PARTICIPANT_REQUEST_STATUS, {}, now=now, to=(name,))
            yield Deliver(request, self._membership.connections_of((name,)))

    def _may_report(self, participant: str) -> bool:
        """Return whether a participant may answer and takes part in chats (tools and bridges do not)."""
        answer = Draft(kind=kinds.PARTICIPANT_STATUS, to=(GATEWAY,), payload={})
        return all(self._membership.may_send(participant, one) for one in (answer, Draft(kind=kinds.CHAT, payload={})))

    def _resumed(self, participant: str, pause_id: str | None, now: datetime) -> Broadcast:
        """Announce the end of a pause that timed out, because few agents may send `participant/resume`."""
        resume: Envelope = self._messages.compose(
            kinds.PARTICIPANT_RESUME,
            Resume(reason="timeout"),
            now=now,
            to=(participant,),
            correlation_id=(pause_id,) if pause_id else (),
        )
        return Broadcast(resume)
