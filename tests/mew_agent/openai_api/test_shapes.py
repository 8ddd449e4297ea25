"""The JSON that chat clients read: accepted by the OpenAI client's own models."""

import json

from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mew_agent.openai_api.shapes import Reply, event, model_entry, model_list

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_chunks_are_accepted_by_openai() -> None:
    reply = Reply("chatcmpl-1", "coder", 1_700_000_000, include_usage=True)
    values = [reply.role(), reply.delta("content", "Hi"), *reply.last(USAGE, {"basis": "reported"})]
    chunks = [ChatCompletionChunk.model_validate(value, strict=True) for value in values]
    assert [chunk.usage is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all("usage" in value for value in values)


def test_without_include_usage_only_the_last_chunk_has_it() -> None:
    reply = Reply("chatcmpl-1", "coder", 1)
    (last,) = reply.last(None, {})
    assert last["usage"] is None
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in reply.role()


def test_a_whole_answer_is_accepted_by_openai() -> None:
    value = Reply("chatcmpl-1", "coder", 1).whole("Hi", "hm", USAGE, {"basis": "reported"})
    completion = ChatCompletion.model_validate(value, strict=True)
    assert completion.choices[0].message.content == "Hi"
    assert completion.model_dump()["choices"][0]["message"]["reasoning_content"] == "hm"
    assert "reasoning_content" not in Reply("c", "coder", 1).whole("Hi", "", None, {})["choices"][0]["message"]


def test_an_event_is_one_line_of_json() -> None:
    data = event({"text": "é\n\ud800"})
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:])["text"].startswith("é\n")


def test_a_model_entry_has_a_window_only_if_known() -> None:
    known = model_entry("coder", created=1, owner="demo", context_window=8192, mew={})
    unknown = model_entry("writer", created=1, owner="demo", context_window=None, mew={})
    for value in model_list([known, unknown])["data"]:
        Model.model_validate(value, strict=True)
    assert known["context_window"] == 8192
    assert "context_window" not in unknown
