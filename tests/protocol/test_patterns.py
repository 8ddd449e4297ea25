"""Text patterns; their use in capabilities is in test_capability."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.patterns import Steps, Undecidable, compile_text


def takes(pattern: str, text: str, *, in_kind: bool = False) -> bool:
    return compile_text(pattern, in_kind=in_kind)(text, Steps())


def test_a_budget_runs_out() -> None:
    steps = Steps(3)
    steps.spend(3)
    with pytest.raises(Undecidable):
        steps.spend(1)


def test_a_trailing_star_in_a_kind_crosses_slashes_only_after_one() -> None:
    assert takes("ab*", "ab/c")
    assert not takes("ab*", "ab/c", in_kind=True)
    assert takes("ab/*", "ab/c/d", in_kind=True)


@pytest.mark.parametrize("length", [10, 1_000, 100_000])
@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*b?", "**a*a*a**a*b", "**/a*/b?**"])
def test_a_glob_of_many_stars_never_hangs(length: int, pattern: str) -> None:
    test = compile_text(pattern)
    try:
        assert test("a" * length, Steps()) is False
    except Undecidable:
        assert length > 1_000


def test_stars_and_question_marks_cross_no_line_break() -> None:
    assert takes("ab*", "ab/c d")
    assert not takes("ab*", "ab\nrm -rf")
    assert not takes("a?b", "a\nb")
    assert not takes("a*b", "a\rb")
    assert takes("ab**", "ab\nc")
    assert takes("a**b", "a\n/b")


glob_texts = st.text(alphabet="ab/*?", min_size=1, max_size=10)


@given(pattern=glob_texts, text=st.text(alphabet="ab/\n", max_size=10))
def test_globs_agree_with_their_regular_expression(pattern: str, text: str) -> None:
    if len(pattern) > 2 and pattern[0] == "/" == pattern[-1]:
        return
    head = pattern.rstrip("*")
    translated = "".join(
        {"*": "[^/\n]*", "?": "[^/\n]", "**": ".*", "**/": "(?:.*/)?"}.get(part) or part
        for part in re.findall(r"(?:(?<=/)|^)\*\*/|\*\*|\*|\?|[ab/]", head)
    )
    rest = ".*" if pattern.endswith("**") or pattern == "*" else "[^\n]*" if pattern != head else ""
    assert takes(pattern, text) is (re.fullmatch(translated + rest, text, re.DOTALL) is not None)


@pytest.mark.parametrize("pattern", ["!" + "a" * 1_000, "/" + "a" * 1_000 + "/", "a*" * 501])
def test_a_pattern_of_more_than_a_thousand_characters_is_refused(pattern: str) -> None:
    with pytest.raises(Undecidable, match="1000 characters"):
        compile_text(pattern)


@given(pattern=st.text(alphabet="ab.()[]|?*+{}^$\\12", max_size=12), text=st.text(alphabet="ab.\n", max_size=12))
def test_a_supported_regex_agrees_with_python(pattern: str, text: str) -> None:
    try:
        ours = takes(f"/{pattern}/", text)
    except Undecidable:
        return
    if "$" not in pattern and len(pattern) > 0 and "*" not in pattern[:1]:
        try:
            expected = re.search(pattern, text, re.ASCII) is not None
        except re.error:
            return
        assert ours is expected
