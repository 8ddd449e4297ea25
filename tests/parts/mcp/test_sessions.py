"""How many sessions of MCP over HTTP a server keeps."""

import gc

import httpx2
import pytest
from mcp.server.connection import Connection
from starlette.requests import Request

from mew_agent.parts.mcp import offers_server
from mew_agent.parts.mcp.offers_server import OffersServer
from mew_agent.tools.catalog import LocalOffers
from tests.support.waiting import until

OPEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


async def test_a_client_opens_a_limited_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers_server, "MAX_SESSIONS", 2)
    headers = {"authorization": "Bearer t", "accept": "application/json, text/event-stream"}
    async with (
        offers_server.serving_http(offers_server.OffersServer("maze", "A maze.", LocalOffers()), 0, "t") as url,
        httpx2.AsyncClient(headers=headers) as http,
    ):
        first, second, third = [await http.post(url, json=OPEN) for _ in range(3)]
        ended = await http.delete(url, headers={"mcp-session-id": first.headers["mcp-session-id"]})
        again = await http.post(url, json=OPEN)
    assert (first.status_code, second.status_code, ended.status_code, again.status_code) == (200, 200, 200, 200)
    assert third.status_code == 503


async def test_a_session_leaves_nothing_when_its_client_ends_it() -> None:
    server = OffersServer("mew", "", LocalOffers(), has_resources=True)
    headers = {"authorization": "Bearer t", "accept": "application/json, text/event-stream"}
    list_tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}

    def kept() -> list[object]:
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, Connection | Request)]

    gc.collect()
    gc.freeze()  # what other tests have left would be read for half a second at each look
    before = len(kept())
    async with offers_server.serving_http(server, 0, "t") as url, httpx2.AsyncClient(headers=headers) as http:
        for _ in range(3):
            opened = await http.post(url, json=OPEN)
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            assert "result" in (await http.post(url, json=list_tools, headers=session)).text
            await http.delete(url, headers=session)
        await until(lambda: len(kept()) <= before)
