"""[pure] Reads the lines of a context log for `mew context simulate`.

A step is one JSON object per line; docs/reference/policies.md lists the kinds. Owns their validation. Does not apply
policies.
"""

import json
from typing import Annotated, Any, Final, Literal, Self, get_args

from mew_settings.setting_problems import first_problem
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from mew_agent.context.policy import GenerationFlags
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
"""The key of a line for its event."""

KINDS: Final[tuple[StepKind, ...]] = get_args(StepKind)
_OWNER: Final = {"current_tokens": "tool_result_tokens", "role": "message_tokens"}
"""Keys that belong to one kind."""

MOST_TOKENS = 10**15  # upper bound of counts, far above any window; a larger number is a mistake

Tokens = Annotated[int, Field(ge=0, lt=MOST_TOKENS)]


class BadStep(ValueError):
    """An invalid line; the text names the expected value."""


def _require_true(value: object) -> object:
    if value is not True:  # pydantic also accepts 1
        raise ValueError("must be true")
    return value


JsonTrue = Annotated[Literal[True], BeforeValidator(_require_true)]


def _require_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


class UsageFigures(BaseModel):
    """The provider's usage object. It may have other figures too."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    prompt_tokens: FiniteFloat | None = None
    completion_tokens: FiniteFloat | None = None
    total_tokens: FiniteFloat | None = None


JsonUsage = Annotated[UsageFigures, BeforeValidator(_require_object)]


class Step(BaseModel):
    """One line of a log, with one of `KINDS`. Counts are in tokens."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    usage: JsonUsage | None = None  # None if the call reported none
    pre_request_tokens: Tokens = 0
    tool_result_tokens: Tokens = 0
    stream_tokens: Tokens = 0
    message_tokens: Tokens = 0
    compact_to_tokens: Tokens = 0
    compact_to_percent: int = Field(default=100, ge=1, le=100)
    summary_failed: JsonTrue = True
    clear: JsonTrue = True
    set_limit: int = Field(default=1, ge=1, lt=MOST_TOKENS)
    usual_task_tokens: Tokens = 0
    current_tokens: Tokens = 0  # in context when a tool result arrived
    role: Role | None = None  # of an added message
    user_prompt: bool = False
    queue_busy: bool = False
    user_chain: bool = False
    at_seconds: FiniteFloat | None = None  # an absolute time; None if the log has none

    @model_validator(mode="before")
    @classmethod
    def _is_object_without_nulls(cls, given: object) -> object:
        for key, value in _require_object(given).items():
            if value is None and key in cls.model_fields and key != "usage":
                raise ValueError(f"'{key}' must not be null")
        return given

    @model_validator(mode="after")
    def _is_one_step(self) -> Self:
        given = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(given) > 1:
            raise ValueError(f"'{given[0]}' and '{given[1]}' are two steps; put each on its own line")
        if not given:
            raise ValueError(f"expected one of {', '.join(KINDS)}")
        if given[0] == "tool_result_tokens" and "current_tokens" not in self.model_fields_set:
            raise ValueError("'current_tokens' is missing next to 'tool_result_tokens'")
        for key, owner in _OWNER.items():
            if key in self.model_fields_set and owner != given[0]:
                raise ValueError(f"unknown key '{key}' next to '{given[0]}'")
        return self

    @property
    def kind(self) -> StepKind:
        """The kind of event."""
        return next(kind for kind in KINDS if kind in self.model_fields_set)

    @property
    def tokens(self) -> int:
        """The step's number in tokens or percent; not for `usage`."""
        return int(getattr(self, self.kind))

    @property
    def flags(self) -> GenerationFlags:
        """Facts about the next generation."""
        return GenerationFlags(self.user_prompt, self.queue_busy, self.user_chain)


def read_step(line: str) -> Step:
    """Read a line of JSON. Raises `BadStep`."""
    try:
        step = Step.model_validate_json(line)
        json.loads(line, object_pairs_hook=_require_each_once)  # pydantic keeps the last of repeated keys
        return step
    except ValidationError as error:
        raise BadStep(first_problem(error)) from None


def _require_each_once(pairs: list[tuple[str, object]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise BadStep(f"'{key}' is given twice")
        seen.add(key)
