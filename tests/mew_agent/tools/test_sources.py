"""An agent's tools: several sources under one set of names."""

import re

import anyio
import pytest

from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.tools.functions import Tool, Toolbox
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import AgentTools, CallContext, OwnTools
from tests.support.waiting import PATIENCE_SECONDS

CONTEXT = CallContext("c1")


def own(*names: str) -> OwnTools:
    toolbox = Toolbox()
    for name in names:

        def say(word: str = "nothing", own_name: str = name) -> str:
            return f"{own_name} says {word}"

        toolbox.add(Tool.from_function(say, name=name))
    return OwnTools(toolbox, PATIENCE_SECONDS)


class ChangingSource:
    """A source whose list of tools a test may replace."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(name, "", {}) for name in self.names)

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        return ToolResult(f"{call.name} for {context.chat_id}")


async def text_of(tools: AgentTools, name: str, arguments: str = "{}") -> str:
    return (await tools.run(ToolCall("1", name, arguments), CONTEXT)).prompt_text


async def test_sources_are_offered_in_order() -> None:
    tools = AgentTools(own("a", "b"))
    tools.add(own("c"))
    assert [spec.name for spec in tools.specs()] == ["a", "b", "c"]


async def test_a_call_goes_to_the_source_that_offers_it() -> None:
    tools = AgentTools(own("a"), ChangingSource("b"))
    assert await text_of(tools, "a", '{"word": "hello"}') == "a says hello"
    assert await text_of(tools, "b") == "b for c1"


class RaisingSource(ChangingSource):
    """A source that breaks its promise to raise nothing."""

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        raise ValueError("nested too deep")


async def test_a_source_that_raises_ends_only_its_call(caplog: pytest.LogCaptureFixture) -> None:
    assert await text_of(AgentTools(RaisingSource("a")), "a") == "Error: nested too deep"
    assert "call of 'a' failed" in caplog.text


async def test_the_first_of_two_tools_with_one_name_wins() -> None:
    tools = AgentTools(own("a"), ChangingSource("a", "b"))
    assert [spec.name for spec in tools.specs()] == ["a", "b"]
    assert await text_of(tools, "a") == "a says nothing"


async def test_the_offer_follows_changes_of_the_sources() -> None:
    changing = ChangingSource("a")
    tools = AgentTools(changing)
    changing.names = ("b",)
    assert [spec.name for spec in tools.specs()] == ["b"]
    assert await text_of(tools, "a") == "Error: no tool 'a' (known: b)"


async def test_a_call_without_any_tools_fails() -> None:
    result = await AgentTools().run(ToolCall("1", "a", "{}"), CONTEXT)
    assert result == ToolResult("no tool 'a' (known: none)", is_error=True)


async def test_a_function_that_hangs_times_out() -> None:
    async def hang() -> None:
        """Never return."""
        await anyio.sleep_forever()

    toolbox = Toolbox()
    toolbox.add(Tool.from_function(hang))
    tools = AgentTools(OwnTools(toolbox, timeout_seconds=0.01))
    assert await text_of(tools, "hang", "") == "Error: 'hang' did not finish within 0.01 seconds"


async def test_function_names_that_model_servers_refuse_are_mapped() -> None:
    tools = AgentTools(own("plain-name", "größe", "read.file", "x" * 65))
    names = [spec.name for spec in tools.specs()]
    assert names[0] == "plain-name"
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    answers = [await text_of(tools, name, '{"word": "hi"}') for name in names]
    assert answers == ["plain-name says hi", "größe says hi", "read.file says hi", f"{'x' * 65} says hi"]


async def test_a_call_of_a_withdrawn_tool_reaches_its_source() -> None:
    changing = ChangingSource("a")
    tools = AgentTools(changing)
    assert tools.specs()
    changing.names = ()
    assert tools.specs() == ()
    assert await text_of(tools, "a") == "a for c1"
