"""[pure] Bounds on connections that have not authenticated, and on unfinished requests of clients that have.

Decides which of these connections is refused or closed when there are too many, or when they hold too many bytes.
Counts every connection from its start until it joins: silent ones, HTTP requests, WebSocket handshakes. Does not know
sockets; a connection is closed through its `evict`.
"""

import logging
from typing import Protocol

CONNECTION_BYTES = 24 * 1024
"""What a connection costs before it has sent anything; measured with `python -m benchmarks.idle`."""

TLS_BYTES = 40 * 1024
"""What TLS adds to that, from the start of the handshake on."""

log = logging.getLogger("mew_listener")


class UnjoinedPeer(Protocol):
    """A connection that has not joined."""

    def evict(self) -> bool:
        """Close the connection at once. Returns False if its client has authenticated: then it stays."""


class UnjoinedConnections:
    """All connections of a gateway that have not joined, by address, oldest first.

    A connection above the limit of its address replaces the oldest one of that address. If there are too many in all,
    the address that costs most loses its oldest connection, so a flood from a few addresses does not keep others out.
    The unfinished requests of authenticated clients are bounded in the same way, by client in place of address.
    """

    def __init__(
        self,
        *,
        connections: int,
        per_address: int,
        total_bytes: int,
        excess: str = "too many connections have not joined",
    ) -> None:
        """`total_bytes` bounds the memory of all of them together. `excess` says in the log why one is closed."""
        self._excess = excess
        self._max_connections = min(connections, max(1, total_bytes // CONNECTION_BYTES))
        self._max_per_address = per_address
        self._max_bytes = total_bytes
        self._held: dict[str, dict[UnjoinedPeer, int]] = {}
        self._cost: dict[str, int] = {}
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def highest_cost(self) -> int:
        """The bytes that the costliest address, or client, holds."""
        return max(self._cost.values(), default=0)

    def enter(self, peer: UnjoinedPeer, address: str, *, is_shared: bool = False) -> None:
        """Count a new connection. `is_shared`: the address is a proxy's, so many clients may come from it."""
        if peer in self._held.get(address, ()):
            return
        if len(self._held.get(address, ())) >= self._max_per_address and not is_shared:
            self._evict(address, f"the limit for one address is {self._max_per_address}")
        if self._count >= self._max_connections:
            self.evict_one()
        self._held.setdefault(address, {})[peer] = CONNECTION_BYTES
        self._count += 1
        self._add(address, CONNECTION_BYTES)

    def hold(self, peer: UnjoinedPeer, address: str, size: int) -> None:
        """Set the number of bytes that a connection holds, without its own cost."""
        held = self._held.get(address, {})
        if peer in held:
            self._add(address, CONNECTION_BYTES + size - held[peer])
            held[peer] = CONNECTION_BYTES + size
            while self._bytes > self._max_bytes and self.evict_one():
                pass

    def leave(self, peer: UnjoinedPeer, address: str) -> None:
        """Stop counting a connection: it joined or is closed."""
        held = self._held.get(address)
        if held is None or peer not in held:
            return
        size = held.pop(peer)
        self._count -= 1
        self._add(address, -size)
        if not held:
            del self._held[address], self._cost[address]

    def _add(self, address: str, size: int) -> None:
        self._bytes += size
        self._cost[address] = self._cost.get(address, 0) + size

    def evict_one(self) -> bool:
        """Close the oldest connection of the address that costs most. Returns False if there is no connection."""
        while self._cost:
            address = max(self._cost, key=lambda one: self._cost[one])
            if self._evict(address, self._excess):
                return True
        return False

    def _evict(self, address: str, cause: str) -> bool:
        """Close the oldest connection of an address that has not authenticated."""
        while self._held.get(address):
            peer = next(iter(self._held[address]))
            self.leave(peer, address)
            if peer.evict():
                log.warning("%s: oldest connection closed, %s", address, cause)
                return True
        return False
