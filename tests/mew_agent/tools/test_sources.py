"""Tools from several sources under one set of names."""

import re

import anyio

from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.tools.functions import Tool, Toolbox
from mew_agent.tools.sources import AgentTools, Occasion, OwnTools

OCCASION = Occasion("c1")


def own(*names: str) -> OwnTools:
    toolbox = Toolbox()
    for name in names:

        def say(word: str = "nothing", own_name: str = name) -> str:
            return f"{own_name} says {word}"

        toolbox.add(Tool.of(say, name=name))
    return OwnTools(toolbox)


class Changing:
    """A source that offers other tools later."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(ToolSpec(name, "", {}) for name in self.names)

    async def observe(self, call: ToolCall, occasion: Occasion) -> str:
        return f"{call.name} for {occasion.chat_id}"


async def test_the_model_is_told_of_every_source_in_order() -> None:
    tools = AgentTools(own("a", "b"))
    tools.add(own("c"))
    assert [spec.name for spec in tools.specs()] == ["a", "b", "c"]


async def test_a_call_goes_to_the_source_that_offers_it() -> None:
    tools = AgentTools(own("a"), Changing("b"))
    assert await tools.observe(ToolCall("1", "a", '{"word": "hello"}'), OCCASION) == "a says hello"
    assert await tools.observe(ToolCall("2", "b", "{}"), OCCASION) == "b for c1"


async def test_of_two_tools_of_one_name_the_first_is_offered_and_called() -> None:
    tools = AgentTools(own("a"), Changing("a", "b"))
    assert [spec.name for spec in tools.specs()] == ["a", "b"]
    assert await tools.observe(ToolCall("1", "a", "{}"), OCCASION) == "a says nothing"


async def test_what_is_offered_follows_the_sources() -> None:
    changing = Changing("a")
    tools = AgentTools(changing)
    changing.names = ("b",)
    assert [spec.name for spec in tools.specs()] == ["b"]
    assert await tools.observe(ToolCall("1", "a", "{}"), OCCASION) == "Error: no tool 'a' (known: b)"


async def test_without_tools_a_call_is_told_that_there_are_none() -> None:
    assert await AgentTools().observe(ToolCall("1", "a", "{}"), OCCASION) == "Error: no tool 'a' (known: none)"


async def test_a_function_of_our_own_that_hangs_is_given_up() -> None:
    async def hang() -> None:
        """Never comes back."""
        await anyio.sleep_forever()

    toolbox = Toolbox()
    toolbox.add(Tool.of(hang))
    tools = AgentTools(OwnTools(toolbox, timeout_seconds=0.01))
    assert (
        await tools.observe(ToolCall("1", "hang", ""), OCCASION) == "Error: 'hang' did not finish within 0.01 seconds"
    )


async def test_a_function_whose_name_no_model_server_takes_gets_another_for_the_model() -> None:
    tools = AgentTools(own("plain-name", "größe", "read.file", "x" * 65))
    names = [spec.name for spec in tools.specs()]
    assert names[0] == "plain-name"
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    said = [await tools.observe(ToolCall("1", name, '{"word": "hi"}'), OCCASION) for name in names]
    assert said == ["plain-name says hi", "größe says hi", "read.file says hi", f"{'x' * 65} says hi"]


async def test_a_tool_that_is_gone_is_still_its_sources_matter() -> None:
    changing = Changing("a")
    tools = AgentTools(changing)
    assert tools.specs()
    changing.names = ()
    assert tools.specs() == ()
    assert await tools.observe(ToolCall("1", "a", "{}"), OCCASION) == "a for c1"
