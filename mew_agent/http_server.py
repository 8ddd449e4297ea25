"""Runs an ASGI app on an HTTP server inside the current event loop.

Owns the socket, the start and the stop. Installs no signal handlers and no log configuration. Does not know what the
app serves.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import uvicorn
from mew_listener.descriptors import raise_limit
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.lifespan.off import LifespanOff
from uvicorn.protocols.http.h11_impl import H11Protocol

STOP_SECONDS = 5
_CLOSE_CONNECTION = "mew_agent.close_connection"
_STOP_POLL_SECONDS = 0.005


@asynccontextmanager
async def serving(app: ASGIApp, *, host: str, port: int, stopping: Callable[[], None]) -> AsyncIterator[str]:
    """Serve `app` while the block runs; yields the base URL. Port 0 picks a free port.

    `stopping` is called first at the end, so that open responses can finish; they have `STOP_SECONDS`. Raises `OSError`
    if the port is taken.
    """
    raise_limit()
    listener = listen(host, port)
    config = uvicorn.Config(
        app,
        http=_BreakableProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    config.load()
    server = _Server(config)
    server.lifespan = LifespanOff(config)
    await server.startup(sockets=[listener])
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        stopping()
        with anyio.CancelScope(shield=True):
            await server.shutdown()


class _Server(uvicorn.Server):
    """uvicorn's server without the pauses of a tenth of a second while it stops."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state, ending = self.server_state, set[object]()
        with anyio.move_on_after(STOP_SECONDS):
            while True:
                for connection in state.connections - ending:  # one may have been accepted just now
                    connection.shutdown()
                    ending.add(connection)
                await anyio.sleep(_STOP_POLL_SECONDS)
                if not state.connections and not state.tasks:
                    return
        for task in tuple(state.tasks):
            task.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address. Raises `OSError` if the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


class _BreakableProtocol(H11Protocol):
    """Lets the app close a connection in the middle of a reply; see `break_connection`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_break(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), _CLOSE_CONNECTION: transport.close}
            await app(scope, receive, send)

        self.app = with_break


async def break_connection(scope: Scope, receive: Receive) -> None:
    """Close the connection of a request without ending the body of its reply, and wait until it is closed."""
    close: Callable[[], None] = scope["extensions"][_CLOSE_CONNECTION]
    close()
    await until_disconnected(receive)


async def until_disconnected(receive: Receive) -> None:
    """Wait until the client of a request has disconnected, or has received the whole reply."""
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


def bounded(receive: Receive, max_bytes: int) -> Receive:
    """Wrap `receive` so that reading a larger body raises `HTTPException` (413)."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise HTTPException(413, f"body: exceeds {max_bytes:,} bytes")
        return message

    return receive_bounded
