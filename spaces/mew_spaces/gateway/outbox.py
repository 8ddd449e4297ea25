"""What waits to be stored: effects are performed in order, none before the envelopes ahead of it are written.

All that an envelope causes is performed once it is stored, or undone. Joins, departures and what expires are facts:
their effects are performed in any case.

Where storing takes microseconds, all that one event causes is a batch of its own, written at once. Where it waits for a
disk, what arrives while a batch is being written forms the next batch: the number of writes follows from how fast the
disk is.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

import anyio
from anyio import to_thread
from mew_listener.log_budget import survived
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY_IDS, ParticipantId

from mew_spaces.core.effects import Broadcast, ConnectionId, Effect
from mew_spaces.log.memory import Batch, NotStored, SpaceLog

log = logging.getLogger("mew_spaces")

UPKEEP_SECONDS = 0.5

_PROBE = b"." * 8192
"""Written to find out whether a full disk accepts data again."""


class NumberedBroadcast(NamedTuple):
    """A broadcast with its bytes and its number. `sequence` is None for a gateway's own that could not be stored.

    `is_logged` says that the audit log has its line already.
    """

    effect: Broadcast
    data: bytes
    sequence: int | None
    is_logged: bool

    @staticmethod
    def unstored(effect: Broadcast) -> "NumberedBroadcast":
        """Return one of the gateway's own without a number."""
        return NumberedBroadcast(effect, effect.envelope.encode(), None, is_logged=False)


class EnvelopeEffects(NamedTuple):
    """An envelope with all that it causes, in order: performed if it is stored, else undone and refused."""

    envelope: Envelope
    effects: tuple[Effect | NumberedBroadcast, ...]


class DuplicateReceipt(NamedTuple):
    """The answer to an envelope that came again. What it says depends on whether the first copy could be stored."""

    connection: ConnectionId
    sender: ParticipantId
    envelope_id: str


Item = Effect | NumberedBroadcast | EnvelopeEffects | DuplicateReceipt


class _Ticket:
    """Shows when a batch is written, and whether it was stored."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.is_stored = True

    def end(self, *, is_stored: bool) -> None:
        self.is_stored = is_stored
        self.done.set()


class Outbox:
    """Performs effects once what they rest on is stored.

    `write` writes a broadcast with its number to the members; `perform` does anything else; `roll_back` undoes what
    could not be stored, and returns what to perform or refuse instead; `refuse` tells the sender of an envelope that it
    was not stored; `performed` is called when everything published is performed.
    """

    def __init__(
        self,
        log: SpaceLog,
        *,
        clock: Callable[[], datetime],
        write: Callable[[Broadcast, bytes, int | None, bool], None],
        perform: Callable[[Effect | DuplicateReceipt], None],
        roll_back: Callable[[list[Item]], list[Item]],
        refuse: Callable[[Envelope], None],
        performed: Callable[[], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._write = write
        self._perform = perform
        self._roll_back = roll_back
        self._refuse = refuse
        self._performed = performed
        self._is_immediate = not log.is_slow
        self._items: list[Item] = []
        self._ticket: _Ticket | None = None  # an event can only be made where an event loop runs
        self._in_flight: _Ticket | None = None
        self._wake: anyio.Event | None = None
        self._is_performing = False
        self._is_running = False
        self._is_stopping = False
        self._is_closed = False
        self.is_failing = False
        """Whether the newest batch could not be stored."""

    def __len__(self) -> int:
        """How many effects and envelopes wait for the disk."""
        return len(self._items)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be stored or performed."""
        return not (self._items or self._in_flight or self._is_performing)

    @property
    def is_settled(self) -> bool:
        """Whether everything that the log has published is performed."""
        return not self._is_performing

    def broadcast(self, effect: Broadcast, data: bytes, *, at: float, is_logged: bool) -> None:
        """Number an envelope that causes nothing else and store it, then write it to the members.

        It is written behind everything put before. `is_logged` says that the audit log has its line already.
        """
        envelope = effect.envelope
        if self._is_closed:
            self._perform_unstored(NumberedBroadcast(effect, data, None, is_logged))
        elif self._is_immediate:
            try:
                sequence = self._log.append(data, sender=envelope.sender, id=envelope.id, at=at)
            except NotStored as error:
                self._begin_failing(error)
                self._perform_unstored(NumberedBroadcast(effect, data, None, is_logged))
            else:
                self.is_failing = False
                self._write(effect, data, sequence, is_logged)
        else:
            sequence = self._log.stage(data, sender=envelope.sender, id=envelope.id, at=at)
            self._add(NumberedBroadcast(effect, data, sequence, is_logged))

    def put(self, effect: Effect | DuplicateReceipt) -> None:
        """Perform an effect that is not to be refused, now or behind everything put before. `store` must follow."""
        if isinstance(effect, Broadcast):
            self._add(self._number(effect))
        # With nothing ahead of it, it need not wait for the disk: it rests on nothing that could still be refused.
        elif self._is_closed or self.is_idle:
            self._perform(effect)
        else:
            self._add(effect)

    def put_accepted(self, envelope: Envelope, effects: Iterable[Effect]) -> None:
        """Perform all that an envelope causes once `store` has stored it, or nothing of it."""
        numbered = (self._number(one) if isinstance(one, Broadcast) else one for one in effects)
        self._add(EnvelopeEffects(envelope, tuple(numbered)))

    def _add(self, item: Item) -> None:
        self._items.append(item)
        self._wake_up()

    def _number(self, effect: Broadcast) -> NumberedBroadcast:
        envelope, at = effect.envelope, self._clock().timestamp()
        data = envelope.encode()
        sequence = self._log.stage(data, sender=envelope.sender, id=envelope.id, at=at)
        return NumberedBroadcast(effect, data, sequence, is_logged=False)

    def store(self) -> None:
        """Store what one event caused: its envelopes with its changes of the state, all or nothing."""
        if self._is_closed:
            if self._items:
                self._perform_all(self._take_items(), are_stored=False)
        # What a full disk did not take waits for `probe` or for the next envelope.
        elif self._items or (self._log.has_staged_state and not self.is_failing):
            self._begin_storing()

    async def stored(self) -> bool:
        """Wait until everything put so far is stored; False if what was put last could not be."""
        if self._items and self._ticket is None:
            self._ticket = _Ticket()
        ticket = self._ticket or self._in_flight
        if ticket is None or self._is_closed:
            return not (self.is_failing or self._is_closed)
        await ticket.done.wait()
        return ticket.is_stored

    def probe(self) -> None:
        """After a failure, try again to write something."""
        if self.is_failing and self._in_flight is None:
            self._log.put("probe", _PROBE)
            self._begin_storing()

    def stop(self) -> None:
        """End the log for its readers. What is put before `run` ends, such as members that leave, is still stored."""
        self._log.end()
        self._is_stopping = True
        if not self._is_running:
            self._finish()
        else:
            self._wake_up()

    async def run(self) -> None:
        """Write batches and run the log's upkeep until `stop` or cancelled; then release the log."""
        self._is_running = True
        try:
            if self._is_immediate:
                await self._keep_up()
            else:
                await self._write_batches()
        finally:
            self._is_running = False
            self._finish()

    async def _write_batches(self) -> None:
        self._wake = anyio.Event()
        if self._items:
            self._wake.set()
        while not self._is_stopping:
            await self._wake.wait()
            self._wake = anyio.Event()  # before storing: what arrives while a batch is written wakes the next round
            # A thread cannot be cancelled: the batch will be in the log, so its members have to get it.
            with anyio.CancelScope(shield=True):
                await self._store()
        await anyio.sleep_forever()  # what is put from now on is stored by `_finish`

    async def _keep_up(self) -> None:
        """Run the log's upkeep in a thread when it is due."""
        while True:
            await anyio.sleep(UPKEEP_SECONDS)
            if self._log.wants_upkeep:
                with anyio.CancelScope(shield=True), survived("the upkeep of the history", log):
                    await to_thread.run_sync(self._log.upkeep)

    async def _store(self) -> None:
        while (batch := self._log.seal()) or self._items:
            items = self._take_items()
            ticket, self._ticket = self._ticket or _Ticket(), None
            self._in_flight = ticket
            try:
                await to_thread.run_sync(self._log.write, batch)
            except NotStored as error:
                self._fail(items, batch, error)
            else:
                self._complete(items, batch)
            ticket.end(is_stored=not self.is_failing)
            if self._log.wants_upkeep:
                with survived("the upkeep of the history", log):
                    await to_thread.run_sync(self._log.upkeep)
            if self.is_failing and not self._items:
                return

    def _finish(self) -> None:
        """Store what is left, in this thread, and release the log."""
        if self._is_closed:
            return
        self._is_closed = True
        self._store_now()
        if self._ticket is not None:
            self._ticket.end(is_stored=not self.is_failing)
        self._log.close()

    def _begin_storing(self) -> None:
        if not self._is_immediate:
            self._wake_up()
        elif not self._is_closed:
            self._store_now()

    def _store_now(self) -> None:
        batch, items = self._log.seal(), self._take_items()
        try:
            self._log.write(batch)
        except NotStored as error:
            self._fail(items, batch, error)
        else:
            self._complete(items, batch)

    def _complete(self, items: list[Item], batch: Batch) -> None:
        self._in_flight = None
        self.is_failing = False
        self._log.publish(batch)
        self._perform_all(items, are_stored=True)

    def _fail(self, items: list[Item], batch: Batch, error: NotStored) -> None:
        self._in_flight = None
        self._begin_failing(error)
        self._log.discard(batch)
        # What was accepted since was judged by what is undone now.
        if self._ticket is not None:
            self._ticket.end(is_stored=False)
            self._ticket = None
        self._perform_all([*items, *self._take_items()], are_stored=False)

    def _take_items(self) -> list[Item]:
        items, self._items = self._items, []
        return items

    def _begin_failing(self, error: NotStored) -> None:
        if not self.is_failing:
            log.error("history not stored: %s; envelopes are refused until it can be", error)
        self.is_failing = True

    def _perform_stored(self, item: Item) -> None:
        if isinstance(item, NumberedBroadcast):
            self._write(*item)
        elif isinstance(item, EnvelopeEffects):
            for effect in item.effects:
                self._perform_stored(effect)
        else:
            self._perform(item)

    def _perform_unstored(self, item: Item) -> None:
        """Envelopes of participants are refused; the gateway's own are delivered without a number."""
        if isinstance(item, EnvelopeEffects):
            self._refuse(item.envelope)
        elif not isinstance(item, NumberedBroadcast):
            self._perform(item)
        elif item.effect.envelope.sender in GATEWAY_IDS:
            # No one would send it again, and members must not keep someone on their lists who has left.
            self._write(item.effect, item.data, None, item.is_logged)
        else:
            self._refuse(item.effect.envelope)

    def _perform_all(self, items: list[Item], *, are_stored: bool) -> None:
        self._is_performing = True
        try:
            # Refused one by one here, so that the answers keep their places among the effects of the batch.
            perform = self._perform_stored if are_stored else self._perform_unstored
            for item in items if are_stored else self._roll_back(items):
                perform(item)
        finally:
            self._is_performing = False
        self._performed()

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()
