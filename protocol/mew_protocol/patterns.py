"""[pure] Text patterns of capabilities: literal, glob, regular expression, negation. No pattern can hang the reader.

Patterns are written by whoever grants, texts by whoever sends, and both may be hostile. So every test spends
`Steps` in proportion to the work it may cost, and a test whose worst case does not fit raises `Undecidable`
before it starts: the caller denies. Globs are matched by walking all positions at once, in time linear in the
text. Regular expressions go to `re` only when a bound of their backtracking is known and small: no lookaround,
no back reference, no repeated group that holds a repeat or an alternative (`_RegexScan`).
"""

import re
import warnings
from collections.abc import Callable
from enum import Enum, auto

DECISION_STEPS = 500_000
"""What one decision may cost, in character comparisons: below half a second on a slow machine."""

MAX_REGEX_LENGTH = 1_000


class Undecidable(Exception):
    """The pattern cannot be read, or reading this text with it may cost too much."""


class Steps:
    """What is left to spend on one decision."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = DECISION_STEPS) -> None:
        self._left = steps

    def take(self, steps: int) -> None:
        """Spend. Raises `Undecidable` when not enough is left."""
        self._left -= steps
        if self._left < 0:
            raise Undecidable("the decision costs too much")


TextTest = Callable[[str, Steps], bool]


def is_everything(pattern: str) -> bool:
    """Whether a pattern is a lone star, which takes anything, text or not."""
    return pattern in ("*", "**")


def has_wildcard(pattern: str) -> bool:
    """Whether a text is a glob."""
    return "*" in pattern or "?" in pattern


def compile_text(pattern: str, *, in_kind: bool = False) -> TextTest:
    """Read a text pattern. Raises `Undecidable` for a pattern that has no safe reading.

    `/.../` with something between is a regular expression, searched for; `!` in front negates; with `*` or `?`
    it is a glob (`*` and `?` stay inside a segment between slashes, `**` crosses); anything else is literal.
    A trailing star takes the whole rest across slashes: in a kind only directly after a slash.
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
    """One character that is no slash."""
    SEGMENT = auto()
    """Any characters but slashes."""
    ANY = auto()
    """Any characters."""
    FOLDERS = auto()
    """Nothing, or what `INSIDE` takes."""
    INSIDE = auto()
    """Any characters up to a slash, and that slash."""


_Token = str | _Wild


def _compile_glob(pattern: str, *, in_kind: bool) -> TextTest:
    if any(character in pattern for character in "[]{}()"):
        raise Undecidable("brackets and braces mean different things in different globs")
    head = pattern.rstrip("*")
    takes_rest = pattern.endswith("*") and (not in_kind or head.endswith("/") or pattern.endswith("**"))
    if takes_rest and not has_wildcard(head):
        return lambda text, _steps: text.startswith(head)
    tokens = _glob_tokens(head)
    if pattern.endswith("*"):
        tokens.append(_Wild.ANY if takes_rest else _Wild.SEGMENT)

    def test(text: str, steps: Steps) -> bool:
        steps.take((len(text) + 1) * (len(tokens) + 1))
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
    """Follow all readings of a glob at once: a set of positions in `tokens`."""
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
    """The places that are reached from these without reading a character."""
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
        raise Undecidable(f"a regular expression has at most {MAX_REGEX_LENGTH} characters")
    scan = _RegexScan(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(scan.python, re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise Undecidable(f"not a regular expression: {error}") from None

    def test(text: str, steps: Steps) -> bool:
        steps.take((len(text) + 1) ** scan.loops << scan.choices)
        return compiled.search(text) is not None

    return test


_SAFE_ESCAPES = frozenset("dDwWsSbBnrtfv")


class _RegexScan:
    """A regular expression read for what its backtracking may cost: `length ** loops * 2 ** choices` steps at most.

    `python` is the expression in Python's spelling. Raises `Undecidable` for what has no such bound.
    """

    def __init__(self, body: str) -> None:
        self.loops = self.choices = 0
        self._out: list[str] = []
        self._groups = [False]
        """For each open group: whether it holds a repeat or an alternative."""
        self._choice_at_top = False
        place = 0
        while place < len(body):
            place = self._read(body, place)
        if len(self._groups) != 1:
            raise Undecidable("a parenthesis is left open")
        if not body.startswith("^") or self._choice_at_top:
            self.loops += 1  # the search may begin anywhere
        self.python = "".join(self._out)

    def _read(self, body: str, place: int) -> int:
        """Read what stands at a place and return the place behind it."""
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
                # In Python `$` also matches before a last line break, which JavaScript's does not.
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
            raise Undecidable("back references and named escapes are not read")
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
            raise Undecidable("lookaround, flags and named groups are not read")
        self._groups.append(False)
        self._out.append(opening)
        return place + len(opening)

    def _close_group(self, body: str, place: int) -> int:
        if len(self._groups) == 1:
            raise Undecidable("a parenthesis is closed that was not opened")
        varies = self._groups.pop()
        if varies and body[place + 1 : place + 2] in ("*", "+", "{"):
            raise Undecidable("a repeated group must not hold a repeat or an alternative")
        self._groups[-1] |= varies
        self._out.append(")")
        return place + 1
