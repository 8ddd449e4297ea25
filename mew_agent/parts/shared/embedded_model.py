"""A model whose server runs in the process of its agent: started at the first call, stopped with its owner."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing

import anyio

from mew_agent.model.interface import Model, ModelEvent, ModelIdentity, ModelRequest, Window


class EmbeddedModel:
    """A `Model` for a program without a model server. `serve` runs one and yields its base URL."""

    def __init__(
        self,
        name: str,
        kind: str,
        serve: Callable[[], AbstractAsyncContextManager[str]],
        *,
        api_key: str | None = None,
    ) -> None:
        self.identity = ModelIdentity(name, kind)
        """The name and the kind of server: the address of an embedded server is of no use to others."""
        self._serve, self._api_key = serve, api_key
        self._starting = anyio.Lock()
        self._open = AsyncExitStack()
        self._model: Model | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call; see `Model.stream`."""
        model = self._model or await self._started()
        async with aclosing(model.stream(request)) as events:
            async for event in events:
                yield event

    async def discover_window(self) -> Window | None:
        """Return the loaded window."""
        return await (await self._started()).discover_window()

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the exact number of prompt tokens of a request."""
        return await (await self._started()).count_prompt(request)

    async def aclose(self) -> None:
        """Stop the server. A later call starts another one."""
        async with self._starting:
            self._model = None
            await self._open.aclose()

    async def _started(self) -> Model:
        async with self._starting:
            if self._model is None:
                # Imported here, because programs that only serve a model need no client.
                from mew_agent.model.openai_client import OpenAIModel

                base_url = await self._open.enter_async_context(self._serve())
                name = self.identity.model
                self._model = OpenAIModel(name, base_url, self._api_key or name)
                self._open.push_async_callback(self._model.aclose)
            return self._model
