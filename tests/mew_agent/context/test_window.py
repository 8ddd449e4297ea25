"""How large the window is, and whom to believe."""

import pytest

from mew_agent.context.window import DEFAULT_WINDOW_TOKENS, learn_from_overflow, resolve_window
from mew_agent.model.interface import Window, WindowBasis


@pytest.mark.parametrize(
    ("configured", "discovered", "expected"),
    [
        (None, None, (128_000, "assumed")),
        (8_192, None, (8_192, "configured")),
        (8_192, Window(4_096, "loaded"), (8_192, "configured")),
        (None, Window(4_096, "loaded"), (4_096, "loaded")),
        (None, Window(131_072, "trained"), (131_072, "trained")),
        (None, Window(0, "loaded"), (128_000, "assumed")),
        (None, Window(-1, "loaded"), (128_000, "assumed")),
        (1, None, (1, "configured")),
    ],
)
def test_configured_stands_before_discovered_and_discovered_before_assumed(
    configured: int | None, discovered: Window | None, expected: tuple[int, WindowBasis]
) -> None:
    window = resolve_window(configured, discovered)
    assert (window.max_tokens, window.basis) == expected
    assert window.source or discovered


@pytest.mark.parametrize("configured", [0, -1])
def test_a_configured_window_without_room_is_refused(configured: int) -> None:
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
def test_an_overflow_error_is_believed_where_it_is_smaller_or_nothing_better_was_known(
    basis: WindowBasis, present: int, named: int | None, expected: tuple[int, WindowBasis]
) -> None:
    window = learn_from_overflow(Window(present, basis), named)
    assert (window.max_tokens, window.basis) == expected
