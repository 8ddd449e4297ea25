"""Projection from features: what it weighs, what it learns, and that no text makes it slow or blind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.context.projection import MESSAGE_OVERHEAD_TOKENS, Calibration, features, most_tokens
from mew_agent.model.rehearsal.tokenizer import count

HOSTILE = {
    "one letter": "a",
    "letters of alternating case": "aA",
    "spaces": " ",
    "newlines": "\n",
    "one digit": "1",
    "one punctuation mark": "!",
    "brackets": "[](){}",
    "Chinese": "中",
    "accents": "é",
    "emoji": "😀",
    "lone surrogates": "\ud800",
    "zero bytes": "\x00",
    "no-break spaces": "\u00a0",
}


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("", 0.0),
        ("word", 0.90),
        ("two words", 1.80),
        ("tokenizers", 0.90 + 0.30 * 3),
        ("2026", 4 * 0.62),
        ("!", 0.73),
        ("!!!", 0.73 + 2 * 0.28),
        (" ", 0.0),
        ("  ", 1.08),
        ("\n", 1.08),
        ("中文", 2 * 0.78),
        ("é", 0.96 * 0.8),
        ("aBcD", 4 * 0.96),
        ("HTTPServer", 0.90 + 0.30 * 3),
        ("\x00\x7f", 2.0),
    ],
)
def test_each_kind_of_text_has_its_weight(text: str, units: float) -> None:
    assert features(text) == pytest.approx(units)


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_megabyte_of_one_character_takes_long_or_counts_as_next_to_nothing(unit: str) -> None:
    assert features(unit * (1_000_000 // len(unit))) > 10_000


@given(st.text(), st.text())
def test_two_texts_count_at_most_their_sum_and_what_joins_them(left: str, right: str) -> None:
    assert features(f"{left} {right}") <= features(left) + features(right) + 2 * 1.08 + len(left + right) // 32 + 1e-9


@pytest.mark.parametrize(
    "text",
    [
        "The gateway keeps the last status of every participant and gives it to late joiners, with its age. " * 20,
        '{"id": 17, "name": "coder", "tokens": 98412, "basis": "reported", "parts": [1, 2, 3]}\n' * 30,
        "def plan(history, prices):\n    return [item for item in history if prices[item.seq] > 2]\n" * 20,
    ],
    ids=["prose", "JSON", "code"],
)
def test_the_count_is_within_a_third_of_a_real_tokenizer_before_anything_was_learnt(text: str) -> None:
    assert features(text) == pytest.approx(count(text), rel=0.33)


def test_k_is_one_until_something_was_observed() -> None:
    assert Calibration().k == 1.0
    assert Calibration().observe(5, 4.0) == Calibration()
    assert Calibration().observe(0, 100.0) == Calibration()
    assert Calibration().observe(-5, 100.0) == Calibration()


def test_k_is_tokens_per_unit_with_older_observations_fading() -> None:
    once = Calibration().observe(150, 100.0)
    assert once.k == pytest.approx(1.5)
    assert once.observe(100, 100.0).k == pytest.approx((150 * 0.9 + 100) / 190)


@given(st.lists(st.tuples(st.integers(-100, 10**7), st.floats(0, 10**6)), max_size=30))
def test_k_stays_between_what_tokenizers_do_whatever_is_observed(observations: list[tuple[int, float]]) -> None:
    calibration = Calibration()
    for tokens, units in observations:
        calibration = calibration.observe(tokens, units)
    assert 0.33 <= calibration.k <= 3.0


def test_one_absurd_observation_counts_no_more_than_the_nearest_possible_one() -> None:
    steady = Calibration().observe(1000, 1000.0)
    assert steady.observe(1, 1000.0) == steady.observe(330, 1000.0)
    assert steady.observe(10**6, 1000.0) == steady.observe(3000, 1000.0)


@given(st.floats(0, 10**6), st.integers(0, 50))
def test_a_projection_is_k_times_units_and_an_overhead_for_each_message(units: float, messages: int) -> None:
    calibration = Calibration(200.0, 100.0)
    assert calibration.project(units, messages) == round(2 * units) + MESSAGE_OVERHEAD_TOKENS * messages


@pytest.mark.parametrize("text", ["", "a", "hello there", "x" * 500, "中" * 100, "def f(): return 1"])
def test_no_visible_text_takes_more_tokens_than_its_features_allow(text: str) -> None:
    assert count(text) <= most_tokens(features(text))
