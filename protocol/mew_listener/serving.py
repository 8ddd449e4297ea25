"""The one listener of every server: binds an address, accepts connections, guards them, and stops without a pause.

All servers run an ASGI application, and share these limits.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope

from mew_listener.accepting import Acceptor
from mew_listener.descriptors import raise_limit
from mew_listener.http_connection import BREAK_OFF, HttpConnection
from mew_listener.listen_address import in_url
from mew_listener.listener_options import ListenerOptions
from mew_listener.log_budget import bounded_logs
from mew_listener.request_guard import ONLY_OWN, Allowed, RequestGuard
from mew_listener.server_connections import ServerConnections
from mew_listener.tls import TlsHandshake

BACKLOG = 2048
"""How many connections wait until they are accepted."""

_STOP_POLL_SECONDS = 0.005


class Server:
    """One listening socket and its connections."""

    def __init__(self, guard: RequestGuard, options: ListenerOptions) -> None:
        """`guard` contains the application."""
        self._guard, self._options = guard, options
        self.connections = ServerConnections(options.unjoined, options.proxies, options.allowances)
        self._acceptor: Acceptor | None = None

    @asynccontextmanager
    async def running(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections from a listening socket while the block runs; then close it."""
        acceptor = Acceptor(listener, self._make_connection, self.connections.make_room, self.connections.__len__)
        self._acceptor = acceptor
        accepting = asyncio.get_running_loop().create_task(acceptor.run())
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                acceptor.stop_soon()
                await accepting
                await self._end()

    def _make_connection(self) -> asyncio.Protocol:
        options = self._options
        http = HttpConnection(self.connections, self._guard, options)
        return (
            http if options.tls is None else TlsHandshake(self.connections, http, options.tls, options.header_seconds)
        )

    def stop_listening(self) -> None:
        """Accept no more connections; the open ones continue."""
        if self._acceptor is not None:
            self._acceptor.stop_soon()

    async def _end(self) -> None:
        """Close each connection after its response; open requests have `stop_seconds`."""
        connections, requests = self.connections.open, self.connections.requests
        ending = set[object]()
        with anyio.move_on_after(self._options.stop_seconds):
            while True:
                for connection in connections - ending:  # includes connections accepted in the meantime
                    connection.shutdown()
                    ending.add(connection)
                await anyio.sleep(_STOP_POLL_SECONDS)
                if not connections and not requests:
                    return
        for task in tuple(requests):
            task.cancel()
        for connection in tuple(connections):
            connection.transport.abort()
        with anyio.move_on_after(1.0):
            while connections or requests:  # noqa: ASYNC110 - no event tells
                await anyio.sleep(_STOP_POLL_SECONDS)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    stopping: Callable[[], None],
    options: ListenerOptions | None = None,
    allowed: Allowed = ONLY_OWN,
) -> AsyncIterator[str]:
    """Serve `app` while the block runs; yields the base URL. Port 0 picks a free port.

    Requests must name an IP address, `localhost`, `host` or one of the allowed hosts, and pages of other origins than
    the allowed ones are refused. At the end, `stopping` is called first, so that open responses can finish. Raises
    `OSError` if the port is taken.
    """
    raise_limit()
    if allowed.origins:
        app = CORSMiddleware(app, allow_origins=allowed.origins, allow_methods=("GET", "POST"), allow_headers=("*",))
    guarded = RequestGuard(app, hosts=(host, *allowed.hosts), origins=allowed.origins)
    with bounded_logs(), listening_socket(host, port) as listener:
        server = Server(guarded, options or ListenerOptions())
        async with server.running(listener):
            try:
                yield f"http://{in_url(host)}:{listener.getsockname()[1]}"
            finally:
                stopping()


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 picks a free port. Raises `OSError` and `UnicodeError`."""
    family, kind, proto, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, proto)
    try:
        if sys.platform != "win32":  # on Windows two programs could then share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.settimeout(0)
    except OSError:
        listener.close()
        raise
    return listener


async def break_connection(scope: Scope, receive: Receive) -> None:
    """Close the connection of a request without ending the body of its response, and wait until it is closed."""
    break_off: Callable[[], None] = scope["extensions"][BREAK_OFF]
    break_off()
    await until_disconnected(receive)


async def until_disconnected(receive: Receive) -> None:
    """Wait until the client of a request has disconnected, or has received the whole response."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[anyio.Event]:
    """Cancel the block when the client disconnects; yields the event that is then set.

    The body of the request must have been read.
    """
    gone = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await until_disconnected(receive)
            gone.set()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        yield gone
        tasks.cancel_scope.cancel()
