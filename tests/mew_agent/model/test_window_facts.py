"""Bodies of model servers, and the window each of them tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.interface import Window
from mew_agent.model.window_facts import from_lm_studio, from_models, from_ollama_ps, from_ollama_show

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
        pytest.param([{"id": "m", "max_model_len": 7}], "m", 7, "loaded", id="a bare list"),
    ],
)
def test_a_listing_tells_the_window_of_its_model(body: object, model: str, max_tokens: int, basis: str) -> None:
    window = from_models(body, model)
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
        ({"data": [{"id": "m", "max_model_len": True}]}, "m"),
        ({"data": []}, "m"),
        (None, "m"),
    ],
)
def test_a_listing_without_a_figure_tells_nothing(body: object, model: str) -> None:
    assert from_models(body, model) is None


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
def test_lm_studio_tells_what_it_loaded(body: object, model: str, expected: tuple[int, str]) -> None:
    window = from_lm_studio(body, model)
    assert window is not None
    assert (window.max_tokens, window.basis) == expected


@pytest.mark.parametrize("model", ["llama3.2", "llama3.2:latest"])
def test_ollama_tells_what_it_loaded_with_or_without_the_tag(model: str) -> None:
    assert from_ollama_ps(OLLAMA_PS, model) == Window(4096, "loaded", "Ollama /api/ps context_length")


def test_ollama_tells_nothing_of_a_model_that_is_not_running() -> None:
    assert from_ollama_ps(OLLAMA_PS, "llama3.2:1b") is None


def test_ollamas_description_has_the_trained_window() -> None:
    window = from_ollama_show(OLLAMA_SHOW)
    assert window is not None
    assert (window.max_tokens, window.basis) == (131072, "trained")


def test_a_size_in_the_model_file_is_what_ollama_will_load() -> None:
    window = from_ollama_show({**OLLAMA_SHOW, "parameters": "temperature 0.7\nnum_ctx                        16384\n"})
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
def test_no_body_breaks_the_reading_and_no_window_is_empty(body: object, model: str) -> None:
    for window in (
        from_models(body, model),
        from_lm_studio(body, model),
        from_ollama_ps(body, model),
        from_ollama_show(body),
    ):
        assert window is None or window.max_tokens > 0
