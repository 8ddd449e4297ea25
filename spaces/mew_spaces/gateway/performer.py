"""Performs the effects of one space: writes to connections, and admits, dismisses and closes them.

Owns the space's connections: their channels and participants. Decides nothing, and performs only stored effects.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_never

from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.ids import ParticipantId

from mew_spaces.core.effects import (
    AddToken,
    AuditNote,
    Broadcast,
    CloseConnection,
    Deliver,
    Effect,
    Relay,
    RevokeTokens,
    SendWelcome,
    StartDelivery,
    StateChanged,
    StopDelivery,
)
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.space_core import SpaceCore
from mew_spaces.core.state import ReportedStatus
from mew_spaces.gateway.audit import AuditLog
from mew_spaces.gateway.delivery import DeliverySessions, numbered
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.outbound import Fanout, OutboundChannel, frame_json, frame_message
from mew_spaces.log.figure_store import FigureStore
from mew_spaces.log.memory import SpaceLog

log = logging.getLogger("mew_spaces")

FrameReader = Callable[[StreamFrame, AbstractSet[ParticipantId] | None], None]
"""Receives a frame and the members it is for, None for all."""


@dataclass(eq=False)
class EffectPerformer:
    """Performs effects in order. `audit` None: nothing is logged."""

    space: SpaceCore
    log: SpaceLog
    fanout: Fanout
    sessions: DeliverySessions
    store: MembershipStore
    audit: AuditLog | None
    clock: Callable[[], datetime]
    figures: FigureStore
    channels: dict[ConnectionId, OutboundChannel] = field(default_factory=dict)
    owners: dict[ConnectionId, ParticipantId] = field(default_factory=dict)
    """The participant of each connection that has joined."""
    virtual: dict[ParticipantId, ConnectionId] = field(default_factory=dict)
    """The connections to log files; they end with their participant, not with its token."""
    frame_readers: set[FrameReader] = field(default_factory=set)
    """Readers without a connection that receive the frames of streams."""

    def perform(
        self,
        effects: Iterable[Effect],
        numbered: Iterable[tuple[bytes, int | None]] = (),
        *,
        is_logged: bool = True,
    ) -> None:
        """Perform effects in order, with these bytes and numbers for broadcasts (None: not stored).

        `is_logged`: write their lines to this gateway's audit log.
        """
        broadcasts, audit = iter(numbered), self.audit if is_logged else None
        for effect in effects:
            match effect:
                case Broadcast():
                    data, sequence = next(broadcasts)
                    self.write_broadcast(effect, data, sequence)
                    if audit is not None:
                        self._log_broadcast(audit, effect, data)
                case Deliver():
                    self._deliver(effect, audit)
                case SendWelcome(_, connections):
                    if not self.channels.keys().isdisjoint(connections):
                        self._deliver(self.space.welcome(effect, now=self.clock()), audit)
                case Relay():
                    self._relay(effect)
                case StartDelivery() | StopDelivery() | CloseConnection():
                    self._change_connection(effect)
                case AuditNote():
                    log.info("%s: %s, by %s", effect.event, effect.participant, effect.envelope.sender)
                    if audit is not None:
                        audit.log_permission_change(effect, now=self.clock())
                case StateChanged() | AddToken() | RevokeTokens():
                    self._change_membership(effect)
                case _:
                    assert_never(effect)

    def _deliver(self, effect: Deliver, audit: AuditLog | None) -> None:
        envelope, connections, is_secret = effect.envelope, effect.connections, effect.is_secret
        if self.channels.keys().isdisjoint(connections):
            return  # another gateway's connection, or a closed one
        data = self.sessions.welcome(connections, envelope).encode()
        self.send(frame_json(data), connections)
        if audit is not None and not is_secret:
            names = dict.fromkeys(self.owners[one] for one in connections if one in self.owners)
            about = {"type": envelope.kind}
            audit.log_delivered(envelope, data, tuple(names), now=self.clock(), metadata=about)

    def _relay(self, effect: Relay) -> None:
        frame, connections = effect
        self.sessions.frames.counts[frame.stream_id] += 1
        framed = frame_message(frame.raw)
        if connections is None:
            self.fanout.write_to_all(framed)
        else:
            self.fanout.write_to(framed, connections)
        if self.frame_readers:
            owners = self.owners
            known = {owners[one] for one in connections or () if one in owners}
            recipients = None if connections is None else known
            for receive in tuple(self.frame_readers):
                receive(frame, recipients)

    def write_broadcast(self, effect: Broadcast, data: bytes, sequence: int | None) -> None:
        """Write a broadcast with the bytes `data` to the members; `sequence` is None if storing failed."""
        envelope, fanout = effect.envelope, self.fanout
        without: Collection[ConnectionId] = effect.without
        counted = frame_json(numbered(data, sequence)) if fanout.numbered and sequence is not None else None
        kind = envelope.kind
        if kind == kinds.SYSTEM_PRESENCE:
            presences = self.sessions.presences
            if presences.collects(is_replaying=bool(self.sessions.replaying)):
                presences.add(envelope.body, without=without)
                without = effect.without | presences.connections
        fanout.write_to_all(frame_json(data), numbered=counted, without=without)
        if kind == kinds.PARTICIPANT_HISTORY:
            self.figures.observe_summary(envelope.sender, envelope.body)
        elif kind == kinds.PARTICIPANT_COMPACT_DONE and envelope.to:
            self.figures.observe_answer(envelope.sender, envelope.to[0], envelope.body)

    def _log_broadcast(self, audit: AuditLog, effect: Broadcast, data: bytes) -> None:
        names: Collection[ParticipantId] = self.space.members
        if effect.without:
            left_out = {self.owners[one] for one in effect.without if one in self.owners}
            names = [name for name in names if name not in left_out]
        recipients = tuple(names) if len(names) <= audit.max_named_recipients else len(names)
        about = {"source_participant": effect.envelope.sender}
        audit.log_delivered(effect.envelope, data, recipients, now=self.clock(), metadata=about)

    def close_all(self, participant: ParticipantId, code: int, reason: str) -> None:
        """Close the connections of a participant, except to its log file."""
        kept = self.virtual.get(participant)
        for connection in [one for one, owner in self.owners.items() if owner == participant and one != kept]:
            self._change_connection(CloseConnection(connection, code, reason))

    def send(self, framed: bytes, connections: Iterable[ConnectionId]) -> None:
        """Write a framed message to connections that may not have joined."""
        self.fanout.flush()  # broadcasts that wait in the fanout came first
        for connection in connections:
            channel = self.channels.get(connection)
            if channel is not None and channel.is_open:
                channel.write(framed)

    def _change_connection(self, effect: StartDelivery | StopDelivery | CloseConnection) -> None:
        channel = self.channels.get(effect.connection)
        match effect:
            case StartDelivery(connection):
                if channel is not None:
                    self.sessions.admit(connection, channel)
            case StopDelivery(connection):
                self.fanout.remove(connection)
                self.sessions.pause(connection)
            case CloseConnection(_, code, reason):
                if channel is not None:
                    self.fanout.flush()
                    channel.close(code, reason)
            case _:
                assert_never(effect)

    def _change_membership(self, effect: StateChanged | AddToken | RevokeTokens) -> None:
        match effect:
            case StateChanged(changes):
                self.sessions.frames.follow(changes, self.log.staged_through)
                for change in changes:
                    if isinstance(change.value, ReportedStatus):
                        self.figures.waiting[change.key] = change.value
            case AddToken(participant, token):
                self.store.add_token(participant, token)
            case RevokeTokens(participant):
                self.store.revoke_tokens(participant)
                file = self.virtual.pop(participant, None)
                # Superseded sockets, too: the core has forgotten them.
                self.close_all(participant, errors.CLOSE_REMOVED, errors.REMOVED)
                if file is not None:  # the server reports the close of a socket
                    del self.owners[file], self.channels[file]
            case _:
                assert_never(effect)
