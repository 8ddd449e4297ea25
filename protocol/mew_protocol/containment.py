"""[pure] Whether one capability pattern is contained in another: a participant passes on only what it holds.

A pattern is contained in another if each part of it equals the other's part, or is literal and matches it. This is
stricter than true containment: of two globs that nest, neither contains the other unless they are spelled the same.
It never errs the other way: an envelope that matches a contained pattern always matches the other one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mew_protocol.capability import BASELINE, CapabilityPattern, is_same_value, value_matches
from mew_protocol.patterns import Steps, Undecidable, compile_text, has_wildcard, is_everything


def may_pass_on(own: Iterable[CapabilityPattern], wanted: CapabilityPattern, *, ignore_to: bool = False) -> bool:
    """Return whether a participant with the patterns `own` may give `wanted` to another. An invalid pattern: no."""
    held = (*own, BASELINE)
    try:
        kinds = _texts(wanted.get("kind"))
        return bool(kinds) and all(
            any(_contained(kind, wanted, pattern, ignore_to=ignore_to) for pattern in held) for kind in kinds
        )
    except (Undecidable, RecursionError):
        return False


def _contained(kind: str, wanted: CapabilityPattern, held: CapabilityPattern, *, ignore_to: bool) -> bool:
    if not any(_text_within(kind, one, in_kind=True) for one in _texts(held.get("kind"))):
        return False
    if not ignore_to and held.get("to") is not None:
        allowed, asked = _texts(held["to"]), _texts(wanted.get("to"))
        if not asked or not all(any(_text_within(one, other) for other in allowed) for one in asked):
            return False
    payload = held.get("payload")
    if not isinstance(payload, dict | None):
        return False
    return not payload or _object_within(wanted.get("payload"), payload)


def _object_within(wanted: object, held: Mapping[str, Any]) -> bool:
    """Return whether `wanted` has every condition of `held`, at least as strict."""
    return isinstance(wanted, Mapping) and all(
        key in wanted and (_within(wanted[key], held[key]) if _is_plain(key) else is_same_value(wanted[key], held[key]))
        for key in held
    )


def _within(wanted: object, held: object) -> bool:
    if is_same_value(wanted, held) or (isinstance(held, str) and is_everything(held)):
        return True
    if isinstance(wanted, Mapping):
        return isinstance(held, Mapping) and _object_within(wanted, held)
    if isinstance(wanted, list | tuple):
        # A list matches each of its members, and also itself as a whole.
        return all(_within(one, held) for one in wanted) and value_matches(held, list(wanted))
    if isinstance(wanted, str) and not _is_literal(wanted):
        return isinstance(held, list | tuple) and any(_within(wanted, one) for one in held)
    return value_matches(held, wanted)


def _text_within(wanted: str, held: str, *, in_kind: bool = False) -> bool:
    if wanted == held or is_everything(held):
        return True
    return _is_literal(wanted) and compile_text(held, in_kind=in_kind)(wanted, Steps())


def _is_literal(text: str) -> bool:
    return not (text.startswith("!") or has_wildcard(text) or (len(text) > 2 and text[0] == "/" == text[-1]))


def _is_plain(key: str) -> bool:
    return not key.startswith("$") and not has_wildcard(key)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return ()
