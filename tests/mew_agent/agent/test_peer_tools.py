"""Tools of peers for a model: which are offered, how they are called, and their results."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mew_agent.agent.peer_tools import PeerTools
from mew_agent.model.interface import ToolCall
from mew_agent.participant.participant import Participant
from mew_agent.tools.functions import Tool, Toolbox
from mew_agent.tools.sources import AgentTools, CallContext, OwnTools
from tests.support.agents import EnvelopeRecorder
from tests.support.peers import Join, space_of_peers, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

CONTEXT = CallContext("chat-1", "reasoning-1")


@asynccontextmanager
async def scene(asker: str = "asker") -> AsyncIterator[tuple[Participant, PeerTools, EnvelopeRecorder, Join]]:
    async with (
        space_of_peers() as (_, join),
        with_tools(join("tools")),
        join("ada") as ada,
        join(asker, discover=True) as me,
    ):
        recorder = EnvelopeRecorder(ada)
        if asker == "asker":
            await until(lambda: bool(me.peers["tools"].tools))
        yield me, PeerTools(me), recorder, join


def names(tools: PeerTools | AgentTools) -> list[str]:
    return [spec.name for spec in tools.specs()]


async def test_peer_tools_are_offered_as_peer_and_tool_name() -> None:
    async with scene() as (_, tools, _ear, _join):
        assert names(tools) == ["tools__add", "tools__fail", "tools__where"]
        add = tools.specs()[0]
        assert add.description == "Add two numbers. (of tools)"
        assert add.parameters["required"] == ["a", "b"]


async def test_a_call_goes_to_the_peer_and_refers_to_its_chat() -> None:
    async with scene() as (_, tools, recorder, _join):
        call = ToolCall("1", "tools__add", '{"a": 2, "b": 3}')
        assert (await tools.run(call, CONTEXT)).prompt_text == "5"
        request = await recorder.first("asker", "mcp/request", method="tools/call")
        assert (request.context, request.correlation_id) == ("reasoning-1", ("chat-1",))


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("tools__fail", "", "Error: RuntimeError: out of order"),
        ("tools__add", "{not json", "Error: bad arguments for 'tools__add': invalid JSON"),
        ("tools__add", "[1]", "Error: bad arguments for 'tools__add': arguments must be a JSON object"),
        ("tools__add", '{"a": "x"}', "Error: 'tools' answered: bad arguments for 'add'"),
        ("tools__gone", "{}", "Error: no tool 'tools__gone'"),
        ("ghost__add", "{}", "Error: no tool 'ghost__add' (known: tools__add, tools__fail, tools__where)"),
    ],
)
async def test_failed_calls_become_text_for_the_model(name: str, arguments: str, said: str) -> None:
    async with scene() as (_, tools, _ear, _join):
        assert names(tools)
        result = await tools.run(ToolCall("1", name, arguments), CONTEXT)
        assert result.is_error
        assert result.prompt_text.startswith(said)


async def test_only_permitted_tools_are_offered() -> None:
    space = """
space: {id: demo}
participants:
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  asker:
    command: mew
    capabilities:
      - {kind: mcp/request, payload: {method: tools/list}}
      - {kind: mcp/request, payload: {method: tools/call, params: {name: add}}}
      - {kind: mcp/proposal, payload: {method: tools/call, params: {name: where}}}
"""
    async with space_of_peers(space) as (_, join), with_tools(join("tools")), join("asker", discover=True) as me:
        await until(lambda: bool(me.peers["tools"].tools))
        assert names(PeerTools(me)) == ["tools__add", "tools__where"]


async def test_a_tool_permitted_for_some_arguments_is_offered() -> None:
    space = """
space: {id: demo}
participants:
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  asker:
    command: mew
    capabilities:
      - {kind: mcp/request, payload: {method: tools/list}}
      - {kind: mcp/request, payload: {method: tools/call, params: {name: add, arguments: {a: 1}}}}
"""
    async with space_of_peers(space) as (_, join), with_tools(join("tools")), join("asker", discover=True) as me:
        await until(lambda: bool(me.peers["tools"].tools))
        tools = PeerTools(me)
        assert names(tools) == ["tools__add"]
        assert (await tools.run(ToolCall("1", "tools__add", '{"a": 1, "b": 2}'), CONTEXT)).prompt_text == "3"
        refused = (await tools.run(ToolCall("2", "tools__add", '{"a": 5, "b": 2}'), CONTEXT)).prompt_text
        assert refused.endswith("no capability that covers 'mcp/request' with these arguments; add one in space.yaml")


async def test_a_tool_of_an_absent_peer_is_an_error() -> None:
    async with scene() as (me, _, _ear, join):
        agent_tools = AgentTools(PeerTools(me))
        async with with_tools(join("more")):
            await until(lambda: "more__add" in names(agent_tools))
        await until(lambda: "more" not in me.peers)
        assert "more__add" not in names(agent_tools)
        said = (await agent_tools.run(ToolCall("1", "more__add", '{"a": 1, "b": 2}'), CONTEXT)).prompt_text
        assert said == "Error: 'more' is not in the space"


async def test_a_peer_tool_never_takes_the_name_of_an_own_tool() -> None:
    async with scene() as (me, _, _ear, _join):

        def mine() -> str:
            """Mine."""
            return "mine"

        box = Toolbox()
        box.add(Tool.from_function(mine, name="tools__where"))
        tools = AgentTools(OwnTools(box, PATIENCE_SECONDS), PeerTools(me, lambda: box.tools.keys()))
        assert len(names(tools)) == 4
        theirs = next(name for name in names(tools) if name.startswith("t_tools_where_"))
        assert (await tools.run(ToolCall("1", "tools__where", ""), CONTEXT)).prompt_text == "mine"
        assert (await tools.run(ToolCall("2", theirs, ""), CONTEXT)).prompt_text == "tools"


async def test_without_any_capability_nothing_is_offered() -> None:
    async with scene("mute") as (me, tools, *_):
        await me.discovery.wait_for_first_answers(5.0)
        assert names(tools) == []
