"""Planned replies: each is a function of its request."""

from typing import Any

import pytest

from mew_agent.parts.rehearsal.behaviour import SELF_DESCRIPTION, plan_reply
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from mew_agent.parts.rehearsal.tokenizer import count

OPTIONS = RehearsalOptions(reply_tokens=80)
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply_text(*messages: dict[str, Any], options: RehearsalOptions = OPTIONS, max_tokens: int | None = None) -> str:
    return plan_reply(messages, [], options, max_tokens).text


def test_a_question_is_answered_from_earlier_messages() -> None:
    given = user("The Elbe is 1094 km long. Hamburg lies at it. The Rhine is longer.")
    assert reply_text(given, user("How long is the Elbe?")) == 'From what I was given: "The Elbe is 1094 km long."'
    assert "Rhine" in reply_text(given, user("And the Rhine?"))


def test_a_document_is_answered_with_its_topic() -> None:
    before = user("The gateway must never block a slow reader.")
    text = user("The gateway routes envelopes. Envelopes have a kind. Cats sleep a lot. The gateway counts envelopes.")
    answer = reply_text(before, text)
    assert answer.startswith('You write: "The gateway')
    assert "Cats" not in answer
    assert 'Earlier: "The gateway must never block' in answer


def test_an_unknown_topic_is_admitted() -> None:
    assert reply_text(user("Zebras?")) == 'Noted: "Zebras?" I have nothing else about it in what I was given.'
    assert reply_text(user("Zebras")) == 'Noted: "Zebras". I have nothing else about it in what I was given.'


@pytest.mark.parametrize("question", ["Who are you?", "which model are you", "What language model is this?"])
def test_the_model_describes_itself(question: str) -> None:
    assert reply_text(user(question)) == SELF_DESCRIPTION
    assert "rehearsal model" in SELF_DESCRIPTION


def test_without_a_user_message_the_model_introduces_itself() -> None:
    assert reply_text({"role": "system", "content": "x"}) == SELF_DESCRIPTION


def test_an_answer_stays_within_its_length() -> None:
    long = user(" ".join(f"The gateway number {n} routes envelopes to agent {n} of the space." for n in range(50)))
    assert count(reply_text(long)) <= OPTIONS.reply_tokens


def test_a_requested_tool_is_called_without_text() -> None:
    plan = plan_reply([user('call look_up with {"word": "elbe"}')], [LOOK_UP], OPTIONS, None)
    assert plan.text == ""
    assert [(call.name, call.arguments) for call in plan.calls] == [("look_up", '{"word": "elbe"}')]


def test_tool_results_are_quoted_without_further_calls() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    messages = [
        user("call look_up twice about the Elbe"),
        {"role": "assistant", "content": "", "tool_calls": [called, {**called, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a river"},
        {"role": "tool", "tool_call_id": "c2", "content": "Rivers are wet. " * 30 + "The Elbe is 1094 km long."},
    ]
    plan = plan_reply(messages, [LOOK_UP], OPTIONS, None)
    assert plan.calls == ()
    first, second = plan.text.splitlines()
    assert first == "look_up answered: a river"
    assert "The Elbe is 1094 km long." in second


@pytest.mark.parametrize(("content", "answer"), [("", "(nothing)"), ("x" * 4000, "x" * 9)])
def test_tool_results_without_sentences_are_quoted(content: str, answer: str) -> None:
    text = reply_text({"role": "tool", "tool_call_id": "gone", "content": content})
    assert text.startswith("the tool answered: ")
    assert answer in text


def test_a_summary_stays_within_the_requested_limit() -> None:
    earlier = [user(f"The gateway number {n} routes envelopes to agent {n}.") for n in range(100)]
    request = user("Summarise the above.")
    assert 20 < count(reply_text(*earlier, request, max_tokens=60)) <= 60
    assert count(reply_text(*earlier, request)) > 60


def test_a_useless_summary_can_be_configured() -> None:
    messages = (user("Rivers carry water to the sea."), user("Summarise the above."))
    echo = RehearsalOptions(summary_behaviour="echo_everything")
    assert reply_text(*messages, options=echo) == "Rivers carry water to the sea."
    assert reply_text(*messages, options=RehearsalOptions(summary_behaviour="empty")) == ""


def test_equal_requests_get_equal_replies() -> None:
    messages = (user("Agents share a space. The space has a gateway. The gateway knows all agents."),)
    assert reply_text(*messages) == reply_text(*messages)


def test_the_reply_to_an_unknown_tool_names_it() -> None:
    assert reply_text(user("call files__write with {}")).startswith("I have no tool named files__write.")
