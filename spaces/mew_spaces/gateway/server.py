"""The server under the gateway: a socket that listens, and uvicorn as we run it.

Knows nothing of spaces but the bounds that the server itself has to hold.
"""

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import uvicorn
from starlette.applications import Starlette

from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.direct_websocket import DirectWebSocketProtocol
from mew_spaces.gateway.registry import SpaceRegistry

STOP_SECONDS = 3
"""How long open requests may take when the gateway stops."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers and its polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()
        self.stopped = anyio.Event()
        self._stop = anyio.Event()

    def stop(self) -> None:
        """End the server; `stopped` follows."""
        self.should_exit = True
        self._stop.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.stopped.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 10  # on_tick counts tenths of a second
            with anyio.move_on_after(1.0):
                await self._stop.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_config(app: Starlette, registry: SpaceRegistry, *, direct: bool) -> uvicorn.Config:
    """How the application is served; `direct` hands each socket's transport to it (`websocket`)."""
    limits = registry.default.config.limits
    return uvicorn.Config(
        app,
        http="auto",
        ws=DirectWebSocketProtocol if direct else "websockets-sansio",
        ws_max_size=registry.message_bytes,
        ws_ping_interval=limits.ping_interval_seconds,
        ws_ping_timeout=limits.ping_timeout_seconds,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; port 0 takes a free one. Raises `PortInUse`, and `SpacesError` for any other trouble."""
    try:
        listener = _listener(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen at {in_url(host)}:{port}: {said}") from None
    with listener:
        yield listener


def _listener(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, proto)
    try:
        if sys.platform != "win32":  # there it would let two programs share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def in_url(host: str) -> str:
    """A host as a URL has it."""
    return f"[{host}]" if ":" in host else host
