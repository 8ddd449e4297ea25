"""[pure] Text patterns of capabilities: literals, globs, regular expressions and negations, each with a limited cost.

The granter writes the pattern, the sender writes the text, and both may be hostile. All tests of one envelope share one
budget of `Steps`. A test spends its worst case before it starts; a test above the budget raises `Undecidable`, and the
caller denies. Globs take time linear in the text. Regular expressions go to `re` only if their backtracking has a small
known bound: no lookaround, no back reference, no repeated group that contains a repeat or an alternative
(`_RegexScan`).
"""

import re
import warnings
from collections.abc import Callable
from enum import Enum, auto

DECISION_STEPS = 40_000
"""Budget of one decision. A step takes about 50 nanoseconds, so a decision takes at most some 2 milliseconds."""

STEPS_PER_CHARACTER = 12
"""The cost of one character in a test that runs in Python."""

STEPS_PER_VALUE = 8
"""The cost of reading one value of a payload."""

MAX_PATTERN_LENGTH = 1_000
"""How many characters one text of a pattern may have."""


class Undecidable(Exception):
    """The pattern is invalid, or too expensive to evaluate for this text."""


class BudgetExceeded(Undecidable):
    """A decision's budget is spent."""


class Steps:
    """The remaining budget of one decision."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = DECISION_STEPS) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Reduce the budget. Raises `BudgetExceeded`."""
        self._left -= steps
        if self._left < 0:
            raise BudgetExceeded("pattern too expensive to evaluate")


TextTest = Callable[[str, Steps], bool]


def is_everything(pattern: str) -> bool:
    """Return True if a pattern is just `*` or `**`, which matches any value, not only texts."""
    return pattern in ("*", "**")


def has_wildcard(pattern: str) -> bool:
    """Return True if a text is a glob."""
    return "*" in pattern or "?" in pattern


def is_literal(text: str) -> bool:
    """Return True if a pattern's text matches only itself."""
    return not (text.startswith("!") or has_wildcard(text) or (len(text) > 2 and text[0] == "/" == text[-1]))


def compile_text(pattern: str, *, in_kind: bool = False) -> TextTest:
    """Compile a text pattern. Raises `Undecidable` if the pattern is invalid or unsafe.

    - `/.../` with text between the slashes is a regular expression that is searched for.
    - `!` in front negates the rest.
    - A pattern with `*` or `?` is a glob: `*` and `?` cross neither a slash nor a line break, `**` crosses both. A
      trailing star matches the whole rest of a line across slashes; in a kind only directly after a slash. A trailing
      `/**` also matches without the slash: `/public/**` is the folder and everything in it.
    - Anything else is literal.
    """
    if is_everything(pattern):
        return lambda _text, _steps: True
    if len(pattern) > MAX_PATTERN_LENGTH and (pattern[0] in "!/" or has_wildcard(pattern)):
        raise Undecidable(f"a pattern may have at most {MAX_PATTERN_LENGTH} characters")
    if pattern.startswith("!"):
        positive = compile_text(pattern[1:], in_kind=in_kind)
        return lambda text, steps: not positive(text, steps)
    if len(pattern) > 2 and pattern[0] == "/" == pattern[-1]:
        return _compile_regex(pattern[1:-1])
    if has_wildcard(pattern):
        glob, folder = _compile_glob(pattern, in_kind=in_kind), pattern.removesuffix("/**")
        if folder in (pattern, ""):
            return glob
        itself = compile_text(folder, in_kind=in_kind)
        return lambda text, steps: glob(text, steps) or itself(text, steps)
    return lambda text, _steps: text == pattern


class _Wild(Enum):
    ONE = auto()
    """One character except a slash or a line break."""
    SEGMENT = auto()
    """Any characters except slashes and line breaks."""
    LINE = auto()
    """Any characters except line breaks."""
    ANY = auto()
    """Any characters."""
    FOLDERS = auto()
    """Nothing, or a match of `INSIDE`."""
    INSIDE = auto()
    """Any characters up to a slash, and that slash."""


_Token = str | _Wild

_LINE_BREAKS = "\n\r"
_CLASSES = {_Wild.SEGMENT: r"[^/\n\r]", _Wild.LINE: r"[^\n\r]", _Wild.ANY: r"[\s\S]"}


def _compile_glob(pattern: str, *, in_kind: bool) -> TextTest:
    if any(character in pattern for character in "[]{}()"):
        raise Undecidable("a glob may not contain brackets or braces: their meaning differs between implementations")
    head = pattern.rstrip("*")
    tokens = _glob_tokens(head)
    if pattern.endswith("**"):
        tokens.append(_Wild.ANY)
    elif pattern.endswith("*"):
        tokens.append(_Wild.LINE if not in_kind or head.endswith("/") else _Wild.SEGMENT)
    if not has_wildcard(head) and tokens[-1] in (_Wild.LINE, _Wild.ANY):
        return _compile_prefix(head, in_line=tokens[-1] is _Wild.LINE)
    gaps = {token for token in tokens if token in _CLASSES}
    if len(gaps) <= 1 and _Wild.FOLDERS not in tokens:
        return _compile_plain_glob(tokens, gaps.pop() if gaps else _Wild.SEGMENT)
    return _GlobAutomaton(tokens).matches


def _compile_prefix(prefix: str, *, in_line: bool) -> TextTest:
    def test(text: str, steps: Steps) -> bool:
        if not text.startswith(prefix):
            return False
        steps.spend(1 + len(text) // 256)
        return not in_line or not any(text.find(one, len(prefix)) >= 0 for one in _LINE_BREAKS)

    return test


def _compile_plain_glob(tokens: list[_Token], gap: _Token) -> TextTest:
    """Compile a glob with one kind of wildcard to an expression without backtracking: each part matches at its earliest
    place.

    This is correct, because an earlier place leaves later parts at least the same choices.
    """
    parts: list[str] = [""]
    for token in tokens:
        if token is gap:
            parts.append("")
        else:
            parts[-1] += _CLASSES[_Wild.SEGMENT] if token is _Wild.ONE else re.escape(str(token))
    any_run = _CLASSES[_Wild(gap)]
    expression = parts[0]
    for part in parts[1:-1]:
        expression += f"(?>{any_run}*?{part})"
    if len(parts) > 1:
        expression += f"{any_run}*{parts[-1]}"
    compiled = re.compile(expression)
    each = 1 + max(map(len, parts)) // 8

    def test(text: str, steps: Steps) -> bool:
        steps.spend(1 + len(text) * each // 8)
        return compiled.fullmatch(text) is not None

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


class _GlobAutomaton:
    """Matches a glob by following all its positions at once, as the bits of one number."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._final = 1 << len(tokens)
        self._literals: dict[str, int] = {}
        bits = dict.fromkeys(_Wild, 0)
        for place, token in enumerate(tokens):
            if isinstance(token, _Wild):
                bits[token] |= 1 << place
            else:
                self._literals[token] = self._literals.get(token, 0) | 1 << place
        self._one, self._inside, self._folders = bits[_Wild.ONE], bits[_Wild.INSIDE], bits[_Wild.FOLDERS]
        self._everywhere = bits[_Wild.ANY] | self._inside
        self._in_line = self._everywhere | bits[_Wild.LINE]
        self._in_segment = self._in_line | bits[_Wild.SEGMENT]
        self._skipped = bits[_Wild.ANY] | bits[_Wild.LINE] | bits[_Wild.SEGMENT] | self._folders

    def matches(self, text: str, steps: Steps) -> bool:
        steps.spend((len(text) + 1) * STEPS_PER_CHARACTER)
        active = self._reachable(1)
        for character in text:
            following = (active & self._literals.get(character, 0)) << 1
            if character == "/":
                following |= active & self._in_line | (active & self._inside) << 1
            elif character in _LINE_BREAKS:
                following |= active & self._everywhere
            else:
                following |= active & self._in_segment | (active & self._one) << 1
            if not following:
                return False
            active = self._reachable(following)
        return bool(active & self._final)

    def _reachable(self, active: int) -> int:
        """Add the positions that are reachable without reading a character."""
        while True:
            found = active | (active & self._skipped) << 1 | (active & self._folders) << 2
            if found == active:
                return active
            active = found


def _compile_regex(body: str) -> TextTest:
    scan = _RegexScan(body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = re.compile(scan.python, re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise Undecidable(f"invalid regular expression: {error}") from None

    def test(text: str, steps: Steps) -> bool:
        steps.spend(((len(text) + 1) ** scan.loops << scan.choices) // 4 + 1)
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
