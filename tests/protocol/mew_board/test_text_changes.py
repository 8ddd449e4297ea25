"""Proposed changes as diffs: by line, in hunks, the same rows for every surface."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mew_board.proposal_text import argument_lines
from mew_board.text_changes import MOST_COMPARED, changes_in

from tests.support.operations import calls, growth

FILE = [f"line {number}" for number in range(450)]


def edited(*places: int) -> list[str]:
    return [f"new {at}" if at in places else line for at, line in enumerate(FILE)]


def call(**arguments: Any) -> dict[str, Any]:
    return {"method": "tools/call", "params": {"name": "edit", "arguments": arguments}}


def test_four_changed_lines_of_many_are_four_rows() -> None:
    texts = {"old_string": "\n".join(FILE), "new_string": "\n".join(edited(3, 200, 201, 449))}
    change = changes_in({"path": "a.py", **texts})[""]
    assert change.title == "+4 -4"
    assert [line for mark, line in change.rows if mark == "-"] == ["line 3", "line 200", "line 201", "line 449"]
    assert [line for mark, line in change.rows if mark == "@"] == [
        "@@ -1,7 +1,7 @@",
        "@@ -198,8 +198,8 @@",
        "@@ -447,4 +447,4 @@",
    ]
    assert len(change.rows) < 30
    lines = argument_lines(call(path="a.py", **texts))
    assert lines[:3] == ['{"path": "a.py"}', "old_string -> new_string, +4 -4:", "  @@ -1,7 +1,7 @@"]
    assert len(lines) == len(change.rows) + 2


def test_moved_hunks_keep_their_line_numbers() -> None:
    after = ["first", *FILE[:200], *FILE[210:]]
    change = changes_in({"before": "\n".join(FILE), "after": "\n".join(after)})[""]
    assert [line for mark, line in change.rows if mark == "@"] == ["@@ -1,3 +1,4 @@", "@@ -198,16 +199,6 @@"]
    assert change.title == "+1 -10"


def test_edits_in_a_list_have_a_diff_each() -> None:
    edits = [{"oldText": "a\nb", "newText": "a\nc", "all": True}, {"oldText": "x", "newText": "x"}, "odd"]
    found = changes_in({"edits": edits})
    assert {place: one.title for place, one in found.items()} == {"edits/0": "+1 -1", "edits/1": "+0 -0"}
    assert argument_lines(call(edits=edits)) == [
        "edits[0]:",
        '  {"all": true}',
        "  oldText -> newText, +1 -1:",
        "    @@ -1,2 +1,2 @@",
        "     a",
        "    -b",
        "    +c",
        "edits[1]:",
        "  oldText and newText are the same text",
        "edits[2]:",
        '  "odd"',
    ]


def test_a_change_of_the_end_of_a_line_is_seen() -> None:
    (*_, removed, added) = argument_lines(call(old="a", new="a "))
    assert (removed, added) == ("  -a", "  +a<U+0020>")


@pytest.mark.parametrize("arguments", [None, [], "text", {"old": 1, "new": "x"}, {"old": "x"}, {"edits": [1, None]}])
def test_arguments_without_a_pair_of_texts_have_no_changes(arguments: object) -> None:
    assert changes_in(arguments) == {}


def test_too_many_lines_are_shown_as_replaced_and_none_is_missing() -> None:
    before, after = [str(one) for one in range(MOST_COMPARED)], [str(-one - 1) for one in range(MOST_COMPARED)]
    change = changes_in({"old": "\n".join(before), "new": "\n".join(after)})[""]
    assert [line for mark, line in change.rows if mark == "-"] == before
    assert [line for mark, line in change.rows if mark == "+"] == after


def _noise(count: int) -> dict[str, str]:
    return {name: "\n".join(f"x{at // 2}\n{name}{at}" for at in range(count // 4)) for name in ("old", "new")}


def _moved(count: int) -> dict[str, str]:
    lines = [str(at % 9) for at in range(count // 2)]
    return {"old": "\n".join(lines), "new": "\n".join(reversed(lines))}


def _many(count: int) -> dict[str, Any]:
    return {"edits": [{"old": "a\nb", "new": "b\na"}] * count}


@pytest.mark.parametrize("hostile", [_noise, _moved, _many])
def test_the_calls_for_hostile_texts_grow_with_their_length(hostile: Callable[[int], Any]) -> None:
    def compared(count: int) -> Callable[[], object]:
        return partial(changes_in, hostile(count))

    assert calls(compared(1_000)) < 200_000
    assert growth(compared, 1_500) < 5  # so many are not compared
