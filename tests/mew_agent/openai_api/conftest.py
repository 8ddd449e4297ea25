"""A door for chat clients on the stage of agents: real gateway, real agent, real HTTP, the real OpenAI client."""

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

from mew_agent.openai_api.app import create_app
from mew_agent.openai_api.chat_participant import Door, DoorOptions
from mew_agent.openai_api.server import serve_app
from tests.mew_agent.conftest import PATIENCE_SECONDS, Stage, Staged

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
class ChatStage:
    """A stage whose agent can be asked with `client`; `bob` is who asks."""

    stage: Stage
    door: Door
    base_url: str
    client: AsyncOpenAI

    async def ask(self, text: str, *, model: str = "coder", **more: Any) -> Any:
        """An answer that is not streamed."""
        with anyio.fail_after(PATIENCE_SECONDS):
            return await self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": text}], **more
            )

    async def stream(self, text: str, *, model: str = "coder", **more: Any) -> list[Any]:
        """All chunks of a streamed answer."""
        with anyio.fail_after(PATIENCE_SECONDS):
            stream = await self.ask(text, model=model, stream=True, **more)
            return [chunk async for chunk in stream]


class ChatStaged(Protocol):
    """`chat(door={...}, app={...}, **as for a stage)`."""

    def __call__(
        self, *, door: dict[str, Any] | None = None, app: dict[str, Any] | None = None, **stage: Any
    ) -> AbstractAsyncContextManager[ChatStage]: ...


@pytest.fixture
def space(tmp_path: Path) -> SpaceConfig:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return load_space(path)


@pytest.fixture
def opened(gateway: RunningGateway) -> Callable[..., Door]:
    """A door of the running gateway, to be entered: `async with opened(silence_seconds=1) as door`."""

    def make(person: str = "bob", **options: Any) -> Door:
        token = gateway.token_of(person)
        return Door(gateway.ws_url, space="demo", person=person, token=token, options=DoorOptions(**options))

    return make


@pytest.fixture
def chat(stage: Staged, opened: Callable[..., Door]) -> ChatStaged:
    """Makes a chat stage; see `ChatStaged`."""

    @asynccontextmanager
    async def build(
        *, door: dict[str, Any] | None = None, app: dict[str, Any] | None = None, **of_stage: Any
    ) -> AsyncIterator[ChatStage]:
        async with (
            stage(**of_stage) as built,
            opened(**(door or {})) as entrance,
            serve_app(create_app(entrance, api_key=KEY, **(app or {})), entrance) as base_url,
            AsyncOpenAI(base_url=base_url, api_key=KEY) as client,
        ):
            await knows(entrance, of_stage.get("name", "coder"))
            yield ChatStage(built, entrance, base_url, client)

    return build


async def knows(door: Door, agent: str) -> None:
    """Wait until the door has heard a status of an agent."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while agent not in door.peers or not door.peers[agent].context.status:
            await anyio.sleep(0.005)


def content(chunks: list[Any]) -> str:
    """All text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def reasoning(chunks: list[Any]) -> str:
    """All thinking of a stream."""
    return "".join(
        getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks if chunk.choices
    )
