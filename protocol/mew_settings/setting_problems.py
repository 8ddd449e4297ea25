"""[pure] Describes mistakes in settings and options: their place, and the probably intended key.

`mew_protocol.expectations` describes wrong values.
"""

import re
from collections.abc import Collection, Iterable
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from mew_protocol.expectations import expectation, suggestion
from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mew_settings.values import LateType

_OTHER_NAMES: Final = dict.fromkeys(
    (
        *("context_window", "context_window_tokens", "context_length", "context_limit", "context_size"),
        *("window", "window_tokens", "max_context_tokens", "max_tokens", "n_ctx", "num_ctx", "token_limit"),
    ),
    "context_token_limit",
)
"""Names of a key in other programs."""


def matching(pattern: str, problem: str) -> AfterValidator:
    """Return a check of whole texts for models, whose error describes valid texts instead of the pattern."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(problem)
        return text

    return AfterValidator(check)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the equivalent or most similar known name; empty if there is none."""
    known, meant = list(known), _OTHER_NAMES.get(name)
    return suggestion(meant if meant in known else name, known)


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Return why a text file cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 text (at byte {error.start:,})"
    return f"cannot be read: {error.strerror or error}"


def first_problem(error: ValidationError, *, hidden_steps: Collection[str] = ()) -> str:
    """Return the first mistake, as `key.path: must be ...`; `hidden_steps` are not keys of the user."""
    first = error.errors(include_url=False)[0]
    return problem_at(".".join(str(step) for step in first["loc"] if step not in hidden_steps), first)


def problem_at(place: str, detail: ErrorDetails) -> str:
    """Return a mistake with the place of the value."""
    if detail["type"] == "missing":
        return f"'{place}' is missing"
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{place}'"
    return f"{place}: {expectation(detail)}" if place else expectation(detail)


def known_keys(model: type[BaseModel], place: Iterable[int | str]) -> list[str]:
    """Return the valid keys at a place in a settings model; empty if any key is valid."""
    kind: Any = model
    for step in place:
        kind = _model_in(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and step in kind.model_fields:
            kind = kind.model_fields[str(step)].annotation
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) is tuple:
            kind = get_args(kind)[0]
    kind = _model_in(kind)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _model_in(kind: Any) -> Any:
    """Strip `Annotated`, and return the branch of an optional type that has keys."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        late = next((one for one in get_args(kind) if isinstance(one, LateType)), None)
        kind = next(one for one in get_args(kind) if one is not type(None)) if late is None else late.type
    return kind
