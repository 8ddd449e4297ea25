"""A running gateway, tested over sockets and HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

SPACE = """
space: {id: demo, name: Demo}
participants:
  ada: {name: Ada L, capabilities: [{kind: "*"}]}
  bob: {name: Bob, capabilities: [{kind: chat}, {kind: "capability/*"}, {kind: mcp/proposal}, {kind: mcp/withdraw}]}
  coder:
    command: mew
    capabilities:
      - {kind: chat}
      - {kind: chat/acknowledge}
      - {kind: capability/grant-ack}
      - {kind: "stream/*"}
      - {kind: participant/status}
      - {kind: mcp/request, to: [files], payload: {method: "tools/*", params: {name: [read_file, "list_*"]}}}
  files: {command: mew, capabilities: [{kind: "mcp/*"}, {kind: "stream/*"}, {kind: chat}]}
limits: {message_bytes: 65536, http_body_bytes: 8192, join_timeout_seconds: 1.0, streams_per_member: 3}
"""


@pytest.fixture(scope="session")
def config() -> SpaceConfig:
    return parse_space(SPACE)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".mew"


@pytest.fixture
async def gateway(config: SpaceConfig, state: Path) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(config, state=state) as running:
        yield running


class Http:
    """Requests as a participant."""

    def __init__(self, gateway: RunningGateway, client: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client

    async def get(self, path: str, name: str | None = None) -> httpx2.Response:
        return await self.client.get(path, headers=self._headers(name))

    async def post(self, name: str, message: object, *, token: str | None = None) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token or self.gateway.token_of(name)}"}
        content = message if isinstance(message, bytes) else None
        json = None if content is not None else message
        return await self.client.post(f"/participants/{name}/messages", headers=headers, json=json, content=content)

    def _headers(self, name: str | None) -> dict[str, str]:
        return {} if name is None else {"authorization": f"Bearer {self.gateway.token_of(name)}"}


@pytest.fixture
async def http(gateway: RunningGateway) -> AsyncIterator[Http]:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, verify=False) as client:
        yield Http(gateway, client)
