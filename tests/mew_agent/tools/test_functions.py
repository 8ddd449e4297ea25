"""Functions as tools: their description, their arguments, and their calls."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated, Literal

import anyio
import pytest
from pydantic import BaseModel, Field

from mew_agent.tools.functions import BadArguments, Tool, Toolbox, ToolCallFailed, UnknownTool
from tests.support.waiting import PATIENCE_SECONDS


async def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def scale(value: float, by: Literal["two", "ten"] = "two") -> float:
    return value * {"two": 2, "ten": 10}[by]


def test_a_tool_is_described_by_its_annotations_and_docstring() -> None:
    tool = Tool.from_function(word_count)
    assert (tool.name, tool.description) == ("word_count", "Count the words of a text.")
    assert tool.schema["properties"]["text"]["type"] == "string"
    assert tool.schema["required"] == ["text"]


def test_a_default_makes_an_argument_optional() -> None:
    tool = Tool.from_function(scale, name="times", description="Multiplies.")
    assert tool.schema["required"] == ["value"]
    assert tool.schema["properties"]["by"]["enum"] == ["two", "ten"]
    assert (tool.name, tool.description) == ("times", "Multiplies.")
    assert Tool.from_function(scale).description == "The tool scale."


class Reading(BaseModel):
    level: int


class Branch(BaseModel):
    leaves: list["Branch"] = []


def test_a_declared_object_is_the_output_schema() -> None:
    def read() -> Reading:
        return Reading(level=3)

    def grow() -> Branch:
        return Branch()

    def odd() -> threading.Thread:
        return threading.Thread()

    tool = Tool.from_function(read, title="Read", annotations={"readOnlyHint": True})
    assert tool.listed()["outputSchema"]["properties"]["level"]["type"] == "integer"
    assert (tool.listed()["title"], tool.listed()["annotations"]) == ("Read", {"readOnlyHint": True})
    for plain in (grow, odd, scale):
        assert set(Tool.from_function(plain).listed()) == {"name", "description", "inputSchema"}


def test_a_schema_has_no_redundant_titles() -> None:
    def look(path: str, depth: Annotated[int, Field(title="How deep", ge=1)] = 1) -> None: ...

    assert Tool.from_function(look).schema == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {"type": "integer", "minimum": 1, "default": 1, "title": "How deep"},
        },
        "required": ["path"],
    }


def test_every_argument_name_is_accepted() -> None:
    def odd(schema: str, copy: int, model_config: str = "x", _hidden: int = 0) -> str:
        return f"{schema}{copy}{model_config}{_hidden}"

    assert set(Tool.from_function(odd).schema["properties"]) == {"schema", "copy", "model_config", "_hidden"}


async def test_every_argument_name_reaches_the_function() -> None:
    async def odd(schema: str, _hidden: int = 0) -> str:
        return f"{schema}{_hidden}"

    assert await Tool.from_function(odd).call({"schema": "a", "_hidden": 7}) == "a7"


def test_a_function_without_a_usable_signature_is_refused() -> None:
    def many(*args: int) -> None: ...
    def loose(**kwargs: int) -> None: ...
    def nameless(x: int, /) -> None: ...
    def opaque(x: threading.Thread) -> None: ...
    def calling(x: Callable[[], int]) -> None: ...

    for function in (many, loose, nameless, opaque, calling, lambda x: x):
        with pytest.raises(TypeError, match=f"tool '{function.__name__}'"):
            Tool.from_function(function)


async def test_arguments_are_checked_and_converted() -> None:
    assert await Tool.from_function(scale).call({"value": "2.5", "by": "ten"}) == 25.0
    with pytest.raises(BadArguments, match="bad arguments for 'scale': by: "):
        await Tool.from_function(scale).call({"value": 1, "by": "five"})
    with pytest.raises(BadArguments, match="'value' is missing"):
        await Tool.from_function(scale).call({})


async def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    class Counter:
        __name__ = "counter"

        async def __call__(self, n: int) -> int:
            return n + 1

    assert await Tool.from_function(Counter(), name="counter").call({"n": 1}) == 2


class Scaler:
    """Scales values."""

    def __init__(self, by: int) -> None:
        self.by = by

    async def __call__(self, value: int) -> int:
        return value * self.by


async def test_callable_objects_and_partials_are_tools() -> None:
    threefold = Tool.from_function(Scaler(3))
    assert (threefold.name, threefold.description) == ("Scaler", "Scales values.")
    assert await threefold.call({"value": "2"}) == 6
    counting = Tool.from_function(partial(word_count, text="one two"))
    assert (counting.name, counting.description) == ("word_count", "Count the words of a text.")
    assert await counting.call({}) == 2
    assert await Tool.from_function(lambda x: x, name="same").call({"x": 1}) == 1


async def test_a_generator_returns_the_list_of_its_values() -> None:
    threads = set[int]()

    def upto(n: int) -> Iterator[int]:
        threads.add(threading.get_ident())
        yield from range(n)

    async def each(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    assert await Tool.from_function(upto).call({"n": 3}) == [0, 1, 2]
    assert await Tool.from_function(each).call({"n": 3}) == [0, 1, 2]
    assert threading.get_ident() not in threads


async def test_a_tool_that_exits_does_not_end_the_program() -> None:
    def leave() -> None:
        sys.exit(3)

    async def leave_too() -> None:
        sys.exit("no such option")

    async def cancelled_inside() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    tools = Toolbox()
    for function in (leave, leave_too, cancelled_inside):
        tools.add(Tool.from_function(function))
    assert (await tools.run("leave", "")).prompt_text == "Error: the tool ended without a result: it called exit(3)"
    assert "exit('no such option')" in (await tools.run("leave_too", "")).text
    with pytest.raises(ToolCallFailed, match="a task it waited for was cancelled"):
        await tools.call("cancelled_inside", {})


async def test_a_tool_that_is_cancelled_from_outside_has_no_result() -> None:
    with anyio.move_on_after(0) as scope:
        await Tool.from_function(anyio.sleep).call({"delay": 60})
    assert scope.cancelled_caught


async def test_cancelling_does_not_wait_for_a_plain_function() -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(PATIENCE_SECONDS)
        ended.set()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Tool.from_function(slow).call, {})
            await anyio.to_thread.run_sync(started.wait)
            tasks.cancel_scope.cancel()
        assert not ended.is_set()
    finally:
        go_on.set()


def test_a_second_tool_with_the_same_name_is_refused() -> None:
    box = Toolbox()
    box.add(Tool.from_function(scale))
    with pytest.raises(ValueError, match="tool 'scale' already exists"):
        box.add(Tool.from_function(scale))
    assert list(box.tools) == ["scale"]


async def test_an_unknown_tool_error_lists_the_known_tools() -> None:
    box = Toolbox()
    with pytest.raises(UnknownTool, match=r"no tool 'x' \(known: none\)"):
        await box.call("x", {})
    box.add(Tool.from_function(scale))
    with pytest.raises(UnknownTool, match=r"no tool 'x' \(known: scale\)"):
        await box.call("x", {})


@pytest.mark.parametrize(
    ("name", "arguments", "seen"),
    [
        ("scale", '{"value": 3}', "6.0"),
        ("scale", "", "Error: bad arguments for 'scale': 'value' is missing"),
        ("scale", "{", "Error: bad arguments for 'scale': invalid JSON"),
        ("scale", '{"value": ' + "1" * 5000 + "}", "Error: bad arguments for 'scale': invalid JSON"),
        ("scale", "[1]", "Error: bad arguments for 'scale': arguments must be a JSON object"),
        ("nothing", "{}", "Error: no tool 'nothing'"),
        ("fails", "{}", "Error: out of paper"),
        ("fails_silently", "{}", "Error: KeyError"),
        ("unsendable", "{}", "Error: "),
        ("half", "{}", "half ? a character"),
        ("complains_in_halves", "{}", "Error: half ? a character"),
        ("half", '{"x": "\ud800"}', "half ? a character"),
    ],
)
async def test_a_tool_run_for_a_model_never_raises(name: str, arguments: str, seen: str) -> None:
    box = Toolbox()

    def fails() -> None:
        raise OSError("out of paper")

    def fails_silently() -> None:
        raise KeyError

    def unsendable() -> object:
        return object()

    def half() -> str:
        return "half \ud800 a character"

    def complains_in_halves() -> None:
        raise ValueError("half \ud800 a character")

    for function in (scale, fails, fails_silently, unsendable, half, complains_in_halves):
        box.add(Tool.from_function(function))
    result = await box.run(name, arguments)
    assert result.prompt_text.startswith(seen)
    assert result.prompt_text.encode()
