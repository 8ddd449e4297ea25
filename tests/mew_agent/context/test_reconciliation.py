"""Drift, doubt and truncation at both sides of their bounds."""

import pytest

from mew_agent.context.measures import Measure
from mew_agent.context.reconciliation import Drift, drift_of, is_doubtful
from mew_agent.tokens.projection import Calibration


@pytest.mark.parametrize(
    ("predicted", "reported", "rebased"),
    [(1064, 1000, False), (1065, 1000, True), (936, 1000, False), (935, 1000, True), (10_200, 10_000, False)],
)
def test_beyond_64_tokens_and_2_percent_the_books_are_moved(predicted: int, reported: int, rebased: bool) -> None:
    assert drift_of(predicted, reported, 900, may_be_truncated=True) == Drift(predicted - reported, rebased, False)


@pytest.mark.parametrize(("reported", "ours", "truncated"), [(799, False, True), (800, False, False), (1, True, False)])
def test_an_unexplained_fall_below_four_fifths_is_truncation_by_the_server(
    reported: int, ours: bool, truncated: bool
) -> None:
    assert drift_of(1000, reported, 1000, may_be_truncated=not ours).truncated_by_server is truncated


@pytest.mark.parametrize(
    ("off", "sent", "doubtful"),
    [
        (16, [Measure(0, 10.0)], False),
        (17, [Measure(0, 10.0)], True),
        (20, [Measure(n, 1.0) for n in range(5)], False),
        (21, [Measure(n, 1.0) for n in range(5)], True),
        (26, [Measure(0, 100.0)], False),
        (27, [Measure(0, 100.0)], True),
        (27, [Measure(0, 100.0), Measure(1, 900.0, known_tokens=900)], True),
        (27, [Measure(0, 1000.0)], False),
    ],
)
def test_an_interval_beyond_all_three_bounds_is_doubtful(off: int, sent: list[Measure], doubtful: bool) -> None:
    assert is_doubtful(off, sent, Calibration()) is doubtful
    assert is_doubtful(-off, sent, Calibration()) is doubtful
