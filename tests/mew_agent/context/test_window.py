"""The size of the window, which source is trusted, and how full it is."""

import pytest

from mew_agent.context.window import (
    DEFAULT_WINDOW_TOKENS,
    Compression,
    learn_from_overflow,
    resolve_window,
)
from mew_agent.model.interface import Window, WindowBasis


@pytest.mark.parametrize(
    ("configured", "expected"),
    [(None, (128_000, "assumed")), (8_192, (8_192, "configured")), (1, (1, "configured"))],
)
def test_a_configured_window_overrides_the_default(configured: int | None, expected: tuple[int, WindowBasis]) -> None:
    window = resolve_window(configured)
    assert (window.max_tokens, window.basis) == expected
    assert window.source


@pytest.mark.parametrize("configured", [0, -1])
def test_a_configured_window_of_no_tokens_is_refused(configured: int) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        resolve_window(configured)


def test_the_default_is_128000() -> None:
    assert DEFAULT_WINDOW_TOKENS == 128_000


@pytest.mark.parametrize(
    ("basis", "present", "named", "expected"),
    [
        ("assumed", 128_000, 8_192, (8_192, "loaded")),
        ("assumed", 128_000, 200_000, (200_000, "loaded")),
        ("trained", 131_072, 4_096, (4_096, "loaded")),
        ("loaded", 8_192, 4_096, (4_096, "loaded")),
        ("loaded", 8_192, 16_384, (8_192, "loaded")),
        ("configured", 32_000, 8_192, (8_192, "loaded")),
        ("configured", 32_000, 131_072, (32_000, "configured")),
        ("configured", 32_000, 32_000, (32_000, "configured")),
        ("assumed", 128_000, None, (128_000, "assumed")),
        ("assumed", 128_000, 0, (128_000, "assumed")),
        ("assumed", 128_000, -5, (128_000, "assumed")),
    ],
)
def test_a_smaller_or_better_known_overflow_limit_is_used(
    basis: WindowBasis, present: int, named: int | None, expected: tuple[int, WindowBasis]
) -> None:
    window = learn_from_overflow(Window(present, basis), named)
    assert (window.max_tokens, window.basis) == expected


@pytest.mark.parametrize(("after", "missed"), [(600, 100), (900, 400), (300, 0)])
def test_a_missed_target_is_reported(after: int, missed: int) -> None:
    assert Compression(1100, after, 500, 1).missed_by_tokens == missed
