"""MCP servers for the bridge: a full one as a program and over HTTP, and small ones that misbehave."""

import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mew_agent.parts.mcp.bridge import Bridge
from mew_agent.parts.mcp.settings import BridgeSettings
from tests.parts.mcp.workshop import make_server
from tests.support.waiting import PATIENCE_SECONDS, until

WORKSHOP = Path(__file__).with_name("workshop.py")

Running = Callable[..., AbstractAsyncContextManager[Bridge]]


def settings(*command: str, **more: Any) -> BridgeSettings:
    """Bridge settings for a program."""
    first, *rest = command
    server = {
        "command": first,
        "args": rest,
        "env": more.pop("env", {}),
        "cwd": more.pop("cwd", None),
    }
    return BridgeSettings.model_validate({"server": server, **more})


def workshop(**more: Any) -> BridgeSettings:
    """The workshop as a program."""
    env = {"PYTHONPATH": str(WORKSHOP.parents[3]), **more.pop("env", {})}
    return settings(sys.executable, str(WORKSHOP), env=env, **more)


def script(body: str, **more: Any) -> BridgeSettings:
    """A server of a few lines; `read()` gives the next message as a dict, `write(**)` sends one."""
    start = (
        "import json, os, sys, signal, time\n"
        "def read(): return json.loads(sys.stdin.readline() or 'null')\n"
        "def write(**message): print(json.dumps({'jsonrpc': '2.0', **message}), flush=True)\n"
        "def hello(version='2025-06-18', capabilities={}):\n"
        "    id = read()['id']\n"
        "    write(id=id, result={'protocolVersion': version, 'capabilities': capabilities, "
        "'serverInfo': {'name': 'small', 'version': '0'}})\n"
        "    read()\n"
    )
    return settings(sys.executable, "-c", start + body, **more)


def mortal(**more: Any) -> BridgeSettings:
    """A server that answers any request with no tools, except for a call: that ends it with code 7."""
    return script(
        "hello()\nwhile (m := read())['method'] != 'tools/call': write(id=m['id'], result={'tools': []})\n"
        "sys.stderr.write('out of wood\\n'); sys.exit(7)",
        **more,
    )


@asynccontextmanager
async def running(configured: BridgeSettings, **more: Any) -> AsyncIterator[Bridge]:
    """A bridge with a ready server. Raises what `keep_running` raises, outside its exception group."""
    recorder = Recorder()
    bridge = Bridge(
        configured, **{"notify": recorder.record_notification, "report_status": recorder.record_status, **more}
    )
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE_SECONDS):
                await tasks.start(bridge.keep_running)
            yield bridge
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
    if failure is not None:
        raise failure


def workshop_over_http(port: int = 0) -> AbstractAsyncContextManager[str]:
    """The workshop at a URL, served by uvicorn."""
    return over_http(make_server().streamable_http_app(), port)


def forgetful(status: int, code: int, words: str) -> Starlette:
    """A server over HTTP that forgets its sessions at a call, and then refuses them with this error."""
    names, known = count(1), set[str]()

    async def answer(request: Request) -> Response:
        message, headers = await request.json(), {}
        if message["method"] == "initialize":
            headers = {"mcp-session-id": f"session-{next(names)}"}
            known.add(headers["mcp-session-id"])
            about = {"name": "forgetful", "version": "0"}
            result: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": about}
        elif request.headers.get("mcp-session-id") not in known:
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": words}}, status)
        elif "id" not in message:
            return Response(status_code=202)
        else:
            result = {"tools": [], "content": []}
            if message["method"] == "tools/call":
                known.clear()
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])


@asynccontextmanager
async def over_http(app: Starlette, port: int = 0) -> AsyncIterator[str]:
    """An MCP server at a URL, served by uvicorn."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            await until(lambda: server.started)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            finally:
                server.should_exit = True


@pytest.fixture
def held_port() -> Iterator[int]:
    """A reserved port that refuses connections until a test listens there with SO_REUSEPORT."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class Recorder:
    """Records the notifications and statuses of a bridge."""

    def __init__(self) -> None:
        self.notifications: list[str] = []
        self.statuses: list[str] = []
        self._changed = anyio.Event()

    async def record_notification(self, method: str, params: dict[str, Any]) -> None:
        self.notifications.append(method)
        self._wake()

    async def record_status(self, status: str) -> None:
        self.statuses.append(status)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # which may be on something that no message announces
                with anyio.move_on_after(0.05):
                    await self._changed.wait()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def call(bridge: Bridge, name: str, **arguments: Any) -> dict[str, Any]:
    """Call one of the server's tools."""
    with anyio.fail_after(PATIENCE_SECONDS):
        return await bridge.request("tools/call", {"name": name, "arguments": arguments})
