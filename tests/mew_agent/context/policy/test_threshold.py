"""Fractions, reserves and conditions compare integers exactly."""

from fractions import Fraction as Exact
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mew_agent.context.policy.threshold import Condition, Fraction, Reserve, whole_count

FRACTION = TypeAdapter(Fraction)


def part(numerator: int, denominator: int = 100) -> Fraction:
    return Fraction(numerator=numerator, denominator=denominator)


@pytest.mark.parametrize(
    ("text", "fraction"), [("9/10", part(9, 10)), (" 17 / 20 ", part(17, 20)), ("90%", part(90)), ("100%", part(100))]
)
def test_a_part_may_be_written_as_people_write_it(text: str, fraction: Fraction) -> None:
    assert FRACTION.validate_python(text) == fraction


@pytest.mark.parametrize("text", ["", "0.9", "9", "-9/10", "9/-10", "nine/ten", "/", "%", "1.5%"])
def test_a_part_that_is_written_otherwise_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="write 9/10 or 90%"):
        FRACTION.validate_python(text)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**7), st.integers(1, 10**7))
def test_parts_are_exact(numerator: int, denominator: int, tokens: int, limit: int) -> None:
    exact = Exact(numerator, denominator) * limit
    fraction = part(numerator, denominator)
    assert fraction.floor_of(limit) == exact.numerator // exact.denominator
    assert fraction.exceeds(tokens, limit) is (exact > tokens)
    for op, holds in (("ge", tokens >= exact), ("gt", tokens > exact), ("lt", tokens < exact)):
        assert Condition(figure="used", op=op, fraction=fraction).holds(tokens, limit) is holds


@given(st.integers(0, 200_000), st.integers(1, 200_000))
def test_a_reserve_of_the_rest_is_exact_and_has_a_minimum(prompt: int, limit: int) -> None:
    reserve = Reserve(fraction=part(1, 5), of="rest", at_least_tokens=1000)
    value, scale = reserve.added_to(prompt, limit)
    rest = Exact(limit - prompt, 5)
    assert Exact(value, scale) - prompt == (rest if rest > 1000 else Exact(1000))


def test_a_whole_reserve_is_rounded_down_and_bounded() -> None:
    reserve = Reserve(fraction=part(1, 20), at_most_tokens=4096, whole=True)
    assert [reserve.added_to(0, limit) for limit in (19, 20, 81_919, 81_920, 10**7)] == [
        (0, 1),
        (1, 1),
        (4095, 1),
        (4096, 1),
        (4096, 1),
    ]


@pytest.mark.parametrize(
    ("op", "tokens", "holds"),
    [("lt", 32_767, True), ("lt", 32_768, False), ("gt", 32_768, False), ("gt", 32_769, True)],
)
def test_a_whole_mark_has_one_token_at_which_nothing_holds(op: Any, tokens: int, holds: bool) -> None:
    assert Condition(figure="used", op=op, fraction=part(1, 2), whole=True).holds(tokens, 65_537) is holds


def test_a_whole_mark_is_at_least_one_token() -> None:
    condition = Condition(figure="used", op="gt", fraction=part(9, 10), whole=True)
    assert (condition.holds(1, 1), condition.holds(2, 1)) == (False, True)
    assert condition.first_tokens(1) == 2


def test_the_end_of_something_has_no_first_token() -> None:
    assert Condition(figure="used", op="lt", tokens=10).first_tokens(100) is None


@pytest.mark.parametrize(
    ("value", "count"),
    [(1, 1), (3.9, 3), (0, None), (-3, None), (0.5, None), (float("nan"), None), (float("inf"), None), (None, None)],
)
def test_a_setting_is_a_count_of_at_least_one_or_nothing(value: float | None, count: int | None) -> None:
    assert whole_count(value) == count


def test_a_setting_replaces_the_bound() -> None:
    condition = Condition(figure="used", op="gt", fraction=part(1, 2), whole=True, override="optimal")
    assert condition.configured({}) is condition
    assert condition.configured({"optimal": -1}) is condition
    configured = condition.configured({"optimal": 60_000.9})
    assert (configured.holds(60_000, 10), configured.holds(60_001, 10)) == (False, True)


def test_a_condition_on_a_setting_holds_once_set() -> None:
    condition = Condition(figure="used", op="ge", override="mark")
    assert not condition.holds(10**9, 1)
    assert condition.first_tokens(1) is None
    assert condition.configured({"mark": 5}).holds(5, 1)
