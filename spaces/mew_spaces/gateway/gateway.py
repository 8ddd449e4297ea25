"""The gateway as a program: HTTP and WebSocket on one port.

Owns start, stop and the parts of a gateway. Does not decide what participants may do.
"""

import asyncio
import logging
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus
from mew_listener.descriptors import raise_limit
from mew_listener.freed_memory import return_freed_memory
from mew_listener.listen_address import ListenAddress
from mew_listener.log_budget import bounded_logs, survived
from mew_listener.proxies import TrustedProxies
from mew_listener.request_guard import Advice, RequestGuard
from mew_listener.serving import Server
from mew_protocol.payloads.participant import Board
from mew_settings.installation import install_command
from mew_settings.private_files import FileLock, make_private_folder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from mew_spaces.config.loading import SpaceConfig
from mew_spaces.config.shared_storages import storage_for
from mew_spaces.errors import SpacesError
from mew_spaces.gateway.audit import AuditLog, logging_options
from mew_spaces.gateway.auth import TokenBook, space_folder
from mew_spaces.gateway.certificate import TlsFiles, tls_files
from mew_spaces.gateway.dashboard_files import SecurityHeaders, dashboard_routes
from mew_spaces.gateway.history_files import IS_HELD, history_path, open_log
from mew_spaces.gateway.http import HttpApi
from mew_spaces.gateway.http_bodies import describe_error, respond_to_error
from mew_spaces.gateway.listener import bound_socket, listener_options
from mew_spaces.gateway.log_writer import LogWriter
from mew_spaces.gateway.registry import SpaceRegistry
from mew_spaces.gateway.service import Former, OpenStorage, SpaceService
from mew_spaces.log.figure_store import FigureStore
from mew_spaces.log.sqlite import lock_path

log = logging.getLogger("mew_spaces")

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080

DRAINED_AT_ONCE = 20
DRAIN_PAUSE_SECONDS = 0.1
"""A gateway that is drained closes connections at this pace; with many connections, faster."""

EXPIRY_SECONDS = 1.0
"""How often timeouts are checked."""

_ADVICE = Advice(
    host="add it to gateway.allowed_hosts in space.yaml", origin="add it to gateway.allowed_origins in space.yaml"
)


@dataclass(frozen=True, slots=True)
class HostedSpace:
    """A further space of a gateway. Tokens come from its state folder, or are generated for this run.

    `storage` replaces the storage of a single gateway.
    """

    config: SpaceConfig
    state: Path | None = None
    tokens: TokenBook | None = None
    storage: OpenStorage | None = None


def create_app(registry: SpaceRegistry) -> Starlette:
    """Return the HTTP API and the dashboard as an ASGI application."""
    return Starlette(
        routes=[*HttpApi(registry, version=_version()).routes(), *dashboard_routes()],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers=dict.fromkeys((HTTPException, Exception), respond_to_error),
    )


def _guard(registry: SpaceRegistry, host: str, proxies: TrustedProxies) -> RequestGuard:
    """Return the application guarded by the checks of `Host` and `Origin`."""
    options = [service.config.gateway for service in registry]
    hosts = [name for one in options for name in one.allowed_hosts]
    hosts += [urlsplit(one.public_url).hostname or "" for one in options if one.public_url]
    return RequestGuard(
        create_app(registry),
        hosts=[*hosts, host],
        origins=[name for one in options for name in one.allowed_origins],
        proxies=proxies,
        advice=_ADVICE,
        describe_error=describe_error,
    )


@asynccontextmanager
async def _running_tasks(registry: SpaceRegistry) -> AsyncIterator[None]:
    """Run the background tasks of the spaces. If one fails, the gateway ends, because it would store nothing."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_check_timeouts, registry)
        for service in registry:
            tasks.start_soon(_must_run, service.storage.run)
            tasks.start_soon(_must_run, service.keep_announcing)
            tasks.start_soon(_must_run, service.figures.run)
            tasks.start_soon(_must_run, partial(service.attention.run, registry.event_streams.wake))
            if service.attention_receiver is not None:
                tasks.start_soon(_must_run, service.attention_receiver.run)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _must_run(task: Callable[[], Awaitable[None]]) -> None:
    try:
        await task()
    except Exception as error:
        log.exception("a task of the gateway failed")
        raise SpacesError("the gateway stopped because of an internal error; its log has the details") from error


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that accepts connections."""

    address: ListenAddress
    registry: SpaceRegistry
    """All spaces; `config`, `tokens` and `service` belong to the first."""
    server: Server

    @property
    def service(self) -> SpaceService:
        """The service of the first space."""
        return self.registry.default

    @property
    def config(self) -> SpaceConfig:
        """The configuration of the first space."""
        return self.service.config

    @property
    def tokens(self) -> TokenBook:
        """The tokens of the first space."""
        return self.service.tokens

    @property
    def host(self) -> str:
        """The host that it listens on."""
        return self.address.host

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.address.port

    @property
    def url(self) -> str:
        """The HTTP address, without a trailing slash."""
        return self.address.http

    @property
    def ws_url(self) -> str:
        """The WebSocket address, without a trailing slash."""
        return self.address.ws

    async def drain(self, seconds: float) -> None:
        """Let clients move to other gateways of their spaces: accept no clients, and close a few connections at a time.

        Returns when the last one is closed, or after `seconds`; at once without another gateway.
        """
        shared = [one for one in self.registry if one.storage.has_others]
        if not shared:
            return
        self.server.stop_listening()
        pauses = max(1.0, seconds / DRAIN_PAUSE_SECONDS)
        most = max(DRAINED_AT_ONCE, math.ceil(2 * sum(one.connections for one in shared) / pauses))
        with anyio.move_on_after(seconds):
            left = 1
            while left:
                left = sum(one.close_connections(most) for one in shared)
                await anyio.sleep(DRAIN_PAUSE_SECONDS)

    def token_of(self, participant: str) -> str:
        """Return a participant's token. Raises `KeyError` if the participant is not configured."""
        token = self.tokens.token_of(participant)
        if token is None:
            raise KeyError(participant)
        return token

    def board(self) -> Board:
        """Return the last status of every participant."""
        return self.service.board()


@asynccontextmanager
async def serve_gateway(
    config: SpaceConfig,
    *,
    host: str = DEFAULT_HOST,
    port: int = 0,
    state: Path | None = None,
    tokens: TokenBook | None = None,
    others: Sequence[HostedSpace] = (),
    tls: TlsFiles | None = None,
    storage: OpenStorage | None = None,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in this event loop while the block runs; port 0 picks a free port.

    `tls` replaces the configured certificate. Tokens come from `tokens`, else from the state folder, or are generated
    for this run. `others` are further spaces; a client selects one by name or by its token. Installs no signal
    handlers. `storage` replaces the storage of a single gateway. Raises `PortInUse`, `TokenError`, and `SpacesError` if
    the address, the certificate or the backplane cannot be used or stored state cannot be read.
    """
    raise_limit()
    tls = tls or tls_files(config, Path() if state is None else space_folder(state))
    context = tls.context() if tls is not None else None
    with _plain_errors(), bounded_logs("mew_spaces"), bound_socket(host, port) as listener, ExitStack() as opened:
        address = ListenAddress(host, listener.getsockname()[1], has_tls=tls is not None)
        hosted = [HostedSpace(config, state, tokens, storage), *others]
        services: list[SpaceService] = []
        for one in hosted:
            services.append(_open_space(one, address.port))
            opened.callback(services[-1].close)  # also if the start fails or is cancelled
        registry = SpaceRegistry(services)
        proxies = TrustedProxies(one for service in registry for one in service.config.gateway.trusted_proxies)
        for service in registry:
            public = service.config.gateway.public_url or _by_name(address).http
            service.space.connection_url = f"ws{public.removeprefix('http')}/"
            service.connect_virtual_participants()
            service.join_writes(asyncio.get_running_loop().call_soon)
        server = Server(_guard(registry, host, proxies), listener_options(registry, proxies=proxies, tls=context))
        async with AsyncExitStack() as stack:
            for service in registry:
                await stack.enter_async_context(service.storage.running())
            await stack.enter_async_context(_running_tasks(registry))
            await stack.enter_async_context(server.running(listener))
            stack.callback(registry.stop)
            yield RunningGateway(address, registry, server)


def _open_space(space: HostedSpace, port: int) -> SpaceService:
    """Open a space with the tokens, logs, invitations and removals of its state folder. Raises `SpacesError`.

    Gateways of one space may share its folder: each has its own logs, named by its port, and all other changing state
    is in the backplane.
    """
    config, state = space.config, space.state
    writer = LogWriter(writes_at_once=config.is_reference)
    tokens = space.tokens
    if tokens is None:
        tokens = TokenBook.generate(config) if state is None else TokenBook.load(config, state)
    is_shared = space.storage is not None
    if state is None:
        return SpaceService(config, tokens, writer=writer, open_storage=space.storage)
    audit = _open_audit(config, state / "logs" / f"gateway-{port}" if is_shared else state / "logs", writer)
    space_log = open_log(config, state, is_shared=is_shared)
    figures = FigureStore(None if space_log.durability == "memory" else _figures_of(space_log.path))
    is_first = space_log.path == history_path(config, state)
    try:
        return SpaceService(
            config,
            tokens,
            space_log=space_log,
            figures=figures,
            state=None if is_shared else state,
            folder=space_folder(state),
            writer=writer,
            audit=audit,
            open_storage=space.storage,
            former=Former(state) if is_first else Former(is_held=True),
        )
    except BaseException:
        space_log.close()  # otherwise the file stays locked in this process
        raise


def _open_audit(config: SpaceConfig, logs: Path, writer: LogWriter) -> AuditLog | None:
    """Open the audit log of a space; None if it is turned off."""
    try:
        audit = AuditLog(logs, config.space.id, logging_options(config.gateway_logging), writer)
    except OSError as error:
        raise SpacesError(
            f"{logs}: cannot write logs: {error}; make it writable, or set gateway_logging.enabled to false"
        ) from None
    return audit if audit.is_on else None


def _figures_of(history: Path) -> Path:
    return history.with_name(f"{history.name}-figures")


def run_gateway(
    config: SpaceConfig,
    *,
    state: Path,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    others: Sequence[HostedSpace] = (),
    on_ready: Callable[[RunningGateway], None] | None = None,
    drain_seconds: float = 0.0,
) -> None:
    """Run a gateway in the foreground until SIGINT or SIGTERM, on the configured backplanes.

    Its members then have `drain_seconds` to move to other gateways; a second signal ends the wait. Raises the errors of
    `serve_gateway`, `BackplaneError`, and after it has stopped, `KeyboardInterrupt` for SIGINT, or for any signal
    before it accepted connections.
    """

    async def serve(stopping: anyio.Event, started: anyio.Event) -> None:
        async with AsyncExitStack() as opened:
            first, *further = [
                replace(one, storage=await opened.enter_async_context(_shared_storage(one)))
                for one in (HostedSpace(config, state), *others)
            ]
            gateway = await opened.enter_async_context(
                serve_gateway(
                    config,
                    host=host,
                    port=port,
                    state=state,
                    others=further,
                    storage=first.storage,
                )
            )
            started.set()
            if on_ready is not None:
                on_ready(gateway)
            await stopping.wait()
            await gateway.drain(drain_seconds)

    async def main() -> bool:
        is_interrupted = False
        started, stopping, serving = anyio.Event(), anyio.Event(), anyio.CancelScope()

        async def follow_signals(*, task_status: TaskStatus[None]) -> None:
            nonlocal is_interrupted
            if sys.platform == "win32":  # anyio cannot receive signals there; Ctrl-C cancels the loop
                task_status.started()
                return
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                task_status.started()
                async for number in signals:
                    is_interrupted |= number == signal.SIGINT or not started.is_set()
                    if stopping.is_set() or not started.is_set():
                        serving.cancel()
                    stopping.set()

        return_freed_memory(asyncio.get_running_loop())
        with _plain_errors():
            async with anyio.create_task_group() as tasks:
                # A second signal must not interrupt the end, so follow signals until everything has stopped.
                await tasks.start(follow_signals)
                with serving:
                    await serve(stopping, started)
                tasks.cancel_scope.cancel()
        return is_interrupted

    if anyio.run(main, backend_options={"use_uvloop": has_uvloop()}):
        raise KeyboardInterrupt


def open_shared(config: SpaceConfig, *, folder: Path, state: Path) -> AbstractAsyncContextManager[OpenStorage | None]:
    """Open the configured storage of several gateways, if any. Raises `SpacesError`."""
    if config.backplane is None:
        return nullcontext()
    storage = storage_for(config.backplane)
    try:
        found: AbstractAsyncContextManager[OpenStorage] = storage.open(config, folder=folder, state=state)
    except ModuleNotFoundError as error:
        if storage.extra is None:
            raise
        problem = f"'backplane' needs the extra '{storage.extra}': {install_command(storage.extra)} ({error})"
        raise SpacesError(problem) from None
    return found


@asynccontextmanager
async def _shared_storage(space: HostedSpace) -> AsyncIterator[OpenStorage | None]:
    """Open the configured shared storage; refuse a folder that a single gateway uses."""
    assert space.state is not None
    path, lock = history_path(space.config, space.state), None
    if space.config.backplane is not None:
        make_private_folder(space.state)
        try:
            lock = FileLock(lock_path(path), is_shared=True)
        except BlockingIOError:
            raise SpacesError(f"{path}: {IS_HELD}") from None
    try:
        async with open_shared(space.config, folder=space_folder(space.state), state=space.state) as storage:
            yield storage
    finally:
        if lock is not None:
            lock.release()


def has_uvloop() -> bool:
    """Return whether uvloop, the faster event loop, is installed."""
    return find_spec("uvloop") is not None


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the only error of a group instead of the group, because callers catch `PortInUse`."""
    try:
        yield
    except BaseExceptionGroup as group:
        only: BaseException = group
        while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
            only = only.exceptions[0]
        raise only from None


async def _check_timeouts(registry: SpaceRegistry) -> None:
    while True:
        await anyio.sleep(EXPIRY_SECONDS)
        with survived("looking at token files", log):
            await to_thread.run_sync(registry.look_at_tokens)
        with survived("the check of timeouts", log):
            registry.expire()


def _by_name(address: ListenAddress) -> ListenAddress:
    """Return a loopback address by name, which a certificate is more likely to contain."""
    is_loopback = address.connect_host in ("127.0.0.1", "::1")
    return replace(address, name="localhost") if is_loopback else address


def _version() -> str:
    try:
        return package_version("mew-agent")
    except PackageNotFoundError:
        return "unknown"
