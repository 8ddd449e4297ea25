"""[pure] The capability matcher: may a participant with these patterns send this envelope?

Gateway and agents use the same code, so an agent predicts the gateway's decision. A pattern is an object with `kind` (a
text pattern or a list of them), and optionally `payload` (a shape to match; extra keys of the message are ignored),
`to` (must cover every addressee) and `approve` (false: only the sender's own calls, no approval of proposals).

A decision never raises, and has a limited cost. Undecidable cases are denied (`mew_protocol.patterns`).
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from mew_protocol import kinds
from mew_protocol.envelope import Draft
from mew_protocol.jsonpath import compile_path, descendants
from mew_protocol.patterns import (
    MAX_PATTERN_LENGTH,
    STEPS_PER_VALUE,
    Steps,
    TextTest,
    Undecidable,
    compile_text,
    has_wildcard,
    is_everything,
)

CapabilityPattern = Mapping[str, Any]

BASELINE: Final[dict[str, Any]] = {"id": "mcp-response", "kind": kinds.MCP_RESPONSE}
"""The pattern that every participant has. Peers look for it in welcome and presence before they ask for tools."""

EVERY_KIND: Final = "*"
EVERY_KIND_AT_ANY_DEPTH: Final = "**"

MAX_PATTERNS: Final = 256
"""How many patterns space.yaml, an invitation or all grants together may give one participant."""

MAX_PATTERN_BYTES: Final = 4_096
"""How many bytes one pattern may have as JSON."""

OWN_CALLS_ONLY: Final[dict[str, bool]] = {"approve": False}
"""The key of a pattern that permits calls of its holder, but no approvals of other proposals."""

_MAX_REMEMBERED_KINDS = 1_024
_MAX_REMEMBERED_KIND_LENGTH = 128

_ValueTest = Callable[[object, Steps], bool]


def normalise(patterns: Iterable[object]) -> tuple[dict[str, Any], ...]:
    """Return the valid patterns without duplicates, and the baseline."""
    found: dict[str, dict[str, Any]] = {}
    for pattern in (*patterns, BASELINE):
        if isinstance(pattern, Mapping) and has_kind(pattern):
            found.setdefault(json.dumps(pattern, sort_keys=True), dict(pattern))
    return tuple(found.values())


def has_kind(pattern: CapabilityPattern) -> bool:
    """Return True if a pattern has a kind; without one it matches nothing."""
    kind = pattern.get("kind")
    if isinstance(kind, str):
        return bool(kind)
    return isinstance(kind, list | tuple) and bool(kind) and all(isinstance(one, str) and one for one in kind)


def may_approve(pattern: CapabilityPattern) -> bool:
    """Return True if a pattern also allows approving the proposals of others."""
    return pattern.get("approve") is not False


def number_problem(patterns: Sequence[object]) -> str | None:
    """Return the problem if these patterns are too many for one participant, else None."""
    return f"has {len(patterns):,} patterns; the limit is {MAX_PATTERNS:,}" if len(patterns) > MAX_PATTERNS else None


def patterns_problem(patterns: Sequence[object]) -> tuple[int | None, str] | None:
    """Return why these patterns cannot be given to a participant, with the index of the invalid one, or None.

    The index is None if there are too many. All ways of giving capabilities use this check.
    """
    if (problem := number_problem(patterns)) is not None:
        return None, problem
    for index, pattern in enumerate(patterns):
        try:
            size = len(to_json(pattern))
        except ValueError:
            return index, "a capability must be JSON"
        if isinstance(pattern, Mapping) and not isinstance(pattern.get("approve", True), bool):
            return index, "`approve` must be true or false"
        if size > MAX_PATTERN_BYTES:
            return index, f"this pattern has {size:,} bytes as JSON; the limit is {MAX_PATTERN_BYTES:,}"
        longest = max(map(len, _texts_in(pattern)), default=0) if size > MAX_PATTERN_LENGTH else 0
        if longest > MAX_PATTERN_LENGTH:
            return index, f"a text in this pattern has {longest:,} characters; the limit is {MAX_PATTERN_LENGTH:,}"
    return None


def advertised(patterns: Iterable[CapabilityPattern]) -> tuple[dict[str, Any], ...]:
    """Return patterns in the form of welcome and presence: each pattern of kind `*` also with kind `**`.

    Both mean every kind here. The TypeScript SDK checks advertised patterns before sending, and reads a single star as
    one segment: with only `*`, a participant could chat but not call tools.
    """
    given = [dict(pattern) for pattern in patterns]
    found: list[dict[str, Any]] = []
    for pattern in given:
        found.append(pattern)
        wider = {**pattern, "kind": EVERY_KIND_AT_ANY_DEPTH}
        if pattern.get("kind") == EVERY_KIND and wider not in given:
            found.append(wider)
    return tuple(found)


class CapabilitySet:
    """The capabilities of one participant. Compiles patterns once, and caches the candidates for each kind."""

    def __init__(self, patterns: Iterable[CapabilityPattern] = ()) -> None:
        self.patterns: tuple[CapabilityPattern, ...] = tuple(patterns)
        self._compiled = tuple(_Compiled.compile(pattern) for pattern in self.patterns)
        self._candidates_of_kind: dict[str, tuple[_Compiled, ...]] = {}

    def allows(self, draft: Draft, *, ignore_to: bool = False, approving: bool = False) -> bool:
        """Return True if any pattern matches this envelope. `ignore_to` ignores `to` in patterns.

        `approving` says that the envelope approves another's proposal.
        """
        return (self.approving if approving else self).match(draft, ignore_to=ignore_to) is not None

    @cached_property
    def approving(self) -> "CapabilitySet":
        """The patterns that also allow approving the proposals of others."""
        held = [one for one in self.patterns if may_approve(one)]
        return self if len(held) == len(self.patterns) else CapabilitySet(held)

    def match(self, draft: Draft, *, ignore_to: bool = False) -> CapabilityPattern | None:
        """Return the first pattern that matches this envelope, or None. No pattern matches an envelope without kind.

        All patterns share one budget. Once it is exceeded, only patterns without further conditions count.
        """
        kind = draft.kind
        if not kind:
            return None
        steps: Steps | None = None
        candidates = self._candidates_of_kind.get(kind)
        try:
            if candidates is None:
                candidates = self._candidates(kind, steps := Steps())
            for compiled in candidates:
                if compiled.only_kind:
                    return compiled.pattern
                steps = steps or Steps()
                if compiled.matches(draft, steps, ignore_to=ignore_to):
                    return compiled.pattern
        except Undecidable:
            if candidates and candidates[-1].only_kind:
                return candidates[-1].pattern
        return None

    def ignoring(self, parts: Collection[str]) -> "CapabilitySet":
        """Return the same capabilities without their conditions on these keys of payloads, at any depth.

        They show whether an envelope could be allowed with some values there. Check each envelope itself, too.
        """
        return CapabilitySet(
            {**pattern, "payload": _without_parts(pattern["payload"], parts)} if "payload" in pattern else pattern
            for pattern in self.patterns
        )

    def _candidates(self, kind: str, steps: Steps) -> tuple["_Compiled", ...]:
        """Return the patterns that match the kind, up to the first without other conditions."""
        found: list[_Compiled] = []
        for compiled in self._compiled:
            if any(test(kind, steps) for test in compiled.kind):
                found.append(compiled)
                if compiled.only_kind:
                    break
        if len(kind) <= _MAX_REMEMBERED_KIND_LENGTH and len(self._candidates_of_kind) < _MAX_REMEMBERED_KINDS:
            self._candidates_of_kind[kind] = tuple(found)
        return tuple(found)


class _Compiled(NamedTuple):
    """One compiled pattern. A test of None always passes."""

    pattern: CapabilityPattern
    kind: tuple[TextTest, ...]
    payload: _ValueTest | None = None
    to: tuple[TextTest, ...] | None = None
    only_kind: bool = False

    @staticmethod
    def compile(pattern: CapabilityPattern) -> "_Compiled":
        """Compile a pattern; an invalid one matches nothing."""
        try:
            payload, to = pattern.get("payload"), pattern.get("to")
            if not has_kind(pattern) or not isinstance(payload, dict | None):
                return _Compiled(pattern, ())
            return _Compiled(
                pattern,
                tuple(compile_text(one, in_kind=True) for one in as_texts(pattern["kind"])),
                _compile_object(payload) if payload else None,
                None if to is None else tuple(compile_text(one) for one in as_texts(to)),
                only_kind=not payload and to is None,
            )
        except (Undecidable, RecursionError, TypeError):
            return _Compiled(pattern, ())

    def matches(self, draft: Draft, steps: Steps, *, ignore_to: bool) -> bool:
        """Return True if payload and addressees match; the kind already matches. Raises `Undecidable`."""
        try:
            if self.to is not None and not ignore_to:
                addressees = draft.addressees
                # An envelope to everyone matches no list of addressees.
                if not addressees or not all(any(test(one, steps) for test in self.to) for one in addressees):
                    return False
            return self.payload is None or (draft.payload is not None and self.payload(draft.payload, steps))
        except RecursionError:
            return False


def _without_parts(value: Any, parts: Collection[str]) -> Any:
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if not _may_select(str(key), parts)}
        return {key: _without_parts(one, parts) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [_without_parts(one, parts) for one in value]
    return value


def _may_select(key: str, parts: Collection[str]) -> bool:
    """Return True if a key of a pattern (plain, a glob, `**`, or a JSONPath) could select one of these keys."""
    if key.startswith("$"):
        return ".." in key or "*" in key or any(name in key for name in parts)
    try:
        selects, steps = compile_text(key), Steps()
        return any(selects(name, steps) for name in parts)
    except Undecidable:
        return True


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text in a pattern, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts_in(key)
            yield from _texts_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts_in(one)


def as_texts(value: object) -> tuple[str, ...]:
    """Return a text, or the texts of a list. Raises `TypeError` for anything else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise TypeError("must be a string or a list of strings")


def compile_value(pattern: object) -> _ValueTest:
    """Compile a payload pattern to a test of values. Pattern and test can raise `Undecidable`."""
    match pattern:
        case str():
            if is_everything(pattern):
                return lambda _value, _steps: True
            test = compile_text(pattern)
            return lambda value, steps: isinstance(value, str) and test(value, steps)
        case list() | tuple():
            tests = tuple(compile_value(one) for one in pattern)
            whole = list(pattern)
            return lambda value, steps: is_same_value(value, whole, steps) or any(one(value, steps) for one in tests)
        case dict():
            return _compile_object(pattern)
        case _:
            return lambda value, steps: is_same_value(value, pattern, steps)


def _compile_object(pattern: dict[str, Any]) -> _ValueTest:
    tests = tuple(_compile_entry(key, value) for key, value in pattern.items())

    def test(value: object, steps: Steps) -> bool:
        steps.spend(STEPS_PER_VALUE)
        return isinstance(value, dict) and all(one(value, steps) for one in tests)

    return test


def _compile_entry(key: str, pattern: object) -> _ValueTest:
    """Compile one key of an object: a JSONPath, `**` for any depth, a glob over keys, or the key itself."""
    expected = compile_value(pattern)
    if key.startswith("$"):
        select = compile_path(key)
        return lambda value, steps: any(expected(found, steps) for found in select(value, steps))
    if key == "**":
        return lambda value, steps: any(expected(found, steps) for found in descendants(value, steps))
    if has_wildcard(key):
        name = compile_text(key)
        return lambda value, steps: (
            isinstance(value, dict) and any(name(one, steps) and expected(value[one], steps) for one in value)
        )
    return lambda value, steps: isinstance(value, dict) and key in value and expected(value[key], steps)


def is_same_value(value: object, expected: object, steps: Steps) -> bool:
    """Return True if two values are equal as JSON: true is not 1, 1 is 1.0, a string is never a number.

    Raises `Undecidable` if the comparison is too expensive.
    """
    steps.spend(STEPS_PER_VALUE)
    if isinstance(value, list | tuple) and isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(
            is_same_value(a, b, steps) for a, b in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(is_same_value(value[k], expected[k], steps) for k in expected)
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected
    return type(value) is type(expected) and value == expected
