"""Cutting the demo's texts into parts."""

from pathlib import PurePath

from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.demo.story import PART_CHARS, split_text

NOTES = PurePath("notes.txt")


def test_parts_join_short_paragraphs_and_cut_long_ones() -> None:
    long = "A sentence of some length stands here. " * 40
    parts = split_text(NOTES, f"one\n\ntwo\n\n{long}")
    assert parts[0].text == "one\n\ntwo"
    assert all(part.text.endswith(".") for part in parts[1:])
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert {part.source for part in parts} == {"notes.txt"}


def test_empty_text_has_no_parts() -> None:
    assert split_text(NOTES, " \n\n \t\n") == []


@given(st.text(max_size=6000))
def test_parts_are_bounded_and_lose_only_white_space(text: str) -> None:
    parts = split_text(NOTES, text)
    assert all(0 < len(part.text) <= PART_CHARS for part in parts)
    assert "".join("".join(part.text for part in parts).split()) == "".join(text.split())
