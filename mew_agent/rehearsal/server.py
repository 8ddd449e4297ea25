"""Run the rehearsal model on a real port, or embedded as a `Model`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mew_agent.http_server import BreakableProtocol, serving
from mew_agent.model.embedded import EmbeddedModel
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.service import RehearsalServer

_NAME: Final = "rehearsal"


@asynccontextmanager
async def serve_rehearsal(
    options: RehearsalOptions | None = None, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[RehearsalServer]:
    """Serve until the block exits, which cuts open streams. Port 0 picks a free port; a taken one raises `OSError`."""
    server = RehearsalServer(options or RehearsalOptions())
    opened = serving(server.app, host=host, port=port, stopping=server.stopping.set, http=BreakableProtocol)
    async with opened as url:
        server.base_url = f"{url}/v1"
        yield server


class EmbeddedRehearsal(EmbeddedModel):
    """The rehearsal model as a `Model` for a program without a model server. Starts at the first call."""

    def __init__(self, window_tokens: int | None = None) -> None:
        options = RehearsalOptions() if window_tokens is None else RehearsalOptions(window_tokens=window_tokens)

        @asynccontextmanager
        async def serve() -> AsyncIterator[str]:
            async with serve_rehearsal(options) as server:
                yield server.base_url

        super().__init__(_NAME, _NAME, serve)
