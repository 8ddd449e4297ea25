"""The JSON of the API: accepted by the OpenAI client's own models, errors included."""

import json
from itertools import chain
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mew_agent.errors import NoAnswer
from mew_agent.parts.openai_api.format import ApiAnswer, CompletionFormat, invalid_body
from mew_agent.parts.openai_api.questions import unknown_model
from mew_agent.parts.shared.api_limits import AnswerFailed, no_answer
from mew_agent.parts.shared.responses_format import DONE, event

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunks_in(*events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(one.removeprefix(b"data: ")) for one in chain(*events) if one != DONE]


def test_chunks_are_accepted_by_openai() -> None:
    completion = CompletionFormat("chatcmpl-1", "coder", 1_700_000_000, include_usage=True)
    answer = ApiAnswer("Hi", usage=USAGE, mew={"basis": "reported"})
    values = chunks_in(completion.begin(), completion.piece("Hi", is_reasoning=False), completion.end(answer))
    chunks = [ChatCompletionChunk.model_validate(value, strict=True) for value in values]
    assert [chunk.usage is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all("usage" in value for value in values)


def test_without_include_usage_only_the_last_chunk_has_it() -> None:
    completion = CompletionFormat("chatcmpl-1", "coder", 1)
    first, last = chunks_in(completion.begin(), completion.end(ApiAnswer("Hi")))
    assert last["usage"] is None
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in first


def test_a_whole_answer_is_accepted_by_openai() -> None:
    completion = CompletionFormat("chatcmpl-1", "coder", 1)
    value = completion.as_json(ApiAnswer("Hi", "hm", USAGE, {"basis": "reported"}))
    read = ChatCompletion.model_validate(value, strict=True)
    assert read.choices[0].message.content == "Hi"
    assert read.model_dump()["choices"][0]["message"]["reasoning_content"] == "hm"
    assert "reasoning_content" not in completion.as_json(ApiAnswer("Hi"))["choices"][0]["message"]


def test_an_event_is_one_line_of_json() -> None:
    data = event({"text": "é\n\ud800"})
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:])["text"].startswith("é\n")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "invalid_request_error"), (429, "rate_limit_error"), (502, "server_error")],
)
def test_the_error_type_follows_the_status(status: int, kind: str) -> None:
    error = AnswerFailed(status, "some_code", "What happened.")
    expected = {"message": "What happened.", "type": kind, "param": None, "code": "some_code"}
    assert error.as_dict() == {"error": expected}
    assert str(error) == "What happened."


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("agent_left", 502),
        ("cancelled", 502),
        ("connection_lost", 502),
        ("agent_busy", 429),
        ("refused", 403),
        ("closing", 503),
        ("agent_silent", 504),
    ],
)
def test_each_missing_answer_has_its_status_and_forbids_retries(code: str, status: int) -> None:
    error = no_answer(NoAnswer("coder", code, "why"))
    assert (error.status, error.code, error.message, error.is_retryable) == (status, code, "why", False)


def test_an_invalid_body_error_names_the_field() -> None:
    error = invalid_body("n", "is 2", "1")
    assert error.message == "n: is 2 (expected 1)"
    assert error.as_dict()["error"]["param"] == "n"


def test_an_unknown_model_error_names_the_models() -> None:
    assert "(agents: a, b)" in unknown_model("x", ["a", "b"]).message
    assert "(the space has no agents)" in unknown_model("x", []).message
