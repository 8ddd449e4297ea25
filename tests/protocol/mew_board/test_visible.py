"""Text that a person decides about shows everything that it contains."""

from functools import partial

import pytest
from mew_board.visible import short, short_line, shortened, visible

from tests.support.operations import growth


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rm -rf build", "rm -rf build"),
        ("größer 数 é", "größer 数 é"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\u200bb\x00\x1b[2K", "a<U+200B>b<U+0000><U+001B>[2K"),
        ("a\u00a0b\u3000", "a<U+00A0>b<U+3000>"),
        ("x\U000e0041\ufe0f\u3164", "x<U+E0041><U+FE0F><U+3164>"),
        ("end  ", "end <U+0020>"),
        ("a \nb", "a <U+000A>b"),
        ("a\u2028b\x85", "a<U+2028>b<U+0085>"),
        ("аdmin", "а<U+0430>dmin"),
        ("раураӏ", "р<U+0440>а<U+0430>у<U+0443>р<U+0440>а<U+0430>ӏ<U+04CF>"),
        ("Привет мир", "Привет мир"),
        ("a – b ｒ", "a –<U+2013> b ｒ<U+FF52>"),
        ("о\u0338 =\u0338", "о<U+043E><U+0338> =<U+0338>"),
        ("e\u0323\u0302", "e\u0323\u0302"),
        (f"import os{' ' * 500}; x", "import os<500 spaces>; x"),
        (f"{' ' * 40}indented", f"{' ' * 40}indented"),
    ],
)
def test_invisible_characters_are_shown_by_their_number(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_lines_stay_lines_and_show_the_space_at_their_end() -> None:
    assert visible("a \n b\t\n ", lines=True) == "a<U+0020>\n b<U+0009>\n<U+0020>"


def test_different_texts_look_different() -> None:
    texts = ["a", "a ", "a\n", "a\r", "a\t", "a\u200b", "a\ufeff", "\u202aa\u202c", "a\u00ad", "a\u2800", "a\u115f"]
    assert len({visible(text) for text in texts}) == len(texts)


def test_a_cut_says_how_much_is_missing_and_where_to_see_it() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdef", 5) == "abcde … (1 more character)"
    assert (
        shortened("a" * 3000, 2, "`mew proposals` shows all")
        == "aa … (2,998 more characters; `mew proposals` shows all)"
    )


@pytest.mark.parametrize("unit", [" ", "\n", "\u202e", "e\u0301", " \n", "\U000e0041"])
def test_the_calls_grow_with_the_length_of_the_text(unit: str) -> None:
    assert growth(lambda number: partial(visible, unit * number, lines=True), 500) < 5


def test_a_shortened_text_ends_with_one_mark() -> None:
    assert (short("12345", 5), short("123456", 5)) == ("12345", "12345…")
    assert short_line("two\n  lines and more", 9) == "two lines…"
