"""The clock of a space, and the ids of its envelopes: what the pure core gets as arguments.

The clock shows wall time and notices whenever it was set. Within a run, pauses, rate limits and the time that grants
and streams wait for an absent participant must not change when someone sets the clock. A monotonic clock shows by how
much it was set; the space then moves its deadlines by that much. Across a restart the wall clock is all there is. Does
not know what depends on it.
"""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

MIN_JUMP_SECONDS = 1.0
"""Smaller differences are the clock being adjusted little by little."""


def now_utc() -> datetime:
    """Return the time of the wall clock, with its time zone."""
    return datetime.now(UTC)


def new_uuid() -> str:
    """Return a new envelope id."""
    return str(uuid.uuid4())


def steady_seconds() -> float:
    """Return seconds on a clock that nobody can set. On Linux it also counts while the machine sleeps."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_time is None else time.clock_gettime(boot_time)


class WallClock:
    """Reads wall time, and calls `on_jump` with the difference before it returns a time after a jump."""

    def __init__(
        self,
        on_jump: Callable[[timedelta], None],
        *,
        wall: Callable[[], datetime] = now_utc,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        self._on_jump = on_jump
        self._wall = wall
        self._steady = steady
        self._last = wall(), steady()

    def __call__(self) -> datetime:
        """Return the time of the wall clock."""
        (wall_before, steady_before), now = self._last, (self._wall(), self._steady())
        self._last = now
        jump = now[0] - wall_before - timedelta(seconds=now[1] - steady_before)
        if abs(jump.total_seconds()) >= MIN_JUMP_SECONDS:
            self._on_jump(jump)
        return now[0]
