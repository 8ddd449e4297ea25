"""[pure] Decides whether one capability pattern contains another, so that participants pass on only their own rights.

A pattern is contained if each part equals the other's part, or is literal and matches it. This is stricter than true
containment: of two nested globs, neither contains the other unless they are equal. It is never too lenient: an envelope
that matches a contained pattern always matches the containing one.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mew_protocol.capability import CapabilityPattern, as_texts, compile_value, has_kind, is_same_value, may_approve
from mew_protocol.patterns import (
    BudgetExceeded,
    Steps,
    Undecidable,
    compile_text,
    has_wildcard,
    is_everything,
    is_literal,
)

COMPARISON_STEPS: Final = 80_000
"""Budget for all patterns of one grant, invitation or revocation: at most some 4 milliseconds."""

_STEPS_PER_PATTERN: Final = 40
"""The cost of reading one pattern."""

_STEPS_PER_COMPILATION: Final = 600
"""The cost of compiling one text, in addition to two steps for each of its characters."""


def covers(
    patterns: Iterable[CapabilityPattern],
    wanted: CapabilityPattern,
    *,
    ignore_to: bool = False,
    steps: Steps | None = None,
) -> bool:
    """Return True if `wanted` is contained in these patterns; see `covering`."""
    return covering(patterns, wanted, ignore_to=ignore_to, steps=steps) is not None


def covering(
    patterns: Iterable[CapabilityPattern],
    wanted: CapabilityPattern,
    *,
    ignore_to: bool = False,
    steps: Steps | None = None,
) -> tuple[CapabilityPattern, ...] | None:
    """Return, for each kind of `wanted`, the first pattern that contains it; None if one is not contained or invalid.

    A participant may pass on what its own patterns (with `BASELINE`) cover. Several calls may share a budget. Raises
    `BudgetExceeded` if it is spent.
    """
    held, steps = tuple(patterns), steps or Steps(COMPARISON_STEPS)
    found: list[CapabilityPattern] = []
    for kind in as_texts(wanted["kind"]) if has_kind(wanted) else ():
        one = next((one for one in held if _contained(kind, wanted, one, steps, ignore_to=ignore_to)), None)
        if one is None:
            return None
        found.append(one)
    return tuple(found) or None


def _addressees_within(wanted: object, held: object, steps: Steps) -> bool:
    if held is None:
        return True
    allowed, asked = as_texts(held), as_texts(wanted)
    return bool(asked) and all(any(_text_within(one, other, steps) for other in allowed) for one in asked)


def _contained(kind: str, wanted: CapabilityPattern, held: CapabilityPattern, steps: Steps, *, ignore_to: bool) -> bool:
    steps.spend(_STEPS_PER_PATTERN)
    if may_approve(wanted) and not may_approve(held):
        return False
    try:
        if not any(_text_within(kind, one, steps, in_kind=True) for one in as_texts(held.get("kind"))):
            return False
        if not ignore_to and not _addressees_within(wanted.get("to"), held.get("to"), steps):
            return False
        payload = held.get("payload")
        if not isinstance(payload, dict | None):
            return False
        return not payload or _object_within(wanted.get("payload"), payload, steps)
    except BudgetExceeded:
        raise
    except (Undecidable, RecursionError, TypeError):
        return False


def _object_within(wanted: object, held: Mapping[str, Any], steps: Steps) -> bool:
    """Return True if `wanted` has all conditions of `held`, at least as strict."""
    return isinstance(wanted, Mapping) and all(
        key in wanted
        and (_within(wanted[key], held[key], steps) if _is_plain(key) else is_same_value(wanted[key], held[key], steps))
        for key in held
    )


def _within(wanted: object, held: object, steps: Steps) -> bool:
    if is_same_value(wanted, held, steps) or (isinstance(held, str) and is_everything(held)):
        return True
    if isinstance(wanted, Mapping):
        return isinstance(held, Mapping) and _object_within(wanted, held, steps)
    if isinstance(wanted, list | tuple):
        # A list matches each of its values, and the same list as a whole.
        return all(_within(one, held, steps) for one in wanted) and _matches(held, list(wanted), steps)
    if isinstance(wanted, str) and not is_literal(wanted):
        return isinstance(held, list | tuple) and any(_within(wanted, one, steps) for one in held)
    return _matches(held, wanted, steps)


def _matches(held: object, value: object, steps: Steps) -> bool:
    if isinstance(held, str) and isinstance(value, str) and not _may_match(held, value):
        return False
    steps.spend(_compilation_steps(held))
    return compile_value(held)(value, steps)


def _may_match(pattern: str, text: str) -> bool:
    """Return False if a pattern's characters before its first wildcard exclude a text. Cheaper than compiling."""
    if pattern[:1] in ("!", "/"):
        return True
    ends = [place for place in (pattern.find("*"), pattern.find("?")) if place >= 0]
    return text.startswith(pattern[: min(ends)]) if ends else text == pattern


def _compilation_steps(held: object) -> int:
    """Return the cost of compiling a payload pattern. Its depth is already limited."""
    if isinstance(held, Mapping):
        return sum(_compilation_steps(key) + _compilation_steps(value) for key, value in held.items())
    if isinstance(held, list | tuple):
        return sum(map(_compilation_steps, held))
    return _STEPS_PER_COMPILATION + 2 * len(held) if isinstance(held, str) and not is_literal(held) else 2


def _text_within(wanted: str, held: str, steps: Steps, *, in_kind: bool = False) -> bool:
    if wanted == held or is_everything(held):
        return True
    if not _may_match(held, wanted) or not is_literal(wanted) or is_literal(held):
        return False
    steps.spend(_compilation_steps(held))
    return compile_text(held, in_kind=in_kind)(wanted, steps)


def _is_plain(key: str) -> bool:
    return not key.startswith("$") and not has_wildcard(key)
