"""Drift, doubt and truncation at both sides of their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.facts import Described, Reported
from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.ledger import fold
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Comparison, Drift, Removal, Standstill, Terms, drift_of
from mew_agent.tokens.projection import Calibration

TERMS = Terms("m", "f", "b")


@pytest.mark.parametrize(
    ("predicted", "reported", "rebased"),
    [(1064, 1000, False), (1065, 1000, True), (936, 1000, False), (935, 1000, True), (10_200, 10_000, False)],
)
def test_beyond_64_tokens_and_2_percent_the_books_are_moved(predicted: int, reported: int, rebased: bool) -> None:
    assert drift_of(predicted, reported) == Drift(predicted - reported, rebased, False)


@pytest.mark.parametrize(
    ("reported", "removal", "truncated"),
    [
        (799, Removal.NOTHING, True),
        (800, Removal.NOTHING, False),
        (1, Removal.INTERVALS, False),
        (1, Removal.OTHERS, False),
    ],
)
def test_an_unexplained_fall_below_four_fifths_is_truncation_by_the_server(
    reported: int, removal: Removal, truncated: bool
) -> None:
    ledger = fold([Described(FixedTexts(1000.0)), Reported(1000, TERMS, -1)])
    ledger.evidence.removal = removal
    ledger.apply(Reported(reported, TERMS, -1))
    assert ledger.evidence.drift is not None
    assert ledger.evidence.drift.truncated_by_server is truncated


@pytest.mark.parametrize(
    ("off", "sent", "doubtful"),
    [
        (16, [ItemSize(0, 10.0)], False),
        (17, [ItemSize(0, 10.0)], True),
        (20, [ItemSize(n, 1.0) for n in range(5)], False),
        (21, [ItemSize(n, 1.0) for n in range(5)], True),
        (26, [ItemSize(0, 100.0)], False),
        (27, [ItemSize(0, 100.0)], True),
        (27, [ItemSize(0, 100.0), ItemSize(1, 900.0, known_tokens=900)], True),
        (27, [ItemSize(0, 1000.0)], False),
    ],
)
def test_an_interval_beyond_all_three_bounds_is_doubtful(off: int, sent: list[ItemSize], doubtful: bool) -> None:
    for drift in (off, -off):
        seen = Comparison(1000, 100, sent, 100, 100.0, Drift(drift, False, False), True, True, True, Removal.NOTHING, 9)
        assert seen.is_in_doubt(Calibration()) is doubtful


def test_five_prompts_in_a_row_without_growth_stand_still() -> None:
    still = Standstill()
    seen = [still.observe(1500, 1504, 54, is_steady=True) for _ in range(5)]
    assert seen == [False, False, False, False, True]
    assert not still.observe(1500, 1530, 54, is_steady=True)
    assert not still.observe(1530, 1530, 54, is_steady=True)


def test_a_template_that_shortens_old_calls_does_not_stand_still() -> None:
    still = Standstill()
    assert not any(still.observe(1500, 1400, 500, is_steady=False) for _ in range(9))
    assert any(still.observe(1500, 1490, 500, is_steady=False) for _ in range(5))


@given(st.lists(st.tuples(st.integers(20, 5000), st.floats(0.34, 3.0)), max_size=20))
def test_no_additive_prompt_stands_still(calls: list[tuple[int, float]]) -> None:
    still, prompt = Standstill(), 100
    for sent, factor in calls:
        grown = prompt + round(sent * factor)
        assert not still.observe(prompt, grown, sent, is_steady=True)
        prompt = grown
