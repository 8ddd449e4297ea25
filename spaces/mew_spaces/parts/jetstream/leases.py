"""[pure] Which leases are in force, decided by the stored order of renewals alone.

The times that the server gave to renewals are the clock. A pause between two of them counts at most `_MAX_STEP` of a
lease, so that an outage of the server, when no holder could renew, expires no lease. A reader that was paused itself
reads the missed renewals first and comes to the same result as the others.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from mew_listener.bounded_dict import BoundedDict

MAX_LEASES: Final = 10_000
"""How many leases are remembered; with more, the one that was taken first is forgotten."""

_MAX_STEP: Final = 0.3


class _Renewal(NamedTuple):
    sequence: int
    value: bytes
    at: float
    """On the table's own clock."""


class LeaseTable:
    """The leases of a space, from the part of their stream read so far. Times are in seconds."""

    def __init__(self, lease_seconds: float) -> None:
        self.sequence = 0
        """The newest one that was read."""
        self.lease_seconds = lease_seconds
        self._renewals: BoundedDict[str, _Renewal] = BoundedDict(MAX_LEASES)
        self._clock = 0.0
        self._stored_at: float | None = None

    def read(self, name: str, value: bytes | None, *, sequence: int, at: float) -> None:
        """Apply the next renewal of the stream, or the end of a lease (None). `at` is the server's time."""
        if self._stored_at is not None and at > self._stored_at:
            self._clock += min(at - self._stored_at, _MAX_STEP * self.lease_seconds)
        self._stored_at = at
        self.sequence = sequence
        if self.sequence_of(name) <= sequence:
            self._put(name, value, sequence)

    def note(self, name: str, value: bytes | None, *, sequence: int) -> None:
        """Apply a stored value before the stream is read that far. A value noted twice does not renew the lease."""
        if self.sequence_of(name) < sequence:
            self._put(name, value, sequence)

    def _put(self, name: str, value: bytes | None, sequence: int) -> None:
        # An ended lease keeps its sequence: a claim names the newest one.
        at = self._clock if value is not None else -self.lease_seconds
        self._renewals[name] = _Renewal(sequence, value or b"", at)

    def restart(self) -> None:
        """Expect sequences from 1 again: the stream was replaced. Leases stay in force until they expire."""
        self.sequence, self._stored_at = 0, None
        for name, one in self._renewals.items():
            self._renewals[name] = one._replace(sequence=0)

    def in_force(self) -> Mapping[str, bytes]:
        """Return the value of each lease that has not expired."""
        expired_at = self._clock - self.lease_seconds
        return {name: one.value for name, one in self._renewals.items() if one.at > expired_at}

    def sequence_of(self, name: str) -> int:
        """Return the newest known sequence of a lease; 0 if none is known."""
        known = self._renewals.get(name)
        return known.sequence if known is not None else 0
