"""[pure] Gaps as events: a lost connection, envelopes that never arrive, and lost frames of streams.

Owns the base of all events. Does not know the connection, or how gaps are found (see `confirmed_delivery`).
"""

from dataclasses import dataclass
from typing import Literal

GapReason = Literal["history_gone", "other_epoch", "not_supported", "handlers_too_slow"]


class SpaceEvent:
    """The base of all events of a space; a handler of it receives every event."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ConnectionLost(SpaceEvent):
    """The connection to the gateway was lost and is being restored. A `system/welcome` follows."""

    cause: str


@dataclass(frozen=True, slots=True)
class HistoryGap(SpaceEvent):
    """Envelopes were missed and are no longer available.

    They lie between the positions `after` and `before`, if known (`<epoch>-<sequence>`). `reason` is `history_gone`
    (more was sent than the gateway keeps), `other_epoch` (the gateway restarted without its history), `not_supported`
    (the gateway keeps none, so anything may be missing while the connection was lost) or `handlers_too_slow` (this
    program's event handlers did not keep up; its other parts got everything).
    """

    reason: GapReason
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class StreamGap(SpaceEvent):
    """Frames of a stream were missed; they are sent at most once.

    `missed` is their number; None if unknown, because the gateway restarted.
    """

    stream_id: str
    missed: int | None = None
