"""The responses and messages APIs of the rehearsal model, read by the SDKs of OpenAI and Anthropic."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from mew_agent.parts.rehearsal import (
    RehearsalOptions,
    RehearsalServer,
    ScriptedReply,
    ScriptedToolCall,
    serve_rehearsal,
)
from mew_agent.parts.rehearsal.messages_api import as_chat as messages_as_chat
from mew_agent.parts.rehearsal.responses_api import as_chat as responses_as_chat

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
SCRIPT = (
    ScriptedReply(tool_calls=(ScriptedToolCall(name="read", arguments='{"path": "a b.txt"}'),)),
    ScriptedReply(text="The file holds 42."),
)


@pytest.fixture
async def server() -> AsyncIterator[RehearsalServer]:
    async with serve_rehearsal(RehearsalOptions(visible_reasoning="Let me think.", api_key="sk-1")) as running:
        yield running


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_openai_sdk_reads_a_tool_call_and_an_answer(server: RehearsalServer, is_streamed: bool) -> None:
    server.change(script=SCRIPT)
    tools: Any = [{"type": "function", "name": "read", "description": "", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = [{"role": "user", "content": "What does it hold?"}]
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-1", max_retries=0) as client:

        async def ask() -> Any:
            about: Any = {"model": "rehearsal", "instructions": "Be brief.", "input": items, "tools": tools}
            if not is_streamed:
                return await client.responses.create(**about)
            async with client.responses.stream(**about) as stream:
                async for _ in stream:
                    pass
                return await stream.get_final_response()

        first = await ask()
        reasoning, call = first.output
        assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Let me think.")
        assert (call.name, call.arguments) == ("read", '{"path": "a b.txt"}')
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "42"})
        second = await ask()
        counted = await client.post("/responses/input_tokens", cast_to=object, body={"input": items, "tools": tools})
    assert second.output_text == "The file holds 42."
    assert [recorded.prompt_tokens for recorded in server.requests] == [
        first.usage.input_tokens,
        second.usage.input_tokens,
    ]
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.output_tokens_details.reasoning_tokens > 0
    assert isinstance(counted, dict)
    assert 0 < counted["input_tokens"] < second.usage.input_tokens  # without the instructions


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_anthropic_sdk_reads_a_tool_call_and_an_answer(server: RehearsalServer, is_streamed: bool) -> None:
    import anthropic  # takes more than a second, which each worker would spend while it collects

    server.change(script=SCRIPT, prefix_cache=True)
    tools: Any = [{"name": "read", "description": "", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": "What does it hold?"}]
    base = server.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base, api_key="sk-1", max_retries=0) as client:

        async def ask() -> Any:
            about: Any = {"model": "rehearsal", "max_tokens": 500, "system": "Be brief.", "messages": messages}
            if not is_streamed:
                return await client.messages.create(**about, tools=tools)
            async with client.messages.stream(**about, tools=tools) as stream:
                return await stream.get_final_message()

        first = await ask()
        thinking, call = first.content
        assert (thinking.type, thinking.thinking) == ("thinking", "Let me think.")
        assert (call.name, call.input, first.stop_reason) == ("read", {"path": "a b.txt"}, "tool_use")
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
        )
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "42"}]}
        messages.append({"role": "user", "content": [result]})
        second = await ask()
        counted = await client.messages.count_tokens(model="m", system="Be brief.", messages=messages, tools=tools)
    assert (second.content[-1].text, second.stop_reason) == ("The file holds 42.", "end_turn")
    prompt = second.usage.input_tokens + second.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens > 0
    assert prompt == server.requests[-1].prompt_tokens == counted.input_tokens
    assert second.usage.output_tokens == server.requests[-1].completion_tokens


async def test_overflow_and_a_wrong_key_are_errors_of_each_api(server: RehearsalServer) -> None:
    import anthropic  # takes more than a second, which each worker would spend while it collects

    question: Any = "word " * 9000
    base = server.base_url.removesuffix("/v1")
    async with (
        openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-1", max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=base, api_key="sk-1", max_retries=0) as other,
        anthropic.AsyncAnthropic(base_url=base, api_key="sk-2", max_retries=0) as stranger,
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await one.responses.create(model="m", input=question)
        messages: Any = [{"role": "user", "content": question}]
        with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
            await other.messages.create(model="m", max_tokens=5, messages=messages)
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model="m", max_tokens=5, messages=messages)
        response = await one.responses.create(model="m", input="Hello there, you.", max_output_tokens=2)
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )


def test_requests_of_all_apis_say_the_same() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}
    text = {"type": "text", "text": "Hm."}
    expected = [("system", "Be brief."), ("user", "Read."), ("assistant", [text]), ("tool", "42"), ("user", [text])]
    use = {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "x"}}
    messages: list[Any] = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": [text, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}, text]},
    ]
    items: list[Any] = [
        {"role": "user", "content": "Read."},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [text]},
        {"type": "custom_tool_call", "call_id": "c", "name": "read", "input": '{"path": "x"}'},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "42"},
        {"role": "user", "content": [text]},
    ]
    of_messages: Any = messages_as_chat({"system": "Be brief.", "messages": messages})["messages"]
    of_items: Any = responses_as_chat({"instructions": "Be brief.", "input": items})["messages"]
    assert [(one["role"], one["content"]) for one in of_messages] == expected
    assert of_messages[2]["tool_calls"] == [call]
    calls = of_items.pop(3)
    assert [(one["role"], one["content"]) for one in of_items] == expected
    assert calls["tool_calls"] == [call]


async def test_a_tool_in_a_namespace_is_called_in_it(server: RehearsalServer) -> None:
    functions: Any = [{"type": "function", "name": "read_board", "description": "", "parameters": SCHEMA}]
    tools: Any = [{"type": "namespace", "name": "mcp__mew", "tools": functions}]
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-1", max_retries=0) as client:
        text = 'call mcp__mew.read_board with {"path": "x"}'
        response = await client.responses.create(model="m", input=text, tools=tools)
    (call,) = [one.model_dump() for one in response.output if one.type == "function_call"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__mew", "read_board", '{"path": "x"}')
    chat: Any = responses_as_chat({"input": [call]})
    assert chat["messages"][0]["tool_calls"][0]["function"]["name"] == "mcp__mew.read_board"
