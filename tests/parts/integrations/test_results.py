"""The readers of other libraries' results keep one contract; here with stand-ins that have the libraries' attributes.

`make test-frameworks` runs the same readers on what the installed libraries return.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace as Made
from typing import Any

import pytest

from mew_agent.model.usage import Usage
from mew_agent.parts.integrations import LibraryReply, from_crewai, from_langgraph, from_openai_agents, from_pydantic_ai

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SIZES = [(268, 0), (400, 2)]  # prompt and completion of each call of a turn
Sizes = list[tuple[int, int]]


def langgraph(sizes: Sizes, tool: str | None = None) -> object:
    """A state of LangGraph, with the messages of the turn."""
    messages: list[Any] = [Made(type="human", content="hello")]
    for prompt, completion in sizes or [(0, 0)]:
        figures = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}
        content = [{"type": tool}, {"type": "text", "text": "hi"}] if tool else "hi"
        messages.append(Made(type="ai", content=content, text="hi", usage_metadata=figures if sizes else None))
    return {"messages": messages}


def openai_agents(sizes: Sizes, tool: str | None = None) -> object:
    """A `RunResult` of openai-agents."""
    output = [Made(type=tool or "message")]
    responses = [Made(output=output, usage=Made(input_tokens=one, output_tokens=two, requests=1)) for one, two in sizes]
    return Made(final_output="hi", raw_responses=responses, to_input_list=lambda: ["hello", "hi"])


def pydantic_ai(sizes: Sizes, tool: str | None = None) -> object:
    """An `AgentRunResult` of pydantic-ai, which has 0 for what was not reported."""
    prompt, completion = sizes[-1] if sizes else (0, 0)
    parts = [Made(part_kind=tool and "builtin-tool-call"), Made(part_kind="text")]
    response = Made(usage=Made(input_tokens=prompt, output_tokens=completion), parts=parts)
    return Made(output="hi", response=response, all_messages=lambda: ["hello", "hi"])


def crewai(sizes: Sizes, tool: str | None = None) -> object:
    """An output of CrewAI, with the sum of all calls."""
    prompt, completion = sum(one for one, _ in sizes), sum(two for _, two in sizes)
    usage = Made(prompt_tokens=prompt, completion_tokens=completion, successful_requests=len(sizes))
    said = [{"role": "system", "content": "Be brief."}, {"role": "user"}, {"role": "assistant"}]
    return Made(raw="hi", token_usage=usage, messages=said)


@dataclass(frozen=True)
class Library:
    """A reader, and a stand-in for what it reads."""

    read: Callable[[Any], LibraryReply]
    result: Callable[..., object]
    has_each_call: bool = True
    tool: str | None = "web_search_call"
    """What a call of a tool at the provider's server is called; None if the result does not show it."""


LIBRARIES = {
    "langgraph": Library(from_langgraph, langgraph),
    "openai-agents": Library(from_openai_agents, openai_agents),
    "pydantic-ai": Library(from_pydantic_ai, pydantic_ai),
    "crewai": Library(from_crewai, crewai, has_each_call=False, tool=None),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]


def sizes_of(usage: Usage | None) -> tuple[int, bool] | None:
    return None if usage is None else (usage.total_tokens, usage.is_plain)


def test_one_call_is_read_with_its_text_and_history(library: Library) -> None:
    reply = library.read(library.result([(400, 2)]))
    assert (reply.text, len(reply.history)) == ("hi", 2)
    assert sizes_of(reply.usage) == (402, True)


def test_the_last_of_several_calls_fills_the_context(library: Library) -> None:
    reply = library.read(library.result(SIZES))
    assert sizes_of(reply.usage) == ((402, True) if library.has_each_call else (670, False))


def test_a_turn_without_usage_has_no_figure(library: Library) -> None:
    assert library.read(library.result([])).usage is None


@pytest.mark.parametrize("name", [name for name, one in LIBRARIES.items() if one.tool is not None])
def test_a_tool_at_the_providers_server_makes_it_a_sum(name: str) -> None:
    library = LIBRARIES[name]
    assert sizes_of(library.read(library.result([(400, 2)], library.tool)).usage) == (402, False)


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_library_has_an_example_of_fifteen_lines(name: str) -> None:
    text = (EXAMPLES / f"{name.replace('-', '_')}_agent.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 15


def test_a_crew_has_no_history() -> None:
    result = crewai([(400, 2)])
    del result.messages  # type: ignore[attr-defined]
    assert from_crewai(result).history == []
