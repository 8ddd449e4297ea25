"""Makes usage objects with installed libraries, and prints how `report_context` reads each: one JSON line for each.

    python usages.py ENVIRONMENT BASE_URL

Runs in an environment of a library, against the rehearsal model. `calls` is how many calls the model got for the
object; it is 0 for an API that the rehearsal model does not speak, and the object then has 400 + 2 tokens.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from mew_agent.participant.external_context import ExternalContext

SAID: list[Any] = [{"role": "user", "content": "What is a token?"}]
TOOL_QUESTION = 'call count_words with {"text": "one two three"}'
Made = tuple[str, object, int]


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def clients(url: str) -> Iterator[Made]:
    """openai, anthropic, autogen over HTTP; google-genai, Bedrock and Ollama from their servers' JSON."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    yield "openai", client.chat.completions.create(model="rehearsal", messages=SAID).usage, 1
    yield "openai", client.responses.create(model="rehearsal", input="What is a token?").usage, 1
    *_, last = client.chat.completions.create(
        model="rehearsal", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    yield "openai", last.usage, 1

    import anthropic

    messages = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none").messages
    yield "anthropic", messages.create(model="rehearsal", max_tokens=512, messages=SAID).usage, 1

    from autogen_core.models import UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
    autogen = OpenAIChatCompletionClient(
        model="rehearsal", base_url=url, api_key="none", model_info={**info, "family": "unknown"}
    )
    answer = asyncio.run(autogen.create([UserMessage(content="What is a token?", source="user")]))
    yield "autogen-ext", answer.usage, 1

    from google.genai.types import GenerateContentResponse

    body = {"usageMetadata": {"promptTokenCount": 400, "candidatesTokenCount": 2, "totalTokenCount": 402}}
    yield "google-genai", GenerateContentResponse.model_validate(body).usage_metadata, 0

    import botocore.session
    from botocore.stub import Stubber

    session = botocore.session.get_session()
    session.set_credentials("none", "none")
    bedrock = session.create_client("bedrock-runtime", region_name="eu-central-1")
    reply: dict[str, Any] = {
        "output": {"message": {"role": "assistant", "content": [{"text": "a piece"}]}},
        "stopReason": "end_turn",
        "metrics": {"latencyMs": 1},
        "usage": {"inputTokens": 10, "outputTokens": 2, "totalTokens": 402, "cacheReadInputTokens": 390},
    }
    with Stubber(bedrock) as stub:
        stub.add_response("converse", reply)
        said = [{"role": "user", "content": [{"text": "What is a token?"}]}]
        yield "botocore", bedrock.converse(modelId="any", messages=said)["usage"], 0

    from ollama import ChatResponse

    done = {"model": "m", "message": {"role": "assistant", "content": "a piece"}, "done": True}
    yield "ollama", ChatResponse(**done, prompt_eval_count=400, eval_count=2), 0


def openai_agents(url: str) -> Iterator[Made]:
    """The usage of a run, with each request, and that of a response."""
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent("helper", tools=[function_tool(count_words)], model="rehearsal")

    async def ask_both() -> tuple[Any, Any]:
        return await Runner.run(agent, TOOL_QUESTION), await Runner.run(agent, "What is a token?")

    first, second = asyncio.run(ask_both())
    yield "openai-agents", first.context_wrapper.usage, 2
    yield "openai-agents", second.raw_responses[-1].usage, 1


def pydantic_ai(url: str) -> Iterator[Made]:
    """The usage of a run, which is a sum, and that of a response."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    agent = Agent(OpenAIChatModel("rehearsal"), tools=[count_words])
    yield "pydantic-ai-slim", agent.run_sync(TOOL_QUESTION).usage, 2
    yield "pydantic-ai-slim", agent.run_sync("What is a token?").usage, 1
    yield "pydantic-ai-slim", agent.run_sync("What is a token?").response.usage, 1


def langgraph(url: str) -> Iterator[Made]:
    """The usage of a message."""
    from langchain_openai import ChatOpenAI

    yield "langchain-openai", ChatOpenAI(model="rehearsal").invoke("What is a token?").usage_metadata, 1


def crewai(url: str) -> Iterator[Made]:
    """The usage of a kickoff, which is a sum."""
    from crewai import LLM, Agent
    from crewai.tools import tool

    model = LLM(model="rehearsal", provider="openai")
    agent = Agent(role="r", goal="g", backstory="b", llm=model, tools=[tool(count_words)])
    yield "crewai", agent.kickoff(TOOL_QUESTION).token_usage, 2
    yield "crewai", agent.kickoff("What is a token?").token_usage, 1


MAKERS: dict[str, Callable[[str], Iterator[Made]]] = {
    "clients": clients,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "langgraph": langgraph,
    "crewai": crewai,
}


def main(environment: str, url: str) -> None:
    """Print one line for each object."""
    os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY="none")
    for library, usage, calls in MAKERS[environment](url):
        context = ExternalContext()
        context.report(None, usage, basis="reported", now=datetime.now(UTC).isoformat(), window=8192)
        assert context.figures is not None
        read = {"tokens": context.figures.tokens, "basis": context.figures.basis, "calls": calls}
        print(
            json.dumps({"library": f"{library} {version(library)}", "class": type(usage).__name__, **read}), flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
