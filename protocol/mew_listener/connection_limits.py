"""[pure] Limits on unauthenticated connections, and on unfinished requests of authenticated clients.

Decides which of these connections to refuse or close if they are too many or buffer too many bytes. Counts each
connection from its start until it joins: silent ones, HTTP requests, WebSocket handshakes. Closes connections through
their `evict`.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from mew_listener.bounded_dict import Shares

CONNECTION_BYTES = 24 * 1024
"""The memory of a connection before it has sent anything; measured with `python -m benchmarks.idle`."""

TLS_BYTES = 40 * 1024
"""The additional memory of TLS, from the start of the handshake on."""

log = logging.getLogger("mew_listener")


class CountedPeer(Protocol):
    """A connection that has not joined, or that has an unfinished request of an authenticated client."""

    def evict(self) -> bool:
        """Close the connection at once. Returns False if its client has authenticated, so that it stays."""


@dataclass(frozen=True, slots=True)
class UnjoinedLimits:
    """Limits of unjoined connections. Above them, a new one replaces the oldest of the address with the most."""

    connections: int = 1024
    per_address: int = 512
    total_bytes: int = 256 * 1024 * 1024


class CountedPeers:
    """The connections that count towards one limit, by address, oldest first.

    A server has two of these: connections that have not joined, and those with an unfinished request of an
    authenticated client, by client instead of address. A connection above the limit of its address replaces the oldest
    one of that address. Above the total limit, the costliest address loses its oldest connection, so a flood from a few
    addresses does not exclude others.
    """

    def __init__(self, limits: UnjoinedLimits, excess: str = "too many connections have not joined") -> None:
        """`excess` is the reason that the log gives for a closed connection."""
        self._limits, self._excess = limits, excess
        self._max_connections = min(limits.connections, max(1, limits.total_bytes // CONNECTION_BYTES))
        self._peers: Shares[CountedPeer] = Shares()

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def highest_cost(self) -> int:
        """The bytes that the costliest address, or client, holds."""
        return self._peers.weight_of(self._peers.heaviest())

    def enter(self, peer: CountedPeer, address: str, *, is_shared: bool = False) -> None:
        """Count a new connection. `is_shared`: the address is a proxy's, which many clients may share."""
        if peer in self._peers:
            return
        if self._peers.count(address) >= self._limits.per_address and not is_shared:
            self._evict(address, f"the limit for one address is {self._limits.per_address}")
        if len(self._peers) >= self._max_connections:
            self.evict_one()
        self._peers.add(peer, address, CONNECTION_BYTES)

    def hold(self, peer: CountedPeer, size: int) -> None:
        """Set the buffered bytes of a connection, without its own cost. Ignores connections that no longer count."""
        if peer in self._peers:
            self._peers.reweigh(peer, CONNECTION_BYTES + size)
            while self._peers.weight > self._limits.total_bytes and self.evict_one():
                pass

    def leave(self, peer: CountedPeer) -> None:
        """Stop counting a connection: it joined or is closed."""
        self._peers.discard(peer)

    def evict_one(self) -> bool:
        """Close the oldest connection of the costliest address. Returns False if there is no connection."""
        while (address := self._peers.heaviest()) is not None:
            if self._evict(address, self._excess):
                return True
        return False

    def _evict(self, address: Hashable, cause: str) -> bool:
        """Close the oldest unauthenticated connection of an address."""
        while (peer := self._peers.oldest(address)) is not None:
            self.leave(peer)
            if peer.evict():
                log.warning("%s: oldest connection closed, %s", address, cause)
                return True
        return False
