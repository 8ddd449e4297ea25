"""Conversations of the official SDKs through a meter: each figure that it shows is the one that the SDK received."""

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.parts.meter.calls import MeasuredCalls
from mew_agent.parts.rehearsal import (
    RehearsalOptions,
    RehearsalServer,
    ScriptedReply,
    ScriptedToolCall,
    serve_rehearsal,
)
from mew_agent.parts.shared.relay import serve_relay
from tests.parts.meter.test_relay import KEY, Observed
from tests.support.warm_start import MEW

SCRIPT = (ScriptedReply(tool_calls=(ScriptedToolCall(name="read", arguments='{"path": "a"}'),)),)
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
QUESTIONS = ("What does a.txt hold?", "And what does b.txt hold?", "Thank you very much.")


@asynccontextmanager
async def metered() -> AsyncIterator[tuple[RehearsalServer, Observed, str]]:
    observed = Observed()
    options = RehearsalOptions(script=SCRIPT, visible_reasoning="Let me think.", prefix_cache=True)
    async with serve_rehearsal(options) as server, serve_relay(server.base_url, MeasuredCalls(observed)) as url:
        yield server, observed, url


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_conversation_of_the_responses_api_is_one_line(is_streamed: bool) -> None:
    tools: Any = [{"type": "function", "name": "read", "description": "", "parameters": SCHEMA, "strict": False}]
    items: list[Any] = []
    totals: list[int] = []
    async with metered() as (_, observed, url), openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:

        async def ask() -> Any:
            about: Any = {"model": "rehearsal", "instructions": "Be brief.", "input": items, "tools": tools}
            if is_streamed:
                async with client.responses.stream(**about) as stream:
                    return await stream.get_final_response()
            return await client.responses.create(**about)

        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            response = await ask()
            totals.append(response.usage.total_tokens)
            # Clients send reasoning back without its text, or not at all.
            items += [item.model_dump(exclude_none=True) for item in response.output if item.type != "reasoning"]
            for item in response.output:
                if item.type == "function_call":
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": "42"})
            await client.responses.create(model="small", input=f"A title for: {question}")
    assert [call.usage.total_tokens for call in observed.ended[::2] if call.usage is not None] == totals
    assert [call.verdict for call in observed.ended[::2]] == ["main", "main", "provisional"]
    assert {call.reason for call in observed.ended[1::2]} == {"no tools"}


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_conversation_of_the_messages_api_is_one_line(is_streamed: bool) -> None:
    import anthropic  # takes more than a second, which each worker would spend while it collects

    tools: Any = [{"name": "read", "description": "", "input_schema": SCHEMA}]
    messages: list[Any] = []
    totals: list[int] = []
    async with metered() as (_, observed, url):
        base = url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base, api_key=KEY, max_retries=0) as client:
            for number, question in enumerate(QUESTIONS):
                asked: Any = {"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}
                if messages and messages[-1]["role"] == "user":
                    messages[-1]["content"].append(asked)
                else:
                    messages.append({"role": "user", "content": [asked]})
                # The system prompt names the call, as that of Claude Code does.
                about: Any = {"model": "rehearsal", "max_tokens": 400, "system": f"Call {number}.", "tools": tools}
                if is_streamed:
                    async with client.messages.stream(**about, messages=messages) as stream:
                        reply = await stream.get_final_message()
                else:
                    reply = await client.messages.create(**about, messages=messages)
                usage = reply.usage
                totals.append(usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens)
                del asked["cache_control"]  # the mark moves on to the newest message
                messages.append({"role": "assistant", "content": [one.model_dump() for one in reply.content]})
                results = [
                    {"type": "tool_result", "tool_use_id": one.id, "content": "42"}
                    for one in reply.content
                    if one.type == "tool_use"
                ]
                if results:
                    messages.append({"role": "user", "content": results})
    assert [call.usage.total_tokens for call in observed.ended if call.usage is not None] == totals
    assert [call.verdict for call in observed.ended] == ["main", "main", "provisional"]


async def test_command_prints_calls_and_never_a_key_or_text(gateway: RunningGateway) -> None:
    async with serve_rehearsal() as server:
        command = [*MEW, "meter", "--upstream", server.base_url, "--listen", "127.0.0.1:0"]
        about = ["--gateway", gateway.url, "--space", "demo", "--participant", "coder", "--token"]
        process = subprocess.Popen(
            [*command, *about, gateway.token_of("coder"), "--json", "--log-level", "debug"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = await anyio.to_thread.run_sync(process.stdout.readline)
            url = re.findall(r'"url":"(http[^"]+)"', first)[0]
            async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                messages: Any = [{"role": "user", "content": "A private question."}]
                await client.chat.completions.create(model="m", messages=messages)
            line = await anyio.to_thread.run_sync(process.stdout.readline)
        finally:
            process.terminate()
            rest, errors = await anyio.to_thread.run_sync(process.communicate)
    assert '"is":"aside","reason":"no tools"' in line
    for text in (first, line, rest, errors):
        assert KEY not in text
        assert "private" not in text
