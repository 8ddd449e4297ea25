"""Run the rehearsal model on a real port: in an event loop, in the foreground, or embedded as a `Model`."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final

import anyio
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mew_agent.http_server import serving
from mew_agent.model.interface import ModelEvent, ModelIdentity, ModelRequest, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.service import CLOSE_CONNECTION, RehearsalServer

_NAME: Final = "rehearsal"


@asynccontextmanager
async def serve_rehearsal(
    options: RehearsalOptions | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[RehearsalServer]:
    """Serve until the block exits, which cuts open streams. Port 0 picks a free port. Raises OSError if it is used."""
    server = RehearsalServer(options or RehearsalOptions())
    opened = serving(server.app, host=host, port=port, stopping=server.stopping.set, http=_BreakableProtocol)
    async with opened as url:
        server.base_url = f"{url}/v1"
        yield server


def run_rehearsal(
    options: RehearsalOptions | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_ready: Callable[[RehearsalServer], None] | None = None,
) -> None:
    """Serve a rehearsal model in the foreground until Ctrl-C or SIGTERM. Raises OSError if the port is in use."""

    ready = on_ready or (lambda _server: None)

    async def serve() -> None:
        async with serve_rehearsal(options, host=host, port=port) as server:
            if sys.platform == "win32":  # event loops there have no signal handlers; Ctrl-C cancels instead
                ready(server)
                await anyio.sleep_forever()
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                ready(server)
                async for _ in signals:
                    break

    try:
        anyio.run(serve)
    except KeyboardInterrupt:
        return


class EmbeddedRehearsal:
    """The rehearsal model as a `Model` for a program without a model server. Starts at the first call."""

    def __init__(self, window_tokens: int | None = None) -> None:
        self._options = RehearsalOptions() if window_tokens is None else RehearsalOptions(window_tokens=window_tokens)
        self._starting = anyio.Lock()
        self._open = AsyncExitStack()
        self._model: OpenAIModel | None = None

    @property
    def identity(self) -> ModelIdentity:
        """The name only: the address of the embedded server is of no use to others."""
        return ModelIdentity(_NAME, _NAME)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`."""
        model = await self._started()
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    async def discover_window(self) -> Window | None:
        """The configured window."""
        return await (await self._started()).discover_window()

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """The exact number of prompt tokens of a request."""
        return await (await self._started()).count_prompt(request)

    async def aclose(self) -> None:
        """Stop the server. A later call starts another one."""
        async with self._starting:
            self._model = None
            await self._open.aclose()

    async def _started(self) -> OpenAIModel:
        async with self._starting:
            if self._model is None:
                server = await self._open.enter_async_context(serve_rehearsal(self._options))
                self._model = OpenAIModel(_NAME, server.base_url, _NAME)
                self._open.push_async_callback(self._model.aclose)
            return self._model


class _BreakableProtocol(H11Protocol):
    """Lets the app close the connection in the middle of a reply, as a crashing provider does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_break(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), CLOSE_CONNECTION: transport.close}
            await app(scope, receive, send)

        self.app = with_break
