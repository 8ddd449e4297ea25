"""The unsent tail."""

import pytest

from mew_agent.context.measures import Measure
from mew_agent.context.tail import Tail
from mew_agent.tokens.projection import Calibration

TYPICAL = Calibration()


def tail_of(*measures: Measure) -> Tail:
    tail = Tail()
    for measure in measures:
        tail.add(measure, TYPICAL)
    return tail


def _removed(tail: Tail, last_seq: int) -> tuple[list[int], int]:
    measures, tokens = tail.remove_until(last_seq, TYPICAL)
    return [measure.seq for measure in measures], tokens


def test_its_sum_is_that_of_its_items_whatever_enters_and_leaves() -> None:
    tail = tail_of(*(Measure(seq, 10.0 * seq) for seq in range(6)))
    assert tail.tokens == 150 + 6 * 4
    assert _removed(tail, 1) == ([0, 1], 10 + 2 * 4)
    tail.cut(3, 4, TYPICAL)
    assert [measure.seq for measure in tail.items] == [2, 5]
    assert tail.tokens == 20 + 50 + 2 * 4
    tail.replace({5: Measure(5, 1.0)}, TYPICAL)
    assert tail.tokens == 20 + 1 + 2 * 4
    assert tail.between(5, 9) == [Measure(5, 1.0)]
    assert _removed(tail, 7) == ([2, 5], 20 + 1 + 2 * 4)
    assert tail.items == []


@pytest.mark.parametrize(
    ("measures", "counted"),
    [
        pytest.param((), False, id="nothing"),
        pytest.param((Measure(0, 9.0, counted_tokens=8),), True, id="counted"),
        pytest.param((Measure(0, 9.0, known_tokens=7), Measure(1, 9.0, counted_tokens=8)), True, id="and reported"),
        pytest.param((Measure(0, 9.0, known_tokens=7),), False, id="only reported"),
        pytest.param((Measure(0, 9.0), Measure(1, 9.0, counted_tokens=8)), False, id="one of two"),
    ],
)
def test_it_is_counted_only_as_a_whole(measures: tuple[Measure, ...], counted: bool) -> None:
    assert tail_of(*measures).is_counted is counted


def test_counts_that_do_not_fit_the_model_are_not_used() -> None:
    tail = tail_of(Measure(0, 100.0, counted_tokens=50))
    assert tail.tokens == 54
    tail.project(Calibration(count_miss=1000.0))
    assert tail.tokens == 104
    assert not tail.is_counted
