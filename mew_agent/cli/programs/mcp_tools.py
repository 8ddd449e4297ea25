"""A space as an MCP server: the desk's actions as tools, for any MCP client.

Owns the server's face (names, descriptions, resources) and its two ways out, standard input and output or HTTP. What
the tools do is `desk`'s matter.
"""

import secrets
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from pydantic import Field

from mew_agent._version import __version__
from mew_agent.cli.remote.actions import Desk
from mew_agent.errors import ConfigError, MewAgentError
from mew_agent.http_server import listen

T = TypeVar("T")
Asgi = Callable[[Any, Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]

INSTRUCTIONS: Final = (
    "A MEW space: AI agents, tools and people together. `read_board` says how full every agent's context window is, "
    "and how that is known (`context.basis`); a missing `tokens` means unknown, not empty. `request_compaction` makes "
    "an agent shorten its context. `send_chat` talks to one participant or to all."
)

Seconds = Annotated[float, Field(ge=0, le=600, description="Seconds to wait for the answer; 0 does not wait.")]
Peer = Annotated[str, Field(description="A participant's id, as `list_participants` shows it.")]


def make_server(desk: Desk) -> "MCPServer[None]":
    """The server with its tools and resources; nothing is served yet."""
    server: MCPServer[None] = MCPServer("mew", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    async def send_chat(
        text: Annotated[str, Field(description="What to say.")],
        to: Annotated[str | None, Field(description="A participant's id; without it, everybody is told.")] = None,
        wait_seconds: Seconds = 0.0,
    ) -> dict[str, Any]:
        """Say something in the space, and wait for the addressee's answer if `wait_seconds` is given."""
        return await _told(partial(desk.send_chat, text, to, wait_seconds))

    @server.tool()
    async def read_board() -> dict[str, Any]:
        """How full every participant's context window is: its last report, with how the figure is known and its age."""
        return await _told(desk.read_board)

    @server.tool()
    async def request_compaction(
        peer: Peer,
        reason: Annotated[str | None, Field(description="Why; told to the participant.")] = None,
        target_tokens: Annotated[
            int | None, Field(ge=0, description="Stop there; without it all but the newest turns is compacted.")
        ] = None,
        wait_seconds: Seconds = 120.0,
    ) -> dict[str, Any]:
        """Let a participant compact its context; says what that freed, or why it was skipped."""
        return await _told(partial(desk.request_compaction, peer, reason, target_tokens, wait_seconds))

    @server.tool()
    async def list_participants() -> list[dict[str, Any]]:
        """Who belongs to the space, who is here now, and which kinds of envelopes each may send."""
        return await _told(desk.list_participants)

    @server.tool()
    async def recent_chat(
        limit: Annotated[int, Field(ge=1, le=500, description="How many at most.")] = 20,
    ) -> list[dict[str, Any]]:
        """The last things that were said in the space, oldest first."""
        return await _told(partial(desk.recent_chat, limit))

    @server.resource("mew://chat", mime_type="text/plain")
    async def chat() -> str:
        """The last things that were said in the space, a line each."""
        said = await _told(partial(desk.recent_chat, 100), ResourceError)
        return "\n".join(f"{one['at']} {one['from']} -> {', '.join(one['to']) or 'all'}: {one['text']}" for one in said)

    @server.resource("mew://board", mime_type="application/json")
    async def board() -> dict[str, Any]:
        """The last report of every participant."""
        return await _told(desk.read_board, ResourceError)

    return server


def serve_stdio(server: "MCPServer[None]") -> None:
    """Serve over standard input and output until the input ends."""
    if threading.current_thread() is threading.main_thread():
        # Reading standard input cannot be cancelled, and there is nothing to tidy up.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(server.run_stdio_async)


async def serve_http(server: "MCPServer[None]", port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve streamable HTTP on the loopback interface until cancelled, to those who bring the token.

    Port 0 takes a free one; `ready` is told the URL. Raises `ConfigError` when the port is taken.
    """
    try:
        listener = listen("127.0.0.1", port)
    except OSError as error:
        raise ConfigError("--http", f"cannot listen on port {port}: {(error.strerror or str(error)).lower()}") from None
    app = guarded(server.streamable_http_app(), token)
    http = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
    ended = anyio.Event()

    async def run() -> None:
        # Ended by its own means also when we are cancelled, so that it closes what it has opened.
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
    """Let in only who brings the participant's token: whoever can reach the port would act as them."""
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


async def _told(work: Callable[[], T], failure: type[Exception] = ToolError) -> T:
    """Run an action beside the event loop; what went wrong is told to the client in its words."""
    try:
        return await _beside(work)
    except MewAgentError as error:
        raise failure(str(error)) from None


async def _beside(work: Callable[[], T]) -> T:
    """Run what blocks in a thread that the end of the program does not wait for, and wait for its outcome."""
    token = anyio.lowlevel.current_token()
    done = anyio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        try:
            anyio.from_thread.run_sync(done.set, token=token)
        except (CancelledError, RuntimeError):
            return  # the event loop has ended

    threading.Thread(target=run, name="desk", daemon=True).start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]
