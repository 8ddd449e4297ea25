"""The API in front of a real gateway and a real agent, used by the real OpenAI client over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import pytest
from openai import AsyncOpenAI

from mew_agent.parts.openai_api.openai_app import create_app, serve_app
from mew_agent.parts.shared.chat_participant import ChatParticipant
from tests.support.agents import AgentDriver, StartAgent
from tests.support.api_participants import connected, knows, space
from tests.support.waiting import PATIENCE_SECONDS

KEY = "the-key"
__all__ = ["connected", "space"]


@dataclass
class ChatApiDriver:
    """A stage with an OpenAI client; `bob` is the participant behind the API."""

    driver: AgentDriver
    participant: ChatParticipant
    base_url: str
    client: AsyncOpenAI

    async def ask(self, text: str, *, model: str = "coder", **more: Any) -> Any:
        """A whole answer."""
        with anyio.fail_after(PATIENCE_SECONDS):
            return await self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": text}], **more
            )

    async def stream(self, text: str, *, model: str = "coder", **more: Any) -> list[Any]:
        """All chunks of a streamed answer."""
        with anyio.fail_after(PATIENCE_SECONDS):
            stream = await self.ask(text, model=model, stream=True, **more)
            return [chunk async for chunk in stream]


class StartChatApi(Protocol):
    """`chat(options={...}, app={...}, **as for an agent)`."""

    def __call__(
        self, *, options: dict[str, Any] | None = None, app: dict[str, Any] | None = None, **agent: Any
    ) -> AbstractAsyncContextManager[ChatApiDriver]: ...


@pytest.fixture
def chat(start_agent: StartAgent, connected: Callable[..., ChatParticipant]) -> StartChatApi:
    """Starts the API for an agent; see `StartChatApi`."""

    @asynccontextmanager
    async def build(
        *,
        options: dict[str, Any] | None = None,
        app: dict[str, Any] | None = None,
        serve: dict[str, Any] | None = None,
        **of_agent: Any,
    ) -> AsyncIterator[ChatApiDriver]:
        async with (
            start_agent(**of_agent) as built,
            connected(**(options or {})) as participant,
            serve_app(
                create_app(participant, **{"api_key": KEY, **(app or {})}), participant, **(serve or {})
            ) as base_url,
            AsyncOpenAI(base_url=base_url, api_key=KEY) as client,
        ):
            await knows(participant, of_agent.get("name", "coder"))
            yield ChatApiDriver(built, participant, base_url, client)

    return build


def content(chunks: list[Any]) -> str:
    """All text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def reasoning(chunks: list[Any]) -> str:
    """All reasoning of a stream."""
    return "".join(
        getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks if chunk.choices
    )
