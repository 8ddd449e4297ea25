"""[pure] Text patterns of capabilities: literals, globs, regular expressions and negations, each with a bounded cost.

The granter writes the pattern, the sender writes the text, and both may be hostile. Each test therefore spends `Steps`
in proportion to its worst case. A test that might exceed the budget raises `Undecidable` before it starts, and the
caller denies. Globs follow all positions at once, in time linear in the text. Regular expressions go to `re` only if
their backtracking has a small known bound: no lookaround, no back reference, no repeated group that contains a repeat
or an alternative (`_RegexScan`).
"""

import re
import warnings
from collections.abc import Callable
from enum import Enum, auto

DECISION_STEPS = 500_000
"""Budget of one decision, in character comparisons: less than half a second on a slow machine."""

MAX_REGEX_LENGTH = 1_000


class Undecidable(Exception):
    """The pattern is invalid, or too expensive to evaluate for this text."""


class Steps:
    """The remaining budget of one decision."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = DECISION_STEPS) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Reduce the budget. Raises `Undecidable` if it is exceeded."""
        self._left -= steps
        if self._left < 0:
            raise Undecidable("pattern too expensive to evaluate")


TextTest = Callable[[str, Steps], bool]


def is_everything(pattern: str) -> bool:
    """Return whether a pattern is `*` or `**` alone, which matches any value, text or not."""
    return pattern in ("*", "**")


def has_wildcard(pattern: str) -> bool:
    """Return whether a text is a glob."""
    return "*" in pattern or "?" in pattern


def compile_text(pattern: str, *, in_kind: bool = False) -> TextTest:
    """Compile a text pattern. Raises `Undecidable` if the pattern is invalid or unsafe.

    - `/.../` with text between the slashes is a regular expression that is searched for.
    - `!` in front negates the rest.
    - A pattern with `*` or `?` is a glob: `*` and `?` do not cross a slash, `**` does. A trailing star matches the
      whole rest across slashes; in a kind only directly after a slash.
    - Anything else is literal.
    """
    if is_everything(pattern):
        return lambda _text, _steps: True
    if pattern.startswith("!"):
        positive = compile_text(pattern[1:], in_kind=in_kind)
        return lambda text, steps: not positive(text, steps)
    if len(pattern) > 2 and pattern[0] == "/" == pattern[-1]:
        return _compile_regex(pattern[1:-1])
    if has_wildcard(pattern):
        return _compile_glob(pattern, in_kind=in_kind)
    return lambda text, _steps: text == pattern


class _Wild(Enum):
    ONE = auto()
    """One character except a slash."""
    SEGMENT = auto()
    """Any characters except slashes."""
    ANY = auto()
    """Any characters."""
    FOLDERS = auto()
    """Nothing, or what `INSIDE` matches."""
    INSIDE = auto()
    """Any characters up to a slash, and that slash."""


_Token = str | _Wild


def _compile_glob(pattern: str, *, in_kind: bool) -> TextTest:
    if any(character in pattern for character in "[]{}()"):
        raise Undecidable("a glob may not contain brackets or braces: their meaning differs between implementations")
    head = pattern.rstrip("*")
    matches_rest = pattern.endswith("*") and (not in_kind or head.endswith("/") or pattern.endswith("**"))
    if matches_rest and not has_wildcard(head):
        return lambda text, _steps: text.startswith(head)
    tokens = _glob_tokens(head)
    if pattern.endswith("*"):
        tokens.append(_Wild.ANY if matches_rest else _Wild.SEGMENT)

    def test(text: str, steps: Steps) -> bool:
        steps.spend((len(text) + 1) * (len(tokens) + 1))
        return _walk(tokens, text)

    return test


def _glob_tokens(pattern: str) -> list[_Token]:
    tokens: list[_Token] = []
    place = 0
    while place < len(pattern):
        if pattern.startswith("**/", place) and (place == 0 or pattern[place - 1] == "/"):
            tokens += [_Wild.FOLDERS, _Wild.INSIDE]
            place += 3
        elif pattern.startswith("**", place):
            tokens.append(_Wild.ANY)
            place += 2
        else:
            character = pattern[place]
            tokens.append({"*": _Wild.SEGMENT, "?": _Wild.ONE}.get(character, character))
            place += 1
    return tokens


def _walk(tokens: list[_Token], text: str) -> bool:
    """Match a glob by following all its positions in `tokens` at once."""
    active = _reachable(tokens, {0})
    for character in text:
        following: set[int] = set()
        for place in active:
            if place < len(tokens):
                following |= _step(tokens[place], place, character)
        if not following:
            return False
        active = _reachable(tokens, following)
    return len(tokens) in active


def _step(token: _Token, place: int, character: str) -> set[int]:
    match token:
        case _Wild.ANY:
            return {place}
        case _Wild.SEGMENT:
            return {place} if character != "/" else set()
        case _Wild.ONE:
            return {place + 1} if character != "/" else set()
        case _Wild.INSIDE:
            return {place, place + 1} if character == "/" else {place}
        case _Wild.FOLDERS:
            return set()
        case literal:
            return {place + 1} if character == literal else set()


def _reachable(tokens: list[_Token], places: set[int]) -> set[int]:
    """Return the positions that are reachable without reading a character."""
    found = set(places)
    waiting = list(places)
    while waiting:
        place = waiting.pop()
        if place == len(tokens):
            continue
        match tokens[place]:
            case _Wild.ANY | _Wild.SEGMENT:
                ahead = {place + 1}
            case _Wild.FOLDERS:
                ahead = {place + 1, place + 2}
            case _:
                continue
        waiting += ahead - found
        found |= ahead
    return found


def _compile_regex(body: str) -> TextTest:
    if len(body) > MAX_REGEX_LENGTH:
        raise Undecidable(f"a regular expression may have at most {MAX_REGEX_LENGTH} characters")
    scan = _RegexScan(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(scan.python, re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise Undecidable(f"invalid regular expression: {error}") from None

    def test(text: str, steps: Steps) -> bool:
        steps.spend((len(text) + 1) ** scan.loops << scan.choices)
        return compiled.search(text) is not None

    return test


_SAFE_ESCAPES = frozenset("dDwWsSbBnrtfv")


class _RegexScan:
    """Bounds the backtracking of a regular expression: at most `length ** loops * 2 ** choices` steps.

    `python` is the expression in Python's syntax. Raises `Undecidable` if there is no such bound.
    """

    def __init__(self, body: str) -> None:
        self.loops = self.choices = 0
        self._out: list[str] = []
        self._groups = [False]
        """For each open group: whether it contains a repeat or an alternative."""
        self._choice_at_top = False
        place = 0
        while place < len(body):
            place = self._read(body, place)
        if len(self._groups) != 1:
            raise Undecidable("unclosed parenthesis")
        if not body.startswith("^") or self._choice_at_top:
            self.loops += 1  # the search may start anywhere
        self.python = "".join(self._out)

    def _read(self, body: str, place: int) -> int:
        """Read the construct at a position and return the position after it."""
        match body[place]:
            case "\\":
                return self._escape(body, place)
            case "[":
                return self._character_class(body, place)
            case "(":
                return self._open_group(body, place)
            case ")":
                return self._close_group(body, place)
            case "|":
                self._choice_at_top |= len(self._groups) == 1
                self._vary(choices=1)
            case "?":
                self._vary(choices=1)
            case "*" | "+" | "{":
                self._vary(loops=1)
                if body.startswith("?", place + 1):
                    self._out.append(body[place : place + 2])
                    return place + 2
            case "$":
                # In Python `$` also matches before a final line break; in JavaScript it does not.
                self._out.append(r"\Z")
                return place + 1
            case _:
                pass
        self._out.append(body[place])
        return place + 1

    def _vary(self, *, loops: int = 0, choices: int = 0) -> None:
        self.loops += loops
        self.choices += choices
        self._groups[-1] = True

    def _escape(self, body: str, place: int) -> int:
        escaped = body[place + 1 : place + 2]
        if not escaped or not escaped.isascii() or (escaped.isalnum() and escaped not in _SAFE_ESCAPES):
            raise Undecidable("back references and named escapes are not supported")
        self._out.append(body[place : place + 2])
        return place + 2

    def _character_class(self, body: str, place: int) -> int:
        end = place + 1
        while end < len(body) and body[end] != "]":
            end += 2 if body[end] == "\\" else 1
        self._out.append(body[place : end + 1])
        return end + 1

    def _open_group(self, body: str, place: int) -> int:
        opening = "(?:" if body.startswith("(?:", place) else "("
        if opening == "(" and body.startswith("?", place + 1):
            raise Undecidable("lookaround, flags and named groups are not supported")
        self._groups.append(False)
        self._out.append(opening)
        return place + len(opening)

    def _close_group(self, body: str, place: int) -> int:
        if len(self._groups) == 1:
            raise Undecidable("unmatched closing parenthesis")
        varies = self._groups.pop()
        if varies and body[place + 1 : place + 2] in ("*", "+", "{"):
            raise Undecidable("a repeated group must not contain a repeat or an alternative")
        self._groups[-1] |= varies
        self._out.append(")")
        return place + 1
