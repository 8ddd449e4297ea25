"""[pure] The one capability matcher: may this envelope be sent by someone who holds these patterns?

Gateway and agents ask the same code, so nobody is refused what it believed it may. A pattern is an object with
`kind` (text pattern or a list of them), optionally `payload` (shape to match, extra keys of the message do not
matter) and `to` (must cover every addressee). It knows nothing of who holds what.

Deciding never raises and is bounded: what cannot be decided is denied (`mew_protocol.patterns`).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mew_protocol.envelope import Draft
from mew_protocol.jsonpath import JsonPath, descendants
from mew_protocol.kinds import MCP_RESPONSE
from mew_protocol.patterns import Steps, TextTest, Undecidable, compile_text, has_wildcard, is_everything

CapabilityPattern = Mapping[str, Any]

BASELINE: Final[dict[str, Any]] = {"id": "mcp-response", "kind": MCP_RESPONSE}
"""What everybody may send. Peers look for it in welcome and presence before they ask for tools."""

EVERY_KIND: Final = "*"
EVERY_KIND_AT_ANY_DEPTH: Final = "**"

_MAX_REMEMBERED_KINDS = 1_024
_MAX_REMEMBERED_KIND_LENGTH = 128

_ValueTest = Callable[[object, Steps], bool]


def normalise(patterns: Iterable[object]) -> tuple[dict[str, Any], ...]:
    """Patterns as they are advertised: malformed ones and exact duplicates dropped, the baseline present."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for pattern in (*patterns, BASELINE):
        if not isinstance(pattern, Mapping) or not _is_kind(pattern.get("kind")):
            continue
        try:
            identity = json.dumps(pattern, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            continue
        if identity not in seen:
            seen.add(identity)
            found.append(dict(pattern))
    return tuple(found)


def advertised(patterns: Iterable[CapabilityPattern]) -> tuple[dict[str, Any], ...]:
    """Patterns as welcome and presence carry them: beside each of kind `*` the same of kind `**`.

    Both mean everything here. To the TypeScript SDK, which asks the advertised patterns before it sends, a lone star
    is one segment: it would let a holder of `*` chat, but not call a tool.
    """
    written = [dict(pattern) for pattern in patterns]
    found: list[dict[str, Any]] = []
    for pattern in written:
        found.append(pattern)
        wider = {**pattern, "kind": EVERY_KIND_AT_ANY_DEPTH}
        if pattern.get("kind") == EVERY_KIND and wider not in written:
            found.append(wider)
    return tuple(found)


class CapabilitySet:
    """What one participant may send. Patterns are read once; decisions that the kind alone settles are remembered."""

    def __init__(self, patterns: Iterable[CapabilityPattern] = ()) -> None:
        self.patterns: tuple[CapabilityPattern, ...] = tuple(patterns)
        self._compiled = tuple(_Compiled.read(pattern) for pattern in self.patterns)
        self._candidates_of_kind: dict[str, tuple[_Compiled, ...]] = {}

    def allows(self, draft: Draft, *, ignore_to: bool = False) -> bool:
        """Whether any pattern takes this envelope. `ignore_to` leaves `to` in patterns unread."""
        return self.match(draft, ignore_to=ignore_to) is not None

    def match(self, draft: Draft, *, ignore_to: bool = False) -> CapabilityPattern | None:
        """The first pattern that takes this envelope, or None. An envelope without kind is taken by none."""
        kind = draft.kind
        known = self._candidates_of_kind.get(kind) if kind else None
        for compiled in self._candidates(kind) if known is None else known:
            if compiled.only_kind or compiled.takes(draft, ignore_to=ignore_to):
                return compiled.pattern
        return None

    def _candidates(self, kind: str | None) -> tuple["_Compiled", ...]:
        """The patterns whose kind fits, up to the first that asks for nothing more."""
        if not kind:
            return ()
        found: list[_Compiled] = []
        for compiled in self._compiled:
            if compiled.takes_kind(kind):
                found.append(compiled)
                if compiled.only_kind:
                    break
        if len(kind) <= _MAX_REMEMBERED_KIND_LENGTH and len(self._candidates_of_kind) < _MAX_REMEMBERED_KINDS:
            self._candidates_of_kind[kind] = tuple(found)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """One pattern, read. A test that is None asks for nothing."""

    pattern: CapabilityPattern
    kind: tuple[TextTest, ...]
    payload: _ValueTest | None = None
    to: tuple[TextTest, ...] | None = None
    only_kind: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "only_kind", self.payload is None and self.to is None)

    @staticmethod
    def read(pattern: CapabilityPattern) -> "_Compiled":
        """Read a pattern; one that cannot be read takes nothing."""
        try:
            kind, payload, to = pattern.get("kind"), pattern.get("payload"), pattern.get("to")
            if not _is_kind(kind) or not isinstance(payload, dict | None):
                return _Compiled(pattern, ())
            return _Compiled(
                pattern,
                tuple(compile_text(one, in_kind=True) for one in _texts(kind)),
                _compile_object(payload) if payload else None,
                None if to is None else tuple(compile_text(one) for one in _texts(to)),
            )
        except (Undecidable, RecursionError, TypeError):
            return _Compiled(pattern, ())

    def takes_kind(self, kind: str) -> bool:
        try:
            steps = Steps()
            return any(test(kind, steps) for test in self.kind)
        except Undecidable:
            return False

    def takes(self, draft: Draft, *, ignore_to: bool) -> bool:
        """Whether payload and addressees fit; the kind is known to."""
        try:
            steps = Steps()
            if self.to is not None and not ignore_to and not _covers(self.to, draft.addressees, steps):
                return False
            return self.payload is None or (draft.payload is not None and self.payload(draft.payload, steps))
        except (Undecidable, RecursionError):
            return False


def takes_value(pattern: object, value: object) -> bool:
    """Whether a payload pattern takes one value. Raises `Undecidable`."""
    return _compile_value(pattern)(value, Steps())


def is_same_value(value: object, expected: object) -> bool:
    """Equality as JSON has it. Raises `Undecidable` when comparing costs too much."""
    return _is_same(value, expected, Steps())


def _covers(tests: tuple[TextTest, ...], addressees: tuple[str, ...], steps: Steps) -> bool:
    """Whether every addressee is allowed. Nobody named means everybody, which no list covers."""
    return bool(addressees) and all(any(test(one, steps) for test in tests) for one in addressees)


def _is_kind(kind: object) -> bool:
    if isinstance(kind, str):
        return bool(kind)
    return isinstance(kind, list | tuple) and bool(kind) and all(isinstance(one, str) and one for one in kind)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise TypeError("a text or a list of texts")


def _compile_value(pattern: object) -> _ValueTest:
    match pattern:
        case str():
            if is_everything(pattern):
                return lambda _value, _steps: True
            test = compile_text(pattern)
            return lambda value, steps: isinstance(value, str) and test(value, steps)
        case list() | tuple():
            tests = tuple(_compile_value(one) for one in pattern)
            whole = list(pattern)
            return lambda value, steps: _is_same(value, whole, steps) or any(one(value, steps) for one in tests)
        case dict():
            return _compile_object(pattern)
        case _:
            return lambda value, steps: _is_same(value, pattern, steps)


def _compile_object(pattern: dict[str, Any]) -> _ValueTest:
    tests = tuple(_compile_entry(key, value) for key, value in pattern.items())

    def test(value: object, steps: Steps) -> bool:
        steps.take(1)
        return isinstance(value, dict) and all(one(value, steps) for one in tests)

    return test


def _compile_entry(key: str, pattern: object) -> _ValueTest:
    """One key of an object: a JSONPath, `**` for anywhere below, a glob over keys, or the key itself."""
    expected = _compile_value(pattern)
    if key.startswith("$"):
        path = JsonPath.compile(key)
        return lambda value, steps: any(expected(found, steps) for found in path.find(value, steps))
    if key == "**":
        return lambda value, steps: any(expected(found, steps) for found in descendants(value, steps))
    if has_wildcard(key):
        name = compile_text(key)

        def any_key(value: object, steps: Steps) -> bool:
            assert isinstance(value, dict)
            return any(name(one, steps) and expected(value[one], steps) for one in value)

        return any_key

    return lambda value, steps: isinstance(value, dict) and key in value and expected(value[key], steps)


def _is_same(value: object, expected: object, steps: Steps) -> bool:
    """Equality as JSON has it: true is not 1, 1 is 1.0, a text is no number."""
    steps.take(1)
    if isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(_is_same(a, b, steps) for a, b in zip(value, expected, strict=True))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_is_same(value[k], expected[k], steps) for k in expected)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected
    return type(value) is type(expected) and value == expected
