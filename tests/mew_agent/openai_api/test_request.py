"""What of a chat completion request is read, and how one that cannot be used is refused."""

from typing import Any

import pytest

from mew_agent.openai_api.problems import Problem
from mew_agent.openai_api.request import MAX_TEXT_BYTES, Question, read_question


def body(**more: Any) -> dict[str, Any]:
    return {"model": "coder", "messages": [{"role": "user", "content": "Hello"}], **more}


def said(content: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": content}])


def test_the_last_user_message_is_sent() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Second"},
    ]
    question = read_question(body(messages=messages, stream=True, stream_options={"include_usage": True}))
    assert question == Question(
        model="coder",
        text="Second",
        system="Be brief.",
        is_streamed=True,
        include_usage=True,
        ignored=("system messages", "earlier messages"),
    )


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    assert read_question(said(parts)).text == "One\nTwo"


def test_a_lone_surrogate_is_replaced() -> None:
    text = read_question(said("a \ud800 b")).text
    assert text.encode()
    assert text.startswith("a ")


def test_ignored_model_parameters_are_named() -> None:
    question = read_question(
        body(temperature=0, tools=[{"type": "function"}], user="x", metadata={"a": "b"}, stop=None)
    )
    assert question.ignored == ("temperature", "tools")


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ([], "body", "is a list (expected a JSON object)"),
        (None, "body", "is null"),
        ({"messages": []}, "model", "is missing (expected the name of an agent)"),
        (body(model=3), "model", "is a number"),
        (body(messages=[]), "messages", "is empty or no list"),
        (body(messages="hi"), "messages", "is empty or no list"),
        (body(messages=["hi"]), "messages[0]", "is a string (expected an object"),
        (body(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "is 'robot' (expected one of"),
        (body(messages=[{"role": "assistant", "content": "x"}]), "messages[0].role", "is 'assistant'"),
        (said(None), "messages[0].content", "is null"),
        (said("  "), "messages[0].content", "holds no text"),
        (said([]), "messages[0].content", "holds no text"),
        (said([{"type": "image_url"}]), "messages[0].content[0]", "is a part of type 'image_url'"),
        (said([{"type": "text"}]), "messages[0].content[0]", "is no text part"),
        (said("x" * (MAX_TEXT_BYTES + 1)), "messages[0].content", f"at most {MAX_TEXT_BYTES:,}"),
        (body(stream="yes"), "stream", "is a string (expected true or false)"),
        (body(stream_options=1), "stream_options", "is a number"),
        (body(n=2), "n", "is 2"),
        (body(response_format={"type": "json_object"}), "response_format", "an agent answers in text"),
        (body(tool_choice="required"), "tool_choice", "demands a tool call"),
        (body(logprobs=True), "logprobs", "is on"),
        (body(modalities=["text", "audio"]), "modalities", "asks for more than text"),
    ],
)
def test_an_invalid_body_names_field_and_expected_type(given: Any, param: str, words: str) -> None:
    with pytest.raises(Problem) as caught:
        read_question(given)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message
    assert "(expected " in caught.value.message


def test_a_message_without_content_is_refused() -> None:
    with pytest.raises(Problem, match="is null"):
        read_question(body(messages=[{"role": "user"}]))
