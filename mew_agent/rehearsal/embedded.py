"""The rehearsal model as a `Model` of this process: its server starts with the first call and ends with `aclose`.

For agents that are tried out in a program of their own, where nobody has started a server for them.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import anyio

from mew_agent.model.interface import ModelEvent, ModelIdentity, ModelRequest, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.server import serve_rehearsal

NAME = "rehearsal"


class EmbeddedRehearsal:
    """See the module; the methods are those of `Model`. `window_tokens` None: as large as the rehearsal's own."""

    def __init__(self, window_tokens: int | None = None) -> None:
        self._options = RehearsalOptions() if window_tokens is None else RehearsalOptions(window_tokens=window_tokens)
        self._starting = anyio.Lock()
        self._open = AsyncExitStack()
        self._model: OpenAIModel | None = None

    @property
    def identity(self) -> ModelIdentity:
        """Where it is served is nobody's business."""
        return ModelIdentity(NAME, NAME)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`."""
        model = await self._started()
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    async def discover_window(self) -> Window | None:
        """The window that it keeps to."""
        return await (await self._started()).discover_window()

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """How many prompt tokens a request will be; None where it does not tell."""
        return await (await self._started()).count_prompt(request)

    async def aclose(self) -> None:
        """Stop the server; the next call would start another one."""
        async with self._starting:
            self._model = None
            await self._open.aclose()

    async def _started(self) -> OpenAIModel:
        async with self._starting:
            if self._model is None:
                server = await self._open.enter_async_context(serve_rehearsal(self._options))
                self._model = OpenAIModel(NAME, server.base_url, NAME)
                self._open.push_async_callback(self._model.aclose)
            return self._model
