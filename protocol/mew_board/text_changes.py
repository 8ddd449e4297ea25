"""[pure] The changes of a proposed call, line by line: hunks with context, as in `diff -u`.

Recognises the arguments with old and new text, and splits them into lines. Every surface that offers an approval shows
these rows. Uses Python's difflib; shows very many lines as replaced, to limit the time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from mew_protocol.payloads.attention_items import Row, TextChange

PAIRS: Final = (
    ("old_string", "new_string"),
    ("oldText", "newText"),
    ("old_text", "new_text"),
    ("old_str", "new_str"),
    ("before", "after"),
    ("old", "new"),
)
"""Names of arguments for a text before and after a change."""

MOST_COMPARED: Final = 1_000
"""How many lines, before and after together, are compared in one change, without those that begin and end both."""

_MOST_IN_A_CALL: Final = 2_000
"""The same for all changes of a call."""

_COMMON: Final = 8
"""A line that occurs more often does not align others: that bounds the time, and reads better."""

_CONTEXT: Final = 3

_MOST_CHANGES: Final = 200
"""How many changes of a call are compared; the texts of others stand as they are."""


def changes_in(arguments: object) -> dict[str, TextChange]:
    """Return the changes in a call's arguments by place: empty for the arguments, `edits/0` in a list."""
    room = _MOST_IN_A_CALL
    found: dict[str, TextChange] = {}
    for place, record in _records(arguments):
        keys = keys_of(record)
        if keys is None or len(found) == _MOST_CHANGES:
            continue
        before, after = (str(record[key]).split("\n") for key in keys)
        start, end = _same(before, after)
        size = len(before) + len(after) - 2 * (start + end)
        is_compared = size <= min(room, MOST_COMPARED)
        room -= size if is_compared else 0
        found[place] = _change(keys, before, after, (start, end), is_compared=is_compared)
    return found


def keys_of(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the keys of the old and the new text in a record; None without both."""
    return next((pair for pair in PAIRS if all(isinstance(record.get(key), str) for key in pair)), None)


def _records(arguments: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the arguments, and the records in lists of records."""
    if not isinstance(arguments, Mapping):
        return
    yield "", arguments
    for name, value in arguments.items():
        if isinstance(value, list | tuple):
            yield from ((f"{name}/{at}", one) for at, one in enumerate(value) if isinstance(one, Mapping))


def _same(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return the number of common lines at the start and at the end of two texts."""
    most = min(len(before), len(after))
    start = next((at for at in range(most) if before[at] != after[at]), most)
    end = next((at for at in range(most - start) if before[-1 - at] != after[-1 - at]), most - start)
    return start, end


def _change(
    keys: tuple[str, str], before: list[str], after: list[str], same: tuple[int, int], *, is_compared: bool
) -> TextChange:
    first, last = max(0, same[0] - _CONTEXT), max(0, same[1] - _CONTEXT)
    a, b = before[first : len(before) - last], after[first : len(after) - last]
    rows: list[Row] = []
    for group in _groups(a, b, (same[0] - first, same[1] - last), is_compared=is_compared):
        rows.append(("@", _place(group, first)))
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                rows += [(" ", line) for line in a[a1:a2]]
                continue
            rows += [("-", line) for line in a[a1:a2]]
            rows += [("+", line) for line in b[b1:b2]]
    added, removed = (sum(mark == wanted for mark, _ in rows) for wanted in ("+", "-"))
    return TextChange.model_construct(keys=keys, rows=tuple(rows), added=added, removed=removed)


_Opcode = tuple[str, int, int, int, int]


def _groups(a: list[str], b: list[str], context: tuple[int, int], *, is_compared: bool) -> Iterator[Sequence[_Opcode]]:
    """Yield the hunks between two texts, each with `context` unchanged lines at both ends."""
    if a == b:
        return
    if not is_compared:
        start, end = context
        yield [
            ("equal", 0, start, 0, start),
            ("replace", start, len(a) - end, start, len(b) - end),
            ("equal", len(a) - end, len(a), len(b) - end, len(b)),
        ]
        return
    common = {line for line, count in Counter(b).items() if count > _COMMON}
    yield from SequenceMatcher(common.__contains__, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT)


def _place(group: Sequence[_Opcode], first: int) -> str:
    """Return the place of a hunk: `@@ -12,7 +12,7 @@`."""
    (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
    return f"@@ -{first + a1 + 1},{a2 - a1} +{first + b1 + 1},{b2 - b1} @@"
