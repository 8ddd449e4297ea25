"""Connects one space to its connections: events in, effects performed in order.

Owns, for one space, its core, connection ids, and the clock and ids that the pure core gets as arguments. Each envelope
is decided before the next one is read, so all members see one order. `outbox` lets `performer` perform an effect as
soon as the envelopes ahead of it are stored. Does not know sockets or HTTP.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from mew_listener.log_budget import survived
from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest
from mew_protocol.payloads.figures import ContextHistory
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.system import SystemError as ErrorPayload

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.effects import Broadcast, ConnectionId, Deliver, Effect, Receipt, StateChanged
from mew_spaces.core.space import Space
from mew_spaces.core.system_messages import NewId
from mew_spaces.gateway.acknowledgements import Acknowledgements
from mew_spaces.gateway.attention import AttentionWatch
from mew_spaces.gateway.audit import AuditLog, Transport
from mew_spaces.gateway.auth import TokenBook, generate_token, space_folder
from mew_spaces.gateway.clock import WallClock, new_uuid, now_utc, steady_seconds
from mew_spaces.gateway.delivery import DeliverySessions
from mew_spaces.gateway.join_storm import JoinPace
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.outbound import Callback, Fanout, OutboundChannel, frame_json
from mew_spaces.gateway.outbox import DuplicateReceipt, Outbox
from mew_spaces.gateway.performer import EffectPerformer
from mew_spaces.gateway.virtual import FileChannel
from mew_spaces.gateway.webhook import AttentionWebhook
from mew_spaces.log.figures import FigureStore
from mew_spaces.log.memory import Bounds, SpaceLog

log = logging.getLogger("mew_spaces")

_RESERVING_KINDS = (kinds.SPACE_INVITE, kinds.SPACE_KICK, kinds.CAPABILITY_REVOKE)
"""What they change must be on the disk before they are answered."""


def history_bounds(config: SpaceConfig) -> Bounds:
    """Return how much a space keeps of its history."""
    return Bounds(config.limits.history_envelopes, config.limits.history_bytes, config.history.age_seconds)


class SpaceLoad(NamedTuple):
    """How busy a space is. Deliveries and slow consumers are counted since the gateway started."""

    deliveries: int
    slow_consumers: int
    queued_bytes: int
    """What was written to connections and has not left yet."""
    unstored_items: int
    """Envelopes and effects that wait for the disk."""
    open_proposals: int


class SpaceService:
    """One space and all connections to it."""

    def __init__(
        self,
        config: SpaceConfig,
        tokens: TokenBook,
        *,
        clock: Callable[[], datetime] = now_utc,
        new_id: NewId = new_uuid,
        new_token: NewId = generate_token,
        space_log: SpaceLog | None = None,
        state: Path | None = None,
        folder: Path | None = None,
        writer: LogWriter | None = None,
        audit: AuditLog | None = None,
        figures: FigureStore | None = None,
    ) -> None:
        """`space_log` keeps the accepted envelopes (default: in memory, with a random epoch).

        `state` is the state folder; without it, invitations and removals end with this run. Relative paths of the
        configuration start from `folder`, else from the folder around `state`, else from the working folder. Without a
        `writer` there are no virtual participants. Raises `SpacesError` if the stored state cannot be read.
        """
        self.config = config
        self.tokens = tokens
        self.log = space_log or SpaceLog(epoch=secrets.token_hex(4), bounds=history_bounds(config))
        self.started_position = self.log.position
        self._store = MembershipStore(config, tokens, state, self.log)
        self.space = Space(config, new_id=new_id, new_token=new_token, clock=steady_seconds, state=self._store.state)
        self._folder = folder or (Path() if state is None else space_folder(state))
        self._writer = writer
        self.started_at = clock()
        self.webhook = (
            AttentionWebhook(config.attention, config.space.id, self._folder) if config.attention.webhook else None
        )
        # Only the real clock is set by others; a caller's own clock jumps when the caller wants it to.
        self._wall_clock = WallClock(self._shift_deadlines) if clock is now_utc else None
        self._clock = self._wall_clock or clock
        self.attention = AttentionWatch(
            self.space,
            config,
            self.log,
            self._clock,
            self.started_at,
            self.webhook,
            is_storing=lambda: self.is_storing,
            posts=lambda: self.posts_attention,
        )
        self._fanout = Fanout()
        self._sessions = DeliverySessions(
            self.log, self._fanout, self._notify_session, self.space.state.streams, self._clock
        )
        self.figures = figures or FigureStore()
        self._performer = EffectPerformer(
            self.space, self.log, self._fanout, self._sessions, self._store, audit, self._clock, self.figures
        )
        self.frame_readers = self._performer.frame_readers
        self._outbox = Outbox(
            self.log,
            clock=self._clock,
            write=self._performer.write_broadcast,
            perform=self._perform_one,
            roll_back=self._performer.roll_back,
            refuse=self._refuse_unstored,
            performed=self._finish_performing,
        )
        self._acknowledgements = Acknowledgements(
            self.log, self.space, self._performer.owners, clock=self._clock, new_id=new_id
        )
        self._slow: list[ConnectionId] = []
        self._is_ending_slow = False
        self._call_soon: Callable[[Callback], object] | None = None
        self._slow_consumers = 0
        self.join_pace = JoinPace()
        self._last_connection = 0

    def join_writes(self, call_soon: Callable[[Callback], object]) -> None:
        """Write the broadcasts of one turn of the event loop together. `call_soon` calls a function at its end."""
        self._call_soon = call_soon
        self._fanout.request_flush = partial(call_soon, self._fanout.flush)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the space while the block runs. One gateway alone needs nothing for that."""
        yield

    # Connections

    def new_connection(self) -> ConnectionId:
        """Return an id for a new connection; `attach` adds its channel."""
        self._last_connection += 1
        return ConnectionId(self._last_connection)

    def attach(self, connection: ConnectionId, channel: OutboundChannel) -> None:
        """Set the channel that writes to a connection."""
        self._performer.channels[connection] = channel

    def join(
        self, connection: ConnectionId, participant: ParticipantId, delivery: DeliveryRequest | None = None
    ) -> None:
        """Let a connection in whose token was checked; with `delivery` it gets numbers, receipts and replay."""
        self._performer.owners[connection] = participant
        if delivery is not None:
            self._sessions.begin(connection, delivery)
        self._perform(self.space.join(connection, participant, now=self._clock()))

    def reject(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        code: int,
        retry_after: float | None,
        correlation_id: str | None = None,
    ) -> None:
        """Send an error to a connection that may not join, then close it. `retry_after` is in seconds."""
        about = (error, message, code, retry_after, correlation_id)
        self._perform(self.space.reject_connection(connection, *about, now=self._clock()))

    def send_error(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        *,
        code: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Send an error about a message that is unreadable or not allowed yet."""
        capabilities = () if error == errors.NOT_JOINED else None
        payload = ErrorPayload(error=error, message=message, code=code, your_capabilities=capabilities)
        participant = self._performer.owners.get(connection)
        envelope = self.space.messages.compose_error(
            payload, participant, now=self._clock(), envelope_id=correlation_id
        )
        self._perform((Deliver(envelope, (connection,)),))

    def leave(self, connection: ConnectionId) -> None:
        """Handle a closed connection."""
        participant = self._performer.owners.pop(connection, None)
        if participant is not None:
            self._perform(self.space.leave(connection, participant, now=self._clock()))
        self._fanout.remove(connection)
        self._sessions.end(connection)
        self._performer.channels.pop(connection, None)

    def mark_slow(self, connection: ConnectionId) -> None:
        """Disconnect a slow consumer as soon as the current effects are performed."""
        self._slow.append(connection)
        if self._call_soon is not None:  # it may have become slow at the end of a turn, behind all effects
            self._call_soon(self._catch_up)

    # Virtual participants: log files that receive what a member receives

    def connect_virtual(self, participant: ParticipantId) -> None:
        """Connect the log file of a participant with `output_log`, unless it is connected."""
        configured = self.config.participants.get(participant)
        if configured is None or configured.output_log is None or self._writer is None:
            return
        if participant in self._performer.virtual or not self.tokens.knows(participant):
            return
        channel = FileChannel(self._folder, configured.output_log, self._writer, self.config.gateway_logging)
        try:
            channel.prepare()
        except OSError as error:
            log.warning("output_log of %s: cannot be written, nothing is logged: %s", participant, error)
            return
        connection = self.new_connection()
        self._performer.virtual[participant] = connection
        self.attach(connection, channel)
        self._performer.owners[connection] = participant
        self._perform(self.space.join_virtually(connection, participant, now=self._clock()))

    def connect_virtual_participants(self) -> None:
        """Connect every log file with `auto_connect`."""
        for name, configured in self.config.participants.items():
            if configured.auto_connect:
                self.connect_virtual(ParticipantId(name))

    # Envelopes and stream frames

    def receive(
        self, connection: ConnectionId | None, sender: ParticipantId, draft: Draft, data: bytes | None = None
    ) -> Receipt:
        """Handle an envelope from a socket, or from HTTP without a connection: the same rules.

        `data` is what the envelope's `encode` returns, if that is known.
        """
        now = self._clock()
        is_session = connection in self._sessions.by_connection
        # Only sessions send an envelope again, and HTTP clients, which cannot know whether a request arrived whose
        # answer they did not get. Others may mean something new by an id that they used before.
        if (is_session or connection is None) and (known := self._acknowledgements.find_duplicate(sender, draft, now)):
            if connection is not None:
                self._outbox.put(DuplicateReceipt(connection, sender, draft.id or ""))
            return known
        receipt = None
        if self._outbox.is_failing or draft.kind in _RESERVING_KINDS:
            receipt = self._refuse_unstorable(draft, sender, connection)
        receipt = receipt or self.space.receive(draft, sender=sender, connection=connection, now=now)
        self._perform_receipt(draft, receipt, sender, connection, now, data, session=connection if is_session else None)
        return receipt

    async def post(self, sender: ParticipantId, draft: Draft) -> Receipt:
        """Handle an envelope from HTTP, and wait until it is stored."""
        self.connect_virtual(sender)
        receipt = self.receive(None, sender, draft)
        if receipt.refused is None and not self._acknowledgements.is_stored(receipt, await self._outbox.stored()):
            return self._acknowledgements.refusal(None, sender, draft)
        return receipt

    async def keep_storing(self) -> None:
        """Store accepted envelopes batch by batch until cancelled. A log in memory does not need this task."""
        await self._outbox.run()

    async def keep_announcing(self) -> None:
        """Send collected presences until cancelled, to the sessions that take them in batches."""
        while True:
            await self._sessions.presences.collected.wait()
            await anyio.sleep(self._sessions.presences.pause_seconds)
            for to, changes in self._sessions.presences.drain():
                payload = {"changes": changes}
                batch = self.space.messages.compose(kinds.SYSTEM_PRESENCE_BATCH, payload, now=self._clock())
                self._performer.send(frame_json(batch.encode()), to)

    def relay(self, connection: ConnectionId, sender: ParticipantId, frame: StreamFrame) -> None:
        """Handle a stream frame from a socket."""
        self._perform(self.space.relay(frame, sender=sender, connection=connection, now=self._clock()))

    def expire(self) -> None:
        """End what has expired, and check whether a full disk accepts data again. Call this regularly."""
        if self._wall_clock is not None:
            self._wall_clock.follow()
        with survived("the check of the disk", log):
            self._outbox.probe()
        with survived("the expiry of history", log):
            self.log.expire(self._clock().timestamp())
        with survived("the refresh of tokens", log):
            for participant in self.tokens.refresh():  # a token file changed, or its time is over
                self._performer.close_all(participant, errors.CLOSE_UNAUTHORIZED, errors.UNAUTHORIZED)
        with survived("the check of timeouts", log):
            self._end_expired()

    def _end_expired(self) -> None:
        self._perform(self.space.expire(now=self._clock()))

    def _shift_deadlines(self, by: timedelta) -> None:
        self._perform(self.space.shift_deadlines(by))

    # Questions

    def now(self) -> datetime:
        """Return the time by the clock of the space."""
        return self._clock()

    def board(self) -> Board:
        """Return the last status of every participant, with its age."""
        return self.space.read_board(now=self._clock())

    async def figures_of(self, seconds: int, limit: int, participant: str | None) -> ContextHistory:
        """Return what participants reported in the last `seconds`, as far as it is stored."""
        return await to_thread.run_sync(
            lambda: self.figures.read(self.space.id, seconds=seconds, limit=limit, participant=participant)
        )

    @property
    def connections(self) -> int:
        """Number of connections that receive broadcasts."""
        return len(self._fanout)

    @property
    def posts_attention(self) -> bool:
        """Whether this gateway posts to the webhook."""
        return True

    @property
    def is_storing(self) -> bool:
        """Whether accepted envelopes can be stored."""
        return not self._outbox.is_failing

    def load(self) -> SpaceLoad:
        """Return how busy the space is."""
        queued_bytes = sum(channel.waiting_bytes for channel in self._performer.channels.values())
        proposals = sum(1 for _ in self.space.membership.undecided_proposals)
        return SpaceLoad(self._fanout.deliveries, self._slow_consumers, queued_bytes, len(self._outbox), proposals)

    def uptime_seconds(self) -> float:
        """Return the seconds since this service was created."""
        return (self._clock() - self.started_at).total_seconds()

    def close(self) -> None:
        """End the history for its readers, and write the rest of the logs and broadcasts."""
        self._fanout.request_flush = self._call_soon = None
        self._fanout.flush()
        self._catch_up()
        self._outbox.stop()
        if self._writer is not None:
            self._writer.close()

    def _perform(self, effects: Sequence[Effect], accepted: Envelope | None = None) -> None:
        """Store the effects of one event and perform them; those of an accepted envelope only if they are stored."""
        for effect in effects:
            if isinstance(effect, StateChanged):
                self._store.store(effect.changes)  # in one batch with the envelopes that announce it
        if accepted is not None and effects:
            self._outbox.put_accepted(accepted, effects)
        else:
            for effect in effects:
                self._outbox.put(effect)
        self._finish_performing()

    def _finish_performing(self) -> None:
        self._outbox.store()
        if self._outbox.is_idle:
            self._store.release()
        self._catch_up()

    def _catch_up(self) -> None:
        """Disconnect slow consumers, and write on to the sessions that replay."""
        while self._slow and not self._is_ending_slow:  # the departure of one may make others slow
            self._is_ending_slow = True
            try:
                self._end_slow(self._slow.pop())
            finally:
                self._is_ending_slow = False
        if self._sessions.replaying and self._outbox.is_settled:
            self._sessions.replay()

    def _perform_one(self, effect: Effect | DuplicateReceipt) -> None:
        if isinstance(effect, DuplicateReceipt):
            effect = self._acknowledgements.duplicate(*effect)
        self._performer.perform(effect)

    # Answers to senders

    def _notify_session(self, connection: ConnectionId, **about: Any) -> None:
        # Not through the outbox: the counts in it hold for this place among the frames that the session gets.
        participant = self._performer.owners.get(connection, "")
        self._performer.perform(self._acknowledgements.receipt(connection, participant, None, **about))

    def _refuse_unstorable(
        self, draft: Draft, sender: ParticipantId, connection: ConnectionId | None
    ) -> Receipt | None:
        """Refuse an envelope while the log cannot be written, or a change for which the disk has no room."""
        if not self._outbox.is_failing:
            # The roster must be written once the change is made; a full disk has to be noticed before that.
            try:
                self._store.reserve(len(draft.encode()))
                return None
            except OSError as error:
                log.error("invitation or removal not stored: %s", error)
        elif draft.kind == kinds.SYSTEM_HEARTBEAT:
            return None
        return self._acknowledgements.refusal(connection, sender, draft)

    def _refuse_unstored(self, envelope: Envelope) -> None:
        for effect in self._acknowledgements.take_back(envelope):
            self._performer.perform(effect)

    def _perform_receipt(
        self,
        draft: Draft,
        receipt: Receipt,
        sender: ParticipantId,
        connection: ConnectionId | None,
        now: datetime,
        data: bytes | None,
        *,
        session: ConnectionId | None = None,
    ) -> None:
        """Perform the effects of an envelope and write its lines to the logs.

        `data` are the bytes of the draft. `session` is a connection that gets a receipt if it gets no echo.
        """
        audit = self._performer.audit
        transport: Transport = "http" if connection is None else "websocket"
        effects, accepted, refused, _, decision = receipt
        first = effects[0] if len(effects) == 1 else None
        logged = accepted or draft
        if data is None or logged is not draft:
            data = logged.encode()
        if decision is not None and isinstance(first, Broadcast) and accepted is first.envelope:
            # Nearly every envelope. All its log lines are made in one call.
            if audit is not None:
                audit.log_accepted(accepted, data, sender, transport, self.space.members, decision, now=now)
            self._outbox.broadcast(first, data, at=now.timestamp(), is_logged=True)
            self._catch_up()
            return
        if audit is not None:
            reason = refused.error if refused else None
            audit.log_received(logged.id, data, sender, transport, now=now, rejected=reason)
            if decision is not None:
                audit.log_decision(logged, sender, decision, transport, now=now)
        self._perform((*effects, *self._acknowledgements.confirm(receipt, session)), accepted)

    def _end_slow(self, connection: ConnectionId) -> None:
        """Tell a slow consumer why and disconnect it."""
        channel = self._performer.channels.get(connection)
        if channel is None:
            return
        self._slow_consumers += 1
        participant = self._performer.owners.get(connection)
        log.warning("%s: disconnected as a slow consumer", participant or "a connection that has not joined")
        message = "you read more slowly than messages arrive and were disconnected; join again to continue"
        payload = ErrorPayload(error=errors.SLOW_CONSUMER, message=message)
        last = self.space.messages.compose_error(payload, participant, now=self._clock())
        channel.close_with_message(frame_json(last.encode()), errors.CLOSE_SLOW_CONSUMER, errors.SLOW_CONSUMER)
        # Not when its socket closes: that may take long, because it is the one that does not read.
        self.leave(connection)
