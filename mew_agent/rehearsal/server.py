"""Running the rehearsal model on a real port.

Owns its life, inside somebody's event loop or as a program of its own, and connections that break on purpose.
It does not know what the model answers.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mew_agent.http_server import serving
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.service import CLOSE_CONNECTION, RecordedRequest, RehearsalService


class RehearsalServer:
    """A running rehearsal model.

    `base_url` is what an OpenAI client takes, for instance `http://127.0.0.1:40123/v1`. `options` may be
    replaced at any time and hold from the next request on. `requests` lists every completion request.
    """

    def __init__(self, service: RehearsalService, url: str) -> None:
        self._service = service
        self.base_url = f"{url}/v1"

    @property
    def port(self) -> int:
        return urlsplit(self.base_url).port or 0

    @property
    def options(self) -> RehearsalOptions:
        return self._service.options

    @options.setter
    def options(self, options: RehearsalOptions) -> None:
        self._service.options = options

    def change(self, **changes: Any) -> None:
        """Replace single options by name, checked like new ones."""
        fields = {**self.options.model_dump(), **changes}
        self.options = RehearsalOptions.model_validate(fields)

    @property
    def requests(self) -> list[RecordedRequest]:
        return self._service.requests

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as `condition` holds; it is looked at after every change of `requests`."""
        await self._service.wait_until(condition)


@asynccontextmanager
async def serve_rehearsal(
    options: RehearsalOptions | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[RehearsalServer]:
    """Serve a rehearsal model in this event loop until the block is left. Port 0 takes a free one.

    Raises OSError when the port is taken. Installs no signal handler. Open streams are cut on leaving.
    """
    service = RehearsalService(options or RehearsalOptions())
    opened = serving(service.app, host=host, port=port, stopping=service.stopping.set, http=_BreakableProtocol)
    async with opened as url:
        yield RehearsalServer(service, url)


def run_rehearsal(
    options: RehearsalOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_ready: Callable[[RehearsalServer], None] | None = None,
) -> None:
    """Serve a rehearsal model in the foreground until Ctrl-C or SIGTERM. Raises OSError when the port is taken."""

    async def serve() -> None:
        async with serve_rehearsal(options, host=host, port=port) as server:
            if sys.platform == "win32":  # no signal handlers in its event loops; Ctrl-C cancels instead
                await _ready_until_cancelled(server, on_ready)
                return
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                if on_ready is not None:
                    on_ready(server)
                async for _ in signals:
                    break

    try:
        anyio.run(serve)
    except KeyboardInterrupt:
        return


async def _ready_until_cancelled(server: RehearsalServer, on_ready: Callable[[RehearsalServer], None] | None) -> None:
    if on_ready is not None:
        on_ready(server)
    await anyio.sleep_forever()


class _BreakableProtocol(H11Protocol):
    """Lets the app close the connection in the middle of an answer, as a crashing provider does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_break(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), CLOSE_CONNECTION: transport.close}
            await app(scope, receive, send)

        self.app = with_break
