"""A conversation with an MCP server: the one module of the bridge that imports the official `mcp` package.

Owns the handshake, requests with their time-outs, and what the server tells without being asked. Vendor errors become
`RequestFailed` and `ServerFailed` here. Restarts are `keeping`'s matter.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

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
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from mew_agent._version import __version__
from mew_agent.bridge.program import ServerFailed, ServerProgram, running_program
from mew_agent.bridge.settings import BridgeSettings, HttpServer
from mew_agent.tools.catalog import INTERNAL_ERROR, METHOD_NOT_FOUND, UNAVAILABLE, RequestFailed, with_other_lists

logger = logging.getLogger("mew_agent.bridge")

Notify = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Takes what a server tells without being asked: method and params."""

METHODS: Final = frozenset(
    {
        *("tools/list", "tools/call", "prompts/list", "prompts/get", "completion/complete"),
        *("resources/list", "resources/templates/list", "resources/read"),
        *("resources/subscribe", "resources/unsubscribe"),
    }
)
"""What is passed on. The rest of MCP belongs to the connection between the bridge and its server."""

MAX_RESULT_BYTES: Final = DEFAULT_MAX_BYTES - 64 * 1024

_PASSED_ON: Final = (
    types.ToolListChangedNotification,
    types.ResourceListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceUpdatedNotification,
)
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING}
_HTTP_TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)
_OLDEST_VERSION: Final = HANDSHAKE_PROTOCOL_VERSIONS[0]
_SESSION_GONE: Final = "Session terminated"
"""What the package makes of a server that does not know its session any more, as after its restart."""
_Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class _AnyResult(BaseModel, extra="allow"):
    """A result with whatever is in it: what a server says that the package does not know yet is passed on too."""


@dataclass
class ServerSession:
    """An initialised server. `ended` is set when it can answer nothing any more."""

    name: str
    version: str
    timeout_seconds: float
    _session: ClientSession
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Pass a request on and return the result as the server gave it. Raises `RequestFailed`."""
        if method == "ping":
            return {}
        if method not in METHODS:
            raise RequestFailed(METHOD_NOT_FOUND, f"method '{method}' is not offered here")
        request = types.Request[Any, str](method=method, params=dict(params) or None)
        try:
            answer = await self._session.send_request(request, _AnyResult, self.timeout_seconds)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED or error.message == _SESSION_GONE:
                self.ended.set()
                raise RequestFailed(UNAVAILABLE, f"the MCP server '{self.name}' went away meanwhile") from None
            if method == "tools/list" and error.code == METHOD_NOT_FOUND and self._other_lists():
                return with_other_lists({"tools": []}, self._other_lists())
            raise RequestFailed(error.code, error.message, error.error.data) from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"
            raise RequestFailed(INTERNAL_ERROR, f"the MCP server's answer is no MCP: {problem}") from None
        result = answer.model_extra or {}
        if method == "tools/list":
            result = with_other_lists(result, self._other_lists())
        size = len(to_json(result))
        if size > MAX_RESULT_BYTES:
            raise RequestFailed(INTERNAL_ERROR, f"the answer has {size:,} bytes, more than an envelope may have")
        return result

    def _other_lists(self) -> list[str]:
        """What the server said at the handshake that it has beside tools."""
        told = self._session.server_capabilities
        return [] if told is None else [name for name in ("resources", "prompts") if getattr(told, name) is not None]


@asynccontextmanager
async def connected(settings: BridgeSettings, notify: Notify) -> AsyncIterator[ServerSession]:
    """Start or reach the server, and shake hands. Raises `ServerFailed`, possibly inside an exception group."""
    server = settings.server
    if isinstance(server, HttpServer):
        async with (
            httpx2.AsyncClient(headers=server.headers, timeout=_HTTP_TIMEOUT) as client,
            streamable_http_client(server.url, http_client=client) as (read, write),
            _Session(read, write, message_handler=_Listener(notify)) as session,
        ):
            ready = await _ready(session, settings)
            async with _followed(session):
                yield ready
    else:
        async with running_program(server, os.environ) as program, _streams(program) as (streams, ended):
            async with _Session(*streams, message_handler=_Listener(notify)) as session:
                try:
                    ready = await _ready(session, settings)
                except ServerFailed as error:
                    how = f"{await program.how_it_ended()} before it was ready" if ended.is_set() else error.problem
                    raise ServerFailed(server.command, how, program.said) from None
                ready.ended = ended
                async with _followed(session):
                    yield ready
            if ended.is_set():
                raise ServerFailed(server.command, await program.how_it_ended(), program.said)


async def _ready(session: ClientSession, settings: BridgeSettings) -> ServerSession:
    name = str(settings.server)
    try:
        with anyio.fail_after(settings.init_timeout_seconds):
            await _shake_hands(session)
    except TimeoutError:
        waited = f"{settings.init_timeout_seconds:g} seconds"
        raise ServerFailed(name, f"did not answer `initialize` within {waited}") from None
    except (MCPError, ValidationError, RuntimeError) as error:
        raise ServerFailed(name, f"refused `initialize`: {error}") from None
    told = session.server_info
    return ServerSession(
        name if told is None else f"{told.name} {told.version}".strip(),
        str(session.protocol_version),
        settings.request_timeout_seconds,
        session,
    )


async def _shake_hands(session: ClientSession) -> None:
    """`initialize`, which all servers know but the newest ones; those are asked in their own way.

    A server that answers with a version of its own invention is taken at its word: small servers do.
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
        logger.info("the MCP server speaks version '%s'; read as %s", result.protocol_version, _OLDEST_VERSION)
        result = result.model_copy(update={"protocol_version": _OLDEST_VERSION})
    session.adopt(result)
    await session.send_notification(types.InitializedNotification())


class _Session(ClientSession):
    """Refuses in words what a server asks of its client: sampling, elicitation, roots. It is told of none of them."""

    async def dispatch_input_request(
        self, ctx: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        """Answer a request of the server's."""
        logger.warning(
            "the MCP server asked for '%s': refused, a space has nothing that could answer it", request.method
        )
        said = (
            f"'{request.method}' is not offered: this client passes on the requests of many and acts for none of them"
        )
        return types.ErrorData(code=METHOD_NOT_FOUND, message=said)


class _Listener:
    """Hears what a server tells by itself: logs its log, passes on what its users should know."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify

    async def __call__(self, message: types.ServerNotification | Exception) -> None:
        match message:
            case types.LoggingMessageNotification(params=said):
                logger.log(_LEVELS.get(said.level, logging.ERROR), "server: %s", said.data)
            case Exception():
                logger.warning("the MCP server sent something unreadable: %s", message)
            case _:
                told = message.model_dump(by_alias=True, mode="json", exclude_none=True)
                if isinstance(message, _PASSED_ON):
                    await self._notify(told["method"], told.get("params") or {})
                else:  # progress, for instance: it is about a call, and whoever made it only waits for its result
                    logger.debug("server: %s %s", told["method"], told.get("params") or {})


@asynccontextmanager
async def _followed(session: ClientSession) -> AsyncIterator[None]:
    """While the block runs, changes are told: older servers do so by themselves, newer ones only on request."""
    if session.discover_result is None:
        yield
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stay_told, session)
        yield
        tasks.cancel_scope.cancel()


async def _stay_told(session: ClientSession) -> None:
    try:
        async with listen(
            session, tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as changes:
            async for _ in changes:
                pass  # each also goes to the session's message handler
    except (MCPError, RuntimeError, TimeoutError) as error:
        logger.info("the MCP server does not tell of changes: %s", error)


@asynccontextmanager
async def _streams(program: ServerProgram) -> AsyncIterator[tuple[_Streams, anyio.Event]]:
    """A program's lines as the package's streams of messages, and the event of their end."""
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    ended = anyio.Event()

    async def read() -> None:
        try:
            async with to_session:
                async for line in program.lines():
                    message = _message_in(line)
                    if message is not None:
                        await to_session.send(message)
        except anyio.BrokenResourceError:
            pass  # the session is over
        except ServerFailed as error:
            logger.error("%s", error)
        ended.set()

    async def write() -> None:
        try:
            async for message in from_session:
                await program.write_line(message.message.model_dump_json(by_alias=True, exclude_unset=True))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            to_session.close()  # nobody reads: requests must not wait for answers
            ended.set()

    async with to_session, from_server, to_server, from_session, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield (from_server, to_server), ended
        tasks.cancel_scope.cancel()


def _message_in(line: bytes) -> SessionMessage | None:
    """A line's message; None for a line that is none, such as a greeting that strayed onto standard output."""
    if not line.strip():
        return None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        logger.warning("the MCP server wrote a line that is no message: %s", line[:200].decode(errors="replace"))
        return None
