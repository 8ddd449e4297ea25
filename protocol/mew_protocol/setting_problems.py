"""[pure] The words for a mistake in settings: what is valid, what was found, and which name was probably meant."""

import difflib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_OTHER_NAMES: Final = dict.fromkeys(
    (
        *("context_window", "context_window_tokens", "context_length", "context_limit", "context_size"),
        *("window", "window_tokens", "max_context_tokens", "max_tokens", "n_ctx", "num_ctx", "token_limit"),
    ),
    "context_token_limit",
)
"""What other programs call a key."""

_VALID: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
        **dict.fromkeys(("float_type", "float_parsing"), "a number"),
        **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
        **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
        **dict.fromkeys(("tuple_type", "list_type"), "a list"),
        "string_type": "a string",
    }
)
"""What is valid in place of a value of another type, by pydantic's type of error."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the known name that means the same or is most similar; empty if none is."""
    known = list(known)
    meant = _OTHER_NAMES.get(name)
    found = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{found[0]}'?)" if found else ""


def expectation(detail: "ErrorDetails", *, shows_found: bool = True) -> str:
    """Return what a setting must be, in the terms of YAML, and what was found there."""
    kind, found = detail["type"], detail["input"]
    if kind in ("too_short", "string_too_short") and detail["ctx"]["min_length"] == 1:
        return "must not be empty"
    message = re.sub(r"^(Input|String|Tuple) should", "must", detail["msg"].removeprefix("Value error, "))
    message = f"must be {_VALID[kind]}" if kind in _VALID else message
    if not shows_found or not message.startswith("must be") or not isinstance(found, str | int | float | None):
        return message
    message = f"{message}, not {'nothing' if found is None else repr(found)}"
    if kind == "string_type" and found is not None:
        return f"{message}; quote it"
    return message + (did_you_mean(str(found), message.split("'")[1:-2:2]) if kind == "literal_error" else "")
