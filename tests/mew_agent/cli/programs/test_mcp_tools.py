"""The MCP server of a space, called by the official client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.app.options import ConnectionOptions
from mew_agent.cli.programs.mcp_tools import guarded, make_server, serve_http
from mew_agent.cli.remote.actions import GatewayActions
from mew_agent.errors import ConfigError
from tests.support.cli import answering
from tests.support.gateway_client import Client as Member
from tests.support.gateway_client import Message
from tests.support.waiting import PATIENCE_SECONDS


def flags(gateway: RunningGateway, name: str = "ada") -> ConnectionOptions:
    return ConnectionOptions(name, gateway.token_of(name), gateway.ws_url, gateway.config.space.id)


async def repeats(client: Member, request: Message) -> None:
    await client.chat(f"you said: {request['payload']['text']}", to=["ada"], correlation_id=[request["id"]])


async def call(client: Client, name: str, **arguments: Any) -> tuple[bool, Any]:
    """Whether a tool failed, and its value or words."""
    with anyio.fail_after(PATIENCE_SECONDS):
        result = await client.call_tool(name, arguments)
    if result.is_error:
        return True, getattr(result.content[0], "text", "")
    value = result.structured_content or {}
    return False, value.get("result", value) if set(value) == {"result"} else value


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[Client]:
    async with Client(make_server(GatewayActions(flags(gateway)))) as made:
        yield made


async def test_every_tool_has_a_description(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"send_chat", "read_board", "request_compaction", "list_participants", "recent_chat"}
    assert all(tool.description for tool in tools.values())
    assert tools["request_compaction"].input_schema["required"] == ["peer"]
    assert "read_board" in (client.instructions or "")


async def test_tools_carry_out_gateway_actions(client: Client, gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        failed, said = await call(client, "send_chat", text="hi", to="coder", wait_seconds=10)
        assert (failed, said["answer"]) == (False, "you said: hi")
        _, board = await call(client, "read_board")
        assert board["space"] == "review"
        _, listed = await call(client, "list_participants")
        assert {one["id"]: one["connected"] for one in listed}["coder"] is True
        _, chats = await call(client, "recent_chat", limit=1)
        assert [one["text"] for one in chats] == ["you said: hi"]


async def test_resources_are_the_chat_and_the_board(client: Client, gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        await call(client, "send_chat", text="hi", to="coder", wait_seconds=10)
    (chat,) = (await client.read_resource("mew://chat")).contents
    lines = getattr(chat, "text", "").splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["ada -> coder: hi", "coder -> ada: you said: hi"]
    (board,) = (await client.read_resource("mew://board")).contents
    assert json.loads(getattr(board, "text", ""))["space"] == "review"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("send_chat", {"text": "hi", "to": "ghost"}, "no participant 'ghost' in space 'review'"),
        ("request_compaction", {"peer": "coder"}, "'coder' is not connected to space 'review'"),
        ("request_compaction", {"peer": "coder", "target_tokens": -1}, "target_tokens"),
        ("recent_chat", {"limit": 0}, "limit"),
    ],
)
async def test_errors_are_reported_to_the_client(
    client: Client, name: str, arguments: dict[str, Any], words: str
) -> None:
    failed, reported = await call(client, name, **arguments)
    assert failed
    assert words in reported


async def test_every_tool_reports_a_space_that_does_not_run() -> None:
    async with Client(make_server(GatewayActions(ConnectionOptions()))) as client:
        failed, reported = await call(client, "read_board")
        assert failed
        assert "no space is running here. Start one with `mew up`" in reported
        with pytest.raises(MCPError, match="no space is running here"):
            await client.read_resource("mew://board")


@asynccontextmanager
async def over_http(gateway: RunningGateway) -> AsyncIterator[str]:
    server, token = make_server(GatewayActions(flags(gateway))), gateway.token_of("ada")
    urls: list[str] = []
    there = anyio.Event()

    def ready(url: str) -> None:
        urls.append(url)
        there.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_http, server, 0, token, ready)
        with anyio.fail_after(PATIENCE_SECONDS):
            await there.wait()
        yield urls[0]
        tasks.cancel_scope.cancel()


async def test_http_requires_the_participants_token(gateway: RunningGateway) -> None:
    async with over_http(gateway) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with httpx2.AsyncClient(headers=headers, trust_env=False) as http:
                assert (await http.post(url, json={})).status_code == 401
        bearer = {"Authorization": f"Bearer {gateway.token_of('ada')}"}
        async with (
            httpx2.AsyncClient(headers=bearer, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            failed, board = await call(client, "read_board")
            assert (failed, board["space"]) == (False, "review")


async def test_taken_port_is_reported(gateway: RunningGateway) -> None:
    port = urlsplit(gateway.ws_url).port or 0
    with pytest.raises(ConfigError, match=rf"--http: cannot listen on port {port}: address already in use"):
        await serve_http(make_server(GatewayActions(flags(gateway))), port, "t", lambda _url: None)


async def test_guard_ignores_what_is_not_an_http_request() -> None:
    passed: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        passed.append(scope["type"])

    async def send(_message: Any) -> None:
        return None

    await guarded(app, "t")({"type": "lifespan"}, None, send)
    assert passed == ["lifespan"]
