"""An MCP client that starts `mew serve mcp`, as its configuration says, and works in a real space with a real agent."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.auth import read_token, token_path
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.parts.mcp.space_offers import BOARD
from tests.mew_agent.cli.remote.test_identity import running_space
from tests.parts.mcp import workshop
from tests.support.space_folder import Folder, environment
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

SPACE = """
space: {id: review, default_participant: ada}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder:
    agent: {base_url: rehearsal, context_token_limit: 32768}
    auto_start: true
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: participant/status},
                   {kind: participant/compact-done}]
  workshop:
    type: mcp-bridge
    mcp_server: {command: @PYTHON@, args: [@WORKSHOP@]}
    auto_start: true
""".replace("@PYTHON@", sys.executable).replace("@WORKSHOP@", workshop.__file__)


@asynccontextmanager
async def serving(folder: Path, mode: Literal["legacy", "auto"], note: Any = None) -> AsyncIterator[Client]:
    """The official client with `mew serve mcp` as its server."""
    first, *rest = (*MEW, "serve", "mcp", "--space-dir", str(folder))
    environ = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    with anyio.fail_after(3 * PATIENCE_SECONDS):
        parameters = StdioServerParameters(command=first, args=rest, env=environ)
        async with Client(parameters, mode=mode, message_handler=note) as client:
            yield client


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return dict(result.structured_content or {})


async def test_client_chats_reads_the_board_and_compacts_an_agent(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "space", SPACE)
    async with serving(folder.path, "auto") as client, client.listen(resource_subscriptions=[BOARD]) as updates:
        before = await client.call_tool("read_board", {})
        assert before.is_error
        assert "no space is running here" in str(before.content)
        try:
            await folder.mew("up", "--detach", "--port", "0")
            assert (await anext(updates)).uri == BOARD  # type: ignore[union-attr]
            text = "Station 7 measured 41 units of water today. " * 60
            for number in range(4):
                said = await call(
                    client, "send_chat", text=f"Report {number}: {text}", to="coder", wait_seconds=PATIENCE_SECONDS
                )
                assert said["answer"]
            board = await call(client, "read_board", details=True)
            (entry,) = [one for one in board["participants"] if one["id"] == "coder"]
            assert entry["status"]["context"]["basis"] == "reported"
            done = await call(client, "request_compaction", peer="coder", reason="tidy up")
            assert done["status"] == "compacted"
            assert done["freed_tokens"] == entry["status"]["tokens"] - done["tokens_after"] > 0
            chats = (await call(client, "recent_chat", limit=100))["chats"]
            assert [one["from"] for one in chats][:2] == ["ada", "coder"]
            tools = {tool.name: tool.annotations for tool in (await client.list_tools(cache_mode="bypass")).tools}
            assert tools["workshop__raze"] is not None
            assert tools["workshop__raze"].destructive_hint is True
            added = await client.call_tool("workshop__add", {"a": 40, "b": 2})
            assert "42" in str(added.content)
        finally:
            await folder.stop()
        after = await client.call_tool("list_participants", {})
        assert after.is_error


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[None]:
    """A space without programs, whose gateway is this process."""
    config = parse_space("space: {id: review}\nparticipants: {ada: {capabilities: [{kind: '*'}]}}\n")
    async with serve_gateway(config, state=folder / ".mew") as gateway:
        run_path = running_space(folder, gateway=gateway.url, ws=gateway.ws_url)
        token_path(folder / ".mew", "ada").write_text(gateway.token_of("ada"))
        yield
        run_path.unlink()


async def test_client_of_the_older_protocol_is_notified(tmp_path: Path) -> None:
    methods: list[str] = []

    async def note(message: Any) -> None:
        methods.append(getattr(message, "method", ""))

    async with serving(tmp_path, "legacy", note) as client:
        request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=BOARD))
        await client.session.send_request(request, types.EmptyResult)
        async with started(tmp_path):
            expected = {"notifications/resources/updated", "notifications/tools/list_changed"}
            await until(lambda: expected <= set(methods))


async def test_http_requires_the_persons_token(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with started(tmp_path), folder.running("serve", "mcp", "--http", "0") as (process, shown):
        await until(lambda: "MCP server of " in shown())
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/mcp", shown())
        bearer = {"Authorization": f"Bearer {read_token(tmp_path / '.mew', 'ada')}"}
        async with (
            httpx2.AsyncClient(headers=bearer, trust_env=False, verify=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            assert (await call(client, "send_chat", text="hello"))["to"] is None
            assert [one["text"] for one in (await call(client, "recent_chat"))["chats"]] == ["hello"]
        process.terminate()
        with anyio.fail_after(PATIENCE_SECONDS):
            await process.wait()
        assert "Traceback" not in shown()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_signal_ends_the_server_while_its_input_is_open(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = await anyio.open_process((*MEW, "serve", "mcp"), cwd=tmp_path, env=environment())
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "0"},
            },
        }
        await process.stdin.send(json.dumps(hello).encode() + b"\n")
        with anyio.fail_after(PATIENCE_SECONDS):
            assert json.loads(await process.stdout.receive())["result"]["serverInfo"]["name"] == "mew"
            process.send_signal(number)
            assert await process.wait() == code
            assert b"".join([piece async for piece in process.stderr]) == b""
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
