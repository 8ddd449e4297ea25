"""An MCP server of our own: answers MCP clients from `Offers`, over standard input and output or streamable HTTP.

Owns both protocol generations: sessions that begin with `initialize` and get change notifications, and single requests
whose clients open `subscriptions/listen`. Does not know the offers.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from mew_listener.request_guard import ONLY_OWN, Allowed
from mew_listener.serving import serving
from pydantic import BaseModel, ValidationError

from mew_agent import __version__
from mew_agent.parts.mcp.changes import CollectedChanges
from mew_agent.parts.shared.http_servers import KeyCheck
from mew_agent.tools.catalog import INVALID_PARAMS, Offers, RequestFailed
from mew_agent.tools.results import ToolResult

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Any, Any, Send], Awaitable[None]]
Context = ServerRequestContext[Any, Any]
Lifespan = Callable[[object], AbstractAsyncContextManager[object]]

NOTIFY_SECONDS: Final = 5.0
"""A session that does not accept a notification in this time gets no more of them."""

PING_SECONDS: Final = 2.0
"""Silence after which an event stream gets a comment: HTTP clients often end a stream after 5 seconds without data."""

MAX_SESSIONS: Final = 256
"""Open sessions of MCP: each takes 130 kB until its client ends it, or 30 minutes after its last request."""

MAX_SUBSCRIPTIONS: Final = 1_000


_RESULTS: Final[Mapping[str, type[BaseModel]]] = {
    "resources/list": types.ListResourcesResult,
    "resources/templates/list": types.ListResourceTemplatesResult,
    "resources/read": types.ReadResourceResult,
}


class OffersServer(Server[None]):
    """An MCP server for one `Offers`.

    With `has_resources`, clients can also list, read and subscribe to resources. Call `notify_lists` or
    `notify_resource` after each change. `running` is entered while clients are served.
    """

    def __init__(
        self,
        name: str,
        instructions: str,
        offers: Offers,
        *,
        has_resources: bool = False,
        running: Lifespan = nullcontext,
    ) -> None:
        self._offers = offers
        self._has_resources = has_resources
        self._running = running
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self._uris: dict[Connection, set[str]] = {}
        """The resources that each client of the older protocol generation subscribed to, until its session ends."""
        self._changes = CollectedChanges[ServerEvent](self._announce_changes)
        super().__init__(name, version=__version__, instructions=instructions, lifespan=self._serve)
        self.add_request_handler("tools/list", types.PaginatedRequestParams, self._forward)
        self.add_request_handler("tools/call", types.CallToolRequestParams, self._call_tool)
        if has_resources:
            self.add_request_handler("resources/list", types.PaginatedRequestParams, self._forward)
            self.add_request_handler("resources/templates/list", types.PaginatedRequestParams, self._forward)
            self.add_request_handler("resources/read", types.ReadResourceRequestParams, self._forward)
            self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
            self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
            self.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listening)
            self.middleware.append(self._remember_session)

    def create_initialization_options(self, *arguments: Any, **options: Any) -> InitializationOptions:
        """Announce that the lists of tools and resources change, if they do."""
        changes = NotificationOptions(tools_changed=self._has_resources, resources_changed=self._has_resources)
        return super().create_initialization_options(changes, *arguments[1:], **options)

    def notify_resource(self, uri: str) -> None:
        """Announce soon that the content of a resource has changed."""
        self._changes.add(ResourceUpdated(uri), can_be_spared=True)

    def notify_lists(self) -> None:
        """Announce soon that the lists of tools and resources may have changed."""
        self._changes.add(ToolsListChanged())
        self._changes.add(ResourcesListChanged())

    def end_subscriptions(self) -> None:
        """End the event streams of subscribers, in order."""
        self._listening.close()

    # -- requests ----------------------------------------------------------------------------------------

    async def _forward(self, ctx: Context, _params: object) -> HandlerResult:
        try:
            result = await self._offers.request(ctx.method, ctx.params or {})
        except RequestFailed as error:
            raise MCPError(error.code, error.message, error.data) from None
        if ctx.method == "tools/list":
            return types.ListToolsResult(tools=[_tool(entry) for entry in result["tools"]])
        # A typed result gets the keys that the client's protocol version requires.
        return _RESULTS[ctx.method].model_validate(result, by_name=False)

    async def _call_tool(self, ctx: Context, _params: object) -> HandlerResult:
        """Call a tool. Return errors about arguments and names as results, so that the client's model reads them."""
        try:
            result = await self._offers.request(ctx.method, ctx.params or {})
        except RequestFailed as error:
            result = ToolResult(error.message, is_error=True).to_mcp()
        try:
            return types.CallToolResult.model_validate(result, by_name=False)
        except ValidationError:
            # Content outside MCP, which other participants of a space may send.
            read = ToolResult.from_peer(result)
            return types.CallToolResult(content=[types.TextContent(text=read.text)], is_error=read.is_error)

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        uris = self._uris_of(ctx)
        if len(uris) >= MAX_SUBSCRIPTIONS:
            raise MCPError(INVALID_PARAMS, f"a session may subscribe to {MAX_SUBSCRIPTIONS:,} resources")
        uris.add(str(params.uri))
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._uris_of(ctx).discard(str(params.uri))
        return types.EmptyResult()

    # -- changes -----------------------------------------------------------------------------------------

    async def _remember_session(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS and ctx.method != "initialize":
            self._uris_of(ctx)
        return result

    def _uris_of(self, ctx: Context) -> set[str]:
        # The SDK makes a session for each request and gives handlers no other way to the connection. Keeping that
        # session would keep the request: measured with mcp 2.3, 3.05 MiB after one of 3 MiB (4 MiB are the limit) for
        # each of `MAX_SESSIONS`, instead of 0.04 MiB.
        connection = ctx.session._connection
        if connection not in self._uris:
            self._uris[connection] = set()
            connection.exit_stack.callback(self._uris.pop, connection, None)
        return self._uris[connection]

    @asynccontextmanager
    async def _serve(self, server: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._changes.run)
            async with self._running(server):
                yield
            tasks.cancel_scope.cancel()

    async def _announce_changes(self, changed: Sequence[ServerEvent]) -> None:
        for event in changed:
            await self._bus.publish(event)
        async with anyio.create_task_group() as tasks:
            for connection, uris in tuple(self._uris.items()):
                wanted = [one for one in changed if not isinstance(one, ResourceUpdated) or one.uri in uris]
                if wanted:
                    tasks.start_soon(self._send, connection, wanted)

    async def _send(self, connection: Connection, events: list[ServerEvent]) -> None:
        with anyio.move_on_after(NOTIFY_SECONDS) as scope:
            for event in events:
                message = event_to_notification(event, {}).model_dump(by_alias=True, mode="json", exclude_none=True)
                await connection.notify(message["method"], message.get("params"))
        if scope.cancelled_caught:
            self._uris.pop(connection, None)


def _tool(entry: Mapping[str, Any]) -> types.Tool:
    """Return a tool for a list. Leaves out hints that MCP does not allow."""
    try:
        return types.Tool.model_validate(entry, by_name=False)
    except ValidationError:
        return types.Tool(name=entry["name"], description=entry["description"], input_schema=dict(entry["inputSchema"]))


# -- transports ------------------------------------------------------------------------------------------


async def serve_stdio(server: OffersServer, lines: AsyncIterable[str]) -> None:
    """Serve `lines` of standard input, and standard output, until the input ends.

    The SDK reads standard input in a way that cannot be cancelled.
    """
    async with stdio_server(stdin=cast("anyio.AsyncFile[str]", lines)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


@asynccontextmanager
async def serving_http(
    server: OffersServer,
    port: int,
    token: str,
    *,
    ping_seconds: float = PING_SECONDS,
    allowed: Allowed = ONLY_OWN,
) -> AsyncIterator[str]:
    """Serve streamable HTTP on the loopback interface while the block runs, to clients that send the token.

    Port 0 picks a free port; `ping_seconds` as in `kept_alive`. Yields the URL. Raises `OSError` if the port is taken.
    """
    # It logs a traceback when a client or its session ends during a call.
    logging.getLogger("mcp.server.streamable_http").setLevel(logging.CRITICAL)
    # The listener already checks hosts and origins, with the allowed ones.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    http = server.streamable_http_app(transport_security=unchecked, max_sessions=MAX_SESSIONS)
    # Without the participant's token, any local program could act as the participant.
    app = KeyCheck(kept_alive(http, ping_seconds), {"client of MCP": token}, requires_key=lambda _path: True)
    # End sessions first: otherwise the HTTP server waits for their open event streams.
    async with (
        serving(app, host="127.0.0.1", port=port, stopping=server.end_subscriptions, allowed=allowed) as url,
        server.session_manager.run(),
    ):
        yield f"{url}/mcp"


def kept_alive(app: Asgi, ping_seconds: float) -> Asgi:
    """Add a comment to event streams after each `ping_seconds` without data."""

    async def run(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        is_stream, writing, active = False, anyio.Lock(), anyio.Event()

        async def watch(message: Message) -> None:
            nonlocal is_stream, active
            async with writing:
                if message["type"] == "http.response.start":
                    is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
                await send(message)
                is_stream = is_stream and message.get("more_body", True)
                active.set()
                active = anyio.Event()

        async def ping() -> None:
            while True:
                with anyio.move_on_after(ping_seconds):
                    await active.wait()
                    continue
                async with writing:
                    # Chunks are whole events, so a comment may follow any chunk.
                    if is_stream:
                        await send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ping)
            await app(scope, receive, watch)
            tasks.cancel_scope.cancel()

    return run
