"""The contract between a space and its storage, and the storage of a single gateway.

A storage puts events in one order, lets the space decide each, and stores the results. Then the event is completed: its
changes are applied, and its effects are performed. An envelope that cannot be stored changes nothing, and its sender is
notified. Events of connections are facts, and are always completed.

If storing takes microseconds, each event is completed before the next one is read. If it waits for a disk, new events
wait undecided and form the next batch. A batch contains no event that depends on an earlier one's change, because
changes apply only when the batch is stored.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import anyio
from anyio import to_thread
from mew_listener.log_budget import survived
from mew_protocol import kinds

from mew_spaces.core.effects import Broadcast, Effect, Receipt, StateChanged
from mew_spaces.core.events import EnvelopeArrives, FrameArrives, InputEvent
from mew_spaces.core.space_core import ONLY_PASSED_ON, EventDecision, SpaceCore
from mew_spaces.gateway.membership_store import MembershipStore
from mew_spaces.log.memory import NOTHING, SYNCED_PREFIX, Batch, NotStored, OutcomeUnknown, SpaceLog

log = logging.getLogger("mew_spaces")

UPKEEP_SECONDS = 0.5

_PROBE_KEY, _PROBE = f"{SYNCED_PREFIX}probe", b"." * 8192
"""Written to find out whether a full disk accepts data again, then deleted."""

PENDING = Receipt(())
"""The receipt of an event that is not completed yet."""


@dataclass(eq=False, slots=True)
class Submission:
    """A submitted event."""

    event: InputEvent
    receipt: Receipt = PENDING
    completed: anyio.Event | None = None
    """Set with the receipt, for a sender that waits."""
    decision: EventDecision | None = None
    numbered: tuple[tuple[bytes, int | None], ...] = ()
    """The bytes and the number of each broadcast, in order; None is one that could not be stored."""

    @property
    def sequence(self) -> int | None:
        """The number of the accepted envelope itself; None if not broadcast or not stored."""
        sent = (one.envelope for one in self.receipt.effects if isinstance(one, Broadcast))
        numbers = zip(sent, self.numbered, strict=False)
        return next((number for one, (_, number) in numbers if one is self.receipt.accepted), None)

    def resolve(self, receipt: Receipt) -> None:
        """Set the receipt."""
        self.receipt = receipt
        if self.completed is not None:
            self.completed.set()


class StoredSpace(Protocol):
    """The space, from the view of its storage."""

    space: SpaceCore
    log: SpaceLog
    store: MembershipStore

    def now(self) -> datetime:
        """Return the time of the space's clock."""

    def number(self, submission: Submission) -> None:
        """Stage the changes and broadcasts of a decided event in the log."""

    def complete(self, submission: Submission) -> None:
        """Perform the effects of an applied event, and answer its sender."""

    def refuse(self, submission: Submission, *, is_unknown: bool = False) -> None:
        """Notify an event's sender that it is not stored, or that this is unknown."""

    def after_events(self) -> None:
        """Finish after all stored events are completed."""


class Storage(Protocol):
    """Stores the events of a space."""

    log: SpaceLog

    @property
    def gateway(self) -> int:
        """The number of this gateway in its space; 0 if it is alone or has none yet."""

    @property
    def is_storing(self) -> bool:
        """Whether accepted envelopes can be stored."""

    @property
    def is_leader(self) -> bool:
        """Whether this gateway does the tasks that only one gateway of a space does: timeouts, the webhook."""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may also serve the space."""

    @property
    def has_others(self) -> bool:
        """Whether another gateway also serves this space now."""

    @property
    def waiting(self) -> int:
        """The number of events waiting to be stored."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serve the space while the block runs."""

    async def run(self) -> None:
        """Store submitted events until cancelled."""

    def submit(self, event: InputEvent) -> Submission:
        """Submit an event, to be processed after all earlier ones."""

    def check(self) -> None:
        """Test whether a failed storage works again. Call this regularly."""

    def stop(self) -> None:
        """Store waiting events, and release the storage."""


class LocalStorage:
    """The storage of the only gateway of a space: its log.

    An event is decided, stored and applied, and then its effects are performed.
    """

    gateway = 0
    is_leader = True
    is_shared = False
    has_others = False

    def __init__(self, service: StoredSpace) -> None:
        self.log = service.log
        self._service = service
        self._is_immediate = not service.log.is_slow
        self._keeps_envelopes = service.log.durability != "memory"
        self._waiting: deque[Submission] = deque()
        self._in_flight: list[Submission] = []
        self._unstored: dict[str, bytes | None] = {}
        """The changes of facts that a full disk did not take."""
        self._wake: anyio.Event | None = None  # an event can only be made where an event loop runs
        self._is_busy = False
        self._is_running = False
        self.is_storing = True
        if _PROBE_KEY in self.log.state():  # from a run that has ended
            self.log.put(_PROBE_KEY, None)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def running(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def submit(self, event: InputEvent) -> Submission:
        submission = Submission(event)
        self._waiting.append(submission)
        self._continue()
        return submission

    def check(self) -> None:
        if not self.is_storing and not self._in_flight:
            self._try_again({_PROBE_KEY: _PROBE})
            self._continue()

    def stop(self) -> None:
        self.log.end()
        if not self._is_running:
            self._finish()
        elif self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        self._is_running = True
        try:
            if self._is_immediate:
                await keep_up(self.log)
            else:
                await self._store_batches()
        finally:
            self._is_running = False
            self._finish()

    def _continue(self) -> None:
        """Store waiting events, one by one in this thread or by waking the writing task."""
        if not self._is_immediate:
            if self._wake is not None:
                self._wake.set()
            return
        if self._is_busy:  # events that an event causes follow it in the order
            return
        self._is_busy = True
        try:
            while (batch := self._begin_batch()) is not None:
                self._end_batch(batch, self._write(batch))
        finally:
            self._is_busy = False
        self._service.after_events()

    async def _store_batches(self) -> None:
        self._wake = anyio.Event()
        if self._waiting:
            self._wake.set()
        while not self.log.is_closed:
            await self._wake.wait()
            self._wake = anyio.Event()  # before storing, so that later events start another round
            # A thread cannot be cancelled: the batch will be in the log, so its members must receive it.
            with anyio.CancelScope(shield=True):
                while (batch := self._begin_batch()) is not None:
                    problem = None if batch is NOTHING else await to_thread.run_sync(self._write, batch)
                    self._end_batch(batch, problem)
                    self._service.after_events()
                    await _keep_up_once(self.log)
        await anyio.sleep_forever()  # from now on `_finish` stores submissions

    def _finish(self) -> None:
        """Store the rest in this thread, and release the log. Later facts are applied, but not stored."""
        if not self.log.is_released:
            self._is_immediate = True
            self._try_again({})
            self._continue()
            self.is_storing = False
            self.log.close()

    def _begin_batch(self) -> Batch | None:
        """Begin the next batch: return the entries to store, or None if nothing waits."""
        # Waiting changes are a separate batch: if it fails, no envelope fails with it.
        if not self.log.staged_state:
            if not self._waiting:
                return None
            self._decide_waiting()
        return self.log.seal()

    def _decide_waiting(self) -> None:
        """Decide waiting events, up to one that depends on an earlier one of the batch."""
        space = self._service.space
        touched: set[object] = set()
        while self._waiting:
            event = self._waiting[0].event
            subjects = None if self._is_immediate else _subjects(event)
            if self._in_flight and (bool(touched) if subjects is None else not touched.isdisjoint(subjects)):
                break
            submission = self._waiting.popleft()
            if not self.is_storing and self._keeps_envelopes and isinstance(event, EnvelopeArrives):
                self._service.refuse(submission)
                continue
            submission.decision = decision = space.decide(event, now=self._service.now())
            self._in_flight.append(submission)
            self._service.number(submission)
            if self._is_immediate:
                break
            if isinstance(event, EnvelopeArrives) and decision.receipt.accepted is not None:
                touched.update((event.sender,) if subjects is None else subjects)
                if subjects is None and decision.receipt.changes:
                    break

    def _write(self, batch: Batch) -> NotStored | None:
        """Store a batch. Returns the error if that fails."""
        try:
            if batch is not NOTHING:
                self.log.write(batch)
        except NotStored as error:
            return error
        return None

    def _end_batch(self, batch: Batch, error: NotStored | None) -> None:
        """Apply and perform the events of a stored batch. After an `error`, apply only its facts."""
        if error is not None:
            if self.is_storing:
                refused = "envelopes" if self._keeps_envelopes else "invitations and removals"
                log.error("history not stored: %s; %s are refused until it can be", error, refused)
            self.is_storing = False
            if not self._in_flight:
                self._unstored |= {key: value for key, value in batch.state.items() if value is not _PROBE}
        elif batch is not NOTHING:
            self.log.publish(batch)
            if not self.is_storing and (self._keeps_envelopes or batch.synced_state):
                self.is_storing = True
                self._unstored = {key: value for key, value in self._unstored.items() if key not in batch.state}
                self._try_again({_PROBE_KEY: None} if _PROBE_KEY in batch.state else {})
        try:
            for submission in self._in_flight:
                decision = submission.decision
                assert decision is not None
                if error is not None and not self._holds_unstored(submission, decision):
                    self._service.refuse(submission, is_unknown=isinstance(error, OutcomeUnknown))
                    continue
                # Only now: a token that was checked while a removal waited for the disk is older than the removal.
                self._service.space.batch += 1
                first = submission.numbered[0][1] if submission.numbered else None
                if follows := self._service.space.apply(decision, after=0 if first is None else first - 1):
                    self._stage(follows)
                self._service.complete(submission)
        finally:
            self._in_flight = []
        if error is not None:
            self._unstored |= self.log.seal().state

    def _try_again(self, state: Mapping[str, bytes | None]) -> None:
        """Store the unwritten changes, and these, with the next batch."""
        for key, value in {**self._unstored, **state}.items():
            self.log.put(key, value)
        self._unstored = {}

    def _holds_unstored(self, submission: Submission, decision: EventDecision) -> bool:
        """Return True for a fact, which applies unstored and is stored as soon as possible; False for an envelope."""
        if not isinstance(submission.event, EnvelopeArrives):
            self._stage(decision.receipt.effects)
        elif decision.receipt.accepted is not None and not decision.is_duplicate:
            return False
        submission.numbered = tuple((data, None) for data, _ in submission.numbered)
        return True

    def _stage(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StateChanged):
                self._service.store.stage(effect.changes)


async def keep_up(space_log: SpaceLog) -> None:
    """Run a log's upkeep in a thread whenever due, until cancelled."""
    while True:
        await anyio.sleep(UPKEEP_SECONDS)
        await _keep_up_once(space_log)


async def _keep_up_once(space_log: SpaceLog) -> None:
    if space_log.wants_upkeep:
        with anyio.CancelScope(shield=True), survived("the upkeep of the history", log):
            await to_thread.run_sync(space_log.upkeep)


def _subjects(event: InputEvent) -> Collection[object] | None:
    """Return the subjects in its batch on which an event depends; None: all of them."""
    if not isinstance(event, EnvelopeArrives):
        return () if isinstance(event, FrameArrives) else None
    kind, name = (None, None) if event.draft is None else (event.draft.kind, event.draft.id)
    same = () if name is None else ((event.sender, name),)
    if kind == kinds.PARTICIPANT_STATUS:
        return event.sender, *same
    return same if kind in ONLY_PASSED_ON else None
