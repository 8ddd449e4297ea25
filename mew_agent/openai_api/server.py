"""The door on a real port. Knows nothing of what is served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from mew_agent.http_server import serving
from mew_agent.openai_api.chat_participant import Door


@asynccontextmanager
async def serve_app(app: ASGIApp, door: Door, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve until the block is left, and give the base URL that an OpenAI client takes. Port 0 takes a free one.

    Answers that are still open on leaving end with an error. Raises OSError when the port is taken.
    """
    async with serving(app, host=host, port=port, stopping=door.close) as url:
        yield f"{url}/v1"
