"""Limits of tool results: what is cut, and the notice in its place."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.tokens.projection import Calibration, features
from mew_agent.tools.bounds import MIN_RESULT_TOKENS, ResultBound, Room, beginning, cut_in_the_middle

LEARNT = Calibration().observe(900.0, features("Rivers rise in spring. " * 200))


def project(text: str) -> int:
    return LEARNT.project(features(text), messages=0)


LINES = "\n".join(f"line {n}: station {n * 7} measured {n * 13} units" for n in range(2_000))
texts = st.text(max_size=400) | st.text(alphabet="abc 0123,\n漢", min_size=200, max_size=3_000)


@pytest.mark.parametrize(
    ("free_tokens", "most_tokens", "room_tokens"),
    [(8_000, 9_000, 4_000), (1_000, 9_000, 2_500), (1_000, 3_000, 1_500), (0, 0, 0)],
)
def test_results_may_take_half_of_the_free_tokens(free_tokens: int, most_tokens: int, room_tokens: int) -> None:
    assert Room(10_000, free_tokens, most_tokens).for_results == room_tokens


def test_short_results_leave_room_for_long_ones() -> None:
    limits = ResultBound().limits({"long": 5_000, "short": 100, "longer": 9_000}, Room(10_000, 4_000, 9_000))
    assert limits["short"] >= 100
    assert limits["long"] == limits["longer"] == (2_500 - 100) // 2


def test_the_configured_limit_applies_to_each_result() -> None:
    limits = ResultBound(max_tokens=200).limits({"a": 5_000, "b": 100}, Room(10_000, 4_000, 9_000))
    assert limits == {"a": 200, "b": 200}


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 50_000), min_size=1, max_size=8),
    st.integers(0, 20_000),
    st.integers(0, 20_000),
)
def test_all_results_together_stay_within_the_room(sizes: dict[str, int], free: int, most: int) -> None:
    room = Room(20_000, min(free, most), most)
    limits = ResultBound().limits(sizes, room)
    taken = sum(min(sizes[key], limits[key]) for key in sizes)
    assert limits.keys() == sizes.keys()
    assert taken <= room.for_results + MIN_RESULT_TOKENS * len(sizes)


def test_a_result_that_fits_is_unchanged() -> None:
    assert ResultBound().bounded("short", 100, project, kept_as="r1") is None


def test_a_long_result_keeps_both_ends_and_names_the_gap() -> None:
    part = ResultBound().bounded(LINES, 500, project, kept_as="r1")
    assert part is not None
    head, note, tail = re.split(r"\n(\[\.\.\. .* \.\.\.\])\n", part)
    assert LINES.startswith(head)
    assert LINES.endswith(tail)
    notice = re.fullmatch(
        r"\[\.\.\. about ([\d,]+) tokens \(projected\) of this result are omitted;"
        r" the complete result is kept as r1 \.\.\.\]",
        note,
    )
    assert notice is not None
    missing = int(notice[1].replace(",", ""))
    assert missing == project(LINES) - project(head) - project(tail)
    assert 450 <= project(part) <= 505


def test_a_long_result_can_be_refused() -> None:
    part = ResultBound(on_long="refuse").bounded(LINES, 500, project, kept_as="r1")
    assert part == (
        f"Error: this result of about {project(LINES):,} tokens (projected) exceeds the 500 tokens of room;"
        " it is kept as r1."
    )


@given(texts, st.integers(0, 400))
def test_a_cut_result_stays_within_its_limit(text: str, limit: int) -> None:
    tokens = project(text)
    if tokens <= limit:
        assert ResultBound().bounded(text, limit, project, kept_as="r") is None
        return
    part = cut_in_the_middle(text, tokens, limit, project, kept_as="r")
    note_tokens = project(cut_in_the_middle(text, tokens, 0, project, kept_as="r"))
    assert project(part) <= max(limit, note_tokens) + 8


@given(texts, st.integers(-5, 400))
def test_a_beginning_stays_within_its_limit(text: str, limit: int) -> None:
    part = beginning(text, limit, project)
    assert text.startswith(part)
    assert project(part) <= max(0, limit)
