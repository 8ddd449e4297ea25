"""A session with an MCP server. The only module of the bridge that imports the official `mcp` package.

Owns the handshake, requests and their timeouts, and notifications of the server. Translates errors of the package into
`RequestFailed` and `ServerFailed`. Does not restart anything; see `bridge`.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Final

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from mew_protocol.codec import DEFAULT_MAX_BYTES
from mew_protocol.json_values import value_at
from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from mew_agent import __version__, tracing
from mew_agent.client_options import client_options
from mew_agent.parts.mcp.settings import BridgeSettings
from mew_agent.parts.shared.child_program import ChildFailed, ChildProgram, running_program
from mew_agent.tools.catalog import INTERNAL_ERROR, METHOD_NOT_FOUND, UNAVAILABLE, RequestFailed, with_other_lists

logger = logging.getLogger("mew_agent.parts.mcp")

Notify = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Receives a notification of the server: its method and params."""

METHODS: Final = frozenset(
    {
        *("tools/list", "tools/call", "prompts/list", "prompts/get", "completion/complete"),
        *("resources/list", "resources/templates/list", "resources/read"),
        *("resources/subscribe", "resources/unsubscribe"),
    }
)
"""Methods that are forwarded. The rest of MCP concerns only the connection between bridge and server."""

MAX_RESULT_BYTES: Final = DEFAULT_MAX_BYTES - 64 * 1024

_FORWARDED: Final = (
    types.ToolListChangedNotification,
    types.ResourceListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceUpdatedNotification,
)
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING}
_HTTP_TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)
_OLDEST_VERSION: Final = HANDSHAKE_PROTOCOL_VERSIONS[0]
_CLOSED: Final = (types.CONNECTION_CLOSED, "Connection closed")
"""The package's error for requests on an ended connection. Servers use its code for errors of any kind."""

_SESSION_ID: Final = "mcp-session-id"
_REFUSED_SESSION: Final = -32000
"""The code with which servers of the TypeScript SDK refuse an unknown session, with status 400."""

_Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class ServerFailed(ChildFailed):
    """An MCP server that cannot be used."""

    role: ClassVar[str] = "the MCP server"


class _AnyResult(BaseModel, extra="allow"):
    """A result with any keys, so that results unknown to the package are also forwarded."""


@dataclass
class ServerSession:
    """An initialised server. `ended` is set when the server can no longer answer."""

    name: str
    version: str
    timeout_seconds: float
    _session: ClientSession
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Forward a request and return the server's result unchanged. Raises `RequestFailed`."""
        if method == "ping":
            return {}
        if method not in METHODS:
            raise RequestFailed(METHOD_NOT_FOUND, f"method '{method}' is not offered here")
        if method == "tools/call" and (header := tracing.traceparent()) is not None:
            params = {**params, "_meta": {tracing.TRACEPARENT: header, **(params.get("_meta") or {})}}
        result = await self._answer(types.Request[Any, str](method=method, params=dict(params) or None))
        size = len(to_json(result))
        if size > MAX_RESULT_BYTES:
            problem = f"the answer of {size:,} bytes exceeds the limit of {MAX_RESULT_BYTES:,}"
            raise RequestFailed(INTERNAL_ERROR, problem)
        return result

    async def _answer(self, request: types.Request[Any, str]) -> dict[str, Any]:
        """Return the server's result; a list of tools also names its other lists. Raises `RequestFailed`."""
        lists = self._other_lists() if request.method == "tools/list" else []
        try:
            answer = await self._session.send_request(request, _AnyResult, self.timeout_seconds)
        except MCPError as error:
            if self.ended.is_set() or (error.code, error.message) == _CLOSED:
                self.ended.set()
                raise RequestFailed(UNAVAILABLE, f"the MCP server '{self.name}' closed the connection") from None
            if lists and error.code == METHOD_NOT_FOUND:
                return with_other_lists({"tools": []}, lists)
            raise RequestFailed(error.code, error.message, error.error.data) from None
        except ValidationError as error:
            problem = f"invalid answer of the MCP server: {first_problem(error)}"
            raise RequestFailed(INTERNAL_ERROR, problem) from None
        result = answer.model_extra or {}
        return with_other_lists(result, lists) if request.method == "tools/list" else result

    def _other_lists(self) -> list[str]:
        """Return the lists other than tools that the server announced in the handshake."""
        capabilities = self._session.server_capabilities
        names = ("resources", "prompts")
        return [] if capabilities is None else [name for name in names if getattr(capabilities, name) is not None]


@asynccontextmanager
async def connected(settings: BridgeSettings, notify: Notify) -> AsyncIterator[ServerSession]:
    """Start or reach the server and initialise it. Raises `ServerFailed`, possibly inside an exception group."""
    server = settings.server
    handler = partial(_handle_notification, notify)
    if server.url is not None:
        lost, options = anyio.Event(), client_options(server.url)
        hooks: dict[str, list[Callable[..., Any]]] = {"response": [partial(_note_lost_session, lost)]}
        async with (
            httpx2.AsyncClient(headers=server.headers, timeout=_HTTP_TIMEOUT, event_hooks=hooks, **options) as client,
            streamable_http_client(server.url, http_client=client) as (read, write),
            _BridgeClientSession(read, write, message_handler=handler) as session,
        ):
            ready = await _ready(session, settings)
            ready.ended = lost
            async with _subscribed(session):
                yield ready
    else:
        assert server.command is not None
        command, environment = (server.command, *server.args), server.environment(os.environ)
        async with (
            running_program(command, environment, server.cwd, ServerFailed) as program,
            _streams(program) as (streams, ended),
        ):
            async with _BridgeClientSession(*streams, message_handler=handler) as session:
                try:
                    ready = await _ready(session, settings)
                except ServerFailed as error:
                    reason = f"{await program.exit_reason()} before it was ready" if ended.is_set() else error.problem
                    raise ServerFailed(server.command, reason, program.stderr_tail) from None
                ready.ended = ended
                async with _subscribed(session):
                    yield ready
            if ended.is_set():
                raise ServerFailed(server.command, await program.exit_reason(), program.stderr_tail)


async def _note_lost_session(lost: anyio.Event, response: httpx2.Response) -> None:
    """Note that a server no longer knows the session, for example after a restart; the package forwards its words."""
    if response.request.method != "POST" or _SESSION_ID not in response.request.headers:
        return
    if response.status_code == HTTPStatus.NOT_FOUND or (
        response.status_code == HTTPStatus.BAD_REQUEST and await _error_code(response) == _REFUSED_SESSION
    ):
        lost.set()


async def _error_code(response: httpx2.Response) -> object:
    await response.aread()
    with suppress(ValueError, RecursionError):
        return value_at(response.json(), "error", "code")
    return None


async def _ready(session: ClientSession, settings: BridgeSettings) -> ServerSession:
    name = str(settings.server)
    try:
        with anyio.fail_after(settings.init_timeout / 1000):
            await _shake_hands(session)
    except TimeoutError:
        waited_seconds = settings.init_timeout / 1000
        raise ServerFailed(name, f"did not answer `initialize` within {waited_seconds:g} seconds") from None
    except (MCPError, ValidationError, RuntimeError) as error:
        raise ServerFailed(name, f"refused `initialize`: {error}") from None
    info = session.server_info
    title = name if info is None else f"{info.name} {info.version}".strip()
    return ServerSession(title, str(session.protocol_version), settings.request_seconds, session)


async def _shake_hands(session: ClientSession) -> None:
    """Initialise the session: by `initialize`, or by discovery for the newest servers without it.

    Accepts an unknown protocol version as the oldest one, because some small servers send one.
    """
    params = types.InitializeRequestParams(
        protocol_version=LATEST_HANDSHAKE_VERSION,
        capabilities=types.ClientCapabilities(),
        client_info=types.Implementation(name="mew-agent", version=__version__),
    )
    try:
        result = await session.send_request(types.InitializeRequest(params=params), types.InitializeResult)
    except MCPError as error:
        if error.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
            raise
        await session.discover()
        return
    if result.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        announced = result.protocol_version
        logger.info("the MCP server announced unknown protocol '%s'; reading it as %s", announced, _OLDEST_VERSION)
        result = result.model_copy(update={"protocol_version": _OLDEST_VERSION})
    session.adopt(result)
    await session.send_notification(types.InitializedNotification())


class _BridgeClientSession(ClientSession):
    """Refuses requests of the server to its client: sampling, elicitation and roots. The bridge announces none of
    them.
    """

    async def dispatch_input_request(
        self, ctx: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        """Refuse a request of the server."""
        logger.warning("refused '%s' of the MCP server: a bridge cannot answer it", request.method)
        message = f"'{request.method}' is not offered: this client forwards requests and cannot answer any"
        return types.ErrorData(code=METHOD_NOT_FOUND, message=message)


async def _handle_notification(notify: Notify, message: types.ServerNotification | Exception) -> None:
    """Write log messages of the server to our log, and forward changes to `notify`."""
    match message:
        case types.LoggingMessageNotification(params=entry):
            logger.log(_LEVELS.get(entry.level, logging.ERROR), "server: %s", entry.data)
        case Exception():
            logger.warning("unreadable message from the MCP server: %s", message)
        case _:
            fields = message.model_dump(by_alias=True, mode="json", exclude_none=True)
            if isinstance(message, _FORWARDED):
                await notify(fields["method"], fields.get("params") or {})
            else:  # for example progress: callers wait only for the result
                logger.debug("server: %s %s", fields["method"], fields.get("params") or {})


@asynccontextmanager
async def _subscribed(session: ClientSession) -> AsyncIterator[None]:
    """Receive change notifications while the block runs. Older servers always send them; newer ones send them on
    request.
    """
    if session.discover_result is None:
        yield
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_listen_for_changes, session)
        yield
        tasks.cancel_scope.cancel()


async def _listen_for_changes(session: ClientSession) -> None:
    try:
        async with listen(
            session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as changes:
            async for _ in changes:
                pass  # the session's message handler receives each change, too
    except (MCPError, RuntimeError, TimeoutError) as error:
        logger.info("the MCP server sends no change notifications: %s", error)


@asynccontextmanager
async def _streams(program: ChildProgram) -> AsyncIterator[tuple[_Streams, anyio.Event]]:
    """Yield a program's lines as message streams for the package, and an event for their end."""
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    ended = anyio.Event()

    async def read() -> None:
        try:
            async with to_session:
                async for line in program.lines():
                    if (message := _message_in(line)) is not None:
                        await to_session.send(message)
        except anyio.BrokenResourceError:
            pass  # the session has ended
        except ServerFailed as error:
            logger.error("%s", error)
        ended.set()

    async def write() -> None:
        try:
            async for message in from_session:
                await program.write_line(message.message.model_dump_json(by_alias=True, exclude_unset=True))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            to_session.close()  # the server has stopped reading, so pending requests must fail
            ended.set()

    async with to_session, from_server, to_server, from_session, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield (from_server, to_server), ended
        tasks.cancel_scope.cancel()


def _message_in(line: bytes) -> SessionMessage | None:
    """Return the message in a line; None for other output, such as a greeting on standard output."""
    if not line.strip():
        return None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        shown = line[:200].decode(errors="replace")
        logger.warning("ignored a line of the MCP server that is not a message: %s", shown)
        return None
