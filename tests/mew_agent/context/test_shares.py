"""Splitting a figure among its parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.shares import apportion, fit

SIZES = st.lists(st.integers(0, 100_000), min_size=1, max_size=8)


@given(st.integers(0, 1_000_000), SIZES)
def test_shares_are_never_negative_and_sum_to_the_figure(total: int, sizes: list[int]) -> None:
    for split in (apportion, fit):
        shares = split(total, sizes)
        assert sum(shares) == total
        assert min(shares) >= 0
        assert len(shares) == len(sizes)


def test_equal_weights_share_equally_and_the_rest_goes_to_the_first() -> None:
    assert apportion(10, [1, 1, 1]) == [4, 3, 3]
    assert apportion(7, [0, 0]) == [7, 0]
    assert apportion(5, []) == []


@pytest.mark.parametrize(
    ("total", "wanted", "fitted"),
    [
        (110, [10, 90], [10, 100]),  # nearly all of what is missing belongs to the large part
        (100, [10, 90], [10, 90]),
        (50, [50, 50], [25, 25]),
    ],
)
def test_a_projection_is_corrected_where_its_error_most_likely_lies(
    total: int, wanted: list[int], fitted: list[int]
) -> None:
    assert fit(total, wanted) == fitted


def test_a_correction_larger_than_the_parts_scales_them_all_alike() -> None:
    assert fit(12, [100, 300]) == [3, 9]
