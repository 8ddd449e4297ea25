"""[pure] Common mistakes in a YAML text, with what to write instead.

Owns the words for mistakes that a YAML parser reports elsewhere or in its own terms. Does not parse.
"""

import re
from typing import NamedTuple

import yaml

_STAR = re.compile(r"\*[^\s,\]}]*")
_KEY_ONLY = re.compile(r"(?P<indent> *)(?P<key>[\w.-]+)\s*(?:#.*)?")
_KEY_AND_VALUE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*) +(?P<value>[^\s#:{}\[\],&*!|>%@`\"'-][^:]*)")


class Mistake(NamedTuple):
    """What is wrong, and where: line and column, counted from 0."""

    problem: str
    line: int
    column: int


def explained(text: str, error: yaml.MarkedYAMLError) -> Mistake | None:
    """Return a mistake in plain words; None if the parser's words have to do."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return None
    lines, problem = text.splitlines(), error.problem or ""
    if error.context == "while scanning an alias" or problem.startswith("found undefined alias"):
        at = (error.context_mark or mark) if error.context else mark
        found = _STAR.match(lines[at.line][at.column :]) if at.line < len(lines) else None
        star = found[0] if found else "*"
        return Mistake(f'{star} needs quotes; write "{star}"', at.line, at.column)
    if "'\\t'" in problem:
        return Mistake("a tab; indent with spaces", mark.line, mark.column)
    if problem.startswith(("could not find expected ':'", "mapping values are not allowed")):
        return _missing_colon(lines, mark)
    return None


def _missing_colon(lines: list[str], mark: yaml.Mark) -> Mistake | None:
    """Find the line without a colon: the one that the parser stopped at, or one before it."""
    at = min(mark.line, len(lines) - 1)
    for number in range(at, max(-1, at - 20), -1):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (found := _KEY_ONLY.fullmatch(line)) is not None:
            return Mistake(f"'{found['key']}' has no colon; write `{found['key']}:`", number, len(found["indent"]))
        if (found := _KEY_AND_VALUE.fullmatch(line)) is not None:
            return Mistake(colon_hint(line).removeprefix("; "), number, len(found["indent"]))
        if number == at and line.count(": ") > 1:
            return Mistake("a text with ': ' needs quotes", number, mark.column)
    return None


def colon_hint(text: str) -> str:
    """Return the advice for a text in place of a mapping: a colon is missing, or a space after it. Empty if neither."""
    if (found := _KEY_AND_VALUE.fullmatch(text.rstrip())) is not None:
        return f"; a colon is missing, write `{found['key']}: {found['value'].rstrip()}`"
    key, colon, value = text.strip().partition(":")
    if colon and value and re.fullmatch(r"[A-Za-z_][\w-]*", key) and not value.startswith("//"):
        return f"; a space is missing after the colon, write `{key}: {value}`"
    return ""
