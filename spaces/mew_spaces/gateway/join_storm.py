"""Bounds the work when all members of a large space join at once, for example after a restart.

Each join has a welcome that names all members, and a presence for every member: the work grows with the square of the
members. `PresenceBatches` turns many small writes into few, for sessions that asked for that. `JoinPace` spreads the
joins of sessions, so that each is answered in time. Sends nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import anyio

from mew_spaces.core.admission import RateLimit
from mew_spaces.core.events import ConnectionId
from mew_spaces.gateway.clock import steady_seconds

SINGLE_PRESENCES_PER_SECOND = 20.0
SINGLE_PRESENCES = 20
"""Up to this rate a presence is sent at once, so single joins are seen without delay."""
SHORTEST_PAUSE_SECONDS = 0.1
PAUSE_SECONDS_PER_SESSION = 0.001
JOINS_PER_SECOND = 200.0
JOIN_BURST = 200
MAX_RETRY_AFTER_SECONDS = 15.0


class PresenceBatches:
    """The presences since the last batch, in order."""

    def __init__(self, *, clock: Callable[[], float] = steady_seconds) -> None:
        self._rate = RateLimit(per_second=SINGLE_PRESENCES_PER_SECOND, burst=SINGLE_PRESENCES, clock=clock)
        self._changes: list[Mapping[str, Any]] = []
        self._starts: dict[ConnectionId, int] = {}
        self.collected = anyio.Event()
        """Set when there is something to take."""

    @property
    def connections(self) -> AbstractSet[ConnectionId]:
        """The sessions that take presences in batches."""
        return self._starts.keys()

    def collects(self, *, is_replaying: bool) -> bool:
        """Return True to collect a presence: in a storm, after collected ones, or while a session catches up.

        All others are sent at once, as to plain connections. A replay contains no presences, so that a session which
        catches up gets them in a batch only.
        """
        if not self._starts:
            return False
        return is_replaying or bool(self._changes) or not self._rate.try_spend()

    @property
    def pause_seconds(self) -> float:
        """How long to collect presences: longer with more sessions, so that a storm costs a bounded share of time."""
        return max(SHORTEST_PAUSE_SECONDS, PAUSE_SECONDS_PER_SESSION * len(self._starts))

    def begin(self, connection: ConnectionId) -> None:
        """A session gets presences from now on; its welcome contains the earlier ones."""
        self._starts[connection] = len(self._changes)

    def end(self, connection: ConnectionId) -> None:
        """A session gets no more."""
        self._starts.pop(connection, None)

    def add(self, payload: Mapping[str, Any], *, without: Iterable[ConnectionId] = ()) -> None:
        """Collect the payload of a presence. `without` are the new connections of the participant that it is about."""
        for connection in without:
            # A newcomer skips its own presence, but only if nothing was collected for it yet: what it gets is one run.
            if self._starts.get(connection) == len(self._changes):
                self._starts[connection] += 1
        self._changes.append(payload)
        self.collected.set()

    def drain(self) -> Iterator[tuple[tuple[ConnectionId, ...], list[Mapping[str, Any]]]]:
        """Return the sessions and the collected changes for them, and start over."""
        changes, self._changes, self.collected = self._changes, [], anyio.Event()
        groups: dict[int, list[ConnectionId]] = {}
        for connection, start in self._starts.items():
            groups.setdefault(start, []).append(connection)
            self._starts[connection] = 0
        for start, connections in groups.items():
            if start < len(changes):
                yield tuple(connections), changes[start:]


class JoinPace:
    """Decides when sessions may join: a burst at once, the rest at a steady pace, each with a time to come back."""

    def __init__(
        self,
        *,
        per_second: float = JOINS_PER_SECOND,
        burst: int = JOIN_BURST,
        clock: Callable[[], float] = steady_seconds,
    ) -> None:
        """`clock` counts seconds and never goes back."""
        self._per_second = per_second
        self._clock = clock
        self._rate = RateLimit(per_second=per_second, burst=burst, clock=clock)
        self._queue_end = clock()

    def retry_after_seconds(self) -> float:
        """Return 0 if a session may join now, else the seconds after which it is to try again."""
        if self._rate.try_spend():
            return 0.0
        # Each refused session gets its own place, so that they do not all come back at the same moment.
        now = self._clock()
        self._queue_end = max(now, self._queue_end) + 1 / self._per_second
        return min(self._queue_end - now, MAX_RETRY_AFTER_SECONDS)
