"""[pure] A fair share of a server's time for each joined client, over all its connections.

A rate of messages limits neither bytes nor time: a message may have a few bytes or 16 MiB, and take microseconds or a
second. So a client spends the processing time of its data, and a time for its bytes. The server delays reading from
clients that have spent their share, which loses nothing. Does not know sockets or clocks.
"""

from typing import Final

from mew_listener.bounded_dict import BoundedDict

SHARE: Final = 0.8
"""The part of the time that all who spend more than their part get together; the rest is for others."""

BURST_SECONDS: Final = 0.5
"""The time that a client may spend at once."""

BYTES_A_SECOND: Final = 10 * 1024 * 1024
"""Data of this size counts as one second, because all members have to read it: 8 MiB a second for all who spend most.
A member that reads more slowly is disconnected."""

MAX_CLIENTS: Final = 10_000
"""How many are remembered; others have spent nothing."""

_GREEDY_SECONDS: Final = 5.0
"""For how long after it had to wait a client counts as one who shares the time."""


class Allowances:
    """The allowances of all clients of a server."""

    def __init__(self) -> None:
        self._left: BoundedDict[str, list[float]] = BoundedDict(MAX_CLIENTS)
        """How many seconds each client has left, and when that was."""
        self._greedy: dict[str, float] = {}
        """When each client had to wait last."""

    def spend(self, client: str, seconds: float, size_bytes: int, now: float) -> float:
        """Spend the time for data of this size. Returns the seconds to wait before reading more."""
        last = self._left.get(client)
        if last is None:
            last = self._left[client] = [BURST_SECONDS, now]
        else:
            self._left.move_to_end(client)
        rate = SHARE / (len(self._greedy) or 1)
        left = min(BURST_SECONDS, last[0] + (now - last[1]) * rate) - seconds - size_bytes / BYTES_A_SECOND
        last[:] = left, now
        if left > 0 and not self._greedy:
            return 0.0
        return self._wait(client, left, now)

    def _wait(self, client: str, left: float, now: float) -> float:
        self._greedy = {name: at for name, at in self._greedy.items() if now - at < _GREEDY_SECONDS}
        if left > 0:
            return 0.0
        self._greedy[client] = now
        return -left * len(self._greedy) / SHARE
