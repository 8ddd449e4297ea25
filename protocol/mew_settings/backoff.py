"""[pure] Pauses between attempts: they double with each failure in a row, up to a maximum."""

from dataclasses import dataclass


def backoff_seconds(failures: int, first_seconds: float, longest_seconds: float, jitter: float = 1.0) -> float:
    """Return the pause after this many failures in a row.

    `jitter`, from 0 to 1, shortens it, so that clients that fail together do not return together.
    """
    doublings = min(failures - 1, 30)  # keeps the power small; the maximum is reached far earlier
    return min(longest_seconds, first_seconds * (1 << doublings)) * (0.5 + 0.5 * jitter)


@dataclass
class Backoff:
    """Counts failures in a row of a program or a connection. A run of `settled_seconds` resets the count."""

    first_seconds: float = 1.0
    longest_seconds: float = 30.0
    settled_seconds: float = 60.0
    failures: int = 0

    def failed(self, ran_seconds: float) -> float:
        """Count a failure after a run of this length. Returns the pause before the next start."""
        self.failures = 1 if ran_seconds >= self.settled_seconds else self.failures + 1
        return backoff_seconds(self.failures, self.first_seconds, self.longest_seconds)
