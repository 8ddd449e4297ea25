"""The HTTP server of the door, in somebody's event loop.

Owns the socket and the server's life. Knows nothing of what is served.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.lifespan.off import LifespanOff

from mew_agent.chat_api.door import Door

STOP_SECONDS = 5


@asynccontextmanager
async def serve_app(app: ASGIApp, door: Door, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve until the block is left, and give the base URL that an OpenAI client takes. Port 0 takes a free one.

    Answers that are still open on leaving end with an error. Raises OSError when the port is taken. Installs no
    signal handlers.
    """
    listener = _listen(host, port)
    server = _server(app)
    await server.startup(sockets=[listener])
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/v1"
    finally:
        door.close()
        with anyio.CancelScope(shield=True):
            await server.shutdown(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _server(app: ASGIApp) -> uvicorn.Server:
    """A loaded server whose parts are started and stopped by us."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = LifespanOff(config)
    return server
