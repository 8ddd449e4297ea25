"""[pure] Gaps as events: a lost connection, envelopes that never arrive, and lost frames of streams.

Owns the base of all events, and the counts of received stream frames from which gaps follow. Does not know the
connection.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mew_protocol.bounded_dict import BoundedDict
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY
from mew_protocol.json_values import object_at
from mew_protocol.kinds import SYSTEM_RECEIPT, SYSTEM_WELCOME

MAX_COUNTED_STREAMS = 10_000
"""How many streams are counted; beyond that, those without a frame for the longest time are forgotten."""

GapReason = Literal["history_gone", "other_epoch", "not_supported", "handlers_too_slow"]


class SpaceEvent:
    """Something happened in the space. The base of all events; a handler of it gets every one of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ConnectionLost(SpaceEvent):
    """The connection to the gateway broke, and is being restored. A `system/welcome` follows once it is back."""

    cause: str


@dataclass(frozen=True, slots=True)
class HistoryGap(SpaceEvent):
    """Envelopes were missed, and are no longer available.

    They lie between the positions `after` and `before`, as far as these are known (`<epoch>-<sequence>`). `reason`
    is `history_gone` (more was sent than the gateway keeps), `other_epoch` (the gateway restarted without its history),
    `not_supported` (the gateway keeps none, so anything may be missing while the connection was lost) or
    `handlers_too_slow` (this program's event handlers did not keep up; its other parts got everything).
    """

    reason: GapReason
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class StreamGap(SpaceEvent):
    """Frames of a stream were missed; they are sent at most once.

    `missed` is how many; None if the number is unknown, because the gateway restarted.
    """

    stream_id: str
    missed: int | None = None


def history_gap_in(envelope: Envelope) -> HistoryGap | None:
    """Return the gap that a gateway reports in a welcome or a receipt.

    A welcome without `delivery` means that everything sent while there was no connection is missing.
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


class FrameCounts:
    """How many frames of each stream have arrived, or were missed and reported."""

    def __init__(self) -> None:
        self._run: object = None
        self._counts: BoundedDict[str, int] = BoundedDict(MAX_COUNTED_STREAMS)
        self._closed: BoundedDict[str, None] = BoundedDict(MAX_COUNTED_STREAMS)

    def add(self, stream_id: str) -> None:
        """Count a frame that has arrived."""
        self._counts[stream_id] = self._counts.get(stream_id, 0) + 1

    def close(self, stream_id: str) -> None:
        """Record that a stream was closed: no frame of it can be missed any more."""
        if stream_id in self._counts:
            self._closed[stream_id] = None

    def compare(self, frames: object) -> Iterator[StreamGap]:
        """Compare with the gateway's counts (`frames` of a welcome or receipt), and count on from these.

        What was sent before the first welcome is not missed.
        """
        if not isinstance(frames, Mapping):
            return
        counts = object_at(frames, "counts")
        is_first, is_other_run = self._run is None, self._run != frames.get("run")
        self._run = frames.get("run")
        before = [name for name in self._counts if name not in self._closed]
        if is_other_run:  # one without a stored history uses the ids of streams again
            self._counts.clear()
            self._closed.clear()
        for stream_id, total in counts.items():
            if isinstance(total, int):
                missed = total - self._counts.get(stream_id, 0)
                self._counts[stream_id] = total
                if missed > 0 and not is_first and not is_other_run:
                    yield StreamGap(stream_id, missed)
        if is_other_run and not is_first:
            # A gateway that was killed counts from 0, and does not know what it lost.
            yield from (StreamGap(name) for name in dict.fromkeys((*before, *counts)))
