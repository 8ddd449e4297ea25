"""The gateway as a program: one ASGI application on one port, and the server that runs it.

`create_app` works under any ASGI server; `serve_gateway` and `run_gateway` run it under ours, with the direct way
out of `websocket.py`. Everything that is decided is decided in `switchboard` and below.
"""

import contextlib
import errno
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, cast

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from protocol.payloads.participant import Board
from spaces.audit import AuditLog, logging_options
from spaces.auth import TokenBook
from spaces.config import SpaceConfig
from spaces.connection import Connection
from spaces.directory import Directory
from spaces.errors import PortInUse, SpacesError
from spaces.fanout import AsgiLane
from spaces.http import (
    HttpRoutes,
    Problem,
    SecurityHeaders,
    answer_failure,
    answer_http_exception,
    answer_problem,
    bearer_of,
)
from spaces.line_files import LineWriter
from spaces.switchboard import Switchboard
from spaces.websocket import CLOSE_GRACE_SECONDS, EXTENSION, DirectLane, DirectWebSocket

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080

AUTO_JOIN_SECONDS = 0.25
"""How long a socket that came with a bearer header may take to send a join frame before it is joined without."""

EXPIRY_SECONDS = 1.0
"""How often waiting things are looked at."""

STOP_SECONDS = 3
"""How long open requests may take when the gateway stops."""


@dataclass(frozen=True, slots=True)
class HostedSpace:
    """A further space of a gateway. Tokens are those of its state folder, else made up for this run."""

    config: SpaceConfig
    state: Path | None = None
    tokens: TokenBook | None = None


def create_app(directory: Directory) -> Starlette:
    """The gateway as an ASGI application."""
    sockets = _Sockets(directory)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_keep_time, directory)
            try:
                yield
            finally:
                directory.close()
                tasks.cancel_scope.cancel()

    return Starlette(
        routes=[
            *HttpRoutes(directory, version=_version()).routes(),
            WebSocketRoute("/{path:path}", sockets.serve),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: answer_http_exception,
            Exception: answer_failure,
        },
        lifespan=lifespan,
    )


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that listens."""

    host: str
    port: int
    config: SpaceConfig
    tokens: TokenBook
    switchboard: Switchboard
    directory: Directory
    """All of its spaces; `config`, `tokens` and `switchboard` are the first one's."""

    @property
    def url(self) -> str:
        """Its HTTP address, without a slash at the end."""
        return f"http://{_in_url(self.host)}:{self.port}"

    @property
    def ws_url(self) -> str:
        """Its WebSocket address, without a slash at the end."""
        return f"ws://{_in_url(self.host)}:{self.port}"

    def token_of(self, participant: str) -> str:
        """A participant's token. Raises `KeyError` for one that is not configured."""
        token = self.tokens.token_of(participant)
        if token is None:
            raise KeyError(participant)
        return token

    def board(self) -> Board:
        """The last status of every participant."""
        return self.switchboard.board()


@asynccontextmanager
async def serve_gateway(
    config: SpaceConfig,
    *,
    host: str = DEFAULT_HOST,
    port: int = 0,
    state: Path | None = None,
    tokens: TokenBook | None = None,
    switchboard: Switchboard | None = None,
    others: Sequence[HostedSpace] = (),
    direct: bool = True,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in this event loop while the block runs; port 0 takes a free one.

    Tokens come from `tokens`, else from the state folder, else they are made up for this run. `others` are spaces
    that it serves besides; clients name the one they want, or are known by their token. It sets no signal
    handlers. `direct=False` sends through plain ASGI, as under a foreign server. Raises `PortInUse`,
    `TokenError`, and `SpacesError` for an address that cannot be listened at and a state that cannot be read.
    """
    board = switchboard or _switchboard(HostedSpace(config, state, tokens))
    directory = Directory([board, *(_switchboard(other) for other in others)])
    app = create_app(directory)
    with _plain_errors(), _bound_socket(host, port) as listener:
        directory.reached_at(f"ws://{_reached_at(host)}:{listener.getsockname()[1]}/")
        directory.connect_virtual_participants()
        server = _Server(_server_config(app, directory, direct=direct))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            await server.listening.wait()
            try:
                yield RunningGateway(host, listener.getsockname()[1], config, board.tokens, board, directory)
            finally:
                with anyio.CancelScope(shield=True):
                    directory.close()
                    server.stop()
                    await server.stopped.wait()


def _switchboard(space: HostedSpace) -> Switchboard:
    """A switchboard with what a state folder brings: tokens, logs, invitations, removals. Raises `SpacesError`."""
    config, state = space.config, space.state
    writer = LineWriter()
    tokens = space.tokens
    if tokens is None:
        tokens = TokenBook.made_up(config) if state is None else TokenBook.load(config, state)
    if state is None:
        return Switchboard(config, tokens, writer=writer)
    try:
        audit = AuditLog(state / "logs", config.space.id, logging_options(config.gateway_logging), writer)
    except OSError as error:
        raise SpacesError(f"{state / 'logs'}: no logs can be written there: {error}") from None
    return Switchboard(config, tokens, state=state, writer=writer, audit=audit if audit.is_on else None)


def run_gateway(
    config: SpaceConfig,
    *,
    state: Path,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    others: Sequence[HostedSpace] = (),
    on_ready: Callable[[RunningGateway], None] | None = None,
) -> None:
    """Run a gateway in the foreground until SIGINT or SIGTERM. Raises `PortInUse`, `TokenError`."""

    async def main() -> None:
        async with serve_gateway(config, host=host, port=port, state=state, others=others) as gateway:
            if on_ready is not None:
                on_ready(gateway)
            await _until_told_to_stop()

    anyio.run(main, backend_options={"use_uvloop": has_uvloop()})


def has_uvloop() -> bool:
    """Whether the faster event loop is there."""
    with contextlib.suppress(ImportError):
        import uvloop

        return bool(uvloop)
    return False


async def _until_told_to_stop() -> None:
    import signal

    if sys.platform == "win32":  # no signal receiver there; Ctrl+C cancels the loop
        await anyio.sleep_forever()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return


class _Sockets:
    """The WebSocket side of the application."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._limits = directory.default.config.limits

    async def serve(self, websocket: WebSocket) -> None:
        """One socket from its handshake to its end."""
        connection = Connection(
            self._directory,
            bearer=bearer_of(websocket.headers),
            space=websocket.query_params.get("space"),
        )
        await websocket.accept()
        lane = websocket.scope.get("extensions", {}).get(EXTENSION)
        goes_on = False
        try:
            if isinstance(lane, DirectLane):
                goes_on = await self._serve_directly(websocket, connection, lane)
            else:
                await self._serve_by_asgi(websocket, connection)
        finally:
            if not goes_on:
                connection.gone()

    async def _serve_directly(self, websocket: WebSocket, connection: Connection, lane: DirectLane) -> bool:
        """Serve a socket until it has joined; then its lane does. Returns whether it goes on."""
        lane.tell(on_slow=connection.slow, on_too_large=connection.too_large)
        connection.attach(lane)
        await self._wait_for_join(websocket, connection)
        if connection.is_joined and not connection.is_gone:
            # A task that waits for the end, with all that led to it, would take most of what an idle socket costs.
            lane.attach(connection.receive, connection.gone)
            return True
        while not connection.is_gone:
            if _is_over(await websocket.receive()):
                connection.gone()
        return False

    async def _serve_by_asgi(self, websocket: WebSocket, connection: Connection) -> None:
        lane = AsgiLane(on_slow=connection.slow)
        connection.attach(lane)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lane.run, websocket.send)
            tasks.start_soon(_cut_off_after_close, lane, tasks.cancel_scope)
            await self._wait_for_join(websocket, connection)
            await self._read(websocket, connection)
            tasks.cancel_scope.cancel()

    async def _wait_for_join(self, websocket: WebSocket, connection: Connection) -> None:
        """Read until it is joined, refused or gone; come to a decision in bounded time."""
        if connection.has_bearer:
            with anyio.move_on_after(AUTO_JOIN_SECONDS):
                await self._read(websocket, connection, until_decided=True)
            connection.join_by_header()
            return
        with anyio.move_on_after(self._limits.join_timeout_seconds):
            await self._read(websocket, connection, until_decided=True)
        connection.give_up_waiting()

    async def _read(self, websocket: WebSocket, connection: Connection, *, until_decided: bool = False) -> None:
        while not connection.is_gone and not (until_decided and (connection.is_joined or connection.is_ended)):
            message = await websocket.receive()
            if _is_over(message):
                connection.gone()
                continue
            text, data = message.get("text"), message.get("bytes")
            connection.receive(text.encode() if text is not None else data or b"", is_text=text is not None)


async def _cut_off_after_close(lane: AsgiLane, scope: anyio.CancelScope) -> None:
    await lane.closing.wait()
    await anyio.sleep(CLOSE_GRACE_SECONDS)
    scope.cancel()


def _is_over(message: Any) -> bool:
    return cast("str", message["type"]) == "websocket.disconnect"


class _Server(uvicorn.Server):
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


def _server_config(app: Starlette, directory: Directory, *, direct: bool) -> uvicorn.Config:
    limits = directory.default.config.limits
    return uvicorn.Config(
        app,
        http="auto",
        ws=DirectWebSocket if direct else "websockets-sansio",
        ws_max_size=directory.message_bytes,
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
def _plain_errors() -> Iterator[None]:
    """A task group wraps what its block raises; callers want the one error itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@contextmanager
def _bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    try:
        listener = _listener(host, port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpacesError(f"cannot listen at {_in_url(host)}:{port}: {said}") from None
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


async def _keep_time(directory: Directory) -> None:
    while True:
        await anyio.sleep(EXPIRY_SECONDS)
        directory.expire()


def _reached_at(host: str) -> str:
    """The host to tell others; a wildcard address is reached by this machine's name for itself."""
    return "localhost" if host in ("", "0.0.0.0", "::", "127.0.0.1", "::1") else _in_url(host)  # noqa: S104


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _version() -> str:
    try:
        return package_version("mew-agent")
    except PackageNotFoundError:
        return "unknown"
