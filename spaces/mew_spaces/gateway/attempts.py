"""Rate limits of what costs the gateway more than it costs the client: failed tokens, joins and reads.

Owns one bucket for each address or participant, within a bound. Does not know what is limited.
"""

from collections.abc import Callable
from datetime import datetime

from mew_spaces.core.admission import TokenBucket
from mew_spaces.gateway.clock import steady_time

MAX_KEYS = 8192


class AttemptLimit:
    """A rate for each key. With more keys than `MAX_KEYS`, the one unused for longest is forgotten."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], datetime] = steady_time) -> None:
        """`clock` must be monotonic: setting a wall clock would add or withhold permits."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def try_spend(self, key: str) -> bool:
        """Count one attempt. Returns False if there were too many."""
        now = self._clock()
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            bucket = TokenBucket(per_second=self._per_second, burst=self._burst, now=now)
            if len(self._buckets) >= MAX_KEYS:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = bucket
        return bucket.try_spend(now)
