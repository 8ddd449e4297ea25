"""The texts of an agent: every figure has its source, or is called unknown."""

import pytest
from mew_protocol.context_report import ContextReport, LastReported
from mew_protocol.payloads.participant import Status

from mew_agent.conversation import texts
from mew_agent.conversation.texts import ContextUsage
from tests.support.policies import PROMPTING


@pytest.mark.parametrize(
    ("usage", "sentence"),
    [
        (ContextUsage(120_000, 200_000), "Your context holds 120,000 of 200,000 tokens (60 %)."),
        (ContextUsage(0, 200_000), "Your context holds 0 of 200,000 tokens (0 %)."),
        (ContextUsage(120_000, None), "Your context holds 120,000 tokens; its limit is unknown."),
        (ContextUsage(None, 200_000), "The size of your context is unknown: your last call reported no usage."),
    ],
)
def test_usage_is_stated_as_far_as_it_is_known(usage: ContextUsage, sentence: str) -> None:
    assert usage.sentence() == sentence


@pytest.mark.parametrize(
    ("level", "remaining", "said"),
    [
        ("caution", None, ("which starts at 100,001 tokens", "call clear_mind to continue with a fresh context")),
        ("critical", 4, ("which starts at 180,001 tokens", "4 more notices follow")),
        ("critical", 1, ("1 more notice follows",)),
        ("critical", 0, ("This is the last notice",)),
    ],
)
def test_a_prompt_names_the_mark_the_tools_and_the_next_step(
    level: str, remaining: int | None, said: tuple[str, ...]
) -> None:
    text = texts.prompt_text(PROMPTING, level, remaining, ContextUsage(190_000, 200_000))
    assert text.startswith(texts.NOTICE)
    for part in ("190,000 of 200,000", "update_reminder (or add_reminder)", "clear_mind", texts.NO_BARE_ANSWER, *said):
        assert part in text


def test_an_injection_is_one_line_for_people() -> None:
    assert texts.prompt_injection("critical", 1).text == "at critical its context is cleared after 1 more prompt"
    assert str(texts.prompt_injection("critical", 4).text).endswith("4 more prompts")
    assert "reminders" in str(texts.prompt_injection("caution", None).text)


def test_a_withheld_result_says_whether_the_call_failed() -> None:
    assert texts.withheld_result(2001, "caution", failed=False).startswith(
        "The call succeeded, but its result of 2,001"
    )
    assert texts.withheld_result(2001, "critical", failed=True).startswith("the call failed")
    assert "about 9,000 tokens" in texts.oversized_result(9000, 8192)


def test_a_full_window_is_reported_with_its_basis() -> None:
    assert texts.aborted(33_000, 32_768, "reported").endswith("33,000 of 32,768 tokens, reported")
    assert texts.tokens_of_limit(None, 8192, "reported") == "unknown number of tokens"


REPORTED = Status(
    messages_in_context=4,
    tokens=98_412,
    max_tokens=128_000,
    context=ContextReport(basis="reported", max_tokens_basis="configured", model="gpt"),
)
LAST = LastReported(tokens=1_234, measured_at="t", call_id="c")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (REPORTED, "My context is unchanged at 98,412 of 128,000 tokens (reported)."),
        (
            REPORTED.model_copy(update={"context": ContextReport(basis="projected", max_tokens_basis="loaded")}),
            "My context is unchanged at ~98,412 of 128,000 tokens (projected).",
        ),
        (
            REPORTED.model_copy(update={"max_tokens": None}),
            "My context is unchanged at 98,412 of ? tokens (reported).",
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
            "The size of my context is not known (no usage reported; last reported 1,234 tokens).",
        ),
        (Status(messages_in_context=0), "The size of my context is not known (nothing reported)."),
        (Status(messages_in_context=0, tokens=5), "The size of my context is not known (nothing reported)."),
    ],
)
def test_the_context_sentence_says_how_its_figure_is_known(status: Status, sentence: str) -> None:
    assert texts.context_sentence(status) == sentence


@pytest.mark.parametrize("text", ["I could not reach my model", "I could not reach my model."])
def test_a_failed_call_is_reported_with_the_context_sentence(text: str) -> None:
    assert texts.failed_call_text(RuntimeError(text), REPORTED) == (
        "I could not reach my model. My context is unchanged at 98,412 of 128,000 tokens (reported)."
    )


def test_a_message_that_does_not_fit_names_the_window() -> None:
    said = texts.does_not_fit_text(RuntimeError("Too large."), 4_096)
    assert said.startswith("Too large. Your message alone does not fit my window of 4,096 tokens")


def test_the_default_system_prompt_names_the_agent() -> None:
    assert "You are coder, " in texts.DEFAULT_SYSTEM_PROMPT.format(name="coder")


def test_results_that_do_not_fit_do_not_blame_the_message() -> None:
    said = texts.does_not_fit_text(RuntimeError("Too large."), 4_096, result_tokens=9_000)
    assert "What my tools returned for your message (about 9,000 tokens, projected) does not fit my window" in said
    assert "alone" not in said
