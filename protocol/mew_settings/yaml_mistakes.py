"""[pure] Common mistakes in a YAML text, with corrections.

Owns the words for mistakes that a YAML parser reports at the wrong place or in its own terms. Does not parse.
"""

import re
from typing import NamedTuple

_STAR = re.compile(r"\*[^\s,\]}]*")
_KEY_ONLY = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+)\s*(?:#.*)?")
_KEY_AND_VALUE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*) +(?P<value>[^\s#:{}\[\],&*!|>%@`\"'-][^:]*)")

_KEY_AND_BRACKET = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*) +(?P<value>[{\[].*)")


class Mistake(NamedTuple):
    """A problem and its place: line and column, counted from 0."""

    problem: str
    line: int
    column: int


def explained(text: str, problem: str, line: int, column: int) -> Mistake | None:
    """Return a mistake in plain words; None if there is no better text than the parser's.

    `problem` is the parser's text with its context; `line` and `column` count from 0.
    """
    lines = text.splitlines()
    if "scanning an alias" in problem or "undefined alias" in problem:
        before = lines[line][: column + 1] if line < len(lines) else ""
        begin = before.rfind("*")
        found = _STAR.match(lines[line][begin:]) if begin >= 0 else None
        return Mistake(f'{found[0]} needs quotes; write "{found[0]}"', line, begin) if found else None
    if "'\\t'" in problem:
        return Mistake("a tab; indent with spaces", line, column)
    if "could not find expected ':'" in problem or "mapping values are not allowed" in problem:
        return _missing_colon(lines, line, column)
    return None


def _missing_colon(lines: list[str], line_stopped: int, column: int) -> Mistake | None:
    """Find the line without a colon: the line where the parser stopped, or an earlier one."""
    at = min(line_stopped, len(lines) - 1)
    for number in range(at, max(-1, at - 20), -1):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (found := _KEY_ONLY.fullmatch(line)) is not None:
            return Mistake(f"'{found['key']}' has no colon; write `{found['key']}:`", number, len(found["indent"]))
        if (found := _KEY_AND_VALUE.fullmatch(line)) is not None:
            return Mistake(colon_hint(line).removeprefix("; "), number, len(found["indent"]))
        if (found := _KEY_AND_BRACKET.fullmatch(line)) is not None:
            return Mistake(
                f"a colon is missing, write `{found['key']}: {found['value'].rstrip()}`", number, len(found["indent"])
            )
        if number == at and line.count(": ") > 1:
            return Mistake("a text with ': ' needs quotes", number, column)
    return None


def colon_hint(text: str) -> str:
    """Return the advice for a text instead of a mapping: a colon, or a space after it, is missing. Empty if neither
    is.
    """
    if (found := _KEY_AND_VALUE.fullmatch(text.rstrip())) is not None:
        return f"; a colon is missing, write `{found['key']}: {found['value'].rstrip()}`"
    key, colon, value = text.strip().partition(":")
    if colon and value and re.fullmatch(r"[A-Za-z_][\w-]*", key) and not value.startswith("//"):
        return f"; a space is missing after the colon, write `{key}: {value}`"
    return ""
