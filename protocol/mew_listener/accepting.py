"""Accepts the connections of a listening socket without exhausting the process's file descriptors.

When few descriptors are left, the client with the most closable connections loses its oldest (`make_room`). New
connections are refused only if no connection can be closed. Does not know protocols.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

import anyio

from mew_listener.descriptors import EXHAUSTED, DescriptorBudget

log = logging.getLogger("mew_listener")

EXHAUSTED_PAUSE_SECONDS = 0.1
"""Pause of accepting after the system refused a descriptor. Clients wait in the backlog."""

ACCEPTED_AT_ONCE = 64
"""How many connections are accepted before other tasks get a turn."""


class Acceptor:
    """Accepts connections until `stop_soon`, and gives each one a protocol."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        make_room: Callable[[], bool],
        connections: Callable[[], int],
    ) -> None:
        """`make_room` closes a connection that has not joined; it returns False if there is none.

        `connections` returns the number of open connections.
        """
        self._listener = listener
        self._make_protocol = make_protocol
        self._make_room = make_room
        self._budget = DescriptorBudget(lambda: connections() + len(self._starting))
        self._starting: set[asyncio.Task[object]] = set()
        self._scope = anyio.CancelScope()

    def stop_soon(self) -> None:
        """Stop accepting connections. The open ones continue."""
        self._scope.cancel()

    async def run(self) -> None:
        """Accept connections until `stop_soon`; then close the socket."""
        try:
            with self._scope:
                accepted = 0
                while True:
                    connection = await self._accept()
                    if connection is not None:
                        self._start(connection)
                    accepted += 1
                    if connection is None or accepted % ACCEPTED_AT_ONCE == 0:
                        await asyncio.sleep(0)
        finally:
            self._listener.close()

    async def _accept(self) -> socket.socket | None:
        """Return the next connection; None if there is none to serve, and the caller should yield to other tasks."""
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        except OSError as error:
            if error.errno in EXHAUSTED:
                log.warning("cannot accept connections: %s", error.strerror)
                self._make_room()
                await asyncio.sleep(EXHAUSTED_PAUSE_SECONDS)
            elif error.errno == errno.EBADF:
                raise
            return None  # the client has closed it already
        if self._budget.is_full():
            is_served = self._make_room()
            log.warning("too many open files: %s", "an older connection is closed" if is_served else "refused")
            if not is_served:
                connection.close()
                return None
            await asyncio.sleep(0)  # lets the other connection free its descriptor
        return connection

    def _start(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._connect(connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            connection.close()
            log.warning("a connection could not be served: %s", error.strerror or error)
