"""Error bodies of real servers, read for what they say and whether they mean overflow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.refusal import Overflow, one_line, overflow_of, refuses_tools, said

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
def test_each_servers_overflow_is_recognised_with_the_figures_it_names(
    body: object, limit_tokens: int | None, requested_tokens: int | None, status: int | None
) -> None:
    assert overflow_of(status, body) == Overflow(limit_tokens, requested_tokens)


@pytest.mark.parametrize("status", [401, 404, 422, 429, 500])
def test_other_statuses_are_no_overflow_whatever_they_say(status: int) -> None:
    assert overflow_of(status, OPENAI) is None


@pytest.mark.parametrize("body", [None, "", {}, {"message": "invalid temperature"}, ["x"], 7, {"message": None}])
def test_other_complaints_are_no_overflow(body: object) -> None:
    assert overflow_of(400, body) is None


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
def test_the_message_is_found_wherever_servers_put_it(body: object, text: str) -> None:
    assert said(body) == text


@given(st.text(max_size=600))
def test_a_detail_is_one_bounded_line_without_the_key(text: str) -> None:
    line = one_line(f"{text} sk-secret {text}", "sk-secret")
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
        (400, "Unrecognized request argument supplied: tools"),
    ],
)
def test_servers_say_in_many_ways_that_they_take_no_tools(status: int, message: str) -> None:
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
def test_a_fault_in_one_tool_is_no_refusal_of_all(message: str) -> None:
    assert not refuses_tools(400, {"message": message})
