"""[pure] Describes an invalid value: the valid values, the found value, and the probably intended one.

Uses the same words for values of envelopes, settings, options and tool arguments.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from pydantic_core import ErrorDetails

MAX_SHOWN: Final = 60
"""Longer values are not repeated."""

_VALID: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
        **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
        **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
        **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be a mapping"),
        **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
        "string_type": "must be a string",
        "greater_than": "must be greater than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "string_too_short": "must have at least {min_length} characters",
        "string_too_long": "must have at most {max_length} characters",
        "too_short": "must have at least {min_length} items",
        "too_long": "must have at most {max_length} items",
        "missing": "is missing",
        "union_tag_not_found": "needs the key `{discriminator}`",
    }
)
"""The valid values in place of a wrong one, by pydantic's type of error."""


def most_similar(name: str, known: Collection[str], *, similarity: float = 0.6) -> str | None:
    """Return the most similar of the known names; None if all are less similar than a `similarity` from 0 to 1."""
    from difflib import get_close_matches  # only needed for an error

    return next(iter(get_close_matches(name, known, n=1, cutoff=similarity)), None)


def suggestion(name: str, known: Collection[str]) -> str:
    """Return ` (did you mean 'x'?)` with the most similar of the known names; empty if none is similar."""
    found = most_similar(name, known) if len(name) <= MAX_SHOWN else None
    return "" if found is None else f" (did you mean '{found}'?)"


def expectation(detail: ErrorDetails, *, shows_found: bool = True, in_json: bool = False) -> str:
    """Return the valid values in YAML or JSON terms, the found value, and the probably intended one."""
    kind, found = detail["type"], detail["input"]
    limits = {key: _shown(key, limit) for key, limit in detail.get("ctx", {}).items()}
    limits["discriminator"] = limits.get("discriminator", "").strip("'")
    if limits.get("min_length") == "1":
        return "must not be empty"
    if kind == "union_tag_invalid":
        hint = suggestion(limits["tag"], limits["expected_tags"].split("'")[1::2])
        return f"unknown {limits['discriminator']} '{limits['tag']}'{hint}; use {limits['expected_tags']}"
    message = re.sub(r"^(Input|String|Tuple) should", "must", detail["msg"].removeprefix("Value error, "))
    message = _VALID[kind].format(**limits) if kind in _VALID else message
    message = message.replace("a mapping", "an object") if in_json else message
    is_shown = shows_found and isinstance(found, str | int | float | None) and len(str(found)) <= MAX_SHOWN
    if not is_shown or not message.startswith("must be"):
        return message
    hint = suggestion(str(found), message.split("'")[1::2]) if kind == "literal_error" else ""
    message = f"{message}, not {'null' if in_json and found is None else _written(found)}{hint}"
    return f"{message}; quote it" if kind == "string_type" and found is not None and not in_json else message


def _written(found: str | float | None) -> str:
    """Return a value in YAML form."""
    if found is None:
        return "nothing"
    return str(found).lower() if isinstance(found, bool) else repr(found)


def _shown(key: str, limit: object) -> str:
    """Format a limit as typed, and a length with separators."""
    if isinstance(limit, float):
        return f"{limit:g}"
    return f"{limit:,}" if isinstance(limit, int) and key.endswith("_length") else str(limit)
