"""The size of the window, which source is trusted, and how full it is."""

import pytest

from mew_agent.context.policy import TACHIKOMA
from mew_agent.context.window import (
    DEFAULT_WINDOW_TOKENS,
    Compression,
    learn_from_overflow,
    occupancy_of,
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


@pytest.mark.parametrize(
    ("used", "level", "percent", "until_redline", "remaining"),
    [
        pytest.param(99_999, "nominal", 49.9995, 80_001, 100_001, id="T1 below"),
        pytest.param(100_000, "elevated", 50.0, 80_000, 100_000, id="T1"),
        pytest.param(149_999, "elevated", 74.9995, 30_001, 50_001, id="T2 below"),
        pytest.param(150_000, "warning", 75.0, 30_000, 50_000, id="T2"),
        pytest.param(180_000, "critical", 90.0, 0, 20_000, id="T4"),
        pytest.param(199_999, "critical", 99.9995, 0, 1, id="T5 below"),
        pytest.param(200_000, "redlined", 100.0, 0, 0, id="T5"),
        pytest.param(250_000, "redlined", 125.0, 0, 0, id="T5 above"),
    ],
)
def test_occupancy_has_the_level_and_the_free_tokens(
    used: int, level: str, percent: float, until_redline: int, remaining: int
) -> None:
    found = occupancy_of(TACHIKOMA, used, 200_000)
    assert (found.level, found.percent, found.remaining_tokens) == (level, percent, remaining)
    assert TACHIKOMA.redline is not None
    assert found.tokens_until(TACHIKOMA.redline) == until_redline


@pytest.mark.parametrize(("used", "needs_reset"), [(0, False), (150_000, False), (199_999, False), (200_000, True)])
def test_only_the_redlined_level_needs_a_reset(used: int, needs_reset: bool) -> None:
    assert occupancy_of(TACHIKOMA, used, 200_000).needs_reset is needs_reset


def test_levels_of_a_very_large_window_are_exact_to_the_token() -> None:
    assert occupancy_of(TACHIKOMA, 14_260_633, 16_777_216).level == "warning"
    assert occupancy_of(TACHIKOMA, 14_260_634, 16_777_216).level == "critical"


@pytest.mark.parametrize(
    ("tokens", "fits"), [pytest.param(50_000, True, id="T13"), pytest.param(50_001, False, id="T13+")]
)
def test_only_what_remains_fits(tokens: int, fits: bool) -> None:
    assert occupancy_of(TACHIKOMA, 150_000, 200_000).has_room_for(tokens) is fits


@pytest.mark.parametrize(("after", "missed"), [(600, 100), (900, 400), (300, 0)])
def test_a_missed_target_is_reported(after: int, missed: int) -> None:
    assert Compression(1100, after, 500, 1).missed_by_tokens == missed
