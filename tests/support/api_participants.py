"""A space for servers of APIs, and the participant behind such a server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.parts.shared.chat_participant import ChatOptions, ChatParticipant
from tests.support.waiting import PATIENCE_SECONDS

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
  quiet:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}]
  mute:
    command: mew
    capabilities: [{kind: chat}, {kind: participant/status}]
"""


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


async def knows(participant: ChatParticipant, agent: str) -> None:
    """Wait until the participant has received a status of an agent."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while agent not in participant.peers or not participant.peers[agent].context.status:
            await anyio.sleep(0.005)
