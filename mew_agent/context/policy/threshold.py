"""[pure] Exact comparisons of token counts: fractions of a window, output reserves, conditions."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Figure = Literal[
    "used",
    "resent",
    "next_prompt",
    "next_prompt_and_reserve",
    "next_task_and_reserve",
    "grown",
    "tool_result",
    "with_tool_result",
]
"""The token count that a condition compares:

- `used`: the policy's measure
- `resent`: the same without reasoning that is not sent again
- `next_prompt`: the projected next prompt
- `next_prompt_and_reserve`: the next prompt plus the output reserve
- `next_task_and_reserve`: the same plus a task of the usual size; unknown until enough tasks have ended
- `grown`: how much larger the next prompt is than after the last compaction, or than nothing
- `tool_result`: a tool result alone
- `with_tool_result`: `used` plus that tool result
"""

Operator = Literal["ge", "gt", "lt"]

Settings = Mapping[str, float]  # values for one model that replace a policy's defaults, by the name in `override`


class PolicyPart(BaseModel):
    """Base class of everything in a policy: frozen; refuses unknown keys."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")


class Fraction(PolicyPart):
    """An exact fraction, usually of the window. In files also `9/10` or `90%`."""

    numerator: int = Field(gt=0)
    denominator: int = Field(gt=0)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        if isinstance(given, Mapping | Fraction):
            return given
        if not isinstance(given, str):
            raise ValueError(f"{given!r} is not a fraction; write 9/10 or 90%")
        text = given.strip()
        numerator, _, denominator = (text[:-1], "/", "100") if text.endswith("%") else text.partition("/")
        if not (numerator.strip().isascii() and numerator.strip().isdigit() and denominator.strip().isdigit()):
            raise ValueError(f"{given!r} is not a fraction; write 9/10 or 90%")
        return {"numerator": int(numerator), "denominator": int(denominator)}

    def floor_of(self, tokens: int) -> int:
        """Return this fraction of `tokens`, rounded down."""
        return tokens * self.numerator // self.denominator

    def ceil_of(self, tokens: int) -> int:
        """Return this fraction of `tokens`, rounded up."""
        return -(-tokens * self.numerator // self.denominator)

    def exceeds(self, tokens: int, limit_tokens: int) -> bool:
        """Return whether this fraction of the window is more than `tokens`."""
        return tokens * self.denominator < limit_tokens * self.numerator

    def is_above(self, other: "Fraction") -> bool:
        """Return whether this is the larger fraction."""
        return self.numerator * other.denominator > other.numerator * self.denominator


class Reserve(PolicyPart):
    """The output reserve: a fraction of the window, or (`of="rest"`) of its free part, within token limits."""

    fraction: Fraction
    of: Literal["window", "rest"] = "window"
    at_least_tokens: int = Field(default=0, ge=0)
    at_most_tokens: int | None = Field(default=None, ge=0)
    whole: bool = False  # round the fraction down to whole tokens

    def added_to(self, prompt_tokens: int, limit_tokens: int) -> tuple[int, int]:
        """Return prompt plus reserve as (value, scale): exactly value / scale tokens."""
        base = limit_tokens if self.of == "window" else limit_tokens - prompt_tokens
        scale = 1 if self.whole else self.fraction.denominator
        reserve = self.fraction.floor_of(base) if self.whole else base * self.fraction.numerator
        reserve = max(reserve, self.at_least_tokens * scale)
        if self.at_most_tokens is not None:
            reserve = min(reserve, self.at_most_tokens * scale)
        return prompt_tokens * scale + reserve, scale


class Condition(PolicyPart):
    """A figure compared with a number of `tokens` or a `fraction` of the window."""

    figure: Figure
    op: Operator
    fraction: Fraction | None = None
    tokens: int | None = Field(default=None, gt=0)
    override: str | None = None  # the setting that replaces the bound
    whole: bool = False  # round the fraction down to whole tokens, at least 1

    @model_validator(mode="after")
    def _one_bound(self) -> "Condition":
        bounds = (self.fraction is not None) + (self.tokens is not None)
        if bounds > 1 or (bounds == 0 and self.override is None):
            raise ValueError("a condition needs exactly one of `fraction` and `tokens`")
        return self

    def configured(self, settings: Settings) -> "Condition":
        """Return a copy with the bound from the settings, if the setting is at least one token."""
        tokens = None if self.override is None else whole_count(settings.get(self.override))
        if tokens is None:
            return self
        return self.model_copy(update={"tokens": tokens, "fraction": None, "whole": False})

    def holds(self, value: int | None, limit_tokens: int | None, *, scale: int = 1) -> bool:
        """Return whether the condition holds for value / scale tokens; False if the figure or limit is unknown."""
        if value is None:
            return False
        tokens, fraction = self.tokens, self.fraction
        if tokens is not None:
            left, right = value, tokens * scale
        elif limit_tokens is None or fraction is None:
            return False
        elif self.whole:
            left, right = value, max(1, fraction.floor_of(limit_tokens)) * scale
        else:
            left, right = value * fraction.denominator, limit_tokens * fraction.numerator * scale
        if self.op == "ge":
            return left >= right
        return left > right if self.op == "gt" else left < right

    def first_tokens(self, limit_tokens: int | None) -> int | None:
        """Return the smallest count for which it holds; None if unknown, and for `lt`, which holds from 0."""
        if self.op == "lt":
            return None
        if self.tokens is not None:
            return self.tokens + (self.op == "gt")
        if limit_tokens is None or self.fraction is None:
            return None
        if self.whole:
            return max(1, self.fraction.floor_of(limit_tokens)) + (self.op == "gt")
        return self.fraction.ceil_of(limit_tokens) if self.op == "ge" else self.fraction.floor_of(limit_tokens) + 1


def mark(figure: Figure, op: Operator, fraction: str) -> Condition:
    """Return the condition that compares a figure with a fraction of the window, such as `9/10`."""
    return Condition(figure=figure, op=op, fraction=fraction)


def whole_count(value: Any) -> int | None:
    """Return a setting as a count, rounded down; None if it is no number of at least 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return None
    return int(value) if value >= 1 else None
