"""The API in front of a real gateway and a real agent, used by the real OpenAI client over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.gateway.gateway import RunningGateway
from openai import AsyncOpenAI

from mew_agent.parts.openai_api.app import create_app, serve_app
from mew_agent.parts.openai_api.chat_participant import ChatOptions, ChatParticipant
from tests.support.agents import AgentDriver, StartAgent
from tests.support.waiting import PATIENCE_SECONDS

KEY = "the-key"

SPACE = """
space: {id: demo, name: Demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  shy: {capabilities: [{kind: participant/status}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: "stream/*"},
                   {kind: participant/status}, {kind: participant/compact-done}]
  writer:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: "stream/*"},
                   {kind: participant/status}, {kind: participant/compact-done}, {kind: mcp/request}]
  mute:
    command: mew
    capabilities: [{kind: chat}, {kind: participant/status}]
"""


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
def space(tmp_path: Path) -> SpaceConfig:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return load_space(path)


@pytest.fixture
def connected(gateway: RunningGateway) -> Callable[..., ChatParticipant]:
    """Makes a participant of the running gateway: `async with connected(inactivity_seconds=1) as participant`."""

    def make(person: str = "bob", **options: Any) -> ChatParticipant:
        token = gateway.token_of(person)
        return ChatParticipant(gateway.ws_url, space="demo", person=person, token=token, options=ChatOptions(**options))

    return make


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


async def knows(participant: ChatParticipant, agent: str) -> None:
    """Wait until the participant has received a status of an agent."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while agent not in participant.peers or not participant.peers[agent].context.status:
            await anyio.sleep(0.005)


def content(chunks: list[Any]) -> str:
    """All text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def reasoning(chunks: list[Any]) -> str:
    """All reasoning of a stream."""
    return "".join(
        getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks if chunk.choices
    )
