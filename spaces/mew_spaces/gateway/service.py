"""Connects one space to its connections: events in, effects performed in order.

Owns the core, the connection ids, and the clock and ids for the pure core. Everything that happens to the space is an
event, which its storage puts in order. Events are decided, stored, applied and performed. Does not know sockets, HTTP,
or how an event is stored.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from mew_board.board_json import worded
from mew_listener.log_budget import survived
from mew_protocol import errors, kinds
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId, Position
from mew_protocol.join import DeliveryRequest
from mew_protocol.json_values import text_at
from mew_protocol.payloads.context_history import ContextHistory
from mew_protocol.payloads.participant import Board
from mew_protocol.payloads.system import ErrorPayload
from websockets.frames import CloseCode

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.effects import AddToken, Broadcast, Deliver, Receipt, StateChanged, refuse
from mew_spaces.core.events import (
    ClockJumps,
    ConnectionId,
    ConnectionJoins,
    ConnectionLeaves,
    EnvelopeArrives,
    LogFileJoins,
    TimePasses,
    first_connection,
    gateway_of,
)
from mew_spaces.core.space_core import REMEMBERED_ENVELOPES, EventDecision, SpaceCore
from mew_spaces.core.system_messages import DerivedIds
from mew_spaces.gateway.attention_watch import AttentionWatch, attention_receiver
from mew_spaces.gateway.audit import AuditLog, Transport
from mew_spaces.gateway.auth import TokenBook, generate_token, space_folder
from mew_spaces.gateway.clock import WallClock, new_uuid, now_utc, steady_seconds
from mew_spaces.gateway.delivery import DeliverySessions, JoinPace
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.outbound import Callback, Fanout, OutboundChannel, frame_json
from mew_spaces.gateway.output_log import FileChannel
from mew_spaces.gateway.performer import EffectPerformer
from mew_spaces.gateway.storage import PENDING, LocalStorage, Storage, Submission
from mew_spaces.log.figure_store import FigureStore
from mew_spaces.log.memory import Bounds, SpaceLog

log = logging.getLogger("mew_spaces")

NOT_STORED_MESSAGE = "the gateway could not store this envelope, so no participant received it; send it again later"

_UNKNOWN = (
    errors.OUTCOME_UNKNOWN,
    "the gateway does not know yet whether this envelope is stored; send it again with the same id",
)

REJOIN_SECONDS = 2.0
"""When a client that could not join because nothing is stored is to try again."""

ANSWER_SECONDS = 30.0
"""How long an HTTP request waits for the outcome of its envelope."""


class Former(NamedTuple):
    """The state of a single gateway, adopted when several gateways first share the space."""

    folder: Path | None = None
    is_held: bool = False
    """Whether another gateway has the folder, and takes its state over."""


_NO_FORMER = Former()

OpenStorage = Callable[["SpaceService", Former], Storage]
"""Returns the storage of a space that several gateways share."""


def history_bounds(config: SpaceConfig) -> Bounds:
    """Return the history limits of a space."""
    return Bounds(config.limits.history_envelopes, config.limits.history_bytes, config.history.age_seconds)


class SpaceLoad(NamedTuple):
    """The load of a space. Deliveries and slow consumers are counted since the gateway started."""

    deliveries: int
    slow_consumers: int
    queued_bytes: int
    """Bytes written to connections that have not left yet."""
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
        space_log: SpaceLog | None = None,
        state: Path | None = None,
        folder: Path | None = None,
        writer: LogWriter | None = None,
        audit: AuditLog | None = None,
        figures: FigureStore | None = None,
        open_storage: OpenStorage | None = None,
        former: Former = _NO_FORMER,
    ) -> None:
        """`space_log` keeps the accepted envelopes and the durable state (default: in memory, with a random epoch).

        `state` is the state folder; without it, the tokens of invited participants end with this run. Relative paths of
        the configuration start from `folder`, else from the folder around `state`, else from the working folder.
        Without a `writer` there are no virtual participants. `open_storage` replaces the storage of a single gateway,
        and adopts the `former` state. Raises `SpacesError` if the stored state cannot be read.
        """
        self.config = config
        self.tokens = tokens
        self.log = space_log or SpaceLog(epoch=secrets.token_hex(4), bounds=history_bounds(config))
        self.started_position = self.log.position
        self.store = MembershipStore(config, tokens, state, self.log, is_shared=open_storage is not None)
        self.space = SpaceCore(
            config,
            DerivedIds(new_id=new_uuid, new_token=generate_token),
            clock=steady_seconds,
            state=self.store.state,
            epoch=self.log.epoch,
            stored_envelope=self._stored_envelope,
        )
        self.space.remember((one.sender, one.id, one.sequence) for one in self.log.last(REMEMBERED_ENVELOPES))
        self._folder = folder or (Path() if state is None else space_folder(state))
        self._writer = writer
        self.started_at = clock()
        self.attention_receiver = attention_receiver(config, self._folder)
        # Only the real clock can be set from outside; a caller controls the jumps of its own clock.
        self._wall_clock = WallClock(self._shift_deadlines) if clock is now_utc else None
        self.now: Callable[[], datetime] = self._wall_clock or clock
        """Returns the time by the clock of the space."""
        self._fanout = Fanout()
        self.sessions = DeliverySessions(
            self.log, self._fanout, self._notify_session, self.space.state.streams, self.now
        )
        self.figures = figures or FigureStore()
        self.figures.waiting.update(self.space.state.statuses)
        self._figure_reads = anyio.CapacityLimiter(1)
        self.performer = EffectPerformer(
            self.space, self.log, self._fanout, self.sessions, self.store, audit, self.now, self.figures
        )
        self._deliveries: dict[ConnectionId, DeliveryRequest] = {}
        """The requests of connections with a join that is not completed yet."""
        self.storage: Storage = LocalStorage(self) if open_storage is None else open_storage(self, former)
        if self.attention_receiver is not None:
            self.attention_receiver.takes_over = self.storage.is_shared
        self.attention = AttentionWatch(
            self.space, config, self.log, self.now, self.started_at, self.attention_receiver, self.storage
        )
        self._slow: list[ConnectionId] = []
        self._is_ending_slow = False
        self._call_soon: Callable[[Callback], object] | None = None
        self._slow_consumers = 0
        self.join_pace = JoinPace()
        self._last_connection = 0

    def _stored_envelope(self, sequence: int) -> bytes | None:
        entry = self.log.entry(sequence)
        return None if entry is None else entry.data

    def join_writes(self, call_soon: Callable[[Callback], object]) -> None:
        """Write the broadcasts of one turn of the event loop together. `call_soon` calls a function at its end."""
        self._call_soon = call_soon
        self._fanout.request_flush = partial(call_soon, self._fanout.flush)

    # Connections

    def new_connection(self) -> ConnectionId:
        """Return an id for a new connection; `attach` adds its channel."""
        self._last_connection += 1
        return ConnectionId(first_connection(self.storage.gateway) + self._last_connection)

    def attach(self, connection: ConnectionId, channel: OutboundChannel) -> None:
        """Set the channel that writes to a connection."""
        self.performer.channels[connection] = channel

    def join(
        self, connection: ConnectionId, participant: ParticipantId, delivery: DeliveryRequest | None = None
    ) -> None:
        """Join a participant by a connection with a checked token; `delivery` requests numbers, receipts and replay."""
        self.performer.owners[connection] = participant
        if gateway_of(connection) != self.storage.gateway:  # opened before this gateway got its number
            self.refuse_join(connection)
            return
        if delivery is not None:
            self._deliveries.setdefault(connection, delivery)
        self.storage.submit(ConnectionJoins(connection, participant, self.space.batch))

    def refuse_join(self, connection: ConnectionId) -> None:
        """Reject a connection whose join cannot be stored."""
        self._deliveries.pop(connection, None)
        self.reject(connection, errors.NOT_STORED, NOT_STORED_MESSAGE, errors.CLOSE_LIMIT, REJOIN_SECONDS)

    def reject(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        code: int,
        retry_after: float | None,
        correlation_id: str | None = None,
    ) -> None:
        """Send an error to a refused connection, then close it. `retry_after` is in seconds."""
        about = (error, message, code, retry_after, correlation_id)
        self.performer.perform(self.space.connections.reject(connection, *about, now=self.now()))

    def send_error(
        self,
        connection: ConnectionId,
        error: str,
        message: str,
        *,
        code: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Send an error about an unreadable or premature message."""
        capabilities = () if error == errors.NOT_JOINED else None
        payload = ErrorPayload(error=error, message=message, code=code, your_capabilities=capabilities)
        participant = self.performer.owners.get(connection)
        envelope = self.space.messages.compose_error(payload, participant, now=self.now(), envelope_id=correlation_id)
        self.performer.perform((Deliver(envelope, (connection,)),))

    def leave(self, connection: ConnectionId) -> None:
        """Handle a closed connection."""
        participant = self.performer.owners.pop(connection, None)
        self._deliveries.pop(connection, None)
        if participant is not None and gateway_of(connection) == self.storage.gateway:
            self.storage.submit(ConnectionLeaves(connection, participant))
        self._fanout.remove(connection)
        self.sessions.end(connection)
        self.performer.channels.pop(connection, None)

    def close_connections(self, most: int) -> int:
        """Ask up to `most` clients to reconnect. Returns the number of remaining clients, including these. Log files
        stay.
        """
        channels, files = self.performer.channels, set(self.performer.virtual.values())
        clients = [one for one in self.performer.owners if one not in files]
        is_open = (one for name in clients if (one := channels.get(name)) is not None and one.is_open)
        for channel in tuple(islice(is_open, most)):
            channel.close(CloseCode.SERVICE_RESTART, "")
        return len(clients)

    def mark_slow(self, connection: ConnectionId) -> None:
        """Disconnect a slow consumer as soon as the current effects are performed."""
        self._slow.append(connection)
        if self._call_soon is not None:  # the connection may become slow at the end of a turn, after all effects
            self._call_soon(self.after_events)

    # Virtual participants: log files that receive the messages of a member

    def connect_virtual(self, participant: ParticipantId) -> None:
        """Connect the log file of a participant with `output_log`, unless it is connected."""
        configured = self.config.participants.get(participant)
        if configured is None or configured.output_log is None or self._writer is None:
            return
        if participant in self.performer.virtual or not self.tokens.knows(participant):
            return
        if not self.storage.gateway and self.storage.is_shared:
            return
        channel = FileChannel(self._folder, configured.output_log, self._writer, self.config.gateway_logging)
        try:
            channel.prepare(is_shared=self.storage.is_shared)
        except BlockingIOError:
            return  # another gateway of this folder writes the file
        except OSError as error:
            log.warning("output_log of %s: cannot be written, nothing is logged: %s", participant, error)
            return
        connection = self.new_connection()
        self.performer.virtual[participant] = connection
        self.attach(connection, channel)
        self.performer.owners[connection] = participant
        self.storage.submit(LogFileJoins(connection, participant))

    def disconnect_virtual(self) -> None:
        """Disconnect every log file; the check of timeouts connects them again."""
        while self.performer.virtual:
            _, connection = self.performer.virtual.popitem()
            self.performer.channels[connection].close(CloseCode.SERVICE_RESTART, "")
            self.leave(connection)

    def connect_virtual_participants(self) -> None:
        """Connect every log file with `auto_connect`."""
        for name, configured in self.config.participants.items():
            if configured.auto_connect:
                self.connect_virtual(ParticipantId(name))

    # Envelopes and stream frames

    async def post(self, sender: ParticipantId, draft: Draft) -> Receipt:
        """Handle an envelope from HTTP, and wait for its receipt; after a timeout, return a refusal with an unknown
        outcome.

        The receipt's answer has the position of a stored envelope.
        """
        self.connect_virtual(sender)
        submission = self.receive(None, sender, draft)
        if submission.receipt is PENDING:
            completed = submission.completed = anyio.Event()
            with anyio.move_on_after(ANSWER_SECONDS):
                await completed.wait()
            if not completed.is_set():
                return refuse(*_UNKNOWN)
        receipt, sequence = submission.receipt, submission.sequence
        if sequence is None:
            return receipt
        return replace(receipt, answer={"position": str(Position(self.log.epoch, sequence)), **receipt.answer})

    def receive(
        self,
        connection: ConnectionId | None,
        sender: ParticipantId,
        draft: Draft,
        data: bytes | None = None,
    ) -> Submission:
        """Handle an envelope from a socket, or from HTTP (without a connection), by the same rules.

        `data` is the result of the envelope's `encode`, if known. The receipt is `PENDING` until the envelope is
        stored.
        """
        now = self.now()
        # Only sessions and HTTP clients repeat envelopes. An HTTP client may lose the answer to a request that arrived.
        # Other clients may use an old id for a new envelope.
        may_repeat = connection is None or connection in self.sessions.by_connection or connection in self._deliveries
        event = EnvelopeArrives(connection, sender, self.space.batch, may_repeat, data, draft)
        decision = self.space.check(event, now=now)
        if decision is None:
            return self.storage.submit(event)
        # The decision needs no storage and concerns no other gateway.
        submission = Submission(event, decision=decision)
        self.complete(submission)
        self.after_events()
        return submission

    async def keep_announcing(self) -> None:
        """Send collected presences to the sessions with batches until cancelled."""
        while True:
            await self.sessions.presences.collected.wait()
            await anyio.sleep(self.sessions.presences.pause_seconds)
            self.announce_collected()

    def announce_collected(self) -> None:
        """Send the collected presences to the sessions with batches."""
        for to, changes in self.sessions.presences.drain():
            payload = {"changes": [self._with_report(one) for one in changes]}
            batch = self.space.messages.compose(kinds.SYSTEM_PRESENCE_BATCH, payload, now=self.now())
            self.performer.send(frame_json(batch.encode()), to)

    def _with_report(self, presence: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mark the join of a participant that has reported: its status overtook the batch, and is not an old one."""
        name = text_at(presence, "participant", "id")
        has_reported = presence["event"] == "join" and self.space.board.has_reported(name)
        return {**presence, "has_reported": True} if has_reported else presence

    def expire(self) -> None:
        """Check timeouts, token files and a full disk. Call this regularly."""
        if self._wall_clock is not None:
            self._wall_clock.follow()
        with survived("the check of the disk", log):
            self.storage.check()
        with survived("the expiry of history", log):
            self.log.expire(self.now().timestamp())
        with survived("the refresh of tokens", log):
            for participant in self.tokens.refresh():  # a token file changed, or its time is over
                self.performer.close_all(participant, errors.CLOSE_UNAUTHORIZED, errors.UNAUTHORIZED)
        with survived("the check of timeouts", log):
            if self.storage.is_shared:  # the gateway that wrote a log file may have ended
                self.connect_virtual_participants()
            if self.storage.is_leader and self.space.connections.waits_for_time:
                self.storage.submit(TimePasses())

    def _shift_deadlines(self, by: timedelta) -> None:
        if not self.storage.is_shared:  # several gateways share all deadlines, and follow the time of the events
            self.storage.submit(ClockJumps(by))

    # Questions

    def board(self) -> Board:
        """Return the last status of every participant, with its age."""
        return self.space.read_board(now=self.now())

    async def figures_of(
        self, seconds: int, limit: int, participant: str | None, *, with_words: bool = False
    ) -> ContextHistory:
        """Return the stored reports of participants in the last `seconds`; with compactions in words for pages."""

        def read() -> ContextHistory:
            found = self.figures.read(self.space.id, seconds=seconds, limit=limit, participant=participant)
            return worded(found) if with_words else found

        # Thousands of compactions would block the event loop. One at a time: storing envelopes needs threads, too.
        return await to_thread.run_sync(read, limiter=self._figure_reads)

    @property
    def connections(self) -> int:
        """Number of connections that receive broadcasts."""
        return len(self._fanout)

    def load(self) -> SpaceLoad:
        """Return how busy the space is."""
        queued_bytes = sum(channel.waiting_bytes for channel in self.performer.channels.values())
        proposals = len(self.space.membership.proposals.undecided)
        return SpaceLoad(self._fanout.deliveries, self._slow_consumers, queued_bytes, self.storage.waiting, proposals)

    def uptime_seconds(self) -> float:
        """Return the seconds since this service was created."""
        return (self.now() - self.started_at).total_seconds()

    def stop(self) -> None:
        """End the history for its readers, and write the rest of the broadcasts. Connections may still leave."""
        self._fanout.request_flush = self._call_soon = None
        self._fanout.flush()
        self.after_events()
        self.storage.stop()

    def close(self) -> None:
        """Stop if necessary, and write the rest of the logs."""
        self.stop()
        for connection in self.performer.virtual.values():  # other gateways may now write these files
            self.performer.channels[connection].close(CloseCode.SERVICE_RESTART, "")
        if self._writer is not None:
            self._writer.close()

    # Events in their order: see `StoredSpace` in `storage`

    def number(self, submission: Submission) -> None:
        """Stage the changes and broadcasts of a decided event in the log."""
        decision = submission.decision
        assert decision is not None
        event, at = decision.event, decision.now.timestamp()
        if isinstance(event, ConnectionJoins):
            delivery = self._deliveries.pop(event.connection, None)
            if delivery is not None:
                self.sessions.begin(event.connection, delivery)
        numbered = []
        for effect in decision.receipt.effects:
            if isinstance(effect, Broadcast):
                envelope = effect.envelope
                data = event.data if isinstance(event, EnvelopeArrives) and envelope is event.draft else None
                if data is None:
                    data = envelope.encode()
                sequence = self.log.stage(data, sender=envelope.sender, id=envelope.id, at=at)
                numbered.append((data, sequence))
            elif isinstance(effect, StateChanged):
                self.store.stage(effect.changes)
            elif isinstance(effect, AddToken):  # first, so that every stored participant has a token
                self.store.write_token(effect.participant, effect.token)
        submission.numbered = tuple(numbered)

    def complete(self, submission: Submission, *, is_own: bool = True) -> None:
        """Perform the effects of an applied event, and answer its sender if connected to this gateway."""
        decision = submission.decision
        assert decision is not None
        event, receipt = decision.event, decision.receipt
        if decision.problem is not None:
            log.error("failed to apply an event", exc_info=decision.problem)
        # Each event is in the logs of the gateway that it came to.
        if isinstance(event, EnvelopeArrives):
            self._complete_envelope(event, decision, submission, is_own=is_own)
        else:
            self.performer.perform(receipt.effects, submission.numbered, is_logged=is_own)
        submission.resolve(receipt)

    def _complete_envelope(
        self, event: EnvelopeArrives, decision: EventDecision, submission: Submission, *, is_own: bool
    ) -> None:
        """Perform the effects of an envelope, write its lines to the logs, and answer its sender."""
        receipt, draft = decision.receipt, event.draft
        connection = event.connection if is_own else None
        if draft is None or decision.is_duplicate or decision.problem is not None:
            if connection is not None:
                self._answer(connection, event.sender, receipt)
            return
        if is_own and self.performer.audit is not None:
            self._log_received(self.performer.audit, event, decision, draft)
        self.performer.perform(receipt.effects, submission.numbered, is_logged=is_own)
        accepted = receipt.accepted
        if connection is None or not event.may_repeat or accepted is None or accepted.kind == kinds.SYSTEM_HEARTBEAT:
            return
        if not any(isinstance(one, Broadcast) and one.envelope.id == accepted.id for one in receipt.effects):
            # A session that does not get its envelope back learns from a receipt that it was accepted.
            self.performer.perform((self._receipt(connection, event.sender, accepted.id, status="accepted"),))

    def _log_received(self, audit: AuditLog, event: EnvelopeArrives, decision: EventDecision, draft: Draft) -> None:
        """Write the log lines of a received envelope and of the permission decision."""
        receipt = decision.receipt
        transport: Transport = "http" if event.connection is None else "websocket"
        logged = receipt.accepted or draft
        sent = event.data if event.data is not None and logged is draft else logged.encode()
        reason = receipt.refused.error if receipt.refused else None
        audit.log_received(logged.id, sent, event.sender, transport, now=decision.now, rejected=reason)
        if receipt.decision is not None:
            audit.log_decision(logged, event.sender, receipt.decision, transport, now=decision.now)

    def refuse(self, submission: Submission, *, is_unknown: bool = False) -> None:
        """Notify an event's sender that it is not stored, or that this is unknown."""
        event = submission.event
        if isinstance(event, ConnectionJoins):
            self.refuse_join(event.connection)
        elif isinstance(event, EnvelopeArrives):
            draft = event.draft
            assert draft is not None  # only the gateway that received the envelope gets here
            error, message = (errors.NOT_STORED, NOT_STORED_MESSAGE) if not is_unknown else _UNKNOWN
            payload = ErrorPayload(error=error, message=message, attempted_kind=draft.kind)
            if not is_unknown and submission.decision is not None:
                self._forget_tokens(submission.decision)
            receipt = self.space.refuse(payload, draft, event.sender, event.connection, now=self.now())
            self.performer.perform(receipt.effects)
            submission.resolve(receipt)

    def _forget_tokens(self, decision: EventDecision) -> None:
        for effect in decision.receipt.effects:
            if isinstance(effect, AddToken):
                self.store.remove_token(effect.participant)

    def after_events(self) -> None:
        """Finish after all stored events are completed: disconnect slow consumers, continue replays."""
        while self._slow and not self._is_ending_slow:  # a departure may make other members slow
            self._is_ending_slow = True
            try:
                self._end_slow(self._slow.pop())
            finally:
                self._is_ending_slow = False
        if self.sessions.replaying:
            self.sessions.replay()

    # Answers to senders

    def _answer(self, connection: ConnectionId, sender: ParticipantId, receipt: Receipt) -> None:
        """Answer an envelope without effect: it was unreadable, applying it failed, or it was repeated."""
        accepted, refused = receipt.accepted, receipt.refused
        if refused is not None:
            self.send_error(connection, refused.error, refused.message or "", code=refused.code)
        elif accepted is not None:
            where = {key: value for key, value in receipt.answer.items() if key == "position"}
            self.performer.perform((self._receipt(connection, sender, accepted.id, status="duplicate", **where),))

    def _receipt(self, connection: ConnectionId, to: str, envelope_id: str | None, **payload: Any) -> Deliver:
        """Return a `system/receipt` about an envelope, or without an id, about a session (`live` or `gap`)."""
        about = () if envelope_id is None else (envelope_id,)
        receipt = self.space.messages.compose(
            kinds.SYSTEM_RECEIPT, payload, now=self.now(), to=(to,), correlation_id=about
        )
        return Deliver(receipt, (connection,), is_secret=True)

    def _notify_session(self, connection: ConnectionId, *, position: Position, **about: Any) -> None:
        participant = self.performer.owners.get(connection, "")
        self.performer.perform((self._receipt(connection, participant, None, **about, position=str(position)),))

    def _end_slow(self, connection: ConnectionId) -> None:
        """Disconnect a slow consumer with the reason."""
        channel = self.performer.channels.get(connection)
        if channel is None:
            return
        self._slow_consumers += 1
        participant = self.performer.owners.get(connection)
        log.warning("%s: disconnected as a slow consumer", participant or "a connection that has not joined")
        message = "you read more slowly than messages arrive and were disconnected; join again to continue"
        payload = ErrorPayload(error=errors.SLOW_CONSUMER, message=message)
        last = self.space.messages.compose_error(payload, participant, now=self.now())
        channel.close_with_message(frame_json(last.encode()), errors.CLOSE_SLOW_CONSUMER, errors.SLOW_CONSUMER)
        # Leave now: the close of its socket may take long, because the client does not read.
        self.leave(connection)
