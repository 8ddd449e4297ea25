"""Window discovery: which endpoints are asked over real HTTP, and what each server's answer means."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.interface import Window
from mew_agent.model.openai_client import OpenAIModel
from mew_agent.model.window_lookup import (
    discover_window,
    read_litellm,
    read_lm_studio,
    read_models,
    read_ollama_ps,
    read_ollama_show,
)
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal

if TYPE_CHECKING:
    from tests.mew_agent.model.conftest import RawProvider
else:
    RawProvider = Any

LISTED = {"data": [{"id": "m", "owned_by": "organization_owner"}]}


@pytest.fixture
async def model(provider: RawProvider) -> AsyncIterator[OpenAIModel]:
    model = OpenAIModel("m", provider.base_url)
    yield model
    await model.aclose()


def received_paths(provider: RawProvider) -> list[str]:
    return [request.path for request in provider.received]


async def test_a_listing_with_the_loaded_window_takes_one_request(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {"/v1/models": provider.json({"data": [{"id": "m", "max_model_len": 8192}]})}
    assert await model.discover_window() == Window(8192, "loaded", "/v1/models max_model_len")
    assert received_paths(provider) == ["/v1/models"]


async def test_lm_studio_is_asked_if_the_listing_has_no_figure(provider: RawProvider, model: OpenAIModel) -> None:
    loaded = {"data": [{"id": "m", "loaded_context_length": 4096, "max_context_length": 32768}]}
    provider.routes = {"/v1/models": provider.json(LISTED), "/api/v0/models": provider.json(loaded)}
    assert await model.discover_window() == Window(4096, "loaded", "LM Studio loaded_context_length")
    assert received_paths(provider) == ["/v1/models", "/api/v0/models"]


async def test_a_loaded_window_beats_a_trained_one_between_lm_studio_versions(
    provider: RawProvider, model: OpenAIModel
) -> None:
    trained = {"data": [{"id": "m", "max_context_length": 32768}]}
    loaded = {"models": [{"key": "m", "loaded_instances": [{"id": "m", "config": {"context_length": 4096}}]}]}
    provider.routes = {
        "/v1/models": provider.json(LISTED),
        "/api/v0/models": provider.json(trained),
        "/api/v1/models": provider.json(loaded),
    }
    window = await model.discover_window()
    assert window is not None
    assert (window.max_tokens, window.basis) == (4096, "loaded")


async def test_ollama_is_asked_first_if_the_listing_suggests_it(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {
        "/v1/models": provider.json({"data": [{"id": "m:latest", "owned_by": "library"}]}),
        "/api/ps": provider.json({"models": [{"name": "m:latest", "context_length": 4096}]}),
    }
    assert await model.discover_window() == Window(4096, "loaded", "Ollama /api/ps context_length")
    assert received_paths(provider) == ["/v1/models", "/api/ps"]


async def test_an_unloaded_ollama_model_has_its_trained_window(provider: RawProvider, model: OpenAIModel) -> None:
    missing = provider.json({"error": "not found"}, status=404)
    provider.routes = {
        "/v1/models": provider.json({"data": [{"id": "m:latest", "owned_by": "library"}]}),
        "/api/ps": provider.json({"models": []}),
        "/api/show": provider.json({"model_info": {"general.architecture": "x", "x.context_length": 131072}}),
        "/api/v0/models": missing,
        "/api/v1/models": missing,
    }
    assert await model.discover_window() == Window(131072, "trained", "Ollama /api/show context_length")
    assert next(request.body for request in provider.received if request.path == "/api/show") == {"model": "m"}


LITELLM_LISTED = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "openai"}]}


def litellm(*deployments: tuple[str, int | None]) -> dict[str, Any]:
    """The answer of LiteLLM's `/model/info` with these model names and `max_input_tokens`."""
    return {
        "data": [
            {
                "model_name": name,
                "litellm_params": {"model": "hosted_vllm/x"},
                "model_info": {"max_tokens": 4096, "max_input_tokens": tokens, "max_output_tokens": 4096},
            }
            for name, tokens in deployments
        ]
    }


async def test_a_proxy_that_lists_openai_is_asked_for_its_model_info(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {
        "/v1/models": provider.json(LITELLM_LISTED),
        "/model/info": provider.json(litellm(("m", 200_000), ("other", 8192))),
    }
    assert await model.discover_window() == Window(200_000, "trained", "LiteLLM /model/info max_input_tokens")
    assert received_paths(provider) == ["/v1/models", "/model/info"]


async def test_a_loaded_window_overrides_a_listed_input_limit(provider: RawProvider, model: OpenAIModel) -> None:
    provider.routes = {
        "/v1/models": provider.json({"data": [{"id": "m", "max_input_tokens": 32768}]}),
        "/api/v0/models": provider.json({"data": [{"id": "m", "loaded_context_length": 4096}]}),
    }
    window = await model.discover_window()
    assert window is not None
    assert (window.max_tokens, window.basis) == (4096, "loaded")


async def test_openai_itself_is_asked_for_its_listing_only() -> None:
    asked: list[str] = []

    async def fetch(_method: str, url: str, _body: dict[str, object] | None) -> object:
        asked.append(url)
        return OPENAI

    assert await discover_window(fetch, "https://api.openai.com/v1", "gpt-4o") is None
    assert asked == ["https://api.openai.com/v1/models"]


@pytest.mark.parametrize(
    ("deployments", "expected"),
    [
        ([("m", 200_000), ("m", 128_000)], 128_000),
        ([("m", None), ("m", 32_000)], 32_000),
        ([("m", None)], None),
        ([("other", 32_000)], None),
    ],
)
def test_deployments_of_one_name_share_the_smallest_window(
    deployments: list[tuple[str, int | None]], expected: int | None
) -> None:
    window = read_litellm(litellm(*deployments), "m")
    assert (window and window.max_tokens) == expected


@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_server_without_any_figure_raises_nothing(
    provider: RawProvider, model: OpenAIModel, status: int
) -> None:
    paths = ("/v1/models", "/api/v0/models", "/api/v1/models", "/api/ps", "/api/show", "/model/info")
    provider.routes = {path: provider.json({"error": "no"}, status=status) for path in paths}
    assert await model.discover_window() is None
    assert received_paths(provider) == list(paths)


@pytest.mark.parametrize(("body", "content_type"), [(b"{broken", "application/json"), (b"<html>", "text/html")])
async def test_answers_that_are_not_json_are_ignored(
    provider: RawProvider, model: OpenAIModel, body: bytes, content_type: str
) -> None:
    paths = ("/v1/models", "/api/v0/models", "/api/v1/models", "/api/ps", "/api/show", "/model/info")
    provider.routes = {path: provider.json(body, content_type=content_type) for path in paths}
    assert await model.discover_window() is None


async def test_a_server_that_closes_the_connection_is_asked_once(provider: RawProvider, model: OpenAIModel) -> None:
    assert await model.discover_window() is None
    assert received_paths(provider) == ["/v1/models"]


@pytest.mark.parametrize(("is_reported", "expected"), [(True, 4096), (False, None)])
async def test_the_rehearsal_model_reports_its_window_if_configured(is_reported: bool, expected: int | None) -> None:
    async with serve_rehearsal(RehearsalOptions(window_tokens=4096, report_window=is_reported)) as server:
        model = OpenAIModel("rehearsal", server.base_url)
        window = await model.discover_window()
        await model.aclose()
    assert (window and window.max_tokens) == expected


# -- readers -----------------------------------------------------------------------------------------------------

LLAMA_CPP = {
    "models": [{"name": "/models/qwen.gguf", "model": "/models/qwen.gguf"}],
    "object": "list",
    "data": [
        {
            "id": "/models/qwen.gguf",
            "object": "model",
            "owned_by": "llamacpp",
            "meta": {"vocab_type": 2, "n_vocab": 861, "n_ctx": 2048, "n_ctx_train": 32768, "n_embd": 64},
        }
    ],
}
VLLM = {
    "object": "list",
    "data": [
        {
            "id": "meta/llama-3-8b",
            "object": "model",
            "owned_by": "vllm",
            "root": "meta/llama-3-8b",
            "max_model_len": 8192,
        },
        {"id": "my-lora", "object": "model", "owned_by": "vllm", "root": "/loras/my", "max_model_len": None},
    ],
}
OPENROUTER = {
    "data": [
        {"id": "a/one", "context_length": 200_000, "top_provider": {"context_length": 131_072}},
        {"id": "a/two", "context_length": 32_000, "top_provider": {"context_length": None}},
    ]
}
OPENAI = {"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1, "owned_by": "system"}]}
LM_STUDIO_V0 = {
    "object": "list",
    "data": [
        {"id": "qwen-7b", "state": "loaded", "loaded_context_length": 4096, "max_context_length": 32768},
        {"id": "gemma-2b", "state": "not-loaded", "max_context_length": 8192},
    ],
}
LM_STUDIO_V1 = {
    "models": [
        {
            "type": "llm",
            "key": "qwen/qwen-7b",
            "max_context_length": 32768,
            "loaded_instances": [
                {"id": "qwen/qwen-7b", "config": {"context_length": 16384}},
                {"id": "qwen/qwen-7b:2", "config": {"context_length": 4096}},
            ],
        },
        {"type": "llm", "key": "google/gemma-2b", "max_context_length": 8192, "loaded_instances": []},
    ]
}
OLLAMA_PS = {"models": [{"name": "llama3.2:latest", "model": "llama3.2:latest", "size": 1, "context_length": 4096}]}
OLLAMA_SHOW = {
    "parameters": 'stop                           "<|eot|>"',
    "model_info": {"general.architecture": "llama", "llama.context_length": 131072, "llama.embedding_length": 1},
}


@pytest.mark.parametrize(
    ("body", "model", "max_tokens", "basis"),
    [
        pytest.param(LLAMA_CPP, "/models/qwen.gguf", 2048, "loaded", id="llama.cpp"),
        pytest.param(LLAMA_CPP, "qwen.gguf", 2048, "loaded", id="llama.cpp, by file name"),
        pytest.param(LLAMA_CPP, "whatever", 2048, "loaded", id="a server with one model serves any name"),
        pytest.param(VLLM, "meta/llama-3-8b", 8192, "loaded", id="vLLM"),
        pytest.param(VLLM, "llama-3-8b", 8192, "loaded", id="vLLM, by short name"),
        pytest.param(OPENROUTER, "a/one", 131_072, "loaded", id="OpenRouter: what its provider serves"),
        pytest.param(OPENROUTER, "a/two", 32_000, "loaded", id="OpenRouter without a provider's figure"),
        pytest.param({"data": [{"id": "m", "context_window": 8192}]}, "m", 8192, "loaded", id="Groq"),
        pytest.param({"data": [{"id": "m", "meta": {"n_ctx_train": 99}}]}, "m", 99, "trained", id="trained only"),
        pytest.param({"data": [{"id": "m", "max_context_length": 99}]}, "m", 99, "trained", id="a maximum is trained"),
        pytest.param({"data": [{"id": "m", "n_ctx": 99}]}, "m", 99, "loaded", id="n_ctx"),
        pytest.param({"data": [{"id": "m", "context_size": 99}]}, "m", 99, "loaded", id="context_size"),
        pytest.param(
            {"data": [{"id": "m", "max_input_tokens": 99, "max_tokens": 7}]}, "m", 99, "trained", id="Anthropic"
        ),
        pytest.param({"data": [{"id": "m", "model_info": {"max_input_tokens": 99}}]}, "m", 99, "trained", id="LiteLLM"),
        pytest.param(
            {"models": [{"name": "models/m", "inputTokenLimit": 99, "outputTokenLimit": 7}]},
            *("m", 99, "trained"),
            id="Gemini",
        ),
        pytest.param([{"id": "m", "limits": {"max_input_tokens": 99}}], "m", 99, "trained", id="GitHub Models"),
        pytest.param({"data": [{"id": "m", "metadata": {"context_length": 99}}]}, "m", 99, "trained", id="DeepInfra"),
        pytest.param([{"id": "m", "max_model_len": 7}], "m", 7, "loaded", id="a bare list"),
    ],
)
def test_a_listing_contains_the_window_of_its_model(body: object, model: str, max_tokens: int, basis: str) -> None:
    window = read_models(body, model)
    assert window is not None
    assert (window.max_tokens, window.basis) == (max_tokens, basis)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (OPENAI, "gpt-4o"),
        (VLLM, "my-lora"),
        (VLLM, "unknown"),
        (LM_STUDIO_V0["object"], "x"),
        ({"data": [{"id": "m", "max_model_len": "8192"}]}, "m"),
        ({"data": [{"id": "m", "max_model_len": 0}]}, "m"),
        ({"data": [{"id": "m", "max_tokens": 4096, "max_output_tokens": 4096}]}, "m"),
        ({"data": [{"id": "m", "max_model_len": True}]}, "m"),
        ({"data": []}, "m"),
        (None, "m"),
    ],
)
def test_a_listing_without_a_figure_has_no_window(body: object, model: str) -> None:
    assert read_models(body, model) is None


@pytest.mark.parametrize(
    ("body", "model", "expected"),
    [
        pytest.param(LM_STUDIO_V0, "qwen-7b", (4096, "loaded"), id="v0 loaded wins over trained"),
        pytest.param(LM_STUDIO_V0, "gemma-2b", (8192, "trained"), id="v0 not loaded"),
        pytest.param(LM_STUDIO_V1, "qwen/qwen-7b:2", (4096, "loaded"), id="v1 by instance"),
        pytest.param(LM_STUDIO_V1, "qwen/qwen-7b", (16384, "loaded"), id="v1 by instance of the plain name"),
        pytest.param(LM_STUDIO_V1, "qwen-7b", (4096, "loaded"), id="v1 by short name: the smallest holds for all"),
        pytest.param(LM_STUDIO_V1, "google/gemma-2b", (8192, "trained"), id="v1 not loaded"),
    ],
)
def test_lm_studio_reports_the_loaded_window(body: object, model: str, expected: tuple[int, str]) -> None:
    window = read_lm_studio(body, model)
    assert window is not None
    assert (window.max_tokens, window.basis) == expected


@pytest.mark.parametrize("model", ["llama3.2", "llama3.2:latest"])
def test_ollama_models_are_found_with_or_without_tag(model: str) -> None:
    assert read_ollama_ps(OLLAMA_PS, model) == Window(4096, "loaded", "Ollama /api/ps context_length")


def test_a_model_that_is_not_running_has_no_loaded_window() -> None:
    assert read_ollama_ps(OLLAMA_PS, "llama3.2:1b") is None


def test_an_ollama_description_has_the_trained_window() -> None:
    window = read_ollama_show(OLLAMA_SHOW)
    assert window is not None
    assert (window.max_tokens, window.basis) == (131072, "trained")


def test_num_ctx_in_the_model_file_is_the_loaded_window() -> None:
    window = read_ollama_show({**OLLAMA_SHOW, "parameters": "temperature 0.7\nnum_ctx                        16384\n"})
    assert window is not None
    assert (window.max_tokens, window.basis) == (16384, "loaded")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["data", "models", "id", "key", "name", "model", "meta", "n_ctx", "max_model_len", "loaded_instances",
             "config", "context_length", "model_info", "parameters", "general.architecture", "top_provider"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(ANY_JSON, st.text(max_size=6))
def test_any_json_is_read_and_no_window_is_empty(body: object, model: str) -> None:
    for window in (
        read_models(body, model),
        read_lm_studio(body, model),
        read_ollama_ps(body, model),
        read_ollama_show(body),
    ):
        assert window is None or window.max_tokens > 0
