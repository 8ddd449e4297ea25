"""Projection from features: weights, learning, and bounds for unusual texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.rehearsal.tokenizer import count
from mew_agent.tokens.projection import (
    MESSAGE_OVERHEAD_TOKENS,
    PIECE_CHARS,
    Calibration,
    Units,
    features,
    most_tokens,
    pieces_of,
)

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
def test_a_megabyte_of_one_character_is_weighed_quickly_and_plausibly(unit: str) -> None:
    assert features(unit * (1_000_000 // len(unit))) > 10_000


@given(st.text(), st.text())
def test_joined_texts_count_at_most_their_sum_and_the_joint(left: str, right: str) -> None:
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
def test_an_untrained_projection_is_within_a_third_of_a_tokenizer(text: str) -> None:
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
def test_k_stays_within_the_range_of_real_tokenizers(observations: list[tuple[int, float]]) -> None:
    calibration = Calibration()
    for tokens, units in observations:
        calibration = calibration.observe(tokens, units)
    assert 0.33 <= calibration.k <= 3.0


def test_an_absurd_observation_counts_as_the_nearest_possible_one() -> None:
    steady = Calibration().observe(1000, 1000.0)
    assert steady.observe(1, 1000.0) == steady.observe(330, 1000.0)
    assert steady.observe(10**6, 1000.0) == steady.observe(3000, 1000.0)


@given(st.floats(0, 10**6), st.integers(0, 50))
def test_a_projection_is_k_times_units_plus_overhead(units: float, messages: int) -> None:
    calibration = Calibration(200.0, 100.0)
    assert calibration.project(units, messages) == round(2 * units) + MESSAGE_OVERHEAD_TOKENS * messages


@pytest.mark.parametrize("text", ["", "a", "hello there", "x" * 500, "中" * 100, "def f(): return 1"])
def test_no_visible_text_takes_more_tokens_than_its_features_allow(text: str) -> None:
    assert count(text) <= most_tokens(features(text))


# What each feature weighs for a model

KINDS = {
    "prose": "The gateway keeps the last status of every participant and gives it to late joiners. " * 30,
    "digits": "4096 16384 262144 1048576 " * 40,
    "Chinese": "窗口快满的时候代理会写摘要" * 40,
    "base64": "aGVsTG8gd09ybGQhIFRoaXMgaXMgYmFzZTY0 " * 30,
}
A_TOKEN_A_DIGIT = {"prose": 1.0, "digits": 1.6, "Chinese": 1.3, "base64": 1.1}
"""Tokens of a vocabulary that splits digits and Chinese more finely than the typical one."""


def taught(calls: int, factors: dict[str, float] = A_TOKEN_A_DIGIT) -> Calibration:
    """A calibration that saw so many intervals, of one kind after the other."""
    calibration = Calibration()
    kinds = list(KINDS)
    for number in range(calls):
        kind = kinds[number % len(kinds)]
        units = features(KINDS[kind])
        calibration = calibration.observe(factors[kind] * units, units)
    return calibration


@given(st.text(), st.text())
def test_a_sum_of_texts_knows_the_features_of_both(left: str, right: str) -> None:
    one, other = features(left), features(right)
    both = one + other
    assert isinstance(both, Units)
    assert both == pytest.approx(float(one) + float(other))
    back = both - other
    assert isinstance(back, Units)
    assert back.counts == one.counts


def test_adding_zero_keeps_the_features_and_a_number_drops_them() -> None:
    units = features("some text")
    assert isinstance(sum([units, units]), Units)
    assert units + 0.0 is units
    assert 0.0 + units is units
    assert units - 0.0 is units
    assert units + 1.0 == 1.0 + units == float(units) + 1
    assert units - 1.0 == float(units) - 1
    assert not isinstance(units + 1.0, Units)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_text_is_projected_by_its_own_features(kind: str) -> None:
    """One factor for all kinds would be up to 40 % off here, and is worse for each of them."""
    units = features(KINDS[kind])
    calibration, tokens = taught(16), A_TOKEN_A_DIGIT[kind] * units
    assert calibration.tokens(units) == pytest.approx(tokens, rel=0.03)
    assert abs(calibration.tokens(units) - tokens) < abs(calibration.k * units - tokens)


def test_one_interval_moves_its_features_and_related_ones() -> None:
    chinese, prose = features(KINDS["Chinese"]), features(KINDS["prose"])
    calibration = Calibration().observe(1.5 * chinese, chinese)
    assert calibration.tokens(chinese) == pytest.approx(1.5 * chinese, rel=0.02)
    assert 1.1 * prose < calibration.tokens(prose) < 1.4 * prose


def test_weights_begin_at_the_factor_that_was_known_before() -> None:
    units = features(KINDS["prose"])
    calibration = Calibration(200.0, 100.0).observe(2 * units, units)
    assert calibration.tokens(features(KINDS["digits"])) == pytest.approx(2 * features(KINDS["digits"]), rel=0.02)


def test_a_whole_prompt_teaches_less_than_an_interval() -> None:
    units = features(KINDS["prose"])
    interval, whole = (Calibration().observe(2 * units, units, noise=noise).tokens(units) for noise in (1.0, 6.0))
    assert units < whole < interval


def test_weights_follow_a_model_that_changes_after_a_long_time() -> None:
    units = features(KINDS["digits"])
    calibration = taught(400)
    for _ in range(12):
        calibration = calibration.observe(0.8 * units, units)
    assert calibration.tokens(units) == pytest.approx(0.8 * units, rel=0.05)


def test_one_absurd_interval_does_not_undo_earlier_learning() -> None:
    units = features(KINDS["prose"])
    calibration = taught(60)
    steady = calibration.tokens(units)
    assert calibration.observe(10**9, units).tokens(units) == pytest.approx(steady, rel=0.2)
    assert calibration.observe(1, units).tokens(units) == pytest.approx(steady, rel=0.2)


@given(st.lists(st.tuples(st.integers(-100, 10**7), st.text(max_size=40), st.integers(1, 3000)), max_size=20))
def test_no_sequence_of_reports_makes_weights_impossible(
    reports: list[tuple[int, str, int]],
) -> None:
    calibration = Calibration()
    measured = [features(text * times) for _, text, times in reports]
    for (tokens, _, _), observed in zip(reports, measured, strict=True):
        calibration = calibration.observe(tokens, observed)
        for units in measured:
            assert 0.33 * units - 1e-6 <= calibration.tokens(units) <= 3.0 * units + 1e-6


@given(st.integers(0, 12))
def test_a_calibration_survives_a_round_trip(calls: int) -> None:
    calibration = taught(calls)
    assert Calibration.restored(calibration.saved()) == calibration


@pytest.mark.parametrize("count", [0, 3, 7])
def test_figures_of_another_number_of_features_are_forgotten(count: int) -> None:
    assert Calibration.restored([1.0] * count) == Calibration()


@given(st.text(max_size=400), st.integers(2, 60))
def test_pieces_of_a_text_are_the_text(text: str, most: int) -> None:
    pieces = list(pieces_of(text, most))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= most for piece in pieces) or not text


@pytest.mark.parametrize(
    "sentence", [" The gateway wrote 17 frames (at most).", " tokens={98412};\n\tbasis := 窗口快满了 é"]
)
def test_a_long_text_weighs_the_sum_of_its_pieces(sentence: str) -> None:
    times = 3 * PIECE_CHARS // len(sentence)
    assert features(sentence * times).counts == tuple(count * times for count in features(sentence).counts)


def test_a_long_text_without_spaces_is_weighed_by_its_features() -> None:
    text = "a" * (5 * PIECE_CHARS)
    words, letters_past, *rest = features(text).counts
    assert (words, letters_past) == (5, 5 * (PIECE_CHARS - 7))
    assert not any(rest)
