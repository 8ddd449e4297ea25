"""[pure] One space: members, permissions, streams and the status board. Events in, effects out.

What connections do is a fact that holds at once. An envelope is decided first, which changes nothing; `apply` makes it
true once it is stored. Time and ids come in as arguments, and no method raises on what a client wrote.

Delivery: every accepted envelope goes to every member, its sender included, whatever `to` says. A refusal goes to the
sender alone.

Connections: a person may hold several at once, and is present from the first to the last. Any other participant holds
one: the newest, and the older one learns that it was superseded. A virtual connection (a log file) stands outside
this rule: it neither supersedes nor is superseded.

What the envelopes of one namespace do is decided in `membership_rules` and `streams`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.ids import GATEWAY, STREAM_GATEWAY, ParticipantId, SpaceId
from mew_protocol.payloads.capability import EndedRights
from mew_protocol.payloads.mcp import UndecidedProposals
from mew_protocol.payloads.participant import Board, Resume
from mew_protocol.payloads.system import Member, Presence
from mew_protocol.payloads.system import SystemError as ErrorPayload
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.admission import RateLimit, malformed
from mew_spaces.core.board import StatusBoard
from mew_spaces.core.effects import (
    NO_ANSWER,
    Admit,
    Broadcast,
    CloseConnection,
    ConnectionId,
    Deliver,
    Dismiss,
    Effect,
    Greet,
    Receipt,
    Relay,
    RevokeTokens,
    StateChanged,
    accept,
    refuse,
    state_changed,
)
from mew_spaces.core.events import gateway_of
from mew_spaces.core.membership import MemberConnections, Membership
from mew_spaces.core.membership_rules import MembershipRules
from mew_spaces.core.permissions import PermissionDecision, Permissions
from mew_spaces.core.state import Changes, SpaceState
from mew_spaces.core.streams import StreamRules
from mew_spaces.core.system_messages import NewId, SystemMessages

OWNER_GRACE = timedelta(seconds=5)
"""How long the streams and grants of a participant that left wait for it to come back."""

_KEPT_KINDS = frozenset({kinds.STREAM_REQUEST, kinds.CAPABILITY_GRANT, kinds.SPACE_INVITE})
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


class Space:
    """The state of one space and the rules that change it."""

    def __init__(
        self,
        config: SpaceConfig,
        *,
        new_id: NewId,
        new_token: NewId,
        clock: Callable[[], float],
        state: SpaceState | None = None,
    ) -> None:
        """`new_id` makes ids of the gateway's envelopes, `new_token` tokens of invited participants.

        `clock` reads seconds that only pass, for the rate limit.
        """
        self.id = SpaceId(config.space.id)
        self.name = config.space.name
        self.connection_url: str | None = None
        """The address that invited participants connect to."""
        self.state = SpaceState() if state is None else state
        self.membership = Membership(config, self.state)
        self.members = self.membership.connected
        self.board = StatusBoard(self.state)
        self._limits = config.limits
        self._facts = config.facts
        self._ignore_to = config.capabilities.ignore_to
        self._may_open = config.is_reference
        self.messages = SystemMessages(new_id)
        self._rate = RateLimit(
            per_second=config.limits.envelopes_per_second, burst=config.limits.envelope_burst, clock=clock
        )
        self.absent_since: dict[ParticipantId, datetime] = {}
        self.not_back_yet = {one.proposer for one in self.membership.undecided_proposals}
        """Proposers of an earlier process of the gateway; those that stay away do not wait for a decision."""
        self._streams = StreamRules(self.membership, self.messages, config)
        self._rules = MembershipRules(self, config, new_token)

    # Questions

    @property
    def names(self) -> tuple[str, ...]:
        """All participants: members in join order, others that may join, and others that sent a status."""
        names = dict.fromkeys([*self.members, *self.membership.names, *self.state.statuses])
        removed = self.state.removed
        return tuple(name for name in names if name not in removed)

    def describe(self, participant: str) -> dict[str, Any]:
        """Return a participant as others see it."""
        return {"id": participant, "capabilities": list(self.membership.permissions_of(participant).patterns)}

    def read_board(self, *, now: datetime) -> Board:
        """Return the last status of every participant, with its age."""
        entries = (self.board.entry(name, connected=name in self.members, now=now) for name in self.names)
        board = Board(space=self.id, at=wire_timestamp(now), participants=tuple(entries))
        return board if self.name is None else board.model_copy(update={"name": self.name})

    def proposals(self, *, now: datetime) -> UndecidedProposals:
        """Return the proposals that need a decision, each with the participants that may make the request."""
        may_fulfil = self.membership.may_fulfil
        described = [
            {**proposal.describe(now), "may_fulfil": may_fulfil(proposal)}
            for proposal in self.membership.undecided_proposals
        ]
        return UndecidedProposals.model_validate({"space": self.id, "at": wire_timestamp(now), "proposals": described})

    # Joining and leaving

    def join(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Let a participant in after its token was checked. A second join on a connection repeats the welcome."""
        member = self.members.get(participant)
        if member is not None and connection in member.sockets:
            return (Greet(participant, (connection,)),)
        permissions = self.membership.permissions_of(participant)
        problem = self._limit_reached(member, permissions)
        if problem:
            return self.reject_connection(connection, errors.LIMIT_EXCEEDED, problem, errors.CLOSE_LIMIT, now=now)
        effects = list(self._change(self.membership.end_shutdown(participant)))
        is_new = member is None or not member.sockets
        if member is None:
            member = self.members[participant] = MemberConnections()
        elif not permissions.several_connections:
            effects += self._supersede(member, participant, now=now)
            is_new = True
        member.sockets.append(connection)
        self.absent_since.pop(participant, None)
        # Admitted first: the welcome is a picture of the space, and what changes it from here on must arrive after it.
        effects += [Admit(connection), Greet(participant, (connection,))]
        if is_new:
            self.board.joined(participant, now=now, is_asked=not permissions.several_connections)
            joined = Member(id=participant, capabilities=permissions.patterns)
            presence = Presence(event="join", participant=joined)
            message = self.messages.compose(kinds.SYSTEM_PRESENCE, presence, now=now)
            effects.append(Broadcast(message, without=frozenset(member.sockets)))
        pause = self.membership.pause_of(participant, now=now)
        if pause is not None:  # a restarted program does not know it
            message = self.messages.compose(kinds.PARTICIPANT_PAUSE, pause, now=now, to=(participant,))
            effects.append(Deliver(message, (connection,)))
        return tuple(effects)

    def join_virtually(self, connection: ConnectionId, participant: ParticipantId) -> tuple[Effect, ...]:
        """Let a log file receive as a participant. The participant becomes a member; no presence is sent."""
        member = self.members.setdefault(participant, MemberConnections())
        if any(gateway_of(one) == gateway_of(connection) for one in member.logs):
            return ()
        member.logs.append(connection)
        return Admit(connection), Greet(participant, (connection,))

    def leave(self, connection: ConnectionId, participant: ParticipantId, *, now: datetime) -> tuple[Effect, ...]:
        """Handle a closed connection. One that was superseded or never joined changes nothing."""
        member = self.members.get(participant)
        if member is None or connection not in member.sockets:
            return ()
        member.sockets.remove(connection)
        if member.sockets:
            return (Dismiss(connection),)
        if not member.logs:
            del self.members[participant]
        self.board.requests.left(participant)
        # Its streams and grants stay for OWNER_GRACE: most who leave only reconnect (docs/reference/wire.md, row 14).
        self.absent_since[participant] = now
        return Dismiss(connection), self._left(participant, now=now)

    def leave_all(self, is_closed: Callable[[ConnectionId], bool], *, now: datetime) -> tuple[Effect, ...]:
        """Handle all closed connections of members at once."""
        for name, member in tuple(self.members.items()):
            member.logs = [one for one in member.logs if not is_closed(one)]
            if not member.all:
                del self.members[name]
        connections = [(one, name) for name, member in self.members.items() for one in member.sockets]
        closed = [(one, name) for one, name in connections if is_closed(one)]
        return tuple(effect for connection, name in closed for effect in self.leave(connection, name, now=now))

    def remove(
        self, participant: ParticipantId, *, now: datetime
    ) -> tuple[Changes, tuple[Effect, ...], tuple[EndedRights, ...]]:
        """Return how a participant is removed for good, with its connections, tokens, streams and rights to write.

        These are the changes, what follows them, and the rights of others that end with its own.
        """
        member = self.members.get(participant)
        effects: list[Effect] = []
        for connection in () if member is None else member.all:
            effects += [Dismiss(connection), CloseConnection(connection, errors.CLOSE_REMOVED, errors.REMOVED)]
        effects.append(RevokeTokens(participant))
        if member is not None:
            effects.append(self._left(participant, now=now))
        removed, ended = self.membership.remove(participant)
        changes = (*removed, *self.membership.close_proposals_of(participant))
        stream_changes, stream_effects = self._streams.end_streams_of(participant, now=now)
        return (*changes, *stream_changes), (*effects, *stream_effects), ended

    def reject_connection(
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
        """Send an error to a connection that may not join, then close it."""
        payload = ErrorPayload(error=error, message=message, retry_after_seconds=retry_after_seconds)
        envelope = self.messages.compose_error(payload, None, now=now, envelope_id=envelope_id)
        return Deliver(envelope, (connection,)), CloseConnection(connection, code, error)

    def expire(self, *, now: datetime) -> tuple[Effect, ...]:
        """End expired pauses, and the streams and grants of participants that did not come back."""
        for stream in self.state.streams.values():
            if stream.owner not in self.members:  # opened over HTTP: its owner may still join
                self.absent_since.setdefault(stream.owner, now)
        for proposer in sorted(self.not_back_yet - self.members.keys()):
            self.absent_since.setdefault(ParticipantId(proposer), now)
        self.not_back_yet.clear()
        expired = self.membership.expired_pauses(now=now)
        gone = [name for name, since in self.absent_since.items() if now - since >= OWNER_GRACE]
        changed = [*self._change((*self.membership.resume(expired), *self.membership.drop_grants(gone)))]
        effects: list[Effect] = [self._resumed(name, pause.envelope_id, now) for name, pause in expired.items()]
        for participant in gone:
            del self.absent_since[participant]
            changes, stream_effects = self._streams.end_streams_of(participant, now=now)
            changed += self._change((*self.membership.close_proposals_of(participant), *changes))
            effects += stream_effects
        return (*changed, *effects, *self._request_statuses(now))

    def _change(self, changes: Changes) -> tuple[Effect, ...]:
        """Apply the changes of a fact, and return the effect that stores them."""
        self.membership.apply(*changes)
        return state_changed(changes)

    def _request_statuses(self, now: datetime) -> Iterator[Deliver]:
        """Ask for the figures that are old, the participants alone: nobody else has to act on it."""
        for name in self.board.requests.take_due(self._may_report, now=now):
            request = self.messages.compose(kinds.PARTICIPANT_REQUEST_STATUS, {}, now=now, to=(name,))
            yield Deliver(request, self.membership.connections_of((name,)))

    def _may_report(self, participant: str) -> bool:
        """Return whether a participant may answer, and takes part in chats, which tools and bridges do not."""
        answer = Draft(kind=kinds.PARTICIPANT_STATUS, to=(GATEWAY,), payload={})
        return all(self.membership.may_send(participant, one) for one in (answer, Draft(kind=kinds.CHAT, payload={})))

    def _resumed(self, participant: str, pause_id: str | None, now: datetime) -> Broadcast:
        """Announce the end of a pause that timed out. Few agents have the capability `participant/resume`."""
        payload, about = Resume(reason="timeout"), (pause_id,) if pause_id else ()
        resume = self.messages.compose(
            kinds.PARTICIPANT_RESUME, payload, now=now, to=(participant,), correlation_id=about
        )
        return Broadcast(resume)

    @property
    def waits_for_time(self) -> bool:
        """Whether `expire` may have something to do later if nothing else happens."""
        is_owner_absent = any(stream.owner not in self.members for stream in self.state.streams.values())
        is_pause_limited = any(pause.until is not None for pause in self.state.pauses.values())
        is_asking = self.board.requests.is_waiting
        return bool(self.absent_since or self.not_back_yet or is_owner_absent or is_pause_limited or is_asking)

    def shift_deadlines(self, by: timedelta) -> tuple[Effect, ...]:
        """Shift every deadline: the wall clock was set by this much."""
        self.absent_since = {name: since + by for name, since in self.absent_since.items()}
        self.board.shift(by)
        return self._change(self.membership.shift_pauses(by))

    # Envelopes and stream frames

    def check(
        self, draft: Draft, *, sender: ParticipantId, now: datetime, connection: ConnectionId | None = None
    ) -> Receipt | None:
        """Return the refusal of an envelope that is above the rate limit or malformed; no shared state decides that."""
        refused = self._above_rate_limit(sender) or malformed(draft, sender, self._limits.name_chars, self._may_open)
        return None if refused is None else self.refuse(refused, draft, sender, connection, now=now)

    def decide(
        self, draft: Draft, *, sender: ParticipantId, now: datetime, connection: ConnectionId | None = None
    ) -> Receipt:
        """Decide an envelope that `check` let pass, from one of its sender's connections or, without one, from HTTP.

        Changes nothing: `apply` does, once the envelope is stored.
        """
        # Between two broadcasts, the kernel's work for each socket empties the CPU's caches. What the usual envelope
        # costs here is mostly the number of functions it goes through.
        refused = None if connection is None else self._superseded(sender, connection)
        if refused is None and (self.state.pauses or self.state.shut_down):
            refused = self._silenced(draft, sender, now)
        if refused is not None:
            return self.refuse(refused, draft, sender, connection, now=now)
        kind = draft.kind or ""
        permissions = self.membership.permissions_of(sender)
        if kind == kinds.SYSTEM_HEARTBEAT:
            allowed = PermissionDecision(permissions, {"kind": kind}, "implicit")
            return Receipt((), accepted=self._complete(draft, sender, now), decision=allowed)
        decision = permissions.decide(draft, ignore_to=self._ignore_to)
        if decision.matched is None or (kind == kinds.STREAM_OPEN and decision.matched["kind"] in ("*", "**")):
            violation = ErrorPayload(
                error=errors.CAPABILITY_VIOLATION,
                message=f"no capability of '{sender}' allows this {kind}",
                attempted_kind=kind,
                your_capabilities=permissions.patterns,
            )
            return self.refuse(violation, draft, sender, connection, now=now, decision=decision)
        envelope = draft if isinstance(draft, Envelope) else self._complete(draft, sender, now)
        receipt = None if kind in ONLY_PASSED_ON else self._handle(envelope, connection, now)
        if receipt is None:
            return Receipt((Broadcast(envelope),), envelope, None, NO_ANSWER, decision)
        if receipt.refused is not None and not receipt.effects:
            refused_receipt = self.refuse(receipt.refused, draft, sender, connection, now=now, decision=decision)
            return refused_receipt._replace(answer=receipt.answer)
        return receipt._replace(decision=decision)

    def apply(self, receipt: Receipt, *, now: datetime) -> tuple[Effect, ...]:
        """Make the decision about a stored envelope true. Returns further effects that follow from it."""
        envelope = receipt.accepted
        if envelope is None:
            return ()
        kind = envelope.kind
        if kind == kinds.CHAT:
            self.board.chatted(envelope, now=now)
        elif kind in ONLY_PASSED_ON:
            if kind == kinds.REASONING_START or envelope.body.get("status") == "processing":
                self.board.worked(envelope.sender, now=now)
        else:
            for effect in receipt.effects:
                if isinstance(effect, StateChanged):
                    self.membership.apply(*effect.changes)
                elif isinstance(effect, RevokeTokens):
                    self.members.pop(effect.participant, None)
                    self.absent_since.pop(effect.participant, None)
                    self.board.requests.left(effect.participant)
            if kind == kinds.PARTICIPANT_STATUS:
                reported = self.state.statuses.get(envelope.sender)
                is_kept = reported is not None and reported.envelope_id == envelope.id and len(receipt.effects) > 1
                self.board.follow(envelope, reported if is_kept else None)
            elif kind == kinds.MCP_PROPOSAL:
                return state_changed(self.membership.apply_surplus())
        return ()

    def relay(
        self, frame: StreamFrame, *, sender: ParticipantId, connection: ConnectionId, now: datetime
    ) -> tuple[Effect, ...]:
        """Handle a stream frame of a member."""
        refused = self._above_rate_limit(sender) or self._superseded(sender, connection)
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

    def _complete(self, draft: Draft, sender: ParticipantId, now: datetime) -> Envelope:
        return Envelope.complete(
            draft, id=draft.id or self.messages.new_id(), ts=draft.ts or wire_timestamp(now), sender=sender
        )

    def _handle(self, envelope: Envelope, connection: ConnectionId | None, now: datetime) -> Receipt | None:
        """Decide an envelope that concerns the gateway itself. None: the envelope is only passed on."""
        if envelope.kind in _KEPT_KINDS and self._is_too_large_to_keep(envelope):
            text = f"{envelope.kind}: the payload is larger than {self._limits.kept_payload_bytes:,} bytes"
            return refuse(errors.LIMIT_EXCEEDED, text)
        if envelope.kind.startswith("stream/"):
            return self._streams.receive(envelope, now=now)
        if envelope.kind == kinds.PARTICIPANT_STATUS:
            return self._handle_status(envelope, now)
        return self._rules.receive(envelope, reply_to=self._reply_to(envelope.sender, connection), now=now)

    def _handle_status(self, envelope: Envelope, now: datetime) -> Receipt | None:
        if self._is_too_large_to_keep(envelope):
            return None  # passed on like any envelope: its size is within the limit, only the board cannot hold it
        try:
            change = self.board.read(envelope, at=now)
        except PayloadError as error:
            # Without figures it is not misleading: simple clients say only what they do.
            has_figures = not {"tokens", "max_tokens", "messages_in_context", "context"}.isdisjoint(envelope.body)
            return refuse(errors.INVALID_PAYLOAD, str(error), code=errors.VALIDATION_ERROR) if has_figures else None
        return None if change is None else accept(envelope, StateChanged((change,)))

    def _is_too_large_to_keep(self, envelope: Envelope) -> bool:
        return len(to_json(envelope.payload)) > self._limits.kept_payload_bytes

    def _superseded(self, sender: ParticipantId, connection: ConnectionId) -> ErrorPayload | None:
        """Refuse to let a connection send after a newer one of its participant joined."""
        member = self.members.get(sender)
        if member is not None and connection in member.sockets:
            return None
        text = f"a newer connection of '{sender}' replaced this one; join again to take over"
        return ErrorPayload(error=errors.SUPERSEDED, message=text)

    def _above_rate_limit(self, sender: ParticipantId) -> ErrorPayload | None:
        # Before anything else, so that refused envelopes count: a client in an error loop is slowed down, too.
        if self._rate.try_spend(sender):
            return None
        text = f"'{sender}' may send {self._limits.envelopes_per_second:,g} envelopes and frames per second"
        return ErrorPayload(error=errors.RATE_LIMITED, message=f"{text}; this one was dropped, send it again later")

    def _silenced(self, draft: Draft, sender: ParticipantId, now: datetime) -> ErrorPayload | None:
        reason = self.membership.silenced_because(draft, sender, now=now)
        return None if reason is None else ErrorPayload(error=errors.PAUSED, message=reason, attempted_kind=draft.kind)

    def _reply_to(self, sender: str, connection: ConnectionId | None) -> tuple[ConnectionId, ...]:
        """Return the connection that was used, else (over HTTP) all connections of the sender."""
        return self.membership.connections_of((sender,)) if connection is None else (connection,)

    def refuse(
        self,
        payload: ErrorPayload,
        draft: Draft,
        sender: ParticipantId,
        connection: ConnectionId | None,
        *,
        now: datetime,
        decision: PermissionDecision | None = None,
    ) -> Receipt:
        """Return the refusal of an envelope. Its error goes to the connection it came by, else to all of the sender."""
        reply_to = self._reply_to(sender, connection)
        error = self.messages.compose_error(payload, sender, now=now, envelope_id=draft.id)
        return Receipt((Deliver(error, reply_to),) if reply_to else (), refused=payload, decision=decision)

    def _supersede(self, member: MemberConnections, participant: ParticipantId, *, now: datetime) -> list[Effect]:
        # Informed but not closed: TypeScript clients reconnect whenever they are closed, and two programs with one id
        # would replace each other for ever.
        effects: list[Effect] = []
        payload = ErrorPayload(error=errors.SUPERSEDED, message=f"'{participant}' joined with a newer connection")
        for older in member.sockets:
            message = self.messages.compose_error(payload, participant, now=now)
            effects += [Deliver(message, (older,)), Dismiss(older)]
        member.sockets.clear()
        return effects

    def _limit_reached(self, member: MemberConnections | None, permissions: Permissions) -> str | None:
        limits = self._limits
        if member is None:
            return f"the space is full: {limits.members} members" if len(self.members) >= limits.members else None
        if permissions.several_connections and len(member.sockets) >= limits.sockets_per_member:
            return f"you already have {limits.sockets_per_member} connections, which is the limit; close one first"
        return None

    def welcome(self, greet: Greet, *, now: datetime) -> Deliver:
        """Tell connections of a participant how the space is."""
        participant = greet.participant
        # Written without models: when all members of a large space return at once, each of them gets all others.
        others = (name for name in self.members if name != participant)
        statuses = self.state.statuses
        entries = (
            self.board.entry_json(name, connected=name in self.members, now=now)
            for name in self.names
            if name in statuses
        )
        payload = {
            "you": self.describe(participant),
            "participants": [self.describe(name) for name in others],
            "active_streams": [stream.describe() for stream in self.state.streams.values()],
            "board": [entry for entry in entries if entry is not None],
        }
        if proposals := self.membership.undecided_proposals:
            payload["proposals"] = [one.describe(now) for one in proposals]
        if self._facts:
            payload["space"] = self._facts
        message = self.messages.compose(kinds.SYSTEM_WELCOME, payload, now=now, to=(participant,))
        return Deliver(message, greet.connections)

    def _left(self, participant: ParticipantId, *, now: datetime) -> Broadcast:
        presence = {"event": "leave", "participant": {"id": participant}}
        return Broadcast(self.messages.compose(kinds.SYSTEM_PRESENCE, presence, now=now))
