"""Prompt counts of a server, over real HTTP."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.counting import PromptCounter, read_count
from mew_agent.model.interface import Message, ModelReply, ModelRequest, ToolCall, ToolSpec
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

LLAMA_CPP = "/v1/chat/completions/input_tokens"
VLLM = "/tokenize"
TOOL = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = ToolCall("c1", "read", '{"path":"a.md"}')
ASK = ModelRequest(
    (
        Message("system", "Be brief."),
        Message("user", "What is in a.md?", name="mia"),
        Message("assistant", "", tool_calls=(CALL,)),
        Message("tool", "窗口 1094 km", tool_call_id="c1"),
    ),
    (TOOL,),
    max_output_tokens=50,
    response_format={"type": "text"},
)


@pytest.fixture
async def model(provider: RawProvider) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel("m", provider.base_url, "sk-key", window_timeout_seconds=5)
    yield model
    await model.aclose()


async def count(model: OpenAIModel, request: ModelRequest = ASK) -> int | None:
    with anyio.fail_after(PATIENCE_SECONDS):
        return await model.count_prompt(request)


def received_paths(provider: RawProvider) -> list[str]:
    return [request.path for request in provider.received]


@pytest.mark.parametrize("request_", [ASK, ModelRequest((Message("user", "hello"),))], ids=["tools", "plain"])
async def test_the_count_equals_the_reported_prompt_tokens(request_: ModelRequest) -> None:
    async with serve_rehearsal(RehearsalOptions()) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        counted = await count(model, request_)
        async with aclosing(model.stream(request_)) as events:
            reply = [event async for event in events][-1]
        await model.aclose()
        assert isinstance(reply, ModelReply)
        assert reply.usage is not None
        assert counted == reply.usage.prompt_tokens
        assert len(server.requests) == 1


async def test_llama_cpp_counts_the_whole_request(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {LLAMA_CPP: provider.json({"input_tokens": 129})}
    assert [await count(model), await count(model)] == [129, 129]
    assert received_paths(provider) == [LLAMA_CPP, LLAMA_CPP]
    request = provider.received[0]
    assert set(request.body) == {"model", "messages", "tools"}
    assert request.body["messages"][2]["tool_calls"][0]["function"]["arguments"] == CALL.arguments
    assert request.headers["authorization"] == "bearer sk-key"


async def test_vllm_is_found_outside_v1_and_then_asked_directly(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {
        LLAMA_CPP: provider.json({"detail": "Not Found"}, status=404),
        VLLM: provider.json({"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3]}),
    }
    assert [await count(model), await count(model)] == [3, 3]
    assert received_paths(provider) == [LLAMA_CPP, VLLM, VLLM]
    assert provider.received[1].body["add_generation_prompt"] is True
    assert set(provider.received[1].body) == {"model", "messages", "tools", "add_generation_prompt"}


@pytest.mark.parametrize("status", [200, 400, 401, 404, 405, 500, 501])
async def test_a_server_without_a_counter_is_asked_once_for_each(
    provider: RawProvider, model: OpenAIModel, status: int
) -> None:
    provider.routes = {path: provider.json({"error": "no such route"}, status=status) for path in (LLAMA_CPP, VLLM)}
    assert [await count(model), await count(model)] == [None, None]
    assert received_paths(provider) == [LLAMA_CPP, VLLM]


@pytest.mark.parametrize(("body", "content_type"), [(b"{broken", "application/json"), (b"<html>", "text/html")])
async def test_an_answer_that_is_not_json_has_no_count(
    provider: RawProvider, model: OpenAIModel, body: bytes, content_type: str
) -> None:
    provider.routes = {path: provider.json(body, content_type=content_type) for path in (LLAMA_CPP, VLLM)}
    assert await count(model) is None
    assert await count(model) is None
    assert received_paths(provider) == [LLAMA_CPP, VLLM]


async def test_a_second_timeout_ends_counting(provider: RawProvider) -> None:
    provider.routes = {LLAMA_CPP: provider.silence()}
    model = OpenAIModel("m", provider.base_url, window_timeout_seconds=0.4)
    assert [await count(model) for _ in range(4)] == [None] * 4
    await model.aclose()
    assert received_paths(provider) == [LLAMA_CPP, LLAMA_CPP]


async def test_a_server_is_asked_again_after_one_failure(provider: RawProvider, model: OpenAIModel) -> None:
    assert await count(model) is None
    provider.routes = {LLAMA_CPP: provider.json({"input_tokens": 7})}
    assert await count(model) == 7
    provider.routes = {}
    assert await count(model) is None
    provider.routes = {LLAMA_CPP: provider.json({"input_tokens": 8})}
    assert await count(model) == 8


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_a_counter_that_rejects_one_request_is_kept(
    provider: RawProvider, model: OpenAIModel, status: int
) -> None:
    refusal = provider.json({"error": {"code": status, "message": "the template refuses this"}}, status=status)
    counted = []
    for answer in (provider.json({"input_tokens": 7}), refusal, provider.json({"input_tokens": 8}), refusal, refusal):
        provider.routes = {LLAMA_CPP: answer}
        counted.append(await count(model))
    assert counted == [7, None, 8, None, None]
    provider.routes = {LLAMA_CPP: provider.json({"input_tokens": 9})}
    assert await count(model) is None
    assert received_paths(provider) == [LLAMA_CPP] * 5


async def test_an_overflow_answer_provides_the_count(provider: RawProvider, model: OpenAIModel) -> None:
    error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 12015, "n_ctx": 2048, "message": "no"}
    provider.routes = {LLAMA_CPP: provider.json({"error": error}, status=400)}
    assert [await count(model), await count(model)] == [12015, 12015]


@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", "https://mine.openai.azure.com/openai/v1"])
async def test_openai_hosts_are_never_asked_to_count(base_url: str) -> None:
    async def fetch(*_: object) -> object:
        raise AssertionError("sent a request")

    assert await PromptCounter(base_url, "gpt-5").count(fetch, ASK) is None


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"input_tokens": 5, "object": "response.input_tokens"}, 5),
        ({"count": 5, "tokens": []}, 5),
        ({"input_tokens": 0}, None),
        ({"input_tokens": True}, None),
        ({"input_tokens": "5"}, None),
        ({"tokens": []}, None),
        ([5], None),
        (None, None),
    ],
)
def test_only_a_positive_whole_number_is_a_count(answer: object, tokens: int | None) -> None:
    assert read_count(answer) == tokens


@given(st.recursive(st.none() | st.booleans() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_answer_can_be_read(answer: object) -> None:
    assert read_count(answer) is None or read_count(answer) > 0  # type: ignore[operator]
