"""Model errors: their class, their message, and what error bodies of real servers say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.errors import ContextOverflow, ModelError, ModelFailed, ModelRateLimited, ModelRefused, ToolsUnsupported
from mew_agent.model.failures import (
    ModelErrors,
    error_message,
    find_overflow,
    refuses_tools,
)

ERRORS = ModelErrors("http://here/v1", "m", "sk-secret")
OVERFLOW = {"message": "This model's maximum context length is 2048 tokens.", "code": "context_length_exceeded"}
NO_TOOLS = {"message": "this model does not support tools"}


def from_status(status: int, body: object, *, offered_tools: bool = False) -> Any:
    return ERRORS.from_body(
        body, status=status, reason="Bad Request", request_id="r-1", wait_seconds=7.0, offered_tools=offered_tools
    )


@pytest.mark.parametrize(
    ("status", "body", "offered_tools", "kind"),
    [
        (401, {}, False, ModelRefused),
        (403, OVERFLOW, False, ModelRefused),
        (429, {}, True, ModelRateLimited),
        (400, OVERFLOW, True, ContextOverflow),
        (400, NO_TOOLS, True, ToolsUnsupported),
        (400, NO_TOOLS, False, ModelFailed),
        (500, {}, True, ModelFailed),
    ],
)
def test_status_and_body_choose_the_error_class(
    status: int, body: object, offered_tools: bool, kind: type[ModelError]
) -> None:
    error = from_status(status, body, offered_tools=offered_tools)
    assert isinstance(error, kind)
    assert (error.endpoint, error.model, error.request_id) == ("http://here/v1", "m", "r-1")


@pytest.mark.parametrize(
    ("endpoint", "status", "body", "advised"),
    [
        ("http://here:11434", 404, "404 page not found", True),  # Ollama
        ("http://here:8000/", 404, {"detail": "Not Found"}, True),  # vLLM
        ("http://here:8000/", 405, {"detail": "Method Not Allowed"}, True),
        ("http://here:11434/v1", 404, "404 page not found", False),
        ("http://here:11434", 404, {"message": "model 'x' not found"}, False),
        ("http://here:11434", 500, "oops", False),
    ],
)
def test_a_base_url_without_its_path_is_named_where_the_path_is_missing(
    endpoint: str, status: int, body: object, advised: bool
) -> None:
    error = ModelErrors(endpoint, "m").from_body(body, status=status)
    assert (f"most servers need the base URL {endpoint.rstrip('/')}/v1" in str(error)) is advised


def test_an_error_keeps_the_details_of_the_provider() -> None:
    assert from_status(429, {}).retry_after_seconds == 7.0
    assert from_status(400, OVERFLOW).limit_tokens == 2048
    assert from_status(502, {}).http_status == 502
    assert from_status(502, {}).detail == "HTTP 502: Bad Request"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (OVERFLOW, ContextOverflow),
        ({"message": "slow down", "code": 429}, ModelRateLimited),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, ModelRateLimited),
        ({"message": "oh", "code": "400"}, ModelFailed),
        ("just a text", ModelFailed),
        (None, ModelFailed),
    ],
)
def test_a_body_alone_chooses_the_error_class(body: object, kind: type) -> None:
    error = ERRORS.from_body(body, request_id="r-2")
    assert (type(error), error.request_id) == (kind, "r-2")
    assert error.detail


def test_no_message_contains_the_key_or_a_line_break() -> None:
    errors = (
        from_status(400, {"message": "key sk-secret\nis wrong"}),
        ERRORS.from_body("sk-secret\n"),
        ERRORS.unreachable("no route to sk-secret\n"),
        ERRORS.cut("sk-secret\ngone", chunks=3),
        ERRORS.failed("sk-secret\n"),
    )
    for error in errors:
        assert "sk-secret" not in str(error)
        assert "\n" not in str(error)
    assert errors[3].chunks == 3


# -- error bodies ------------------------------------------------------------------------------------------------

OPENAI = {
    "message": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130,512"
    " tokens. Please reduce the length of the messages.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
LLAMA_CPP_PYTHON = {
    "message": "This model's maximum context length is 2048 tokens. However, you requested 12019 tokens"
    " (12015 in the messages, 4 in the completion). Please reduce the length of the messages or completion.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
LLAMA_CPP = {
    "code": 400,
    "message": "request (12015 tokens) exceeds the available context size (2048 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 12015,
    "n_ctx": 2048,
}
VLLM = {
    "message": "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens."
    " Please reduce the length of the input messages.",
    "type": "BadRequestError",
    "code": 400,
}
ANTHROPIC = {"type": "invalid_request_error", "message": "prompt is too long: 208656 tokens > 200000 maximum"}
OLLAMA = {"message": "the input length exceeds the context length", "type": "api_error", "code": None}
LM_STUDIO = (
    "Trying to keep the first 4096 tokens when context the overflows. However, the model is loaded with context"
    " length of only 2048 tokens, which is not enough."
)


OTHERS = {
    "Gemini": (
        "The input token count (1594712) exceeds the maximum number of tokens allowed (1048576).",
        1048576,
        1594712,
    ),
    "xAI": ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072, 537812),
    "Kimi": ("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)", 262144, 291351),
    "Bedrock": ("Input is too long for requested model.", None, None),
    "Copilot": ("prompt token count of 133000 exceeds the limit of 128000", 128000, 133000),
    "Anthropic, with the reply": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
        200000,
        None,
    ),
    "Qwen": ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]", 98304, None),
    "vLLM, long prompt": (
        "The decoder prompt (length 4000) is longer than the maximum model length of 2048. Make sure that",
        2048,
        4000,
    ),
    "OpenRouter": ("Input length exceeds maximum allowed input length of 32,768 tokens", 32768, None),
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens",
        8192,
        9000,
    ),
    "Z.ai": ("Prompt exceeds max length", None, None),
    "Ollama's cloud": ("prompt too long; exceeded max context length by 4 tokens", None, None),
}


@pytest.mark.parametrize(("text", "limit_tokens", "requested_tokens"), OTHERS.values(), ids=OTHERS)
def test_an_overflow_is_read_in_the_words_of_many_providers(
    text: str, limit_tokens: int | None, requested_tokens: int | None
) -> None:
    assert find_overflow(400, {"message": text}) == (limit_tokens, requested_tokens)


def test_a_request_that_is_too_large_overflows_in_any_words() -> None:
    assert find_overflow(413, "<html>Request Entity Too Large</html>") == (None, None)


def test_a_limit_of_the_reply_is_no_overflow() -> None:
    assert find_overflow(400, {"message": "max_tokens exceeds the limit of 8192"}) is None


@pytest.mark.parametrize(
    ("body", "limit_tokens", "requested_tokens"),
    [
        pytest.param(OPENAI, 128_000, 130_512, id="OpenAI"),
        pytest.param(LLAMA_CPP_PYTHON, 2048, 12_019, id="llama-cpp-python"),
        pytest.param(LLAMA_CPP, 2048, 12_015, id="llama.cpp"),
        pytest.param({"message": LLAMA_CPP["message"]}, 2048, 12_015, id="llama.cpp, text only"),
        pytest.param({"type": "exceed_context_size_error"}, None, None, id="type alone"),
        pytest.param(VLLM, 8192, 9000, id="vLLM"),
        pytest.param(ANTHROPIC, 200_000, 208_656, id="Anthropic"),
        pytest.param(OLLAMA, None, None, id="Ollama names no figures"),
        pytest.param(LM_STUDIO, 2048, None, id="LM Studio"),
    ],
)
@pytest.mark.parametrize("status", [400, 413, None])
def test_each_servers_overflow_is_read_with_its_figures(
    body: object, limit_tokens: int | None, requested_tokens: int | None, status: int | None
) -> None:
    assert find_overflow(status, body) == (limit_tokens, requested_tokens)


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_other_statuses_are_never_an_overflow(status: int) -> None:
    assert find_overflow(status, OPENAI) is None


@pytest.mark.parametrize("body", [None, "", {}, {"message": "invalid temperature"}, ["x"], 7, {"message": None}])
def test_other_messages_are_not_an_overflow(body: object) -> None:
    assert find_overflow(400, body) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"message": "no such model"}, "no such model"),
        ({"error": {"message": "no such model"}}, "no such model"),
        ({"error": "no such model"}, "no such model"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too large"}, {"msg": "bad"}]}, "too large; bad"),
        ("plain words", "plain words"),
        ("<html><body>502 Bad Gateway</body></html>", ""),
        ({"code": 1}, ""),
        (None, ""),
    ],
)
def test_the_message_is_found_in_every_known_shape(body: object, text: str) -> None:
    assert error_message(body) == text


@given(st.text(max_size=600))
def test_a_detail_is_one_bounded_line_without_the_key(text: str) -> None:
    line = ERRORS.failed(f"{text} sk-secret {text}").detail
    assert len(line) <= 200
    assert len(line.splitlines()) <= 1
    assert "sk-secret" not in line


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "registry.ollama.ai/library/gemma:latest does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
        (
            404,
            "No endpoints found that support tool use. To learn more about provider routing, visit the documentation",
        ),
        (400, "`tool calling` is not supported with this model"),
        (400, "Function calling is not enabled for this model"),
        (400, "Unrecognised request argument supplied: tools"),
    ],
)
def test_known_refusals_of_tools_are_recognised(status: int, message: str) -> None:
    assert refuses_tools(status, {"message": message})
    assert not refuses_tools(429, {"message": message})


@pytest.mark.parametrize(
    "message",
    [
        "Invalid schema for function 'x': 'None' is not of type 'object'",
        "tool_call_id not found",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
        "The model is not available",
        "Unknown parameter: temperature",
    ],
)
def test_an_error_in_one_tool_is_not_a_refusal(message: str) -> None:
    assert not refuses_tools(400, {"message": message})
