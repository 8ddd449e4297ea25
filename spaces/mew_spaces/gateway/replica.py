"""One space on several gateways: each has some of the connections and applies the same events in the same order.

What a connection does is submitted to the backplane as an event. Once the event is stored, every gateway applies it in
its place of the order and performs what concerns its own connections; then the sender is answered. Owns this gateway's
number and its leases. Without a backplane, `service` applies everything at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from mew_protocol import errors, kinds
from mew_protocol.codec import StreamFrame, decode_envelope
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from mew_protocol.join import DeliveryRequest
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.position import Position
from websockets.frames import CloseCode

from mew_spaces.backplane.interface import (
    Backplane,
    BackplaneError,
    BackplaneUnavailable,
    HistoryLost,
    StoredBatch,
    report_foreign,
)
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.effects import ConnectionId, Deliver, Effect, Receipt, Relay
from mew_spaces.core.events import (
    RULES_VERSION,
    ConnectionJoins,
    ConnectionLeaves,
    DerivedIds,
    EnvelopeArrives,
    GatewayIsGone,
    TimePasses,
    decode_batch,
    first_connection,
    gateway_of,
)
from mew_spaces.core.replicated_space import Applied, ReplicaSnapshot, ReplicatedSpace
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.acknowledgements import NOT_STORED_MESSAGE
from mew_spaces.gateway.audit import AuditLog
from mew_spaces.gateway.auth import TokenBook, generate_token
from mew_spaces.gateway.clock import new_uuid
from mew_spaces.gateway.delivery import RelayedFrames
from mew_spaces.gateway.event_queue import EventQueue, Submission
from mew_spaces.gateway.frame_relay import FrameRelay, RemoteFrame
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.replica_store import GatewayLeases, ReplicaOptions, ReplicaStore, SpaceRecord
from mew_spaces.gateway.service import SpaceService

REJOIN_SECONDS = 2.0
"""When a client that could not join because of the backplane is to try again."""

log = logging.getLogger("mew_spaces")


class ReplicaService(SpaceService):
    """One space and the connections of this gateway to it. `running` must be entered before anything joins."""

    def __init__(
        self,
        config: SpaceConfig,
        tokens: TokenBook,
        backplane: Backplane,
        *,
        folder: Path | None = None,
        writer: LogWriter | None = None,
        audit: AuditLog | None = None,
        options: ReplicaOptions | None = None,
    ) -> None:
        """`folder` is the folder of the space. Raises `SpacesError` if a participant has an `output_log`."""
        logged = [name for name, one in config.participants.items() if one.output_log is not None]
        if logged:
            raise SpacesError(f"output_log of {', '.join(logged)}: log files do not work together with a backplane")
        ids = DerivedIds(new_id=new_uuid, new_token=generate_token)
        super().__init__(
            config,
            tokens,
            new_id=ids.new_id,
            new_token=ids.new_token,
            folder=folder,
            writer=writer,
            audit=audit,
        )
        self.options = options or ReplicaOptions()
        self._own_audit = audit
        self._backplane = backplane
        self._stored = ReplicaStore(backplane, config, self.options)
        self._shared = ReplicatedSpace(self.space, ids, "")
        self._queue = EventQueue(
            backplane,
            clock=self._clock,
            refuse=self._refuse_submission,
            max_events=self.options.queued_events,
            max_bytes=self.options.queued_bytes,
            wait_seconds=self.options.wait_seconds,
        )
        self._frames = FrameRelay(backplane, self._deliver_frame)
        self._deliveries: dict[ConnectionId, DeliveryRequest] = {}
        """What connections asked for whose join is not applied yet."""
        self._leases = GatewayLeases(backplane, unseen_seconds=self.options.unseen_seconds)
        if self.webhook is not None:
            self.webhook.takes_over = True
        self._rules = frozenset({RULES_VERSION})
        """The versions of the rules whose batches are applied: of others only at an upgrade."""
        self._is_stopping = False
        self._needs_number = anyio.Event()
        self._applied = asyncio.Event()
        """Set for a moment after each batch."""

    # Lifetime

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the space together with the other gateways while the block runs.

        Raises `SpacesError` if the backplane cannot be reached or other gateways have another configuration.
        """
        starts_until = anyio.current_time() + self.options.start_seconds
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._follow, starts_until)
            for task in (self._queue.run, self._frames.run, self._keep_leases):
                tasks.start_soon(task)
            tasks.start_soon(self._stored.keep_snapshots, self._due_snapshot)
            tasks.start_soon(self._leases.watch, self._end_gone_gateways)
            while True:
                try:
                    await self._begin()
                    break
                except BackplaneUnavailable:
                    if anyio.current_time() >= starts_until:
                        raise
                await anyio.sleep(self.options.renew_seconds)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._end()
                tasks.cancel_scope.cancel()

    async def _begin(self) -> None:
        """Take a number, and wait until the other gateways know it. Raises `BackplaneUnavailable`."""
        number = await self._stored.take_number()
        # Before the others learn of this gateway: one without a lease counts as gone.
        await self._leases.renew(number)
        self._last_connection = first_connection(number)
        self._queue.begin(number)
        with anyio.move_on_after(self.options.start_seconds):
            while number not in self._shared.gateways:
                await self._applied.wait()
        if number not in self._shared.gateways:
            raise BackplaneUnavailable("the backplane stored nothing for too long")

    async def _end(self) -> None:
        """Let all connections of this gateway leave at once, instead of when its lease expires."""
        self._is_stopping = True
        number = self._queue.gateway
        if not number:
            return
        self._queue.submit(GatewayIsGone(number))
        with anyio.move_on_after(self.options.stop_seconds), suppress(BackplaneError):
            while self._queue.gateway == number:
                await self._applied.wait()
            await self._leases.release(number)

    @property
    def has_other_gateways(self) -> bool:
        """Whether another gateway also serves this space."""
        return bool(self._shared.gateways.keys() - {self._queue.gateway})

    def close_connections(self, most: int) -> int:
        """Ask up to `most` clients to connect again. Returns how many connections are left, these included."""
        channels, owners = self._performer.channels, self._performer.owners
        is_open = (one for name in owners if (one := channels.get(name)) is not None and one.is_open)
        for channel in tuple(islice(is_open, most)):
            channel.close(CloseCode.SERVICE_RESTART, "")
        return len(owners)

    # Applying

    async def _follow(self, starts_until: float, *, task_status: TaskStatus[None]) -> None:
        """Apply every batch in order until cancelled. Started once everything that was stored before is applied.

        A backplane that is away is tried again until `starts_until`, as one that elects a leader needs some seconds.
        """
        is_started = False
        while True:
            try:
                record = await self._load()
                _, last = await self._backplane.bounds()
                await self._backplane.follow(self._shared.batch, self._apply_batch, until=last)
                if self._stored.differing(record):
                    self._store.forget_former(self.config)
                    self.space.membership.reset()
                    await self._stored.change_space(record, self._shared.snapshot())
                    self._rules = frozenset({RULES_VERSION})
                if not is_started:
                    is_started = True
                    self.started_position = self.log.position
                    task_status.started()
                await self._backplane.follow(self._shared.batch, self._apply_batch)
            except BackplaneError as error:
                if is_started:
                    log.warning("backplane: %s", error)
                    self._leave_others()
                # Another gateway may have removed batches since their snapshot was chosen here.
                elif not isinstance(error, BackplaneUnavailable | HistoryLost) or anyio.current_time() >= starts_until:
                    raise
                await anyio.sleep(self.options.renew_seconds)

    async def _load(self) -> SpaceRecord:
        """Begin with what the gateways of this space share, as of a snapshot."""
        record = await self._stored.open_space()
        snapshot = await self._stored.load_snapshot(newest=bool(self._stored.differing(record)))
        for participant in self._shared.tokens:
            self.tokens.remove(participant)
        self._rules = self._stored.readable_rules(record)
        self._shared.restore(snapshot or ReplicaSnapshot())
        self._shared.epoch = record.epoch
        self.log.begin_at(Position(record.epoch, self._shared.sequence))
        self._sessions.frames = RelayedFrames(self.space.state.streams)
        for name in (*self.space.state.removed, *self._shared.tokens):
            self.tokens.remove(name)
        for participant, token in self._shared.tokens.items():
            self.tokens.add(participant, token)
        return record

    def _due_snapshot(self) -> ReplicaSnapshot | None:
        return self._shared.snapshot() if self._leases.is_ticker else None

    def _apply_batch(self, batch: StoredBatch) -> None:
        own = self._queue.end_flight(batch.data)
        submissions = [] if own is None else own.submissions
        try:
            header, events = (
                decode_batch(batch.data, self._rules)
                if own is None
                else (own.header, [one.event for one in submissions])
            )
        except ValueError as problem:
            # Every gateway skips it, so the state stays the same everywhere.
            report_foreign(str(problem))
            self._stored.note_applied(0, len(batch.data))
            return
        # Each envelope is in the logs of the gateway that it came to.
        self._performer.audit = None if own is None else self._own_audit
        waiting = iter(submissions)
        for applied in self._shared.apply(batch.sequence, header, events):
            submission = next(waiting, None)
            if applied.problem is not None:
                log.error("failed to apply an event", exc_info=applied.problem)
            try:
                self._perform_applied(applied, is_own=own is not None)
            except Exception:
                log.exception("failed to perform an event")
            if submission is not None and submission.answer is not None:
                submission.answer.set_result(applied.receipt)
        for submission in waiting:  # this gateway was gone before its batch came
            self._queue.refuse(submission)
        self._performer.audit = self._own_audit
        self._stored.note_applied(len(events), len(batch.data))
        self._frames.follow(batch.sequence)
        self._applied.set()
        self._applied.clear()  # it wakes those that wait now

    def _perform_applied(self, applied: Applied, *, is_own: bool) -> None:
        event, receipt, draft, data, _ = applied
        effects = self._own_effects(receipt.effects)
        if isinstance(event, EnvelopeArrives):
            if draft is not None and receipt.answer.get("status") != "duplicate":
                own = receipt._replace(effects=effects)
                session = event.connection if is_own and event.may_repeat else None
                self._perform_receipt(
                    draft, own, event.sender, event.connection, self._shared.now, data, session=session
                )
            elif is_own and event.connection is not None:
                self._answer_socket(event.connection, event.sender, receipt)
            return
        if isinstance(event, ConnectionJoins):
            delivery = self._deliveries.pop(event.connection, None)
            if delivery is not None:
                self._sessions.begin(event.connection, delivery)
        self._perform(effects)
        if isinstance(event, GatewayIsGone) and event.gateway == self._queue.gateway:
            self._leave_others()

    def _own_effects(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Leave out messages to connections of other gateways."""
        if not any(isinstance(one, Deliver) for one in effects):
            return effects
        channels = self._performer.channels
        return tuple(
            one for one in effects if not isinstance(one, Deliver) or any(name in channels for name in one.connections)
        )

    def _answer_socket(self, connection: ConnectionId, sender: ParticipantId, receipt: Receipt) -> None:
        """Answer an envelope that did nothing: it could not be read, applying it failed, or it came twice."""
        accepted, refused = receipt.accepted, receipt.refused
        if refused is not None:
            self.send_error(connection, refused.error, refused.message or "", code=refused.code)
        elif accepted is not None:
            known = receipt.answer.get("position")
            position = None if known is None else Position.parse(str(known))
            self._outbox.put(
                self._acknowledgements.receipt(connection, sender, accepted.id, status="duplicate", position=position)
            )

    # Connections

    def join(
        self, connection: ConnectionId, participant: ParticipantId, delivery: DeliveryRequest | None = None
    ) -> None:
        """Let a connection in whose token was checked, once all gateways do."""
        self._performer.owners[connection] = participant
        if gateway_of(connection) != self._queue.gateway:  # opened before this gateway got its number
            self._refuse_join(connection)
            return
        if delivery is not None:
            self._deliveries.setdefault(connection, delivery)
        self._queue.submit(ConnectionJoins(connection, participant, self._shared.batch))

    def leave(self, connection: ConnectionId) -> None:
        """Handle a closed connection."""
        participant = self._performer.owners.pop(connection, None)
        self._deliveries.pop(connection, None)
        if participant is not None and gateway_of(connection) == self._queue.gateway:
            self._queue.submit(ConnectionLeaves(connection, participant))
        super().leave(connection)

    # Envelopes

    def receive(
        self, connection: ConnectionId | None, sender: ParticipantId, draft: Draft, data: bytes | None = None
    ) -> Receipt:
        """Submit an envelope from a socket. Its sender is answered once it was applied."""
        receipt = self._check(connection, sender, draft)
        if receipt is not None:
            return receipt
        is_session = connection in self._sessions.by_connection or connection in self._deliveries
        read = None if data is None else draft
        data = data or draft.encode()
        self._queue.submit(EnvelopeArrives(connection, sender, self._shared.batch, is_session, data, read))
        return Receipt(())

    async def post(self, sender: ParticipantId, draft: Draft) -> Receipt:
        """Submit an envelope from HTTP, and wait until it was applied here."""
        receipt = self._check(None, sender, draft)
        if receipt is not None:
            return receipt
        event = EnvelopeArrives(None, sender, self._shared.batch, may_repeat=True, data=draft.encode())
        answer: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()
        self._queue.submit(event, answer)
        await asyncio.wait((answer,), timeout=self.options.post_seconds)
        if not answer.done():
            text = "the gateway does not know yet whether this envelope is stored; send it again with the same id"
            return Receipt((), refused=ErrorPayload(error=errors.NOT_STORED, message=text, attempted_kind=draft.kind))
        return answer.result() or self._acknowledgements.refusal(None, sender, draft)

    def relay(self, connection: ConnectionId, sender: ParticipantId, frame: StreamFrame) -> None:
        """Handle a stream frame from a socket: deliver it here, and send it to the other gateways."""
        effects = self.space.relay(frame, sender=sender, connection=connection, now=self._clock())
        self._perform(effects)
        if any(isinstance(one, Relay) for one in effects):
            self._frames.send(frame, self.space.state.streams[frame.stream_id].targets)

    def _deliver_frame(self, remote: RemoteFrame) -> None:
        stream_id, targets = remote.frame.stream_id, remote.targets
        if remote.missed:
            self._sessions.report_lost_frames(stream_id, remote.missed)
        connections = self.space.membership.connections_of(targets) if targets else None
        self._perform((Relay(remote.frame, connections),))

    def _check(self, connection: ConnectionId | None, sender: ParticipantId, draft: Draft) -> Receipt | None:
        """Answer what no other gateway has to know: a refusal, or a heartbeat."""
        now = self._clock()
        receipt = self.space.check(draft, sender=sender, connection=connection, now=now)
        if receipt is None and draft.kind == kinds.SYSTEM_HEARTBEAT:
            receipt = self.space.receive(draft, sender=sender, connection=connection, now=now, is_checked=True)
        if receipt is not None:
            self._perform_receipt(draft, receipt, sender, connection, now, None)
        return receipt

    def _refuse_submission(self, submission: Submission) -> None:
        """Answer the sender of an event that is not stored."""
        event = submission.event
        if isinstance(event, ConnectionJoins):
            self._refuse_join(event.connection)
        elif isinstance(event, EnvelopeArrives) and event.connection is not None:
            draft = decode_envelope(event.data)
            self._performer.perform(self._acknowledgements.not_stored(event.connection, event.sender, draft.id))

    def _refuse_join(self, connection: ConnectionId) -> None:
        self._deliveries.pop(connection, None)
        self.reject(connection, errors.NOT_STORED, NOT_STORED_MESSAGE, errors.CLOSE_LIMIT, REJOIN_SECONDS)

    # Time, and other gateways

    def _end_expired(self) -> None:
        self._queue.refuse_late()
        if self._leases.is_ticker and self.space.waits_for_time:
            self._queue.submit(TimePasses())

    def _shift_deadlines(self, by: timedelta) -> None:
        """Do nothing: the gateways share all deadlines, and follow the time of the events."""

    @property
    def is_storing(self) -> bool:
        """Whether accepted envelopes can be stored."""
        return bool(self._queue.gateway) and not (self._queue.is_away or self._queue.is_refused)

    @property
    def posts_attention(self) -> bool:
        """Whether this gateway posts to the webhook; of all gateways of a space, one does."""
        return self._leases.is_ticker

    def _leave_others(self) -> None:
        """Close all connections: for the other gateways, those of this one have left."""
        self._queue.begin(0)
        self._leases.is_ticker = False
        if self._is_stopping:
            return
        log.warning("this gateway was away for too long; its connections are closed, and it starts again")
        self.close_connections(len(self._performer.owners))
        self._needs_number.set()

    async def _keep_leases(self) -> None:
        while True:
            number = self._queue.gateway
            try:
                if number:
                    await self._leases.renew(number)
                    await self._leases.claim_ticker(number)
                elif self._needs_number.is_set() and not self._is_stopping:
                    self._needs_number = anyio.Event()
                    await self._begin()
                self._queue.note_success("leases")
            except BackplaneError as error:
                self._leases.is_ticker = False
                if not number:
                    self._queue.begin(0)
                    self._needs_number.set()
                self._queue.note_failure("leases", error)
            self._end_gone_gateways()
            with anyio.move_on_after(self.options.renew_seconds):
                await (anyio.sleep_forever() if self._needs_number.is_set() else self._needs_number.wait())

    def _end_gone_gateways(self) -> None:
        """Remove the connections of gateways whose leases have expired."""
        own = self._queue.gateway
        for number in self._leases.gone(self._shared.gateways.keys() - {own}) if own else ():
            log.warning("gateway %d is gone", number)
            self._queue.submit(GatewayIsGone(number))
