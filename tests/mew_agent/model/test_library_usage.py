"""Usage objects of client libraries and frameworks, read as they are.

openai and anthropic are the real classes; of the other libraries the fields are written down here. `make
test-frameworks` feeds objects that the installed libraries made.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types import CompletionUsage
from openai.types.responses import ResponseUsage
from pydantic import BaseModel, ConfigDict

from mew_agent.errors import InvalidReport
from mew_agent.model.usage import Usage, usage_from
from mew_agent.participant.external_context import ExternalContext

NOW = "2026-01-31T12:00:00Z"


@dataclass
class AgentsRequest:
    """One entry of `request_usage_entries` of openai-agents."""

    input_tokens: int = 400
    output_tokens: int = 2
    total_tokens: int = 402
    input_tokens_details: Any = field(default_factory=lambda: SimpleNamespace(cached_tokens=0))
    output_tokens_details: Any = field(default_factory=lambda: SimpleNamespace(reasoning_tokens=0))


@dataclass
class AgentsUsage(AgentsRequest):
    """`Usage` of openai-agents."""

    requests: int = 1
    request_usage_entries: list[AgentsRequest] = field(default_factory=list)


@dataclass(slots=True)
class PydanticAiUsage:
    """`RequestUsage` of pydantic-ai."""

    input_tokens: int = 400
    output_tokens: int = 2
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    details: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class PydanticAiRun(PydanticAiUsage):
    """`RunUsage` of pydantic-ai."""

    requests: int = 1


class CrewUsage(BaseModel):
    """`UsageMetrics` of CrewAI."""

    total_tokens: int = 402
    prompt_tokens: int = 400
    cached_prompt_tokens: int = 0
    completion_tokens: int = 2
    successful_requests: int = 1


class GoogleUsage(BaseModel):
    """`GenerateContentResponseUsageMetadata` of google-genai."""

    model_config = ConfigDict(extra="allow")
    prompt_token_count: int | None = 400
    candidates_token_count: int | None = 2
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    total_token_count: int | None = 402
    prompt_tokens_details: list[dict[str, object]] | None = None


ANTHROPIC: dict[str, Any] = {
    "id": "m1",
    "content": [],
    "model": "m",
    "role": "assistant",
    "stop_reason": None,
    "stop_sequence": None,
}


def anthropic_usage(**figures: object) -> object:
    from anthropic.types import Message  # takes more than a second, which each worker would spend while it collects

    return Message.model_validate({**ANTHROPIC, "type": "message", "usage": figures}).usage


RESPONSE_DETAILS: dict[str, Any] = {
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 1},
}
OPENAI_RESPONSE = ResponseUsage.model_validate(
    {"input_tokens": 400, "output_tokens": 2, "total_tokens": 402, **RESPONSE_DETAILS}
)
COMPUTED = Usage(400, 2, 402, total_computed=True)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            CompletionUsage(prompt_tokens=400, completion_tokens=2, total_tokens=402), Usage(400, 2, 402), id="openai"
        ),
        pytest.param(OPENAI_RESPONSE, Usage(400, 2, 402, reasoning_tokens=1, cached_tokens=8), id="openai, responses"),
        pytest.param(AgentsUsage(), Usage(400, 2, 402), id="openai-agents, one request"),
        pytest.param(PydanticAiUsage(), COMPUTED, id="pydantic-ai, one request"),
        pytest.param(
            PydanticAiUsage(cache_read_tokens=300),
            Usage(400, 2, 402, cached_tokens=300, total_computed=True),
            id="pydantic-ai counts the cache in its input",
        ),
        pytest.param(PydanticAiRun(), COMPUTED, id="pydantic-ai, a run of one request"),
        pytest.param(CrewUsage(), Usage(400, 2, 402), id="CrewAI, one request"),
        pytest.param(GoogleUsage(), Usage(400, 2, 402), id="google-genai"),
        pytest.param(
            GoogleUsage(thoughts_token_count=50, cached_content_token_count=300, total_token_count=452),
            Usage(400, 2, 452, reasoning_tokens=50, cached_tokens=300),
            id="google-genai with thoughts outside the candidates",
        ),
        pytest.param(
            GoogleUsage(candidates_token_count=None, thoughts_token_count=50, total_token_count=450),
            Usage(400, 50, 450, reasoning_tokens=50),
            id="google-genai with thoughts alone",
        ),
        pytest.param(
            {"promptTokenCount": 400, "candidatesTokenCount": 2, "totalTokenCount": 402},
            Usage(400, 2, 402),
            id="Google's own JSON",
        ),
        pytest.param(
            {"inputTokens": 10, "outputTokens": 2, "totalTokens": 402, "cacheReadInputTokens": 390},
            Usage(400, 2, 402, cached_tokens=390, cache_added=True),
            id="Bedrock with cache",
        ),
        pytest.param(
            {"inputTokens": 400, "outputTokens": 2, "totalTokens": 402, "cacheWriteInputTokens": 0},
            Usage(400, 2, 402, cached_tokens=0),
            id="Bedrock",
        ),
        pytest.param(SimpleNamespace(prompt_eval_count=400, eval_count=2, message="hi"), COMPUTED, id="Ollama"),
        pytest.param(SimpleNamespace(prompt_eval_count=None, eval_count=2), None, id="Ollama without a prompt"),
        pytest.param(SimpleNamespace(prompt_tokens=400, completion_tokens=2), COMPUTED, id="autogen"),
        pytest.param(SimpleNamespace(prompt_tokens=0, completion_tokens=0), None, id="autogen, not reported"),
        pytest.param(
            {"input_tokens": 400, "output_tokens": 2, "total_tokens": 402, "input_token_details": {"cache_read": 9}},
            Usage(400, 2, 402, cached_tokens=9),
            id="LangChain",
        ),
        pytest.param(Usage(400, 2, 402), Usage(400, 2, 402), id="our own"),
        pytest.param("402", None, id="a text"),
        pytest.param(402, None, id="a number"),
        pytest.param(CrewUsage, None, id="a class"),
        pytest.param(object(), None, id="an object without fields"),
    ],
)
def test_usage_objects_of_libraries_are_read_as_they_are(raw: object, expected: Usage | None) -> None:
    assert usage_from(raw) == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        pytest.param({"input_tokens": 400, "output_tokens": 2}, COMPUTED, id="plain"),
        pytest.param(
            {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 390},
            Usage(400, 2, 402, cached_tokens=390, total_computed=True, cache_added=True),
            id="with cache",
        ),
    ],
)
def test_usage_objects_of_anthropic_are_read_as_they_are(figures: dict[str, int], expected: Usage) -> None:
    assert usage_from(anthropic_usage(**figures)) == expected


def test_the_last_of_all_requests_fills_the_context() -> None:
    entries = [AgentsRequest(268, 0, 268), AgentsRequest()]
    found = usage_from(AgentsUsage(668, 2, 670, requests=2, request_usage_entries=entries))
    assert found == Usage(400, 2, 402, inner=Usage(668, 2, 670, is_sum=True))


@pytest.mark.parametrize(
    "total",
    [
        pytest.param(CrewUsage(total_tokens=670, prompt_tokens=668, successful_requests=2), id="CrewAI"),
        pytest.param(PydanticAiRun(input_tokens=668, requests=2), id="pydantic-ai"),
        pytest.param(
            AgentsUsage(668, 2, 670, requests=2, request_usage_entries=[AgentsRequest()]),
            id="openai-agents, one request without usage",
        ),
        pytest.param(GoogleUsage(tool_use_prompt_token_count=268, total_token_count=670), id="google-genai, search"),
    ],
)
@pytest.mark.parametrize("basis", ["reported", "agent_reported"])
def test_a_sum_over_several_calls_is_never_plainly_reported(total: object, basis: Any) -> None:
    context = ExternalContext()
    context.report(None, total, basis=basis, now=NOW, window=8192)
    status = context.status()
    assert status.context is not None
    assert (status.tokens, status.context.basis, status.context.level) == (670, "provisional", "unknown")


def test_a_sum_beyond_the_window_is_refused() -> None:
    context = ExternalContext()
    usage = CrewUsage(total_tokens=20_002, prompt_tokens=20_000, successful_requests=20)
    with pytest.raises(InvalidReport) as caught:
        context.report(None, usage, basis="reported", now=NOW, window=8192)
    assert "CrewUsage(" in str(caught.value)
    assert context.figures is None


def test_an_error_shows_the_start_of_an_unreadable_object() -> None:
    with pytest.raises(InvalidReport) as caught:
        ExternalContext().report(None, SimpleNamespace(text="x" * 10_000), basis="reported", now=NOW)
    assert len(str(caught.value)) < 600


def test_an_object_that_contains_itself_is_unreadable() -> None:
    loop = SimpleNamespace()
    loop.input_tokens = loop.usage = loop.items = loop
    assert usage_from(loop) is None
