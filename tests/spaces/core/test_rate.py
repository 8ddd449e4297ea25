"""A bucket gives bursts and then its rate, never more."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from mew_spaces.core.rate import TokenBucket

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_burst_passes_then_the_rate() -> None:
    bucket = TokenBucket(per_second=2, burst=3, now=START)
    assert [bucket.take(START) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(at(0.4)), bucket.take(at(0.5)), bucket.take(at(0.5))] == [False, True, False]


def test_waiting_long_fills_no_more_than_a_burst() -> None:
    bucket = TokenBucket(per_second=1_000, burst=2, now=START)
    assert [bucket.take(at(3600)) for _ in range(3)] == [True, True, False]


def test_a_clock_that_goes_back_gives_nothing_and_breaks_nothing() -> None:
    bucket = TokenBucket(per_second=1, burst=1, now=START)
    assert bucket.take(START)
    assert not bucket.take(at(-100))
    assert bucket.take(at(-99))


@given(steps=st.lists(st.floats(0, 5), max_size=200), burst=st.integers(1, 20), rate=st.floats(0.1, 50))
def test_never_more_than_burst_and_rate_together(steps: list[float], burst: int, rate: float) -> None:
    bucket = TokenBucket(per_second=rate, burst=burst, now=START)
    now, taken = 0.0, 0
    for step in steps:
        now += step
        taken += bucket.take(at(now))
    assert taken <= burst + now * rate + 1e-3 * (len(steps) + 1)
