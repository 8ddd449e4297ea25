"""The storage of a space with several gateways: each has some of the connections, and all share one order.

A gateway submits each event to the backplane. Once stored, every gateway decides and applies the event in order, and
performs the effects for its own connections; the sender's gateway answers. Owns the number and the leases of this
gateway. The log is a local copy: it starts with this gateway or its file.
"""

import asyncio
import logging
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import anyio
from anyio.abc import TaskStatus
from mew_protocol.codec import decode_envelope
from mew_protocol.ids import ParticipantId, Position

from mew_spaces.core.admission import content_digest
from mew_spaces.core.effects import Relay
from mew_spaces.core.events import (
    FrameArrives,
    GatewayIsGone,
    InputEvent,
    decode_batch,
)
from mew_spaces.core.space_core import REMEMBERED_ENVELOPES, SpaceSnapshot
from mew_spaces.core.state import SpaceState
from mew_spaces.gateway.delivery import RelayedFrames
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.gateway.service import Former, OpenStorage, SpaceService
from mew_spaces.gateway.storage import Submission, keep_up
from mew_spaces.log.memory import Batch, NotStored
from mew_spaces.parts.jetstream.backplane import (
    Backplane,
    BackplaneError,
    BackplaneUnavailable,
    HistoryLost,
    StoredBatch,
    report_foreign,
)
from mew_spaces.parts.jetstream.event_queue import EventQueue
from mew_spaces.parts.jetstream.frame_relay import FrameRelay, RemoteFrame
from mew_spaces.parts.jetstream.shared_records import GatewayLeases, SharedRecords, SharedStorageOptions, SpaceRecord

log = logging.getLogger("mew_spaces")


def on_backplane(backplane: Backplane, options: "SharedStorageOptions | None" = None) -> OpenStorage:
    """Return a function that opens the storage of a space on a connected backplane, within the bounds of `options`."""
    return lambda service, former: SharedStorage(service, backplane, options or SharedStorageOptions(), former)


class SharedStorage:
    """See `Storage`. Enter `running` before any join."""

    is_shared = True

    def __init__(
        self, service: SpaceService, backplane: Backplane, options: SharedStorageOptions, former: Former
    ) -> None:
        self.options = options
        self._former = former
        self.log = service.log
        self._service = service
        self._backplane = backplane
        self._records = SharedRecords(backplane, service.config, options)
        self._space = service.space
        self._queue = EventQueue(
            backplane,
            clock=service.now,
            refuse=service.refuse,
            max_events=options.queued_events,
            max_bytes=options.queued_bytes,
            wait_seconds=options.wait_seconds,
        )
        self._frames = FrameRelay(backplane, self._deliver_frame)
        self._leases = GatewayLeases(backplane, unseen_seconds=options.unseen_seconds)
        self._is_running = self._is_stopping = self._has_begun = False
        self._is_copying = True
        """True until a batch was not written: after a gap, the file must not continue."""
        self._needs_number = anyio.Event()
        self._applied = asyncio.Event()
        """Set for a moment after each batch."""

    @property
    def gateway(self) -> int:
        return self._queue.gateway

    @property
    def is_leader(self) -> bool:
        return self._leases.is_ticker

    @property
    def is_storing(self) -> bool:
        return bool(self._queue.gateway) and not (self._queue.is_away or self._queue.is_refused)

    @property
    def has_others(self) -> bool:
        return bool(self._space.gateways.keys() - {self._queue.gateway})

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, event: InputEvent) -> Submission:
        submission = Submission(event)
        if not isinstance(event, FrameArrives):
            self._queue.submit(submission)
            return submission
        # Frames are not stored: deliver them here at once, and send them to the other gateways.
        service, frame = self._service, event.frame
        service.performer.perform(effects := service.space.decide(event, now=service.now()).receipt.effects)
        if any(isinstance(one, Relay) for one in effects):
            self._frames.send(frame, service.space.state.streams[frame.stream_id].targets)
        return submission

    def check(self) -> None:
        self._queue.refuse_late()

    async def run(self) -> None:
        await keep_up(self.log)

    def stop(self) -> None:
        self.log.end()
        if not self._is_running:
            self.log.close()

    # Lifetime

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the space together with other gateways while the block runs.

        Raises `SpacesError` if the backplane is unavailable or other gateways have another configuration.
        """
        starts_until = anyio.current_time() + self.options.start_seconds
        self._is_running = True
        with closing(self.log):
            async with self._following(starts_until):
                yield

    @asynccontextmanager
    async def _following(self, starts_until: float) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._follow, starts_until)
            for task in (self._queue.run, self._frames.run, self._keep_leases):
                tasks.start_soon(task)
            tasks.start_soon(self._records.keep_snapshots, self._due_snapshot)
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
        """Take a number, and wait until it is announced in the order. Raises `BackplaneUnavailable`."""
        number = await self._records.take_number()
        # Before others see this gateway: a gateway without a lease counts as gone.
        await self._leases.renew(number)
        self._queue.use_number(number)
        with anyio.move_on_after(self.options.start_seconds):
            while number not in self._space.gateways:
                await self._applied.wait()
        if number not in self._space.gateways:
            raise BackplaneUnavailable("the backplane stored nothing for too long")

    async def _end(self) -> None:
        """Let all connections of this gateway leave at once, not only when its lease expires."""
        self._is_stopping = True
        number = self._queue.gateway
        if not number:
            return
        self._queue.submit(Submission(GatewayIsGone(number)))
        with anyio.move_on_after(self.options.stop_seconds), suppress(BackplaneError):
            while self._queue.gateway == number:
                await self._applied.wait()
            await self._leases.release(number)

    # Applying

    async def _follow(self, starts_until: float, *, task_status: TaskStatus[None]) -> None:
        """Apply every batch in order until cancelled. Reports its start after applying all earlier batches.

        Retries an unavailable backplane until `starts_until`, because electing a leader takes some seconds.
        """
        is_started = is_lost = False
        while True:
            try:
                record = await self._load(is_lost=is_lost)
                is_lost = False
                _, last = await self._backplane.bounds()
                await self._backplane.follow(self._space.batch, self._apply_batch, until=last)
                if self._records.differing(record):
                    self._service.store.forget_former(self._service.config)
                    self._space.restore(self._space.snapshot())
                    await self._records.change_space(record, self._space.snapshot())
                if not is_started:
                    is_started = True
                    self._service.started_position = self.log.position
                    task_status.started()
                await self._backplane.follow(self._space.batch, self._apply_batch)
            except BackplaneError as error:
                is_lost |= isinstance(error, HistoryLost)
                if is_started:
                    log.warning("backplane: %s", error)
                    self._leave_others()
                # Another gateway may have removed batches after their snapshot was chosen here.
                elif not isinstance(error, BackplaneUnavailable | HistoryLost) or anyio.current_time() >= starts_until:
                    raise
                await anyio.sleep(self.options.renew_seconds)

    async def _load(self, *, is_lost: bool) -> SpaceRecord:
        """Start with the shared state of a snapshot. If batches are lost that were applied, begin another epoch."""
        service, space = self._service, self._space
        record = await self._records.open_space(self._begin_space)
        self._has_begun = True
        if is_lost and record.epoch == space.epoch and space.batch > (await self._backplane.bounds())[1]:
            record = await self._records.begin_again(record, self._begin_space())
        snapshot = await self._records.load_snapshot(record.epoch, newest=bool(self._records.differing(record)))
        for participant in space.tokens:
            service.tokens.remove(participant)
        space.restore(snapshot)
        space.epoch = record.epoch
        service.store.mirror(space.state)
        self.log.begin_at(Position(record.epoch, space.sequence))
        service.sessions.frames = RelayedFrames(space.state.streams)
        service.figures.waiting.update(space.state.statuses)
        for name in (*space.state.removed, *space.tokens):
            service.tokens.remove(name)
        for participant, token in space.tokens.items():
            service.tokens.add(participant, token)
        return record

    def _begin_space(self) -> SpaceSnapshot:
        """Return the initial shared state of a space: that of a single gateway, if there was one."""
        service = self._service
        if self._former.is_held:
            raise BackplaneUnavailable("another gateway of this folder is creating the space")
        if self._has_begun:  # all batches were lost: members must see a gap in the history
            held = self._space.state
            kept = SpaceState(invited=held.invited, removed=held.removed, grants=held.grants, pauses=held.pauses)
            kept.shut_down = held.shut_down
            return SpaceSnapshot(epoch=secrets.token_hex(4), state=kept, tokens=self._space.tokens)
        former = MembershipStore(service.config, service.tokens, self._former.folder, self.log)
        invited = ((ParticipantId(name), service.tokens.token_of(name)) for name in former.state.invited)
        known = (
            (one.sender, one.id, content_digest(decode_envelope(one.data)), one.sequence)
            for one in self.log.last(REMEMBERED_ENVELOPES)
        )
        return SpaceSnapshot.begun_with(
            former.state,
            epoch=self.log.epoch,
            sequence=self.log.position.sequence,
            known=known,
            tokens={name: token for name, token in invited if token is not None},
        )

    def _due_snapshot(self) -> SpaceSnapshot | None:
        return self._space.snapshot() if self._leases.is_ticker else None

    def _apply_batch(self, batch: StoredBatch) -> None:
        own = self._queue.end_flight(batch.data)
        submissions = [] if own is None else own.submissions
        try:
            header, events = (
                decode_batch(batch.data) if own is None else (own.header, [one.event for one in submissions])
            )
        except ValueError as problem:
            # Every gateway skips it, so the state stays the same everywhere.
            report_foreign(str(problem))
            self._records.note_applied(0, len(batch.data))
            return
        waiting = iter(submissions)
        for decision in self._space.replay(batch.sequence, header, events):
            submission = next(waiting, None) or Submission(decision.event)
            submission.decision = decision
            try:
                self._service.number(submission)
                self._keep()
                self._service.complete(submission, is_own=own is not None)
            except Exception:
                log.exception("failed to perform an event")
            if isinstance(decision.event, GatewayIsGone) and decision.event.gateway == self._queue.gateway:
                self._leave_others()
        for submission in waiting:  # this gateway counted as gone before its batch was applied
            self._service.refuse(submission)
        self._service.after_events()
        self._records.note_applied(len(events), len(batch.data))
        self._frames.batch_applied(batch.sequence)
        self._applied.set()
        self._applied.clear()  # wakes all current waiters

    def _keep(self) -> None:
        """Store numbered entries in this gateway's log; the backplane also has them."""
        sealed = self.log.seal()
        kept = sealed if self._is_copying else Batch(state=sealed.state)
        try:
            if kept.entries or kept.state:
                self.log.write(kept)
        except NotStored as error:
            if self._is_copying:
                log.error("history not kept any more by this gateway: %s; its next start fetches the rest", error)
            self._is_copying = False
            for key, value in sealed.state.items():  # included in the next batch, for a gateway that starts alone
                self.log.put(key, value)
        self.log.publish(sealed)

    def _deliver_frame(self, remote: RemoteFrame) -> None:
        stream_id, targets = remote.frame.stream_id, remote.targets
        if remote.missed:
            self._service.sessions.report_lost_frames(stream_id, remote.missed)
        connections = self._service.space.membership.connections_of(targets) if targets else None
        self._service.performer.perform((Relay(remote.frame, connections),))

    # Other gateways

    def _leave_others(self) -> None:
        """Close all connections, because the other gateways consider them gone."""
        self._queue.use_number(0)
        self._leases.is_ticker = False
        if self._is_stopping:
            return
        log.warning("this gateway was away for too long; its connections are closed, and it starts again")
        self._service.close_connections(sys.maxsize)
        self._service.disconnect_virtual()
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
                    self._queue.use_number(0)
                    self._needs_number.set()
                self._queue.note_failure("leases", error)
            self._end_gone_gateways()
            with anyio.move_on_after(self.options.renew_seconds):
                await (anyio.sleep_forever() if self._needs_number.is_set() else self._needs_number.wait())

    def _end_gone_gateways(self) -> None:
        """Remove the connections of gateways with expired leases."""
        own = self._queue.gateway
        for number in self._leases.gone(self._space.gateways.keys() - {own}) if own else ():
            log.warning("gateway %d is gone", number)
            self._queue.submit(Submission(GatewayIsGone(number)))
