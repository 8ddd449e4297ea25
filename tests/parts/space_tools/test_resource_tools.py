"""Resources of peers for a model: when they are offered, listed and read, and which errors occur."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mew_agent.model.interface import ToolCall
from mew_agent.participant.participant import Participant
from mew_agent.parts.space_tools.resource_tools import ResourceTools, contents_text
from mew_agent.tools.functions import ToolCallFailed
from mew_agent.tools.sources import CallContext
from tests.support.agents import EnvelopeRecorder
from tests.support.peers import Join, space_of_peers
from tests.support.waiting import until

CONTEXT = CallContext("chat-1")


def library(me: Participant) -> Participant:
    @me.resource("notes://today", mime_type="text/markdown")
    def today() -> str:
        """What happened
        today."""
        return "# Rain"

    @me.resource("notes://{day}")
    def notes(day: str) -> str:
        """A day's notes."""
        if day == "doomsday":
            raise RuntimeError("not yet")
        return f"nothing on {day}"

    @me.resource("pictures://sky", mime_type="image/png")
    def sky() -> bytes:
        return b"png"

    return me


@asynccontextmanager
async def scene(asker: str = "asker") -> AsyncIterator[tuple[Participant, ResourceTools, Join]]:
    async with space_of_peers() as (_, join), library(join("tools")), join(asker, discover=True) as me:
        yield me, ResourceTools(me), join


async def said(tools: ResourceTools, name: str, arguments: str = "{}") -> str:
    return (await tools.run(ToolCall("1", name, arguments), CONTEXT)).prompt_text


async def test_resource_tools_are_offered_while_a_peer_has_resources() -> None:
    async with space_of_peers() as (_, join), join("asker", discover=True) as me, join("more"):
        tools = ResourceTools(me)
        await until(lambda: "more" in me.peers and me.peers["more"].tools == ())
        assert tools.specs() == ()
        assert await said(tools, "list_resources") == "Error: no participant has resources to read"
        async with library(join("tools")):
            await until(lambda: [spec.name for spec in tools.specs()] == ["list_resources", "read_resource"])
        await until(lambda: tools.specs() == ())


async def test_resources_are_listed_with_their_descriptions() -> None:
    async with scene() as (me, tools, join):
        await until(lambda: bool(tools.specs()))
        listed = """\
tools: notes://today (today · What happened today. · text/markdown)
tools: pictures://sky (sky · image/png)
tools: notes://{day} (notes · A day's notes.)"""
        assert await said(tools, "list_resources") == listed
        assert await said(tools, "list_resources", '{"peer": "tools"}') == listed
        async with join("more"):
            await until(lambda: "more" in me.peers)
            assert await said(tools, "list_resources", '{"peer": "more"}') == "more: nothing to read"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"peer": "tools", "uri": "notes://today"}', "# Rain"),
        ('{"peer": "tools", "uri": "notes://monday"}', "nothing on monday"),
        ('{"peer": "tools", "uri": "pictures://sky"}', "[image/png, not shown]"),
        ('{"peer": "tools", "uri": "ghost://x"}', "Error: 'tools' answered: no resource 'ghost://x' (error -32002)"),
        ('{"peer": "tools", "uri": "notes://doomsday"}', "Error: 'tools' answered: RuntimeError: not yet"),
        ('{"peer": "ghost", "uri": "notes://today"}', "Error: 'ghost' is not in the space"),
        ('{"uri": "notes://today"}', "Error: bad arguments for 'read_resource': 'peer' is missing"),
    ],
)
async def test_a_resource_is_read_by_its_uri(arguments: str, text: str) -> None:
    async with scene() as (_, tools, _join):
        await until(lambda: bool(tools.specs()))
        assert (await said(tools, "read_resource", arguments)).startswith(text)


async def test_a_read_request_refers_to_the_chat_it_serves() -> None:
    async with scene() as (_, tools, join), join("ada") as ada:
        recorder = EnvelopeRecorder(ada)
        await until(lambda: bool(tools.specs()))
        call = ToolCall("1", "read_resource", '{"peer": "tools", "uri": "notes://today"}')
        await tools.run(call, CallContext("chat-7", "reasoning-7"))
        request = await recorder.first("asker", "mcp/request", method="resources/read")
        assert (request.context, request.correlation_id) == ("reasoning-7", ("chat-7",))


async def test_capabilities_decide_which_resources_are_readable() -> None:
    space = """
space: {id: demo}
participants:
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  asker:
    command: mew
    capabilities:
      - {kind: mcp/request, payload: {method: "*/list"}}
      - {kind: mcp/request, payload: {method: resources/read, params: {uri: "notes://*"}}}
  mute: {command: mew, capabilities: [{kind: mcp/request, payload: {method: "*/list"}}]}
"""
    async with (
        space_of_peers(space) as (_, join),
        library(join("tools")),
        join("asker", discover=True) as me,
        join("mute", discover=True) as mute,
    ):
        await until(lambda: me.discovery.with_resources() == ("tools",) and bool(mute.peers["tools"].tools is not None))
        assert mute.discovery.with_resources() == ()
        assert ResourceTools(mute).specs() == ()
        tools = ResourceTools(me)
        assert tools.specs()
        assert await said(tools, "read_resource", '{"peer": "tools", "uri": "notes://today"}') == "# Rain"
        refused = await said(tools, "read_resource", '{"peer": "tools", "uri": "pictures://sky"}')
        assert refused.endswith("no capability that covers 'mcp/request' with these arguments; add one in space.yaml")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"contents": [{"text": "a"}, {"text": "b"}]}, "a\nb"),
        (
            {"uri": "x", "mimeType": "text/plain", "contents": "as the TypeScript SDK has it"},
            "as the TypeScript SDK has it",
        ),
        ({"contents": [{"blob": "AA=="}]}, "[data, not shown]"),
        ("bare", "bare"),
    ],
)
def test_contents_of_any_shape_become_text(result: Any, text: str) -> None:
    assert contents_text("tools", result) == text


@pytest.mark.parametrize("result", [None, 5, {}, {"contents": []}, {"contents": [{"uri": "x"}]}])
def test_contents_without_text_are_an_error(result: Any) -> None:
    with pytest.raises(ToolCallFailed, match="the answer of 'tools' contains no readable content"):
        contents_text("tools", result)
