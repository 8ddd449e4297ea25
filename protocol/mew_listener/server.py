"""The one listener of every server: binds an address, accepts connections, guards them, and stops without a pause.

Owns the options that servers differ in. All run an ASGI application; none has a limit of its own.
"""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope

from mew_listener.accepting import Acceptor
from mew_listener.address import in_url
from mew_listener.allowance import Allowances
from mew_listener.descriptors import raise_limit
from mew_listener.http import BREAK_OFF, HttpConnection
from mew_listener.log_budget import bounded_logs
from mew_listener.proxies import Headers, TrustedProxies
from mew_listener.request_guard import ONLY_OWN, Allowed, DescribeError, RequestGuard, describe_error
from mew_listener.tls import TlsHandshake
from mew_listener.unjoined import UnjoinedConnections, UnjoinedPeer
from mew_listener.websocket import WebSocketOptions

BACKLOG = 2048
"""How many connections wait until they are accepted."""

STOP_SECONDS = 5.0
"""How long open requests may take once a server stops."""

BODY_BYTES = 64 * 1024 * 1024
"""Large, because clients of models send the whole conversation with its images each time."""

HEADER_SECONDS = 10.0
REQUEST_SECONDS = 120.0

_STOP_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class ListenerOptions:
    """Options of one server. Times are in seconds."""

    connections: int = 1024
    """Connections of strangers in all. A further one replaces the oldest of the address that has most."""
    connections_per_address: int = 512
    total_bytes: int = 256 * 1024 * 1024
    """What strangers may make the server hold together."""
    body_bytes: int | None = field(default_factory=lambda: BODY_BYTES)
    """The largest body of a request. None for an application that passes bodies on, such as a relay."""
    copied_bytes: int = 0
    """The largest body that an application without `body_bytes` copies. Until its end, it counts as a stranger's."""
    header_seconds: float = field(default_factory=lambda: HEADER_SECONDS)
    request_seconds: float = field(default_factory=lambda: REQUEST_SECONDS)
    """How long a request may take from its headers to the end of its body, and a stranger's to its response's end."""
    stop_seconds: float = STOP_SECONDS
    is_open: bool = False
    """Whether the server answers everybody: a request counts as a stranger's only until its body is complete."""
    websocket: WebSocketOptions | None = None
    tls: ssl.SSLContext | None = None
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    allowances: Allowances = field(default_factory=Allowances)
    """Of the clients that join over WebSocket."""
    describe_error: DescribeError = describe_error


class Server:
    """The connections of one listening socket."""

    def __init__(self, guard: RequestGuard, options: ListenerOptions) -> None:
        """`guard` contains the application."""
        self.app = self.guard = guard
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.connections: set[Any] = set()
        self.unjoined = UnjoinedConnections(
            connections=options.connections,
            per_address=options.connections_per_address,
            total_bytes=options.total_bytes,
        )
        self.unfinished = UnjoinedConnections(
            connections=options.connections,
            per_address=options.connections_per_address,
            total_bytes=options.total_bytes,
            excess="too many requests are unfinished",
        )
        """Requests of authenticated clients whose bodies are still arriving, by client."""
        self.allowances = options.allowances
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None

    @asynccontextmanager
    async def running(self, listener: socket.socket) -> AsyncIterator[None]:
        """Accept connections from a listening socket while the block runs; then close it."""
        acceptor = Acceptor(listener, self._make_connection, self._make_room, lambda: len(self.connections))
        self._acceptor = acceptor
        accepting = self.loop.create_task(acceptor.run())
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                acceptor.stop_soon()
                await accepting
                await self._end()

    def _make_room(self) -> bool:
        """Close the oldest connection of the stranger, or of the client with unfinished requests, that costs most.

        Returns False if there is none.
        """
        costliest_first = sorted((self.unjoined, self.unfinished), key=lambda one: one.highest_cost, reverse=True)
        return any(one.evict_one() for one in costliest_first)

    def _make_connection(self) -> asyncio.Protocol:
        http = HttpConnection(self)
        return http if self.options.tls is None else TlsHandshake(self, http, self.options.tls)

    def stop_listening(self) -> None:
        """Accept no more connections; the open ones continue."""
        if self._acceptor is not None:
            self._acceptor.stop_soon()

    def start(self, request: Coroutine[Any, Any, None]) -> None:
        """Run the application for a request."""
        task = self.loop.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def count(self, connection: UnjoinedPeer, address: str) -> None:
        """Count a connection as a stranger's."""
        self.unjoined.enter(connection, address, is_shared=self.options.proxies.trusts(address))

    def client_of(self, peer: tuple[str, int] | None, headers: Headers) -> str:
        """Return the address that a request counts for: the client's by a trusted proxy, else the peer's."""
        address = peer[0] if peer else ""
        forwarded = self.options.proxies.read(address, headers)
        return address if forwarded is None else forwarded.client

    async def _end(self) -> None:
        """End each connection as soon as its response has ended; open requests have `stop_seconds`."""
        ending = set[object]()
        with anyio.move_on_after(self.options.stop_seconds):
            while True:
                for connection in self.connections - ending:  # one may have been accepted just now
                    connection.shutdown()
                    ending.add(connection)
                await anyio.sleep(_STOP_POLL_SECONDS)
                if not self.connections and not self._tasks:
                    return
        for task in tuple(self._tasks):
            task.cancel()
        for connection in tuple(self.connections):
            connection.transport.abort()
        with anyio.move_on_after(1.0):
            while self.connections or self._tasks:  # noqa: ASYNC110 - no event tells
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
    the allowed ones are refused. `stopping` is called first at the end, so that open responses can finish. Raises
    `OSError` if the port is taken.
    """
    raise_limit()
    if allowed.origins:
        app = CORSMiddleware(app, allow_origins=allowed.origins, allow_methods=("GET", "POST"), allow_headers=("*",))
    guarded = RequestGuard(app, hosts=(host, *allowed.hosts), origins=allowed.origins)
    with bounded_logs(), bound_socket(host, port) as listener:
        server = Server(guarded, options or ListenerOptions())
        async with server.running(listener):
            try:
                yield f"http://{in_url(host)}:{listener.getsockname()[1]}"
            finally:
                stopping()


def bound_socket(host: str, port: int) -> socket.socket:
    """Listen on an address; port 0 picks a free port. Raises `OSError` and `UnicodeError`."""
    family, kind, proto, _, address = min(
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
        key=lambda found: found[0] is not socket.AF_INET,
    )
    listener = socket.socket(family, kind, proto)
    try:
        if sys.platform != "win32":  # on Windows it would let two programs share the port
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
