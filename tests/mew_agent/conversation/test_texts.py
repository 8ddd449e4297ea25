"""What a model and people read about a context: true figures, or that they are not known."""

import pytest

from mew_agent.context.policy import DOMINDS_V3, AbortAction, ErrorAction
from mew_agent.conversation import texts
from mew_agent.conversation.texts import Fullness


@pytest.mark.parametrize(
    ("fullness", "said"),
    [
        (Fullness(120_000, 200_000), "Your context holds 120,000 of 200,000 tokens (60 %)."),
        (Fullness(0, 200_000), "Your context holds 0 of 200,000 tokens (0 %)."),
        (Fullness(120_000, None), "Your context holds 120,000 tokens; how much fits is not known."),
        (Fullness(None, 200_000), "How much your context holds now is not known: your last call reported no usage."),
    ],
)
def test_fullness_is_said_as_far_as_it_is_known(fullness: Fullness, said: str) -> None:
    assert fullness.sentence() == said


@pytest.mark.parametrize(
    ("level", "remaining", "said"),
    [
        ("caution", None, ("from 100,001 tokens on", "call clear_mind to go on with a fresh context")),
        ("critical", 4, ("from 180,001 tokens on", "4 more notices follow")),
        ("critical", 1, ("1 more notice follows",)),
        ("critical", 0, ("This is the last notice",)),
    ],
)
def test_a_prompt_says_the_mark_the_moves_and_what_comes_next(
    level: str, remaining: int | None, said: tuple[str, ...]
) -> None:
    text = texts.prompt_text(DOMINDS_V3, level, remaining, Fullness(190_000, 200_000))
    assert text.startswith(texts.NOTICE)
    for part in ("190,000 of 200,000", "update_reminder (or add_reminder)", "clear_mind", texts.NO_BARE_ANSWER, *said):
        assert part in text


def test_people_read_one_line() -> None:
    assert texts.injection_line("critical", 1) == "at critical its context is cleared after 1 more prompt"
    assert texts.injection_line("critical", 4).endswith("4 more prompts")
    assert "reminders" in texts.injection_line("caution", None)


def test_a_withheld_result_keeps_whether_the_call_failed() -> None:
    assert texts.withheld_result(2001, "caution", failed=False).startswith(
        "The call succeeded, but its result of 2,001"
    )
    assert texts.withheld_result(2001, "critical", failed=True).startswith("the call failed")
    assert "about 9,000 tokens" in texts.oversized_result(9000, 8192)


def test_a_full_window_is_said_with_its_basis() -> None:
    assert texts.aborted(33_000, 32_768, "reported").endswith("33,000 of 32,768 tokens, reported")
    assert texts.of_window(None, 8192, "reported") == "how many tokens is not known"
    assert texts.problem_of(AbortAction("full")) == "full"
    assert texts.problem_of(ErrorAction("broken")) == "broken"
