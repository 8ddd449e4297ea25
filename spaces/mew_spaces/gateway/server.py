"""The HTTP server: the listening socket, and uvicorn as we configure it.

Owns the limits that the server itself must enforce. Does not know spaces otherwise.
"""

import asyncio
import errno
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import uvicorn
from starlette.applications import Starlette

from mew_spaces.errors import PortInUse, SpacesError
from mew_spaces.gateway.registry import SpaceRegistry

STOP_SECONDS = 3
"""How long open requests may take once the gateway stops."""


REPEAT_SECONDS = 10.0
"""How often the same problem with bad input is logged."""

_SERVER_LOG = logging.getLogger("uvicorn.error")


class RepeatFilter(logging.Filter):
    """Passes each message once in `REPEAT_SECONDS`, so that a flood of bad input does not fill the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass a record on, with the number of equal ones that were left out before it."""
        text, now = str(record.msg), self._clock()
        at, left_out = self._last.get(text, (float("-inf"), 0))
        if now < at + REPEAT_SECONDS:
            self._last[text] = at, left_out + 1
            return False
        self._last[text] = now, 0
        if left_out:
            record.msg, record.args = "%s (%d more since the last line)", (record.getMessage(), left_out)
        return True


class GatewayServer(uvicorn.Server):
    """uvicorn's server without signal handlers, and without waking up ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()
        self.stopped = anyio.Event()
        self._stop = anyio.Event()

    def stop(self) -> None:
        """Stop serving. `stopped` is set when that is done."""
        self.should_exit = True
        self._stop.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        repeats = RepeatFilter()
        _SERVER_LOG.addFilter(repeats)
        try:
            await super().serve(sockets)
        finally:
            _SERVER_LOG.removeFilter(repeats)
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


def server_config(
    app: Starlette, registry: SpaceRegistry, *, websocket: type[asyncio.Protocol] | None
) -> uvicorn.Config:
    """Return how uvicorn serves the application: WebSocket by this protocol, or by uvicorn's own (None)."""
    limits = registry.default.config.limits
    return uvicorn.Config(
        app,
        http="auto",
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
        timeout_graceful_shutdown=STOP_SECONDS,
    )


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address while the block runs; port 0 picks a free port.

    Raises `PortInUse`, and `SpacesError` if the address cannot be used.
    """
    try:
        listener = _listener(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen on {in_url(host)}:{port}: {cause}") from None
    with listener:
        yield listener


def _listener(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, proto)
    try:
        if sys.platform != "win32":  # on Windows it would let two programs share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


def in_url(host: str) -> str:
    """Return a host as it is written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
