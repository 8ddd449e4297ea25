"""An HTTP server in somebody's event loop: its socket, and its life from start to stop.

It installs no signal handlers and no log configuration, and knows nothing of what is served.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.lifespan.off import LifespanOff

STOP_SECONDS = 5


@asynccontextmanager
async def serving(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    stopping: Callable[[], None],
    http: Literal["h11"] | type[asyncio.Protocol] = "h11",
) -> AsyncIterator[str]:
    """Serve until the block is left, and give the base URL. Port 0 takes a free one.

    `stopping` is called first on leaving, so that answers which are still open can end. Raises OSError when the port
    is taken.
    """
    listener = listen(host, port)
    config = uvicorn.Config(
        app,
        http=http,
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
    await server.startup(sockets=[listener])
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        stopping()
        with anyio.CancelScope(shield=True):
            await server.shutdown(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError when the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
