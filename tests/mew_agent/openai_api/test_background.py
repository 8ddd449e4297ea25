"""Prompts that clients send by themselves are told from what people ask."""

import json

import pytest

from mew_agent.openai_api.background import answer_in_background

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
        "",
    ],
)
def test_ordinary_messages_are_not_background_prompts(text: str) -> None:
    assert answer_in_background(text) is None
