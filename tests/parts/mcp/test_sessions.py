"""How many sessions of MCP over HTTP a server keeps."""

import httpx2
import pytest

from mew_agent.parts.mcp import server as bridge
from mew_agent.tools.catalog import LocalOffers

OPEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


async def test_a_client_opens_a_limited_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "MAX_SESSIONS", 2)
    headers = {"authorization": "Bearer t", "accept": "application/json, text/event-stream"}
    async with (
        bridge.serving_http(bridge.OffersServer("maze", "A maze.", LocalOffers()), 0, "t") as url,
        httpx2.AsyncClient(headers=headers) as http,
    ):
        first, second, third = [await http.post(url, json=OPEN) for _ in range(3)]
        ended = await http.delete(url, headers={"mcp-session-id": first.headers["mcp-session-id"]})
        again = await http.post(url, json=OPEN)
    assert (first.status_code, second.status_code, ended.status_code, again.status_code) == (200, 200, 200, 200)
    assert third.status_code == 503
