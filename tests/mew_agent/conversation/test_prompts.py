"""The agent's own words: a figure is never said without how it is known."""

import pytest
from mew_protocol.context_report import ContextReport, LastReported
from mew_protocol.payloads.participant import Status

from mew_agent.conversation.prompts import DEFAULT_SYSTEM_PROMPT, context_sentence, does_not_fit_text, failure_text

REPORTED = Status(
    messages_in_context=4, tokens=98_412, max_tokens=128_000, context=ContextReport(basis="reported", model="gpt")
)
LAST = LastReported(tokens=1_234, measured_at="t", call_id="c")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (REPORTED, "My context is unchanged at 98,412 of 128,000 tokens (reported)."),
        (
            REPORTED.model_copy(update={"context": ContextReport(basis="projected")}),
            "My context is unchanged at 98,412 of 128,000 tokens (projected).",
        ),
        (
            REPORTED.model_copy(update={"max_tokens": None}),
            "My context is unchanged at 98,412 tokens (reported).",
        ),
        (
            Status(messages_in_context=0, context=ContextReport(basis="unknown", reason="no_call_yet")),
            "The size of my context is not known (no call yet).",
        ),
        (
            Status(
                messages_in_context=0,
                context=ContextReport(basis="unknown", reason="usage_unavailable", last_reported=LAST),
            ),
            "The size of my context is not known (usage unavailable; last reported 1,234 tokens).",
        ),
        (Status(messages_in_context=0), "The size of my context is not known (unknown)."),
        (Status(messages_in_context=0, tokens=5), "The size of my context is not known (unknown)."),
    ],
)
def test_the_context_in_one_sentence_says_how_it_is_known(status: Status, sentence: str) -> None:
    assert context_sentence(status) == sentence


@pytest.mark.parametrize("text", ["I could not reach my model", "I could not reach my model."])
def test_a_failure_is_told_in_whole_sentences_with_the_figure(text: str) -> None:
    assert failure_text(RuntimeError(text), REPORTED) == (
        "I could not reach my model. My context is unchanged at 98,412 of 128,000 tokens (reported)."
    )


def test_a_message_too_large_is_told_with_the_window_it_does_not_fit() -> None:
    said = does_not_fit_text(RuntimeError("Too large."), 4_096)
    assert said.startswith("Too large. Your message alone does not fit my window of 4,096 tokens")


def test_the_default_system_prompt_names_the_agent() -> None:
    assert "You are coder, " in DEFAULT_SYSTEM_PROMPT.format(name="coder")


def test_where_results_are_what_is_too_large_the_message_is_not_blamed() -> None:
    said = does_not_fit_text(RuntimeError("Too large."), 4_096, result_tokens=9_000)
    assert "What my tools returned for your message (about 9,000 tokens, projected) does not fit my window" in said
    assert "alone" not in said
