"""The client's side of confirmed delivery: the last position, the frame counts, and the unconfirmed envelopes.

Keeps them across all connections of a participant, and derives gaps from them. `client` passes arrivals in, and writes
the returned envelopes. `docs/reference/wire.md`, "Confirmed delivery", says what the gateway guarantees.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

import anyio
from mew_listener.bounded_dict import BoundedDict
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY, GATEWAY_IDS, Position
from mew_protocol.json_values import object_at, objects_at, value_at
from mew_protocol.kinds import (
    STREAM_CLOSE,
    SYSTEM_ERROR,
    SYSTEM_HEARTBEAT,
    SYSTEM_PRESENCE,
    SYSTEM_RECEIPT,
    SYSTEM_WELCOME,
)

from mew_agent.errors import MewAgentError, NotAccepted, TooLarge
from mew_agent.participant.gaps import GapReason, HistoryGap, StreamGap

UNCONFIRMED_KINDS = frozenset({SYSTEM_HEARTBEAT})
"""Kinds that the gateway answers with neither an echo nor a receipt."""


@dataclass(eq=False, slots=True)
class OutgoingEnvelope:
    """An envelope that is being sent. `done` is set when a gateway has accepted or refused it, or none ever will."""

    envelope: Envelope
    text: str
    size_bytes: int
    done: anyio.Event = field(default_factory=anyio.Event)
    is_accepted: bool = False
    error: MewAgentError | None = None
    position: Position | None = None
    """Where the gateway stored it; None while that is not known."""
    is_written: bool = False
    """Whether it was handed to a connection, so that the gateway may have it."""
    refusals_for_size: int = 0

    def retry(self) -> None:
        """Wait for a new decision of the gateway."""
        self.error, self.done = None, anyio.Event()


Message = Envelope | StreamFrame | StreamGap


class Arrived(NamedTuple):
    """A message and its place. After it, everything up to `position` has been passed on.

    `is_past`: it was sent before this participant first joined. `message` None: all missed messages have arrived.
    `age_seconds` is the time since the gateway accepted it, by the gateway's clock. `size_bytes` is at least the size
    of the message in UTF-8.
    """

    message: Message | None = None
    position: Position | None = None
    is_past: bool = False
    age_seconds: float = 0.0
    size_bytes: int = 0


class Arrival(Enum):
    """The handler of an envelope that has arrived."""

    PASS_ON = auto()
    SKIP = auto()
    PASS_ON_AS_PAST = auto()
    """Pass it on as something that was said before this participant joined for the first time."""
    GO_LIVE = auto()
    """Skip it; everything missed has arrived."""


def presences_in(batch: Envelope) -> Iterator[Envelope]:
    """Yield the presences in a `system/presence-batch`, as a connection without batches receives them."""
    for number, change in enumerate(objects_at(batch.body, "changes")):
        yield Envelope.write(
            SYSTEM_PRESENCE, id=f"{batch.id}-{number}", ts=batch.ts, sender=batch.sender, payload=change
        )


MAX_COUNTED_STREAMS = 10_000
"""How many streams are counted; beyond that, those without a frame for the longest time are forgotten."""


class FrameCounts:
    """The number of frames of each stream that arrived, or were missed and reported."""

    def __init__(self) -> None:
        self._run: object = None
        self._counts: BoundedDict[str, int] = BoundedDict(MAX_COUNTED_STREAMS)
        self._closed: BoundedDict[str, None] = BoundedDict(MAX_COUNTED_STREAMS)

    def add(self, stream_id: str) -> None:
        """Count a frame that has arrived."""
        self._counts[stream_id] = self._counts.get(stream_id, 0) + 1

    def close(self, stream_id: str) -> None:
        """Record that a stream was closed: so none of its frames can be missed any more."""
        if stream_id in self._counts:
            self._closed[stream_id] = None

    def compare(self, frames: object) -> Iterator[StreamGap]:
        """Compare with the gateway's counts (`frames` of a welcome or receipt), and continue from these.

        Frames sent before the first welcome are not missed.
        """
        if not isinstance(frames, Mapping):
            return
        counts = {name: total for name, total in object_at(frames, "counts").items() if isinstance(total, int)}
        former, self._run = self._run, frames.get("run")
        gaps = [] if former is None else [*self._gaps(counts, is_other_run=former != self._run)]
        if former != self._run:  # a gateway without a stored history reuses the ids of streams
            self._counts.clear()
            self._closed.clear()
        self._counts.update(counts)
        yield from gaps

    def _gaps(self, counts: Mapping[str, int], *, is_other_run: bool) -> Iterator[StreamGap]:
        if is_other_run:
            # A killed gateway counts from 0, and does not know the lost frames.
            before = [name for name in self._counts if name not in self._closed]
            yield from (StreamGap(name) for name in dict.fromkeys((*before, *counts)))
            return
        for name, total in counts.items():
            if (missed := total - self._counts.get(name, 0)) > 0:
                yield StreamGap(name, missed)


def history_gap_in(envelope: Envelope) -> HistoryGap | None:
    """Return the gap that a gateway reports in a welcome or a receipt.

    A welcome without `delivery` means that everything sent without a connection is missing.
    """
    if envelope.sender != GATEWAY:
        return None
    if envelope.kind == SYSTEM_RECEIPT and envelope.body.get("status") == "gap":
        return HistoryGap("history_gone", before=str(envelope.body.get("position")))
    if envelope.kind != SYSTEM_WELCOME:
        return None
    delivery = envelope.body.get("delivery")
    if not isinstance(delivery, dict):
        return HistoryGap("not_supported")
    gap = delivery.get("gap")
    if not isinstance(gap, dict):
        return None
    reason: GapReason = "history_gone" if gap.get("reason") == "history_gone" else "other_epoch"
    return HistoryGap(reason, after=gap.get("after"), before=gap.get("before"))


def _seconds_in(age: object) -> float:
    return float(age) if isinstance(age, int | float) and math.isfinite(age) else 0.0


class ConfirmedDelivery:
    """The delivery state of one participant, over all of its connections."""

    def __init__(self, participant: str) -> None:
        self._participant = participant
        self._outgoing: dict[str, list[OutgoingEnvelope]] = {}  # by id, in the order of sending
        self.position: Position | None = None
        """The position of the newest envelope that has arrived.

        None if the gateway does not number envelopes, and does not confirm them either.
        """
        self._past_ends: Position | None = None
        self._has_begun = False
        self._is_live = True
        self.age_seconds = 0.0
        """The age of the newest envelope when it arrived, by the gateway's clock: 0 unless it was missed before."""
        self.frames = FrameCounts()

    def begin(self, welcome: Envelope) -> bool:
        """Read the welcome of a new connection. Returns False if missed envelopes must arrive first."""
        start = object_at(welcome.body, "delivery")
        self.position = Position.parse(str(start.get("position")))
        # Only the first welcome: messages from later ones were missed, and are as new to us as live ones.
        if not self._has_begun:
            self._has_begun = True
            self._past_ends = Position.parse(str(start.get("newest")))
        self._is_live = start.get("live") is not False
        return self._is_live

    def gaps_in(self, envelope: Envelope) -> Iterator[StreamGap]:
        """Return the frames that were missed, as the counts in a welcome or a `live` receipt show."""
        path = ("delivery", "frames") if envelope.kind == SYSTEM_WELCOME else ("frames",)
        return self.frames.compare(value_at(envelope.body, *path))

    @contextmanager
    def tracking(self, sent: OutgoingEnvelope) -> Iterator[None]:
        """Follow the gateway's decision about an envelope while the block runs."""
        same = self._outgoing.setdefault(sent.envelope.id, [])  # several tasks may repeat one envelope
        same.append(sent)
        try:
            yield
        finally:
            same.remove(sent)
            if not same:
                del self._outgoing[sent.envelope.id]

    def undecided(self) -> tuple[OutgoingEnvelope, ...]:
        """Return the envelopes to repeat on a new connection, in order: written, but undecided."""
        outgoing = (one for same in self._outgoing.values() for one in same)
        return tuple(one for one in outgoing if one.is_written and not one.done.is_set())

    def abandon(self) -> None:
        """Wake all senders because there will be no other connection."""
        for sent in (one for same in self._outgoing.values() for one in same):
            sent.done.set()

    def receive(self, envelope: Envelope) -> Arrival:
        """Record an envelope's number, or the gateway's decision about our own envelope."""
        reached = self.position
        self.age_seconds = 0.0
        if reached is None:
            return Arrival.PASS_ON
        extra = envelope.model_extra or {}
        number, position, is_past = extra.pop("seq", None), None, False
        if isinstance(number, int):
            if not self._is_live:  # a live envelope has only keys of its sender
                self.age_seconds = _seconds_in(extra.pop("age_seconds", None))
            if number <= reached.sequence:  # a replay may overlap with the last connection
                return Arrival.SKIP
            self.position = position = Position(reached.epoch, number)
            past = self._past_ends
            is_past = past is not None and past.epoch == reached.epoch and number <= past.sequence
        elif envelope.sender in GATEWAY_IDS:
            # Only an envelope without a number, sent to this connection, can decide about an envelope of ours.
            return self._receive_from_gateway(envelope)
        # A broadcast shows that an envelope of ours was accepted, or that a stream has ended.
        if envelope.sender == self._participant:
            self._decide(envelope.id, None, position)
        if envelope.kind == STREAM_CLOSE:
            self.frames.close(str(envelope.body.get("stream_id")))
        return Arrival.PASS_ON_AS_PAST if is_past else Arrival.PASS_ON

    def refuse_largest(self) -> None:
        """Refuse the largest undecided envelope, because the gateway closed the connection for a message's size."""
        largest = max(self.undecided(), key=lambda one: one.size_bytes, default=None)
        if largest is not None:
            # The first refusal may concern a stream frame that was sent at the same time.
            largest.refusals_for_size += 1
            if largest.refusals_for_size > 1:
                self._decide(largest.envelope.id, lambda sent: TooLarge(sent.size_bytes))

    def _receive_from_gateway(self, envelope: Envelope) -> Arrival:
        if envelope.kind == SYSTEM_ERROR:
            error, detail = str(envelope.body.get("error")), str(envelope.body.get("message") or "")
            for envelope_id in envelope.correlation_ids:
                self._decide(envelope_id, lambda sent: NotAccepted(sent.envelope, error, detail))
            return Arrival.PASS_ON
        # An answer shows that the gateway received the request: a refused invitation has no receipt.
        for envelope_id in envelope.correlation_ids:
            self._decide(envelope_id, None, Position.parse(str(envelope.body.get("position"))))
        if envelope.kind != SYSTEM_RECEIPT:
            return Arrival.PASS_ON
        match envelope.body.get("status"):
            case "gap":
                return Arrival.PASS_ON
            case "live":
                self._is_live = True
                return Arrival.GO_LIVE
            case _:
                return Arrival.SKIP

    def _decide(
        self,
        envelope_id: str,
        refusal: Callable[[OutgoingEnvelope], MewAgentError] | None,
        position: Position | None = None,
    ) -> None:
        """Record a decision about the first undecided envelope with this id, because the gateway answers in order."""
        sent = next((one for one in self._outgoing.get(envelope_id, ()) if not one.done.is_set()), None)
        if sent is not None:
            sent.error = None if refusal is None else refusal(sent)
            sent.is_accepted, sent.position = refusal is None, position
            sent.done.set()
