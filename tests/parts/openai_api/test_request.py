"""Completion requests: what is read, what is refused, and background prompts."""

import json
from typing import Any

import pytest

from mew_agent.parts.openai_api.request import ApiRequest, answer_in_background, read_request
from mew_agent.parts.shared.api_limits import MAX_TEXT_BYTES, AnswerFailed


def body(**more: Any) -> dict[str, Any]:
    return {"model": "coder", "messages": [{"role": "user", "content": "Hello"}], **more}


def with_content(content: Any) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": content}])


def test_the_last_user_message_is_sent() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "First"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "Second"},
    ]
    request = read_request(body(messages=messages, stream=True, stream_options={"include_usage": True}))
    assert request == ApiRequest(
        model="coder",
        text="Second",
        system="Be brief.",
        earlier=(("user", "First"),),
        is_streamed=True,
        include_usage=True,
        ignored=("system messages",),
    )


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    assert read_request(with_content(parts)).text == "One\nTwo"


def test_a_lone_surrogate_is_replaced() -> None:
    text = read_request(with_content("a \ud800 b")).text
    assert text.encode()
    assert text.startswith("a ")


def test_ignored_model_parameters_are_named() -> None:
    request = read_request(body(temperature=0, tools=[{"type": "function"}], user="x", metadata={"a": "b"}, stop=None))
    assert request.ignored == ("temperature", "tools")


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ([], "body", "is a list (expected a JSON object)"),
        (None, "body", "is null"),
        ({"messages": []}, "model", "is missing (expected the name of an agent)"),
        (body(model=3), "model", "is a number"),
        (body(messages=[]), "messages", "is empty or not a list"),
        (body(messages="hi"), "messages", "is empty or not a list"),
        (body(messages=["hi"]), "messages[0]", "is a string (expected an object"),
        (body(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "is 'robot' (expected one of"),
        (body(messages=[{"role": "assistant", "content": "x"}]), "messages[0].role", "is 'assistant'"),
        (with_content(None), "messages[0].content", "is null"),
        (with_content("  "), "messages[0].content", "contains no text"),
        (with_content([]), "messages[0].content", "contains no text"),
        (with_content([{"type": "image_url"}]), "messages[0].content[0]", "is a part of type 'image_url'"),
        (with_content([{"type": "text"}]), "messages[0].content[0]", "is not a text part"),
        (with_content("x" * (MAX_TEXT_BYTES + 1)), "messages[0].content", f"at most {MAX_TEXT_BYTES:,}"),
        (body(stream="yes"), "stream", "is a string (expected true or false)"),
        (body(stream_options=1), "stream_options", "is a number"),
        (body(n=2), "n", "is 2"),
        (body(response_format={"type": "grammar"}), "response_format", "is not supported"),
        (body(response_format={"type": "json_schema"}), "response_format.json_schema", "is missing"),
        (body(tool_choice="required"), "tool_choice", "requires a tool call"),
        (body(logprobs=True), "logprobs", "is on"),
        (body(modalities=["text", "audio"]), "modalities", "is not supported"),
    ],
)
def test_an_invalid_body_names_field_and_expected_type(given: Any, param: str, words: str) -> None:
    with pytest.raises(AnswerFailed) as caught:
        read_request(given)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert words in caught.value.message
    assert "(expected " in caught.value.message


def test_a_message_without_content_is_refused() -> None:
    with pytest.raises(AnswerFailed, match="is null"):
        read_request(body(messages=[{"role": "user"}]))


# -- background prompts ------------------------------------------------------------------------------------------

HISTORY = """### Chat History:
<chat_history>
USER: How do I read the tide gauge of the northern pier when the display is frozen over?
ASSISTANT: { "tags": [] } is what I say.
</chat_history>"""


def prompt(example: str) -> str:
    return f"### Task:\nDo something with the chat.\n\n### Output:\nJSON format: {example}\n\n{HISTORY}"


def test_a_title_is_the_start_of_the_first_message() -> None:
    answer = answer_in_background(prompt('{ "title": "your title" }'))
    assert answer is not None
    title = json.loads(answer.text)["title"]
    assert title == "How do I read the tide gauge of the northern pier when the ..."


def test_a_short_message_is_its_own_title() -> None:
    short = prompt('{ "title": "your title" }').replace(HISTORY, "<chat_history>\nUSER: Tides?\n</chat_history>")
    answer = answer_in_background(short)
    assert answer is not None
    assert json.loads(answer.text) == {"title": "Tides?"}


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ('{ "tags": ["a", "b"] }', {"tags": []}),
        ('{ "follow_ups": ["a?"] }', {"follow_ups": []}),
        ('{\n  "queries": ["a"]\n}', {"queries": []}),
        ('{ "text": "<completion>" }', {"text": ""}),
        ('{\n "prompt": "a picture" }', {"prompt": ""}),
    ],
)
def test_other_background_prompts_get_empty_answers(example: str, expected: object) -> None:
    answer = answer_in_background(prompt(example))
    assert answer is not None
    assert json.loads(answer.text) == expected


def test_a_prompted_tool_choice_chooses_none() -> None:
    answer = answer_in_background("Query: hello", 'Available Tools: []\nAnswer {"tool_calls": []}')
    assert answer is not None
    assert json.loads(answer.text) == {"tool_calls": []}


@pytest.mark.parametrize(
    "text",
    [
        "What is the title of this chat?",
        "### Task:\nAnswer from the context.\n### Output:\nA clear answer.\n<context>\nUSER: x\n</context>",
        'Please read <chat_history>USER: "title": x</chat_history>',
        "### Task:\nSummarise <chat_history>USER: hi</chat_history>",
        'What does "title": mean after <chat_history>USER: hi</chat_history>',
        "",
    ],
)
def test_ordinary_messages_are_not_background_prompts(text: str) -> None:
    assert answer_in_background(text) is None
