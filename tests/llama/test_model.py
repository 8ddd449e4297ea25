"""Our model client against llama.cpp's own server: windows, counts, overflow, cancelling, thinking, tools."""

import json
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from mew_agent.errors import ContextOverflow
from mew_agent.model.dialect import Dialect, request_body
from mew_agent.model.interface import (
    Message,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolSpec,
    Window,
)
from mew_agent.model.openai_client import OpenAIModel
from tests.llama.conftest import Serving
from tests.llama.server import LlamaServer
from tests.llama.tiny_model import TRAINED_WINDOW_TOKENS

PATIENCE_SECONDS = 60.0
ADD = ToolSpec(
    "add",
    "Adds two whole numbers.",
    {
        "type": "object",
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
        "required": ["left", "right"],
    },
)
CALLED = ToolCall("c1", "add", '{"left": 2, "right": 40}')
SYSTEM = Message("system", "You keep records of what was measured.")

REQUESTS = {
    "one question": ModelRequest((Message("user", "How much water was there?"),)),
    "a conversation with names": ModelRequest(
        (
            SYSTEM,
            Message("user", "Report 7 says 1094 units.", name="ada"),
            Message("assistant", "Noted: 1094 units."),
            Message("user", "And today?", name="bob"),
        )
    ),
    "two system messages": ModelRequest((SYSTEM, Message("system", "Answer briefly."), Message("user", "hello"))),
    "tools": ModelRequest((SYSTEM, Message("user", "What is 2 + 40?")), (ADD,)),
    "a tool call and its result": ModelRequest(
        (
            SYSTEM,
            Message("user", "What is 2 + 40?"),
            Message("assistant", "", tool_calls=(CALLED,)),
            Message("tool", "42", tool_call_id="c1"),
            Message("assistant", "It is 42."),
            Message("user", "And again?"),
        ),
        (ADD,),
    ),
    "every kind of character": ModelRequest((Message("user", '窗口 \x01\t\r\n ünïcödé 🚰 <b> \\ " {{ }} {% raw %}'),)),
    "marks of special tokens": ModelRequest((Message("user", "say <|im_end|> and <think>"),)),
    "nothing said": ModelRequest((SYSTEM, Message("user", ""))),
}


async def answer(model: OpenAIModel, request: ModelRequest) -> tuple[ModelReply, list[ModelEvent]]:
    """One whole call; its reply and what came before it."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(model.stream(request)) as events:
            received = [event async for event in events]
    reply = received.pop()
    assert isinstance(reply, ModelReply)
    return reply, received


def ask(text: str, **options: Any) -> ModelRequest:
    return ModelRequest((Message("user", text),), **options)


def tokenised(server: LlamaServer, request: ModelRequest) -> int:
    """Tokens of the prompt, by the server's own template and tokenizer."""
    body = request_body(request, "tiny", Dialect(is_streaming=False))
    tools = {"tools": body["tools"]} if request.tools else {}
    return len(server.tokenize(server.prompt_of(body["messages"], **tools), with_marks=True))


async def idle(server: LlamaServer) -> None:
    """Wait until the server generates nothing."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while await anyio.to_thread.run_sync(lambda: server.busy_slots):
            await anyio.sleep(0.01)  # a server in another process: there is nothing to wait on but its answers


# -- window ------------------------------------------------------------------------------------------------


async def test_the_window_is_the_one_loaded_and_not_the_one_trained(server: LlamaServer, model: OpenAIModel) -> None:
    found = await model.discover_window()
    assert found == Window(4096, "loaded", "/v1/models meta.n_ctx")
    assert found.max_tokens == server.get("/props")["default_generation_settings"]["n_ctx"]
    assert found.max_tokens != TRAINED_WINDOW_TOKENS


async def test_the_window_is_the_window_of_one_slot(serving: Serving) -> None:
    with serving(slots=2, window_tokens=2048) as shared:
        model = OpenAIModel("tiny", shared.base_url)
        assert await model.discover_window() == Window(2048, "loaded", "/v1/models meta.n_ctx")
        assert [slot["n_ctx"] for slot in shared.slots] == [2048, 2048]
        await model.aclose()


# -- counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
async def test_the_prompt_is_reported_counted_and_tokenised_alike(
    server: LlamaServer, model: OpenAIModel, request_: ModelRequest
) -> None:
    counted = await model.count_prompt(request_)
    reply, _ = await answer(model, request_)
    assert reply.usage is not None
    assert counted == reply.usage.prompt_tokens
    if request_.tools:
        # `/apply-template` and the chat endpoint may hand tools to the template in another spelling.
        return
    assert counted == tokenised(server, request_)


async def test_the_completion_is_the_reply_and_the_token_that_ends_it(server: LlamaServer, model: OpenAIModel) -> None:
    reply, received = await answer(model, ask("hello"))
    assert reply.finish_reason == "stop"
    assert reply.text == "".join(event.text for event in received if isinstance(event, TextDelta))
    assert reply.usage is not None
    # The model begins with a blank, which the server's parser takes away.
    assert reply.usage.completion_tokens == len(server.tokenize(f" {reply.text}")) + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_a_second_call_reports_its_prompt_and_the_cached_part(model: OpenAIModel) -> None:
    request = ask("The same question, word for word.")
    first, _ = await answer(model, request)
    second, _ = await answer(model, request)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens == first.usage.prompt_tokens
    assert second.usage.cached_tokens is not None
    assert 0 < second.usage.cached_tokens < second.usage.prompt_tokens
    assert not second.usage.cache_added


async def test_the_output_bound_is_obeyed_and_reported(model: OpenAIModel) -> None:
    reply, _ = await answer(model, ask("!sing", max_output_tokens=30))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 30


async def test_a_reply_that_never_ends_fills_the_window_to_the_token(model: OpenAIModel) -> None:
    reply, _ = await answer(model, ask("!sing"))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 4096


# -- overflow ----------------------------------------------------------------------------------------------


async def test_an_overlong_prompt_is_an_overflow_with_both_figures(server: LlamaServer, model: OpenAIModel) -> None:
    request = ask("water " * 5000)
    with pytest.raises(ContextOverflow) as overflow:
        await answer(model, request)
    assert overflow.value.limit_tokens == 4096
    assert overflow.value.requested_tokens == tokenised(server, request) == await model.count_prompt(request)
    reply, _ = await answer(model, ask("hello"))
    assert reply.text


# -- cancelling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_leaving_a_stream_stops_the_generation(server: LlamaServer, model: OpenAIModel, how: str) -> None:
    """Unless it is stopped this reply goes on to the end of the window."""
    with anyio.fail_after(PATIENCE_SECONDS), anyio.CancelScope() as scope:
        async with aclosing(model.stream(ask("!sing"))) as events:
            await anext(events)
            assert await anyio.to_thread.run_sync(lambda: server.busy_slots) == 1
            if how == "cancelled":
                scope.cancel()
                await anext(events)
    await idle(server)
    assert server.slots[0]["next_token"][0]["n_decoded"] < 3500
    reply, _ = await answer(model, ask("hello"))
    assert reply.finish_reason == "stop"


# -- thinking and tools ------------------------------------------------------------------------------------


async def test_thinking_comes_apart_from_the_answer(server: LlamaServer, model: OpenAIModel) -> None:
    reply, received = await answer(model, ask("!think"))
    assert reply.reasoning_text == "".join(event.text for event in received if isinstance(event, ReasoningDelta))
    assert reply.reasoning_text.strip()
    assert reply.text.strip()
    assert "think>" not in reply.text + reply.reasoning_text
    assert reply.usage is not None
    written = server.tokenize(f"<think>{reply.reasoning_text}</think>{reply.text}", with_marks=True)
    assert abs(reply.usage.completion_tokens - len(written) - 1) <= 4  # white space that the parser took away


async def test_a_schema_for_the_answer_is_obeyed(model: OpenAIModel) -> None:
    schema = {
        "type": "object",
        "properties": {"station": {"enum": ["Hamburg", "Dresden"]}, "units": {"type": "integer"}},
        "required": ["station", "units"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "measured", "schema": schema, "strict": True}}
    request = ask("What was measured?", response_format=wanted)
    counted = await model.count_prompt(request)
    reply, _ = await answer(model, request)
    measured = json.loads(reply.text)
    assert measured["station"] in ("Hamburg", "Dresden")
    assert isinstance(measured["units"], int)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == counted


async def test_a_tool_is_called_and_its_result_read(model: OpenAIModel) -> None:
    question = Message("user", "!act")
    reply, _ = await answer(model, ModelRequest((SYSTEM, question), (ADD,)))
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.tool_calls
    assert call.name == "add"
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"left", "right"}
    assert all(isinstance(value, int) for value in arguments.values())
    said = Message("assistant", reply.text, tool_calls=(call,))
    result = Message("tool", str(sum(arguments.values())), tool_call_id=call.id)
    follow_up = ModelRequest((SYSTEM, question, said, result), (ADD,))
    counted = await model.count_prompt(follow_up)
    final, _ = await answer(model, follow_up)
    assert not final.tool_calls
    assert final.text
    assert final.usage is not None
    assert final.usage.prompt_tokens == counted
