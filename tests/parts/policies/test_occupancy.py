"""Levels of `tachikoma`, row by row."""

import pytest

from mew_agent.context.window import occupancy_of
from mew_agent.parts.policies.presets import TACHIKOMA


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
def test_only_the_free_tokens_fit(tokens: int, fits: bool) -> None:
    assert occupancy_of(TACHIKOMA, 150_000, 200_000).has_room_for(tokens) is fits
