"""A space with one participant of each kind, and a gateway that serves it."""

from collections.abc import AsyncIterator

import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

SPACE = """
space: {id: demo, name: Demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: chat}]}
  coder:
    command: mew
    tokens: [token-of-coder]
    capabilities:
      - {kind: chat}
      - {kind: "stream/*"}
      - {kind: participant/status}
      - {kind: mcp/request, to: [files]}
  files: {command: mew, capabilities: [{kind: "mcp/*"}, {kind: "stream/*"}]}
limits: {message_bytes: 65536, write_buffer_bytes: 65536, http_body_bytes: 4096, join_timeout_seconds: 1.0}
"""


@pytest.fixture(scope="session")
def config() -> SpaceConfig:
    return parse_space(SPACE)


@pytest.fixture
async def gateway(config: SpaceConfig) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(config) as running:
        yield running
