"""Pauses between attempts."""

from hypothesis import given
from hypothesis import strategies as st
from mew_settings.backoff import Backoff, backoff_seconds


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_a_pause_has_a_maximum(failures: int, jitter: float) -> None:
    assert 0.05 <= backoff_seconds(failures, 0.1, 3.0, jitter) <= 3.0


def test_a_pause_doubles_and_jitter_takes_up_to_half() -> None:
    assert [backoff_seconds(n, 0.1, 3.0) for n in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert backoff_seconds(3, 0.1, 3.0, 0.0) == 0.2


def test_pauses_start_over_after_a_long_run() -> None:
    backoff = Backoff(1.0, 3.0, settled_seconds=60.0)
    assert [backoff.failed(0.0), backoff.failed(59.0), backoff.failed(59.0), backoff.failed(60.0)] == [1, 2, 3, 1]
    assert backoff.failures == 1
