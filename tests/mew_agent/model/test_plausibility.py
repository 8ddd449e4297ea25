"""Usage that no call can have, at both sides of each bound."""

from collections.abc import Callable

import pytest

from mew_agent.model.usage import LARGEST_WINDOW, Usage, implausibility


def text_of(tokens: int) -> Callable[[], int]:
    return lambda: tokens


@pytest.mark.parametrize(
    ("usage", "text", "is_plausible"),
    [
        pytest.param(Usage(90_000, 10_000, 100_000), 80_000, True, id="a full window"),
        pytest.param(Usage(90_000, 10_001, 100_001), 80_000, True, id="a window configured too small"),
        pytest.param(Usage(150_000, 10, 150_010), 80_000, True, id="twice the text, more than the window"),
        pytest.param(Usage(160_001, 10, 160_011), 80_000, False, id="more than the text explains"),
        pytest.param(Usage(7, 100_001, 100_008), 7, False, id="a reply larger than the window"),
        pytest.param(Usage(7, 1, 1_000_000_000), 7, False, id="a total larger than the window"),
        pytest.param(Usage(7, 1_000_000_000, 1_000_000_007), 7, False, id="a billion"),
        pytest.param(Usage(60_000, 60_000, 120_000), 100, False, id="together more than the window"),
        pytest.param(Usage(900, 100, 999), 900, False, id="a total below its parts"),
        pytest.param(Usage(0, 100, 100), 900, False, id="no prompt"),
    ],
)
def test_no_call_has_more_than_its_window_and_text(usage: Usage, text: int, *, is_plausible: bool) -> None:
    assert (implausibility(usage, window_tokens=100_000, project=text_of(text)) is None) is is_plausible


def test_without_a_window_only_impossible_sizes_are_implausible() -> None:
    assert implausibility(Usage(9_000_000, 1_000_000, 10_000_000)) is None
    assert implausibility(Usage(7, LARGEST_WINDOW + 1, LARGEST_WINDOW + 8)) is not None
    assert implausibility(Usage(1_000_000_000_000, 7, 1_000_000_000_007), project=text_of(900)) is not None


@pytest.mark.parametrize(
    ("prompt", "before", "projected", "why"),
    [
        (500_000, 400, 600, "a prompt of 500,000 tokens after one of 400"),
        (400, 500_000, 600_000, "a prompt of 400 tokens after one of 500,000"),
        (500_000, 400, 400_000, None),
        (390_000, 400, 600, None),
        (127_000, 0, 600, None),
        (128_000, 0, 600, "a prompt of 128,000 tokens after one of 0"),
    ],
)
def test_a_jump_that_no_projection_explains_is_implausible(
    prompt: int, before: int, projected: int, why: str | None
) -> None:
    usage = Usage(prompt, 10, prompt + 10)
    assert implausibility(usage, before=before, project=lambda: projected) == why
