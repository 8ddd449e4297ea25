"""The HTTP server: the listening socket, and uvicorn as we configure it.

Owns the limits that the server itself must enforce. Does not know spaces otherwise.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from mew_listener import server
from mew_listener.accepting import Acceptor
from mew_listener.proxies import TrustedProxies
from mew_listener.unjoined import UnjoinedConnections
from starlette.applications import Starlette

from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.http_connection import MAX_HEADER_BYTES, BoundedHttpProtocol, GatewayConfig
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.tls import TlsHandshake

UNJOINED_TOTAL_BYTES = 48 * 1024 * 1024
"""What all connections that have not joined may cost together, as the gateway counts it; the process takes less than
64 MiB for them."""

STOP_SECONDS = 3
"""How long open requests may take once the gateway stops."""
_STOP_POLL_SECONDS = 0.005


class GatewayServer(uvicorn.Server):
    """uvicorn's server without signal handlers, and without waking up ten times a second."""

    config: GatewayConfig
    _acceptor: Acceptor

    @asynccontextmanager
    async def running(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections from a listening socket while the block runs."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope(shield=True):  # a start that is cut short cannot be shut down
                await self.lifespan.startup()
            if self.lifespan.should_exit:
                raise SpacesError("the gateway failed to start; its log has the details")
            self._acceptor = Acceptor(listener, self._make_protocol, self.config.unjoined.evict_one, self._open)
            accepting = asyncio.create_task(self._acceptor.run())
            tasks.start_soon(self.main_loop)
            tasks.start_soon(self._end_with_application)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    self.stop_listening()
                    await accepting
                    await self.shutdown()
                tasks.cancel_scope.cancel()

    def stop_listening(self) -> None:
        """Accept no more connections; the open ones continue."""
        self._acceptor.stop_soon()

    def _open(self) -> int:
        return len(self.server_state.connections)

    def _make_protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        made: asyncio.Protocol = protocol(self.config, self.server_state, self.lifespan.state)
        return made

    async def main_loop(self) -> None:
        while True:
            await self.on_tick(0)  # of every tenth tick, which updates the date in responses
            await anyio.sleep(1.0)

    async def _end_with_application(self) -> None:
        """Raise `SpacesError` if the application fails: without its tasks, the gateway stores and announces nothing."""
        await self.lifespan.shutdown_event.wait()
        if self.lifespan.error_occurred:
            raise SpacesError("the gateway stopped because of an internal error; its log has the details")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, without its fixed pauses of a tenth of a second.

        Open requests have `STOP_SECONDS`. The application stops last.
        """
        state, ending = self.server_state, set[object]()
        with anyio.move_on_after(STOP_SECONDS):
            while True:
                for connection in state.connections - ending:  # one may have been accepted just now
                    connection.shutdown()
                    ending.add(connection)
                await anyio.sleep(_STOP_POLL_SECONDS)
                if not state.connections and not state.tasks:
                    break
        for task in tuple(state.tasks):
            task.cancel()
        await self.lifespan.shutdown()


def server_config(
    app: Starlette,
    registry: SpaceRegistry,
    *,
    websocket: type[asyncio.Protocol] | None,
    proxies: TrustedProxies,
    tls: ssl.SSLContext | None = None,
) -> uvicorn.Config:
    """Return how uvicorn serves the application: WebSocket by this protocol, or by uvicorn's own (None)."""
    limits = registry.default.config.limits
    config = GatewayConfig(
        app,
        http=BoundedHttpProtocol if tls is None else TlsHandshake,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=websocket or "websockets-sansio",
        ws_max_size=registry.message_bytes,
        ws_ping_interval=limits.ping_interval_seconds,
        ws_ping_timeout=limits.ping_timeout_seconds,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    config.unjoined = UnjoinedConnections(
        connections=limits.unjoined_connections,
        per_address=limits.unjoined_connections_per_address,
        total_bytes=UNJOINED_TOTAL_BYTES,
    )
    config.proxies, config.tls = proxies, tls
    config.header_timeout_seconds = limits.header_timeout_seconds
    config.unjoined_message_bytes = limits.unjoined_message_bytes
    return config


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address while the block runs; port 0 picks a free port.

    Raises `PortInUse`, and `SpacesError` if the address cannot be used.
    """
    try:
        listener = server.bound_socket(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen on {server.in_url(host)}:{port}: {cause}") from None
    with listener:
        yield listener
