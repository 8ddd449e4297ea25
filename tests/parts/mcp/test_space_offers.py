"""The MCP server of a space, called by the official client in both generations of the protocol, over HTTP."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated, ServerEvent, ToolsListChanged
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from pydantic import BaseModel

from mew_agent.cli.app.options import ConnectionOptions, ProgramConnection
from mew_agent.participant.event_handlers import ProposalMade
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp.offers_server import serving_http
from mew_agent.parts.mcp.space_offers import BOARD, CHAT, context_uri, make_server
from mew_agent.tokens.tokenizers import TokenizerSettings, counter_for
from tests.support import command_space
from tests.support.cli import REPORT, answering, status
from tests.support.gateway_client import Client as Member
from tests.support.gateway_client import Message, joined
from tests.support.waiting import PATIENCE_SECONDS, until

quiet_environment = command_space.quiet_environment


SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  guest: {capabilities: [{kind: chat}]}
  bob: {capabilities: [{kind: chat}, {kind: mcp/proposal}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: participant/status}, {kind: participant/compact-done}]
  tools: {command: mew, capabilities: [{kind: mcp/response}, {kind: participant/status}]}
"""

Mode = Literal["legacy", "auto"]


def flags(gateway: RunningGateway, name: str = "ada") -> ConnectionOptions:
    return ProgramConnection(name, gateway.ws_url, gateway.config.space.id, token=gateway.token_of(name))


async def repeats(client: Member, request: Message) -> None:
    await client.chat(f"you said: {request['payload']['text']}", to=["ada"], correlation_id=[request["id"]])


async def call(client: Client, name: str, **arguments: Any) -> tuple[bool, Any]:
    """Whether a tool failed, and its value or words."""
    with anyio.fail_after(PATIENCE_SECONDS):
        result = await client.call_tool(name, arguments)
    text = getattr(result.content[0], "text", "")
    return result.is_error, text if result.is_error else result.structured_content or text


class Total(BaseModel):
    sum: int


@dataclass
class Subscriber:
    """A client of either generation that is subscribed to resources, and what it was notified of."""

    client: Client
    events: list[ServerEvent] = field(default_factory=list)

    async def notified(self, condition: Callable[[list[ServerEvent]], bool]) -> None:
        await until(lambda: condition(self.events))


@asynccontextmanager
async def served(gateway: RunningGateway, name: str = "ada") -> AsyncIterator[str]:
    async with serving_http(make_server(flags(gateway, name)), 0, gateway.token_of(name)) as url:
        yield url


@asynccontextmanager
async def connected(
    gateway: RunningGateway, mode: Mode = "auto", *uris: str, name: str = "ada"
) -> AsyncIterator[Subscriber]:
    """A client over HTTP. A busy machine may pause longer than the read timeout that its library has by default."""
    events: list[ServerEvent] = []

    async def note(message: Any) -> None:
        match message:
            case types.ResourceUpdatedNotification():
                events.append(ResourceUpdated(str(message.params.uri)))
            case types.ToolListChangedNotification():
                events.append(ToolsListChanged())
            case _:
                pass

    opened = anyio.Event()

    async def note_stream(response: httpx2.Response) -> None:
        if response.request.method == "GET":
            opened.set()

    bearer = {"Authorization": f"Bearer {gateway.token_of(name)}"}
    async with (
        served(gateway, name) as url,
        httpx2.AsyncClient(
            headers=bearer,
            trust_env=False,
            verify=False,
            timeout=PATIENCE_SECONDS,
            event_hooks={"response": [note_stream]},
        ) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, message_handler=note) as client,
    ):
        subscriber = Subscriber(client, events)
        if mode == "legacy":
            for uri in uris:
                request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, types.EmptyResult)
            with anyio.fail_after(PATIENCE_SECONDS):
                await opened.wait()  # what is announced before that reaches no client
            yield subscriber
            return
        async with (
            client.listen(tools_list_changed=True, resource_subscriptions=uris) as stream,
            anyio.create_task_group() as tasks,
        ):

            async def follow() -> None:
                async for event in stream:
                    events.append(event)  # noqa: PERF401 - `events` is read meanwhile

            tasks.start_soon(follow)
            yield subscriber
            tasks.cancel_scope.cancel()


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with serve_gateway(parse_space(SPACE)) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[Client]:
    async with Client(make_server(flags(gateway))) as made:
        yield made


@asynccontextmanager
async def calculator(gateway: RunningGateway) -> AsyncIterator[Participant]:
    me = Participant(gateway.ws_url, space="review", id="tools", token=gateway.token_of("tools"))

    @me.tool(title="Add", annotations={"readOnlyHint": True})
    def add(a: int, b: int) -> Total:
        """Add two numbers."""
        return Total(sum=a + b)

    @me.tool
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    async with me:
        yield me


async def test_every_tool_has_a_description_and_hints(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"send_chat", "read_board", "request_compaction", "list_participants", "recent_chat"}
    assert all(tool.description and tool.annotations for tool in tools.values())
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert {name for name, one in hints.items() if one and one.read_only_hint} == {
        "read_board",
        "list_participants",
        "recent_chat",
    }
    assert hints["request_compaction"] is not None
    assert hints["request_compaction"].destructive_hint is True
    assert tools["request_compaction"].input_schema["required"] == ["peer"]
    assert "read_board" in (client.instructions or "")


async def test_tools_carry_out_gateway_actions(client: Client, gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        failed, said = await call(client, "send_chat", text="hi", to="coder", wait_seconds=10)
        assert (failed, said["answer"]) == (False, "you said: hi")
        _, board = await call(client, "read_board", details=True)
        assert board["space"] == "review"
        _, listed = await call(client, "list_participants")
        assert {one["id"]: one["connected"] for one in listed["participants"]}["coder"] is True
        _, recent = await call(client, "recent_chat", limit=1)
        assert [one["text"] for one in recent["chats"]] == ["you said: hi"]


async def test_resources_are_the_chat_the_board_and_contexts(client: Client, gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats) as coder:
        await call(client, "send_chat", text="hi", to="coder", wait_seconds=10)
        await status(coder, tokens=900, max_tokens=1000, context=REPORT)
        await until(lambda: any(entry.status for entry in gateway.board().participants))
        (chat,) = (await client.read_resource(CHAT)).contents
        lines = getattr(chat, "text", "").splitlines()
        assert [line.partition(" ")[2] for line in lines] == ["ada -> coder: hi", "coder -> ada: you said: hi"]
        (board,) = (await client.read_resource(BOARD)).contents
        assert json.loads(getattr(board, "text", ""))["space"] == "review"
        listed = {str(one.uri) for one in (await client.list_resources()).resources}
        assert listed >= {BOARD, CHAT, context_uri("coder"), context_uri("ada")}
        (context,) = (await client.read_resource(context_uri("coder"))).contents
        assert json.loads(getattr(context, "text", ""))["status"]["tokens"] == 900
        with pytest.raises(MCPError, match="no resource"):
            await client.read_resource(context_uri("ghost"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_subscriber_is_notified_of_each_change(gateway: RunningGateway, mode: Mode) -> None:
    uri = context_uri("coder")
    async with connected(gateway, mode, BOARD, uri) as subscriber:
        async with joined(gateway, "coder") as coder:
            await subscriber.notified(lambda events: ResourceUpdated(uri) in events)
            subscriber.events.clear()
            for tokens in (900, 910):
                await status(coder, tokens=tokens, max_tokens=1000, context=REPORT)
            await subscriber.notified(lambda events: {ResourceUpdated(BOARD), ResourceUpdated(uri)} <= set(events))
            (read,) = (await subscriber.client.read_resource(uri)).contents
            assert json.loads(getattr(read, "text", ""))["status"]["tokens"] == 910
            await coder.chat("not subscribed to")
        subscriber.events.clear()
        await subscriber.notified(lambda events: ResourceUpdated(uri) in events)  # it left
        assert ResourceUpdated(CHAT) not in subscriber.events


async def test_event_stream_outlasts_the_read_timeout_of_clients(gateway: RunningGateway) -> None:
    bearer = {"Authorization": f"Bearer {gateway.token_of('ada')}"}
    async with (
        serving_http(make_server(flags(gateway)), 0, gateway.token_of("ada"), ping_seconds=0.1) as url,
        httpx2.AsyncClient(headers=bearer, trust_env=False, verify=False, timeout=0.5) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
        client.listen(resource_subscriptions=[CHAT]) as stream,
    ):
        begun = anyio.current_time()
        with anyio.move_on_after(3 * 0.5):
            async for _ in stream:
                continue
        assert anyio.current_time() - begun >= 3 * 0.5  # it did not end before


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_of_peers_are_listed_and_called(gateway: RunningGateway, mode: Mode) -> None:
    async with connected(gateway, mode) as subscriber:
        client = subscriber.client
        assert (await client.list_tools()).tools
        async with calculator(gateway):
            await subscriber.notified(lambda events: ToolsListChanged() in events)

            async def listed() -> dict[str, types.Tool]:
                return {tool.name: tool for tool in (await client.list_tools(cache_mode="bypass")).tools}

            with anyio.fail_after(PATIENCE_SECONDS):
                while "tools__add" not in (tools := await listed()):
                    await anyio.sleep(0.05)
            assert tools["tools__add"].title == "Add"
            assert (tools["tools__add"].output_schema or {})["required"] == ["sum"]
            hints = tools["tools__add"].annotations
            assert hints is not None
            assert hints.read_only_hint is True
            assert await call(client, "tools__add", a=2, b=3) == (False, {"sum": 5})
            assert await call(client, "tools__fail") == (True, "ValueError: broken")
            subscriber.events.clear()
        await subscriber.notified(lambda events: ToolsListChanged() in events)
        failed, told = await call(client, "tools__add", a=2, b=3)
        assert failed
        assert "'tools'" in told


async def test_tools_beyond_the_callers_capabilities_are_not_offered(gateway: RunningGateway) -> None:
    async with calculator(gateway), Client(make_server(flags(gateway, "guest"))) as client:
        assert not [tool for tool in (await client.list_tools()).tools if tool.name.startswith("tools__")]
        failed, told = await call(client, "tools__add", a=2, b=3)
        assert failed
        assert "no tool 'tools__add' in space 'review'" in told


async def test_the_client_learns_of_a_rejected_proposal(gateway: RunningGateway) -> None:
    ada = Participant(gateway.ws_url, space="review", id="ada", token=gateway.token_of("ada"))

    @ada.on_proposal
    async def decide(proposal: ProposalMade) -> None:
        if proposal.tool is None:
            await proposal.fulfil()
        else:
            await proposal.reject("not today")

    async with calculator(gateway), ada, Client(make_server(flags(gateway, "bob"))) as client:
        await client.list_tools()
        failed, told = await call(client, "tools__add", a=2, b=3)
        assert failed
        assert "not today" in told


async def test_cancelled_call_is_cancelled_at_the_peer(gateway: RunningGateway) -> None:
    begun, ended = anyio.Event(), anyio.Event()
    me = Participant(gateway.ws_url, space="review", id="tools", token=gateway.token_of("tools"))

    @me.tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    async with me, connected(gateway) as subscriber, anyio.create_task_group() as tasks:
        await subscriber.client.list_tools()
        tasks.start_soon(subscriber.client.call_tool, "tools__wait", {})
        with anyio.fail_after(PATIENCE_SECONDS):
            await begun.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await ended.wait()


@pytest.mark.part("tokenizers")
async def test_board_of_three_agents_takes_few_tokens(gateway: RunningGateway) -> None:
    report = {**REPORT, "policy": "mew", "compact_at_tokens": 117_965, "turns_to_compaction": 12}
    async with joined(gateway, "coder") as coder, joined(gateway, "tools") as tools, joined(gateway, "ada") as ada:
        for member in (coder, tools, ada):
            await status(member, tokens=98_412, max_tokens=131_072, context=report)
        await until(lambda: sum(entry.status is not None for entry in gateway.board().participants) == 3)
        async with Client(make_server(flags(gateway))) as client:
            failed, board = await call(client, "read_board")
    assert not failed
    for name in ("coder", "tools"):  # ada's line is the server's own: it has joined as her
        assert f"{name}: 98,412 of 131,072 tokens (reported)" in board
    counter = counter_for("mistral", TokenizerSettings("mistral-7b"))
    assert counter is not None
    assert counter.count(board) < 250


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
    async with Client(make_server(ConnectionOptions())) as client:
        for name in ("read_board", "tools__add"):
            failed, reported = await call(client, name)
            assert failed
            assert "no space is running here" in reported
        with pytest.raises(MCPError, match="no space is running here"):
            await client.read_resource(BOARD)


async def test_http_requires_the_participants_token(gateway: RunningGateway) -> None:
    async with served(gateway) as url:
        for header, is_refused in (("", True), ("Bearer wrong", True), (f"bearer  {gateway.token_of('ada')}", False)):
            async with httpx2.AsyncClient(headers={"Authorization": header}, trust_env=False, verify=False) as http:
                assert ((await http.post(url, json={})).status_code == 401) is is_refused
    async with connected(gateway) as subscriber:
        failed, board = await call(subscriber.client, "read_board")
        assert not failed
        assert board.startswith("space review")


async def test_taken_port_is_reported(gateway: RunningGateway) -> None:
    port = urlsplit(gateway.ws_url).port or 0
    with pytest.raises(OSError, match="in use"):
        async with serving_http(make_server(flags(gateway)), port, "t"):
            pass
