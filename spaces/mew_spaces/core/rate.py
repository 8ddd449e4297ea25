"""[pure] A token bucket: how often somebody may do something, with room for bursts."""

from datetime import datetime


class TokenBucket:
    """Holds at most `burst` and fills by `per_second`; it begins full."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, *, per_second: float, burst: int, now: datetime) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._left = float(burst)
        self._at = now

    def take(self, now: datetime) -> bool:
        """Take one, if there is one. A clock that goes back fills nothing."""
        passed = (now - self._at).total_seconds()
        if passed > 0:
            self._left = min(self._burst, self._left + passed * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
