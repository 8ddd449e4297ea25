"""Where spaces meet connections: events in, effects performed at once and in order.

Owns one room per space (its state, its history, its channels), the numbers of connections, and the clock and ids it
hands to the pure core. Nothing here waits: an envelope is decided and written to everybody before the next one is
looked at, so everybody sees one order. Knows no socket and no HTTP.
"""

import logging
import secrets
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.timestamp import wire_timestamp

from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.effects import (
    Admit,
    Broadcast,
    Close,
    ConnectionId,
    Dismiss,
    Effect,
    Enrol,
    Expel,
    Note,
    Receipt,
    Relay,
    Send,
)
from mew_spaces.core.roster import Roster
from mew_spaces.core.snapshot import Snapshot
from mew_spaces.core.space import Space
from mew_spaces.core.system_messages import NewId
from mew_spaces.gateway.audit import AuditLog, Recipients, Transport
from mew_spaces.gateway.auth import TOKEN_BYTES, TokenBook, space_folder
from mew_spaces.gateway.delivery import AcceptedEnvelopes, DeliverySessions, numbered
from mew_spaces.gateway.delivery import receipt as receipt_envelope
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.outbound import Fanout, OutboundChannel, frame_json, frame_message
from mew_spaces.gateway.outbox import Item, NumberedBroadcast, Outbox
from mew_spaces.gateway.token_registry import Register
from mew_spaces.gateway.virtual import FileChannel
from mew_spaces.log.interface import Bounds, Position, SpaceLog
from mew_spaces.log.memory import MemoryLog

Clock = Callable[[], datetime]

log = logging.getLogger("spaces")


def now_utc() -> datetime:
    """The wall clock, with its zone."""
    return datetime.now(UTC)


def new_uuid() -> str:
    """A fresh id."""
    return str(uuid.uuid4())


def new_random_token() -> str:
    """A fresh token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


NOT_STORED_MESSAGE = "the gateway could not store this envelope, so nobody got it; send it again later"


class SpaceService:
    """One space and all connections to it."""

    def __init__(
        self,
        config: SpaceConfig,
        tokens: TokenBook,
        *,
        clock: Clock = now_utc,
        new_id: NewId = new_uuid,
        new_token: NewId = new_random_token,
        epoch: str | None = None,
        space_log: SpaceLog | None = None,
        state: Path | None = None,
        writer: LogWriter | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`space_log` holds the envelopes; without it they are in memory, under `epoch` or a fresh one.

        `state` is where invitations and removals are kept; without it they last as long as this run. Paths in the
        configuration start from the folder that it belongs to, without it from the working folder. Without a
        `writer` there are no virtual participants. Raises `SpacesError` for a state that cannot be read.
        """
        self.config = config
        self.tokens = tokens
        self._register = Register(config, tokens, state)
        self.space = Space(config, new_id=new_id, new_token=new_token, roster=self._register.roster)
        self._folder = Path() if state is None else space_folder(state)
        self._audit = audit
        self._writer = writer
        bounds = Bounds(config.limits.history_envelopes, config.limits.history_bytes)
        self.log = space_log or MemoryLog(epoch=epoch or secrets.token_hex(4), bounds=bounds)
        self.started_at = clock()
        self._clock = clock
        self._new_id = new_id
        self._fanout = Fanout()
        self._sessions = DeliverySessions(self.log, self._fanout, self._notify_session)
        self._outbox = Outbox(
            self.log, perform=self._do, refuse=self._refuse_unstored, performed=self._finish_performing
        )
        self._accepted = AcceptedEnvelopes(self.log)
        self._channels: dict[ConnectionId, OutboundChannel] = {}
        self._owners: dict[ConnectionId, ParticipantId] = {}
        self._virtual: dict[ParticipantId, ConnectionId] = {}
        self._slow: list[ConnectionId] = []
        self._opened = 0

    def reached_at(self, url: str) -> None:
        """Name the address that invited participants are told to connect to."""
        self.space.delegation.connection_url = url

    # Connections

    def open(self) -> ConnectionId:
        """A number for a new connection; its channel follows with `attach`."""
        self._opened += 1
        return ConnectionId(self._opened)

    def attach(self, connection: ConnectionId, channel: OutboundChannel) -> None:
        """Name the way out to a connection."""
        self._channels[connection] = channel

    def join(
        self, connection: ConnectionId, participant: ParticipantId, delivery: DeliveryRequest | None = None
    ) -> None:
        """Let a connection whose identity is proven come in; with `delivery` it gets numbers, receipts and replay."""
        self._owners[connection] = participant
        if delivery is not None and connection not in self._sessions:
            self._sessions.begin(connection, delivery, next_sequence=self.log.next_sequence)
        self._perform(self.space.join(connection, participant, now=self._clock()))

    def turn_away(self, connection: ConnectionId, error: str, message: str, code: int) -> None:
        """Tell a connection why it is not wanted and close it."""
        self._perform(self.space.turn_away(connection, error, message, code, now=self._clock()))

    def refuse(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        *,
        code: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Answer something unreadable or out of turn."""
        send = self.space.refuse_connection(
            connection,
            error,
            message,
            now=self._clock(),
            participant=self._owners.get(connection),
            code=code,
            correlation_id=correlation_id,
        )
        self._perform((send,))

    def leave(self, connection: ConnectionId) -> None:
        """A connection is gone."""
        participant = self._owners.pop(connection, None)
        if participant is not None:
            self._perform(self.space.leave(connection, participant, now=self._clock()))
        self._fanout.remove(connection)
        self._sessions.end(connection)
        self._channels.pop(connection, None)

    def is_slow(self, connection: ConnectionId) -> None:
        """More waits for a connection than may. It is ended as soon as the effects at hand are performed."""
        self._slow.append(connection)

    # Participants that are a file

    def listen_virtually(self, participant: ParticipantId) -> None:
        """Let the log of a participant that has one (`output_log`) listen, unless it does already."""
        configured = self.config.participants.get(participant)
        if configured is None or configured.output_log is None or self._writer is None:
            return
        if participant in self._virtual or not self.tokens.knows(participant):
            return
        channel = FileChannel(self._folder / configured.output_log, self._writer)
        try:
            channel.prepare()
        except OSError as error:
            log.warning("%s cannot be logged: %s", participant, error)
            return
        connection = self.open()
        self._virtual[participant] = connection
        self.attach(connection, channel)
        self._owners[connection] = participant
        self._perform(self.space.join_virtually(connection, participant, now=self._clock()))

    def connect_virtual_participants(self) -> None:
        """Let every log listen that is configured to from the start (`auto_connect`)."""
        for name, configured in self.config.participants.items():
            if configured.auto_connect:
                self.listen_virtually(ParticipantId(name))

    # What is said

    def receive(self, connection: ConnectionId, sender: ParticipantId, draft: Draft) -> Receipt:
        """An envelope from a socket."""
        now = self._clock()
        is_session = connection in self._sessions
        if is_session and (known := self._accepted.find(sender, draft, now)) is not None:
            self._send_receipt(connection, sender, draft.id, "duplicate", known.position, now)
            return known.receipt
        receipt = self._unstorable(draft, sender, connection, now) or self.space.receive(
            draft, sender=sender, connection=connection, now=now
        )
        self._perform_receipt(draft, receipt, sender, "websocket", now)
        unechoed = self._accepted.note(receipt)
        if is_session and unechoed is not None:
            self._send_receipt(connection, sender, unechoed, "accepted", None, now)
        return receipt

    def inject(self, sender: ParticipantId, draft: Draft) -> Receipt:
        """An envelope by HTTP: the same way, without a connection. See `stored` for when it is kept."""
        self.listen_virtually(sender)
        now = self._clock()
        if (known := self._accepted.find(sender, draft, now)) is not None:
            return known.receipt
        receipt = self._unstorable(draft, sender, None, now) or self.space.receive(draft, sender=sender, now=now)
        self._perform_receipt(draft, receipt, sender, "http", now)
        self._accepted.note(receipt)
        return receipt

    async def stored(self) -> bool:
        """Wait until everything accepted so far is stored as durably as the space promises; False if it was not."""
        return await self._outbox.stored()

    async def keep_storing(self) -> None:
        """Store what is accepted, batch by batch, until cancelled. A log that only remembers needs no such task."""
        await self._outbox.run()

    def relay(self, connection: ConnectionId, sender: ParticipantId, frame: StreamFrame) -> None:
        """A stream frame from a socket."""
        self._perform(self.space.relay(frame, sender=sender, connection=connection, now=self._clock()))

    def expire(self) -> None:
        """Let time pass: end what waited long enough, look whether the disk takes something again."""
        self._outbox.probe()
        self._perform(self.space.expire(now=self._clock()))

    # What is seen

    def snapshot(self) -> Snapshot:
        """The space as it is now."""
        return self.space.snapshot(now=self._clock())

    def board(self) -> Board:
        """The last status of every participant, with its age."""
        return self.snapshot().as_board()

    @property
    def connections(self) -> int:
        """How many connections are in the space."""
        return len(self._fanout)

    def uptime_seconds(self) -> float:
        """Since when this gateway runs."""
        return (self._clock() - self.started_at).total_seconds()

    def close(self) -> None:
        """No more will happen: let every reader of the history go, write what is left of the logs."""
        self._outbox.stop()
        if self._writer is not None:
            self._writer.close()

    # Effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                self._broadcast(effect, effect.envelope.encode(), self._clock())
            else:
                self._outbox.put(effect)
        self._finish_performing()

    def _finish_performing(self) -> None:
        if self._slow:
            self._end_slow_ones()
        if self._sessions.is_replaying and self._outbox.is_settled:
            self._sessions.replay()

    def _broadcast(self, effect: Broadcast, data: bytes, now: datetime, *, is_logged: bool = False) -> None:
        self._outbox.broadcast(effect, data, at=now.timestamp(), is_logged=is_logged)

    def _end_slow_ones(self) -> None:
        while self._slow:
            self._end_slow(self._slow.pop())

    def _do(self, effect: Item) -> None:
        match effect:
            case NumberedBroadcast():
                self._write_broadcast(effect)
            case Broadcast():  # numbered before it gets here
                self._broadcast(effect, effect.envelope.encode(), self._clock())
            case Send(envelope, connections, is_secret):
                data = self._for_session(envelope, connections).encode()
                self._send(frame_json(data), connections)
                if self._audit is not None and not is_secret:
                    names = dict.fromkeys(self._owners[one] for one in connections if one in self._owners)
                    about = {"type": envelope.kind}
                    self._audit.log_delivered(envelope, data, tuple(names), now=self._clock(), metadata=about)
            case Relay(frame, None):
                self._fanout.write_to_all(frame_message(frame.raw))
            case Relay(frame, connections):
                self._fanout.write_to(frame_message(frame.raw), connections or ())
            case Admit() | Dismiss() | Close():
                self._change_connection(effect)
            case Enrol() | Expel() | Note():
                self._change_permissions(effect)
            case _:
                assert_never(effect)

    def _write_broadcast(self, item: NumberedBroadcast) -> None:
        effect, data, sequence, is_logged = item
        counted = None
        if sequence is not None and self._fanout.has_numbered:
            counted = frame_json(numbered(data, sequence))
        self._fanout.write_to_all(frame_json(data), numbered=counted, without=effect.without)
        if self._audit is not None and not is_logged:
            recipients = self._recipients(self._audit, effect)
            about = {"source_participant": effect.envelope.sender}
            self._audit.log_delivered(effect.envelope, data, recipients, now=self._clock(), metadata=about)

    # Sessions

    def _for_session(self, envelope: Envelope, connections: tuple[ConnectionId, ...]) -> Envelope:
        """An envelope for these connections: the welcome of a session says where it begins."""
        return self._sessions.welcome(connections[0], envelope) if len(connections) == 1 else envelope

    def _notify_session(self, connection: ConnectionId, status: str, position: Position) -> None:
        self._send_receipt(connection, self._owners[connection], None, status, position, self._clock())

    def _send_receipt(
        self,
        connection: ConnectionId,
        to: ParticipantId,
        envelope_id: str | None,
        status: str,
        position: Position | None,
        now: datetime,
    ) -> None:
        envelope = receipt_envelope(
            new_id=self._new_id(),
            ts=wire_timestamp(now),
            to=to,
            envelope_ids=() if envelope_id is None else (envelope_id,),
            status=status,
            position=position,
        )
        self._outbox.put(Send(envelope, (connection,), is_secret=True))

    def _unstorable(
        self, draft: Draft, sender: ParticipantId, connection: ConnectionId | None, now: datetime
    ) -> Receipt | None:
        """The refusal of anything while the log cannot be written; None while it can."""
        if not self._outbox.is_failing or draft.kind == kinds.SYSTEM_HEARTBEAT:
            return None
        payload = ErrorPayload(error=errors.NOT_STORED, message=NOT_STORED_MESSAGE, attempted_kind=draft.kind)
        if connection is None:
            return Receipt((), refused=payload)
        send = self.space.refuse_connection(
            connection, errors.NOT_STORED, NOT_STORED_MESSAGE, now=now, participant=sender, correlation_id=draft.id
        )
        return Receipt((send,), refused=payload)

    def _refuse_unstored(self, envelope: Envelope) -> None:
        for connection, owner in self._owners.items():
            if owner == envelope.sender:
                send = self.space.refuse_connection(
                    connection,
                    errors.NOT_STORED,
                    NOT_STORED_MESSAGE,
                    now=self._clock(),
                    participant=owner,
                    correlation_id=envelope.id,
                )
                self._do(send)

    def _change_connection(self, effect: Admit | Dismiss | Close) -> None:
        channel = self._channels.get(effect.connection)
        match effect:
            case Admit(connection):
                if channel is not None:
                    self._sessions.admit(connection, channel)
            case Dismiss(connection):
                self._fanout.remove(connection)
                self._sessions.pause(connection)
            case Close(_, code, reason):
                if channel is not None:
                    channel.close(code, reason)
            case _:
                assert_never(effect)

    def _change_permissions(self, effect: Enrol | Expel | Note) -> None:
        match effect:
            case Enrol(participant, token, roster):
                self._register.enrol(participant, token, roster)
            case Expel(participant, roster, _):
                self._expel(participant, roster)
            case Note():
                log.info("%s: %s, by %s", effect.event, effect.participant, effect.by)
                if self._audit is not None:
                    self._audit.log_permission_change(effect, now=self._clock())
            case _:
                assert_never(effect)

    def _perform_receipt(
        self, draft: Draft, receipt: Receipt, sender: ParticipantId, transport: Transport, now: datetime
    ) -> None:
        """Do what became of an envelope, and leave what the logs say about it."""
        audit, effects = self._audit, receipt.effects
        if audit is None:
            self._perform(effects)
            return
        accepted, refused, decision = receipt.accepted, receipt.refused, receipt.decision
        first = effects[0] if len(effects) == 1 else None
        if decision is not None and isinstance(first, Broadcast) and accepted is first.envelope:
            # What nearly every envelope is: allowed and passed on. One line-making for all of it.
            data = accepted.encode()
            members = len(self.space.members)
            is_crowd = members > audit.max_named_recipients and not first.without
            heard = members if is_crowd else self._recipients(audit, first)
            audit.log_accepted(accepted, data, sender, transport, heard, decision, now=now)
            self._broadcast(first, data, now, is_logged=True)
            self._finish_performing()
            return
        audit.log_received(accepted or draft, sender, transport, now=now, rejected=refused.error if refused else None)
        if decision is not None:
            audit.log_decision(accepted or draft, sender, decision, transport, now=now)
        self._perform(effects)

    def _recipients(self, audit: AuditLog, effect: Broadcast) -> Recipients:
        left_out = {self._owners[one] for one in effect.without if one in self._owners} if effect.without else ()
        count = len(self.space.members) - len(left_out)
        if count > audit.max_named_recipients:
            return count
        return tuple(name for name in self.space.members if name not in left_out)

    def _expel(self, participant: ParticipantId, roster: Roster) -> None:
        """Tokens stop counting, and sockets that had been superseded close as well."""
        self._register.strike(participant, roster)
        self._virtual.pop(participant, None)
        for connection in [one for one, owner in self._owners.items() if owner == participant]:
            self._do(Close(connection, errors.CLOSE_REMOVED, errors.REMOVED))

    def _send(self, framed: bytes, connections: Iterable[ConnectionId]) -> None:
        for connection in connections:
            channel = self._channels.get(connection)
            if channel is not None and channel.is_open:
                channel.write(framed)

    def _end_slow(self, connection: ConnectionId) -> None:
        """Tell a slow consumer and let it go; its leaving is an event like any other."""
        channel = self._channels.get(connection)
        if channel is None:
            return
        participant = self._owners.get(connection)
        log.warning("%s reads too slowly and is disconnected", participant or "a connection")
        message = "you read more slowly than the space speaks; join again to go on"
        send = self.space.refuse_connection(
            connection, errors.SLOW_CONSUMER, message, now=self._clock(), participant=participant
        )
        channel.close_with_message(frame_json(send.envelope.encode()), errors.CLOSE_SLOW_CONSUMER, errors.SLOW_CONSUMER)
        self.leave(connection)
