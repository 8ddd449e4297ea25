"""One row per provider: how it reports usage and its window, and how it answers an overflow.

The bytes are replayed over real HTTP through the one door, window discovery included. What a row says is recorded
from a running server (llama.cpp, llama-cpp-python) or taken from the provider's documentation and source (all others);
docs/explanation/models.md says which is which.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from mew_agent.errors import ContextOverflow, ModelError, ModelStreamCut
from mew_agent.model.interface import Message, ModelReply, ModelRequest, Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.usage import Usage
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import Answer, RawProvider
else:
    Answer = RawProvider = Any

ASK = ModelRequest((Message("user", "How long is the Elbe?"),))
COUNTS = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def piece(content: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    delta = {} if content is None else {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


def bare(**fields: Any) -> dict[str, Any]:
    """A chunk without a choice."""
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], **fields}


@dataclass(frozen=True)
class Overflow:
    """An answer to a request that does not fit, and the figures in it."""

    status: int
    body: object
    limit_tokens: int | None
    requested_tokens: int | None = None


@dataclass(frozen=True)
class Row:
    """A provider. `streams` are variants of the same reply."""

    streams: tuple[tuple[object, ...], ...]
    usage: Usage | None
    listing: object
    window: tuple[int, str] | None
    overflows: tuple[Overflow, ...] = ()
    overflows_as_empty_stream: bool = False
    other_routes: dict[str, object] = field(default_factory=dict)
    path: str = "/v1"


PLAIN = Usage(900, 100, 1000)
DETAILED = {
    **COUNTS,
    "prompt_tokens_details": {"cached_tokens": 512, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 64, "accepted_prediction_tokens": 0},
}

ROWS = {
    "OpenAI": Row(
        streams=(
            (
                piece("", usage=None),
                piece("1094 km", usage=None),
                piece(finish="stop", usage=None),
                bare(usage=DETAILED),
            ),
        ),
        usage=Usage(900, 100, 1000, reasoning_tokens=64, cached_tokens=512),
        listing={"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "system"}]},
        window=None,
        overflows=(
            Overflow(
                400,
                {
                    "message": "This model's maximum context length is 128000 tokens. However, your messages resulted"
                    " in 130512 tokens. Please reduce the length of the messages.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                },
                128_000,
                130_512,
            ),
        ),
    ),
    "Azure": Row(
        streams=(
            (
                bare(model="", prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}]),
                piece("1094 km", usage=None),
                piece(finish="stop", usage=None),
                bare(usage=COUNTS),
            ),
        ),
        usage=PLAIN,
        listing={"data": [{"id": "m", "status": "succeeded", "owned_by": "openai", "capabilities": {}}]},
        window=None,
        overflows=(
            Overflow(
                400,
                {
                    "message": "This model's maximum context length is 16385 tokens. However, your messages resulted"
                    " in 20011 tokens. Please reduce the length of the messages.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                },
                16_385,
                20_011,
            ),
        ),
    ),
    "llama.cpp": Row(
        streams=(
            (
                piece("1094 km"),
                piece(finish="stop"),
                bare(
                    usage={**COUNTS, "prompt_tokens_details": {"cached_tokens": 880}},
                    timings={"cache_n": 880, "prompt_n": 20, "predicted_n": 100},
                ),
            ),
        ),
        usage=Usage(900, 100, 1000, cached_tokens=880),
        listing={"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 32_768}}]},
        window=(2048, "loaded"),
        overflows=(
            Overflow(
                400,
                {
                    "code": 400,
                    "message": "request (12015 tokens) exceeds the available context size (2048 tokens), try"
                    " increasing it",
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 12_015,
                    "n_ctx": 2048,
                },
                2048,
                12_015,
            ),
        ),
    ),
    "llama-cpp-python": Row(
        streams=((piece("1094 km"), piece(finish="stop")),),
        usage=None,
        listing={"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "me", "permissions": []}]},
        window=None,
        overflows=(
            Overflow(
                400,
                {
                    "message": "This model's maximum context length is 2048 tokens. However, you requested 12019"
                    " tokens (12015 in the messages, 4 in the completion). Please reduce the length of the messages"
                    " or completion.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                },
                2048,
                12_019,
            ),
        ),
        overflows_as_empty_stream=True,
    ),
    "LM Studio": Row(
        streams=((piece("1094 km"), piece(finish="stop"), bare(usage=COUNTS)),),
        usage=PLAIN,
        listing={"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "organization_owner"}]},
        window=(16_384, "loaded"),
        overflows=(
            Overflow(
                200,
                {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
                None,
            ),
            Overflow(
                400,
                "Trying to keep the first 4096 tokens when context the overflows. However, the model is loaded with"
                " context length of only 2048 tokens, which is not enough.",
                2048,
            ),
        ),
        overflows_as_empty_stream=True,
        other_routes={
            "/api/v0/models": {"data": [{"id": "m", "state": "loaded", "max_context_length": 131_072}]},
            "/api/v1/models": {
                "models": [
                    {
                        "key": "m",
                        "max_context_length": 131_072,
                        "loaded_instances": [{"id": "m", "config": {"context_length": 16_384}}],
                    }
                ]
            },
        },
    ),
    "Ollama": Row(
        streams=(
            (piece("1094 km"), piece(finish="stop"), bare(usage=COUNTS)),
            (piece("1094 km", usage=ZEROS), piece(finish="stop", usage=ZEROS), bare(usage=COUNTS)),
        ),
        usage=PLAIN,
        listing={"object": "list", "data": [{"id": "m:latest", "object": "model", "owned_by": "library"}]},
        window=(4096, "loaded"),
        overflows=(
            Overflow(400, {"message": "the input length exceeds the context length", "type": "api_error"}, None),
        ),
        other_routes={
            "/api/ps": {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 4096}]},
            "/api/show": {"model_info": {"general.architecture": "llama", "llama.context_length": 131_072}},
        },
    ),
    "vLLM": Row(
        streams=(
            (piece("1094 km"), piece(finish="stop"), bare(usage=COUNTS)),
            (
                piece("1094", usage={"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960}),
                piece(" km", finish="stop", usage=COUNTS),
                bare(usage=COUNTS),
            ),
        ),
        usage=PLAIN,
        listing={"data": [{"id": "m", "owned_by": "vllm", "root": "org/m", "max_model_len": 8192}]},
        window=(8192, "loaded"),
        overflows=(
            Overflow(
                400,
                {
                    "message": "This model's maximum context length is 8192 tokens. However, your request has 9000"
                    " input tokens. Please reduce the length of the input messages.",
                    "type": "BadRequestError",
                    "param": None,
                    "code": 400,
                },
                8192,
                9000,
            ),
        ),
    ),
    "OpenRouter": Row(
        streams=(
            (
                b": OPENROUTER PROCESSING",
                piece("1094 km", provider="Acme"),
                b": OPENROUTER PROCESSING",
                piece(finish="stop", provider="Acme", native_finish_reason="end_turn"),
                bare(usage={**COUNTS, "cost": 0.00095, "cost_details": {"upstream_inference_cost": None}}),
            ),
        ),
        usage=PLAIN,
        listing={
            "data": [
                {"id": "a/m", "context_length": 200_000, "top_provider": {"context_length": 131_072}},
                {"id": "a/other", "context_length": 8192, "top_provider": {"context_length": 8192}},
            ]
        },
        window=(131_072, "loaded"),
        overflows=(
            Overflow(
                400,
                {
                    "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about"
                    " 140012 tokens (140012 of text input). Please reduce the length.",
                    "code": 400,
                },
                131_072,
                140_012,
            ),
        ),
        path="/api/v1",
    ),
    "Anthropic": Row(
        streams=((piece("1094 km"), piece(finish="stop"), bare(usage=COUNTS)),),
        usage=PLAIN,
        listing={"data": [{"type": "model", "id": "m", "display_name": "M"}, {"type": "model", "id": "n"}]},
        window=None,
        overflows=(
            Overflow(
                400,
                {
                    "code": "invalid_request_error",
                    "message": "prompt is too long: 208656 tokens > 200000 maximum",
                    "type": "invalid_request_error",
                    "param": None,
                },
                200_000,
                208_656,
            ),
        ),
    ),
}

WINDOW_PATHS = ("/api/v0/models", "/api/v1/models", "/api/ps", "/api/show")

each_row = pytest.mark.parametrize("name", ROWS)


@pytest.fixture
async def model(provider: RawProvider, name: str) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel("a/m" if name == "OpenRouter" else "m", url(provider, ROWS[name]), "sk-key", max_retries=0)
    yield model
    await model.aclose()


def url(provider: RawProvider, row: Row) -> str:
    """The base URL of this provider, on the replaying server."""
    return provider.base_url.removesuffix("/v1") + row.path


async def reply_of(model: OpenAIModel) -> ModelReply:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with aclosing(model.stream(ASK)) as events:
            *_, reply = [event async for event in events]
    assert isinstance(reply, ModelReply)
    return reply


async def error_of(model: OpenAIModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await reply_of(model)
    return caught.value


@each_row
async def test_usage_is_the_last_report_of_each_provider(provider: RawProvider, model: OpenAIModel, name: str) -> None:
    for stream in ROWS[name].streams:
        provider.answers = [provider.events(*stream)]
        reply = await reply_of(model)
        assert (reply.text, reply.finish_reason) == ("1094 km", "stop")
        assert reply.usage == ROWS[name].usage
    assert all(request.body["stream_options"] == {"include_usage": True} for request in provider.received)


@each_row
async def test_a_broken_stream_of_each_provider_is_a_cut(provider: RawProvider, model: OpenAIModel, name: str) -> None:
    first = next(chunk for chunk in ROWS[name].streams[0] if isinstance(chunk, dict) and chunk["choices"])
    provider.answers = [provider.events(first, end="open", then="close")]
    assert isinstance(await error_of(model), ModelStreamCut)


@each_row
async def test_the_window_of_each_provider_is_found(provider: RawProvider, model: OpenAIModel, name: str) -> None:
    row = ROWS[name]
    missing = provider.json({"error": "not found"}, status=404)
    provider.routes = {
        **dict.fromkeys(WINDOW_PATHS, missing),
        **{path: provider.json(body) for path, body in row.other_routes.items()},
        f"{row.path}/models": provider.json(row.listing),
    }
    found = await model.discover_window()
    assert (found and (found.max_tokens, found.basis)) == row.window
    assert found is None or isinstance(found, Window)


def answered_with(provider: RawProvider, overflow: Overflow) -> Answer:
    """LM Studio sends an error body with HTTP 200; the others send an object under `error`."""
    body = overflow.body if overflow.status == 200 else {"error": overflow.body}
    return provider.json(body, status=overflow.status)


@each_row
async def test_the_overflow_error_of_each_provider_is_read(
    provider: RawProvider, model: OpenAIModel, name: str
) -> None:
    for overflow in ROWS[name].overflows:
        provider.answers = [answered_with(provider, overflow)]
        error = await error_of(model)
        assert isinstance(error, ContextOverflow), json.dumps(overflow.body)
        assert (error.limit_tokens, error.requested_tokens) == (overflow.limit_tokens, overflow.requested_tokens)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.overflows_as_empty_stream])
async def test_an_overflow_as_an_empty_stream_is_a_cut(provider: RawProvider, model: OpenAIModel) -> None:
    """The caller knows how full the window was and treats it as an overflow."""
    for end in ("body", "done"):
        provider.answers = [provider.events(end=end)]
        error = await error_of(model)
        assert isinstance(error, ModelStreamCut)
        assert error.chunks == 0
