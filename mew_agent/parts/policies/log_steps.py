"""[pure] Reads the lines of a context log for `mew context simulate`.

A step is one JSON object a line; docs/reference/policies.md lists the kinds. Owns their validation. Does not apply
policies.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from mew_agent.context.policy import NO_FLAGS, GenerationFlags
from mew_agent.model.interface import Role

StepKind = Literal[
    "usage",
    "pre_request_tokens",
    "tool_result_tokens",
    "stream_tokens",
    "message_tokens",
    "compact_to_tokens",
    "compact_to_percent",
    "summary_failed",
    "clear",
    "set_limit",
    "usual_task_tokens",
]
"""The key of a line that says what happened."""

_USAGE_FIGURES = ("prompt_tokens", "completion_tokens", "total_tokens")
_EXTRA_KEYS: Mapping[str, StepKind] = {"current_tokens": "tool_result_tokens", "role": "message_tokens"}
_FLAGS = ("user_prompt", "queue_busy", "user_chain")

MOST_TOKENS = 10**15  # upper bound of counts, far beyond any window; a larger number is a mistake


class BadStep(ValueError):
    """An invalid line; the text names the expected value."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a log. Counts are in tokens."""

    kind: StepKind
    tokens: int | None = None
    """Of the next prompt, tool result, streamed context, added message, target, new window or usual task, by kind; a
    percentage for `compact_to_percent`."""

    current_tokens: int | None = None
    usage: Mapping[str, Any] | None = None  # the provider's object; None if the call reported none
    role: Role | None = None
    flags: GenerationFlags = NO_FLAGS  # of the next generation
    at_seconds: float | None = None  # an absolute time; None if the log has none


def _read_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_no_number, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise BadStep(f"malformed JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise BadStep("malformed JSON: nested too deeply") from None
    except BadStep:
        raise
    except ValueError:
        # Python refuses integers of more than a few thousand digits.
        raise BadStep("malformed JSON: a number with too many digits") from None
    if not isinstance(value, dict):
        raise BadStep(f"expected a JSON object, got {_shown(value)}")
    return value


def read_step(line: str) -> Step:
    """Read a line of JSON. Raises `BadStep`."""
    value = _read_object(line)
    kind = _kind_of(value)
    _check_keys(kind, value)
    return Step(
        kind=kind,
        tokens=_figure(kind, value[kind]),
        current_tokens=_count("current_tokens", value.get("current_tokens")) if kind == "tool_result_tokens" else None,
        usage=_usage(value[kind]) if kind == "usage" else None,
        role=value.get("role"),
        flags=GenerationFlags(**{name: value[name] for name in _FLAGS if name in value}),
        at_seconds=float(value["at_seconds"]) if "at_seconds" in value else None,
    )


def _check_keys(kind: StepKind, value: Mapping[str, Any]) -> None:
    """Check the names of all keys, and the values of those that every kind of step may have."""
    for other in value:
        if other not in (kind, *_FLAGS, "at_seconds") and kind != _EXTRA_KEYS.get(other):
            raise BadStep(f"unknown key '{other}' next to '{kind}'")
    for name in _FLAGS:
        if name in value:
            _require(isinstance(value[name], bool), name, "true or false", value[name])
    at = value.get("at_seconds", 0)
    _require(_is_number(at) and math.isfinite(at), "at_seconds", "a number", at)
    if "role" in value:
        _require(value["role"] in get_args(Role), "role", f"one of {', '.join(get_args(Role))}", value["role"])


def _kind_of(value: Mapping[str, object]) -> StepKind:
    kinds: tuple[StepKind, ...] = get_args(StepKind)
    found = [kind for kind in kinds if kind in value]
    if len(found) > 1:
        raise BadStep(f"'{found[0]}' and '{found[1]}' are two steps; put each on its own line")
    if not found:
        raise BadStep(f"expected one of {', '.join(kinds)}")
    return found[0]


def _figure(kind: StepKind, value: object) -> int | None:
    if kind in ("clear", "summary_failed"):
        _require(value is True, kind, "true", value)
    if kind == "compact_to_percent":
        is_percentage = isinstance(value, int) and _is_number(value) and 1 <= value <= 100
        _require(is_percentage, kind, "a whole number from 1 to 100", value)
    return None if kind in ("usage", "clear", "summary_failed") else _count(kind, value, least=int(kind == "set_limit"))


def _count(name: str, value: Any, *, least: int = 0) -> int:
    is_count = isinstance(value, int) and _is_number(value) and least <= value < MOST_TOKENS
    _require(is_count, name, f"a whole number of tokens, {least} or more", value)
    return int(value)


def _usage(value: Any) -> Mapping[str, Any] | None:
    is_usage = value is None or isinstance(value, dict)
    _require(is_usage, "usage", "the provider's object, or null if it reported none", value)
    for name in _USAGE_FIGURES if value else ():
        figure = value.get(name)
        _require(figure is None or _is_number(figure), f"usage.{name}", "a number of tokens or null", figure)
    return value  # type: ignore[no-any-return]  # the type was just checked


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise BadStep(f"'{name}' must be {expected}, got {_shown(value)}")


def _no_number(text: str) -> NoReturn:
    raise BadStep(f"{text} is not a JSON number")


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise BadStep(f"'{twice}' is given twice")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}..."
