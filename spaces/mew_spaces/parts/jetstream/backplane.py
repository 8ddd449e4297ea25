"""The contract of a backplane: the shared part of a space.

Owns the guarantees and the errors. Each `Backplane` object belongs to one gateway and one space. All gateways of a
space see the same batches in the same order, the same state and the same leases.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from mew_spaces.errors import SpacesError

log = logging.getLogger("mew_spaces")

LEASE_SECONDS: Final = 6.0
"""How long a lease is in force after it was renewed. Holders renew it every second."""

DEDUPLICATION_SECONDS: Final = 120.0
"""How long the id of a stored batch is recognised."""


class BackplaneError(SpacesError):
    """Base of the errors of a backplane."""


class BackplaneUnavailable(BackplaneError):
    """There is no connection, or no answer in time. The effect of the call is unknown; retry it."""


class BackplaneRefused(BackplaneError):
    """The backplane refuses: no permission, no storage or a wrong setting. The text has the fix."""


class HistoryLost(BackplaneError):
    """Batches are missing: they are too old and no longer kept, or the storage was replaced. Start from a snapshot."""


class Conflict(BackplaneError):
    """The stored revision is not the expected one: another gateway saved first."""


def report_foreign(what: str) -> None:
    """Log that foreign data in the backplane was skipped. Repetitions are logged once a minute, with a count."""
    log.warning("backplane: skipped %s: no gateway of this version wrote it; let only gateways write there", what)


class StoredBatch(NamedTuple):
    """One appended batch. Sequences are greater than 0 and grow; they may have gaps."""

    sequence: int
    data: bytes


class SavedValue(NamedTuple):
    """One value of the small state. Revisions are positive, and grow with each `save` of the key."""

    value: bytes
    revision: int


class Backplane(Protocol):
    """The shared part of one space, as one gateway sees it.

    Every call answers within a few seconds or raises `BackplaneUnavailable`; the generators wait and reconnect by
    themselves. All may be used by several tasks at once. Keys and names of leases consist of letters, digits, `_`,
    `-` and `.`, and neither begin nor end with a dot. Close each generator with `contextlib.aclosing`.
    """

    @property
    def max_frame_bytes(self) -> int:
        """The largest `data` that `publish` accepts. Batches and values may be larger."""

    @property
    def stale_lease_seconds(self) -> float:
        """The longest time for which a new connection still sees a killed gateway's lease."""

    async def send(self, data: bytes, batch_id: str) -> None:
        """Store a batch after all others, without an answer: `follow` delivers it once stored.

        It may be lost. Without a delivery, `append` it again with the same id. Raises `BackplaneUnavailable`.
        """

    async def append(self, data: bytes, batch_id: str) -> int:
        """Store a batch durably after all others, and return its sequence.

        If a batch with this id was stored in the last `DEDUPLICATION_SECONDS`, nothing is stored, and its sequence is
        returned. So after `BackplaneUnavailable`, append again with the same id; after longer retries, detect
        duplicates in the order. Concurrent batches of one gateway may be stored in any order. Raises
        `BackplaneUnavailable`, and `BackplaneRefused` if this gateway may not append.
        """

    async def follow(self, after: int, receive: Callable[[StoredBatch], object], *, until: float = math.inf) -> None:
        """Call `receive` with every batch after a sequence, in order and once, when it is durably stored.

        Continues after lost connections and server restarts, until cancelled or up to the sequence `until`. Raises the
        errors of `receive`, `HistoryLost` if the next batch is no longer kept, and `BackplaneRefused` if reading is
        forbidden.
        """

    async def bounds(self) -> tuple[int, int]:
        """Return the first and the last kept sequence; (n + 1, n) if there is none. Raises `BackplaneUnavailable`."""

    async def trim(self, before: int) -> None:
        """Remove the batches before a sequence, which a snapshot contains. Raises `BackplaneUnavailable`."""

    async def load(self, key: str) -> SavedValue | None:
        """Return the newest value of a key; None if it has none. Raises `BackplaneUnavailable`."""

    async def save(self, key: str, value: bytes, *, expected: int) -> int:
        """Replace the value with the revision `expected` (0: the key has no value), and return the new revision.

        Raises `Conflict` for another revision. After `BackplaneUnavailable` the value may have been saved; load it to
        check.
        """

    async def delete(self, key: str) -> None:
        """Remove the value of a key, if any. Raises `BackplaneUnavailable`."""

    async def renew(self, lease: str, value: bytes) -> None:
        """Take a lease for `LEASE_SECONDS` from now, even from another holder. Raises `BackplaneUnavailable`."""

    async def claim(self, lease: str, value: bytes) -> bool:
        """Renew a lease if it is free or held with this value. Returns whether it is now held with this value.

        If several gateways claim a free lease at once, one gets it. Raises `BackplaneUnavailable`.
        """

    async def release(self, lease: str) -> None:
        """End a lease at once, even another holder's. Raises `BackplaneUnavailable`."""

    def leases(self) -> AsyncGenerator[Mapping[str, bytes], None]:
        """Yield all valid leases with their values: now, and after each change or expiry.

        The backplane measures the expiry, so a paused gateway does not consider the others gone, and an outage of the
        backplane expires no lease. Changes may be merged.
        """

    async def publish(self, data: bytes) -> None:
        """Send a frame to all connected gateways of the space, including this one, at most once: frames may be lost,
        but never repeated or reordered. Raises `BackplaneUnavailable` without a connection, and `BackplaneRefused` for
        a frame of more than `max_frame_bytes`.
        """

    def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the frames published from now on, including our own."""

    async def close(self) -> None:
        """Disconnect. Leases stay valid until they expire; generators end."""
