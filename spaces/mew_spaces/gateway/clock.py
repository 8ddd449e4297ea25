"""The clock of a space, and the ids of its envelopes: arguments of the pure core.

Setting the computer's clock must not change pauses, or the time that grants and streams wait for an absent participant.
So the clock of a space reads a monotonic clock, and follows the wall clock in steps. When the wall clock jumps, the
space shifts its deadlines. Only the wall clock is available across restarts.
"""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

RESOLUTION_SECONDS = 0.001
"""Resolution of timestamps on the wire. Events within it share one time, which costs less than calculating one each."""

_RESOLUTION = timedelta(seconds=RESOLUTION_SECONDS)

MIN_JUMP_SECONDS = 1.0
"""Smaller differences are the clock being adjusted little by little."""


def now_utc() -> datetime:
    """Return the time of the wall clock, with its time zone."""
    return datetime.now(UTC)


def new_uuid() -> str:
    """Return a new envelope id."""
    return str(uuid.uuid4())


steady_seconds: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Returns seconds on a clock that cannot be set. On Linux it also counts while the machine sleeps."""


class WallClock:
    """Returns the wall time of the last `follow` plus the elapsed time."""

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
        self._followed = self._shown = wall()
        self._followed_steady = self._shown_steady = steady()

    def __call__(self) -> datetime:
        """Return the time, to the millisecond. It passes steadily between two calls of `follow`."""
        now = self._steady()
        if now - self._shown_steady >= RESOLUTION_SECONDS:
            passed = int((now - self._followed_steady) / RESOLUTION_SECONDS)
            self._shown, self._shown_steady = self._followed + passed * _RESOLUTION, now
        return self._shown

    def follow(self) -> None:
        """Follow the wall clock. Calls `on_jump` with the difference if the wall clock was set."""
        shown, wall = self(), self._wall()
        self._followed = self._shown = wall
        self._followed_steady = self._shown_steady = self._steady()
        if abs((wall - shown).total_seconds()) >= MIN_JUMP_SECONDS:
            self._on_jump(wall - shown)
