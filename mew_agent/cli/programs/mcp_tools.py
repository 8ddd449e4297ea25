"""The actions of a participant as tools and resources of an MCP server, and servers of plain functions.

Owns their names and descriptions, and both transports: standard input and output, and HTTP. What the tools do is
`remote.actions` and `mcp_builtin`. Needs the extra `mcp`.
"""

import secrets
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial, wraps
from typing import Annotated, Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from pydantic import Field

from mew_agent._version import __version__
from mew_agent.cli.remote.actions import GatewayActions
from mew_agent.errors import ConfigError, MewAgentError
from mew_agent.http_server import listen

T = TypeVar("T")
Asgi = Callable[[Any, Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]

INSTRUCTIONS: Final = (
    "A MEW space: AI agents, tools and people work together. `read_board` reports how full each agent's context window "
    "is, and where each figure comes from (`context.basis`); missing `tokens` means unknown, not empty. "
    "`request_compaction` makes an agent shorten its context. `send_chat` sends a message to one participant or to all."
)

Seconds = Annotated[float, Field(ge=0, le=600, description="Seconds to wait for the answer; 0 does not wait.")]
Peer = Annotated[str, Field(description="A participant's id, as listed by `list_participants`.")]


def make_server(actions: GatewayActions) -> "MCPServer[None]":
    """Create the server with its tools and resources."""
    server: MCPServer[None] = MCPServer("mew", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    async def send_chat(
        text: Annotated[str, Field(description="The message.")],
        to: Annotated[str | None, Field(description="A participant's id; omit it to send to all.")] = None,
        wait_seconds: Seconds = 0.0,
    ) -> dict[str, Any]:
        """Send a message in the space. With `wait_seconds`, wait for the recipient's answer."""
        return await _run_action(partial(actions.send_chat, text, to, wait_seconds))

    @server.tool()
    async def read_board() -> dict[str, Any]:
        """Report how full each participant's context window is: its last report, its basis and its age."""
        return await _run_action(actions.read_board)

    @server.tool()
    async def request_compaction(
        peer: Peer,
        reason: Annotated[str | None, Field(description="Reason to send to the participant.")] = None,
        target_tokens: Annotated[
            int | None,
            Field(ge=0, description="Compact to at most this many tokens; omit it to keep only the newest turns."),
        ] = None,
        wait_seconds: Seconds = 120.0,
    ) -> dict[str, Any]:
        """Compact a participant's context. Returns the tokens freed, or why the compaction was skipped."""
        return await _run_action(partial(actions.request_compaction, peer, reason, target_tokens, wait_seconds))

    @server.tool()
    async def list_participants() -> list[dict[str, Any]]:
        """List the participants of the space, whether each is connected, and which kinds of envelopes it may send."""
        return await _run_action(actions.list_participants)

    @server.tool()
    async def recent_chat(
        limit: Annotated[int, Field(ge=1, le=500, description="Maximum number of messages.")] = 20,
    ) -> list[dict[str, Any]]:
        """The most recent messages in the space, oldest first."""
        return await _run_action(partial(actions.recent_chat, limit))

    @server.resource("mew://chat", mime_type="text/plain")
    async def chat() -> str:
        """The most recent messages in the space, one per line."""
        chats = await _run_action(partial(actions.recent_chat, 100), ResourceError)
        lines = (f"{one['at']} {one['from']} -> {', '.join(one['to']) or 'all'}: {one['text']}" for one in chats)
        return "\n".join(lines)

    @server.resource("mew://board", mime_type="application/json")
    async def board() -> dict[str, Any]:
        """The last report of each participant."""
        return await _run_action(actions.read_board, ResourceError)

    return server


def server_of(name: str, instructions: str, tools: Sequence[Callable[..., str]]) -> "MCPServer[None]":
    """Create a server of functions that return text. Their `OSError` and `ValueError` become errors of the tool."""
    server: MCPServer[None] = MCPServer(name, version=__version__, instructions=instructions, log_level="WARNING")
    for tool in tools:
        server.add_tool(_with_tool_errors(tool), structured_output=False)
    return server


def _with_tool_errors(tool: Callable[..., str]) -> Callable[..., str]:
    @wraps(tool)
    def call(*arguments: Any, **options: Any) -> str:
        try:
            return tool(*arguments, **options)
        except (OSError, ValueError) as error:
            raise ToolError(str(error)) from None

    return call


def serve_stdio(server: "MCPServer[None]") -> None:
    """Serve over standard input and output until the input ends."""
    if threading.current_thread() is threading.main_thread():
        # Reading standard input cannot be cancelled, and there is nothing to clean up.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(server.run_stdio_async)


async def serve_http(server: "MCPServer[None]", port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve streamable HTTP on the loopback interface until cancelled, to clients that send the token.

    Port 0 picks a free port. `ready` is called with the URL. Raises `ConfigError` if the port is taken.
    """
    try:
        listener = listen("127.0.0.1", port)
    except OSError as error:
        raise ConfigError("--http", f"cannot listen on port {port}: {(error.strerror or str(error)).lower()}") from None
    app = guarded(server.streamable_http_app(), token)
    http = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
    ended = anyio.Event()

    async def run() -> None:
        # Shielded, so that the server shuts down by itself and closes its connections when we are cancelled.
        with anyio.CancelScope(shield=True):
            await http.serve(sockets=[listener])
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            while not http.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await anyio.sleep(0.01)
            ready(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
            await ended.wait()
        finally:
            http.should_exit = True


def guarded(app: Asgi, token: str) -> Asgi:
    """Require the participant's token: without it, any local program could act as the participant."""
    expected = f"Bearer {token}".encode()

    async def check(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] != "http" or secrets.compare_digest(given, expected):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error":"unauthorized"}'})

    return check


async def _run_action(action: Callable[[], T], failure: type[Exception] = ToolError) -> T:
    """Run an action in a thread; report its errors to the client as `failure`."""
    try:
        return await _run_in_daemon_thread(action)
    except MewAgentError as error:
        raise failure(str(error)) from None


async def _run_in_daemon_thread(action: Callable[[], T]) -> T:
    """Run a blocking call in a daemon thread, so that the end of the program does not wait for it."""
    token = anyio.lowlevel.current_token()
    done = anyio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except (CancelledError, RuntimeError):
            return  # the event loop has ended

    threading.Thread(target=run, name="action", daemon=True).start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
