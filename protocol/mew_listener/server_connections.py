"""The connections of one server: open ones, the costs of unjoined ones, and running requests."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from mew_listener.connection_limits import CountedPeer, CountedPeers, UnjoinedLimits
from mew_listener.proxies import Headers, TrustedProxies
from mew_listener.time_share import Allowances


def end_writing(transport: asyncio.Transport) -> None:
    """End our side of a connection whose client may still send.

    Closing a socket with unread bytes resets the connection, and the client would lose what it has not read yet.
    """
    if transport.is_closing() or not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:  # the client has reset the connection, but the loop has not noticed it
        transport.abort()


class ServerConnections:
    """The open connections of one server, and the limits that they share."""

    def __init__(self, limits: UnjoinedLimits, proxies: TrustedProxies, allowances: Allowances) -> None:
        """`allowances` are those of the joined clients."""
        self.loop = asyncio.get_running_loop()
        self.open: set[Any] = set()
        self.requests: set[asyncio.Task[None]] = set()
        """The running application, once for each request."""
        self.allowances = allowances
        self.unjoined = CountedPeers(limits)
        self.unfinished = CountedPeers(limits, excess="too many requests are unfinished")
        """Requests of authenticated clients with incomplete bodies, by client."""
        self._proxies = proxies

    def __len__(self) -> int:
        return len(self.open)

    def add(self, connection: CountedPeer, address: str) -> None:
        """Add a connection as unauthenticated."""
        self.open.add(connection)
        self.count(connection, address)

    def count(self, connection: CountedPeer, address: str) -> None:
        """Count a connection as unauthenticated."""
        self.unjoined.enter(connection, address, is_shared=self._proxies.trusts(address))

    def remove(self, connection: CountedPeer) -> None:
        """Remove a closed or handed-over connection."""
        self.open.discard(connection)
        self.unjoined.leave(connection)
        self.unfinished.leave(connection)

    def make_room(self) -> bool:
        """Close the oldest connection of the costliest address, or of the costliest client with unfinished requests.

        Returns False if there is none.
        """
        costliest_first = sorted((self.unjoined, self.unfinished), key=lambda one: one.highest_cost, reverse=True)
        return any(one.evict_one() for one in costliest_first)

    def client_of(self, peer: tuple[str, int] | None, headers: Headers) -> str:
        """Return the address that a request counts for: the client's according to a trusted proxy, else the peer's."""
        address = peer[0] if peer else ""
        forwarded = self._proxies.read(address, headers)
        return address if forwarded is None else forwarded.client

    def start(self, request: Coroutine[Any, Any, None]) -> None:
        """Run the application for a request."""
        task = self.loop.create_task(request)
        self.requests.add(task)
        task.add_done_callback(self.requests.discard)
