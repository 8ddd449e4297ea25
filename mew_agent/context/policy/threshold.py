"""[pure] Exact comparisons of token figures: parts of a window, room kept for an answer, conditions.

Everything is compared as integers by cross-multiplication, so that no rounding moves a threshold. It knows no policy.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Figure = Literal["used", "resent", "next_prompt", "next_prompt_and_reserve", "tool_result", "with_tool_result"]
"""What a condition looks at, in tokens: the policy's measure at that moment; the same without reasoning that is never
sent again; the next prompt; the next prompt and room for its answer; a tool result alone; it and everything before."""

Operator = Literal["ge", "gt", "lt"]

Settings = Mapping[str, float]
"""Per-model values that replace a policy's defaults, by the name of their `override` key."""


class PolicyPart(BaseModel):
    """A part of a policy: frozen, and without keys that nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fraction(PolicyPart):
    """An exact part of the window. In files also written `9/10` or `90%`."""

    numerator: int = Field(gt=0)
    denominator: int = Field(gt=0)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        if isinstance(given, Mapping | Fraction):
            return given
        if not isinstance(given, str):
            raise ValueError(f"{given!r} is no part of a window; write 9/10 or 90%")
        text = given.strip()
        numerator, _, denominator = (text[:-1], "/", "100") if text.endswith("%") else text.partition("/")
        if not (numerator.strip().isascii() and numerator.strip().isdigit() and denominator.strip().isdigit()):
            raise ValueError(f"{given!r} is no part of a window; write 9/10 or 90%")
        return {"numerator": int(numerator), "denominator": int(denominator)}

    def floor_of(self, tokens: int) -> int:
        """The part of so many tokens, rounded down."""
        return tokens * self.numerator // self.denominator

    def ceil_of(self, tokens: int) -> int:
        """The part of so many tokens, rounded up: the first integer at or above it."""
        return -(-tokens * self.numerator // self.denominator)

    def exceeds(self, tokens: int, limit_tokens: int) -> bool:
        """Whether the part of the window is more than so many tokens."""
        return tokens * self.denominator < limit_tokens * self.numerator

    def is_above(self, other: "Fraction") -> bool:
        """Whether it is the larger part."""
        return self.numerator * other.denominator > other.numerator * self.denominator


class Reserve(PolicyPart):
    """Room for an answer: a part `of` the window or of what the prompt leaves free, within bounds of tokens.

    `whole` rounds it down to whole tokens; otherwise it is compared exactly.
    """

    fraction: Fraction
    of: Literal["window", "rest"] = "window"
    at_least_tokens: int = Field(default=0, ge=0)
    at_most_tokens: int | None = Field(default=None, ge=0)
    whole: bool = False

    def added_to(self, prompt_tokens: int, limit_tokens: int) -> tuple[int, int]:
        """Prompt and reserve as (value, scale): the sum is exactly value / scale tokens."""
        base = limit_tokens if self.of == "window" else limit_tokens - prompt_tokens
        scale = 1 if self.whole else self.fraction.denominator
        reserve = self.fraction.floor_of(base) if self.whole else base * self.fraction.numerator
        reserve = max(reserve, self.at_least_tokens * scale)
        if self.at_most_tokens is not None:
            reserve = min(reserve, self.at_most_tokens * scale)
        return prompt_tokens * scale + reserve, scale


class Condition(PolicyPart):
    """`figure` `op` (`fraction` of the window, or `tokens`).

    `override` names the per-model setting, in tokens, that stands in place of the bound; a condition with nothing but
    an override never holds until it is set. `whole` rounds the fraction down to whole tokens, at least 1.
    """

    figure: Figure
    op: Operator
    fraction: Fraction | None = None
    tokens: int | None = Field(default=None, gt=0)
    override: str | None = None
    whole: bool = False

    @model_validator(mode="after")
    def _one_bound(self) -> "Condition":
        bounds = (self.fraction is not None) + (self.tokens is not None)
        if bounds > 1 or (bounds == 0 and self.override is None):
            raise ValueError("a condition needs exactly one of `fraction` and `tokens`")
        return self

    def configured(self, settings: Settings) -> "Condition":
        """The condition with its setting, if that is a count of at least one token."""
        tokens = None if self.override is None else whole_count(settings.get(self.override))
        if tokens is None:
            return self
        return self.model_copy(update={"tokens": tokens, "fraction": None, "whole": False})

    def holds(self, value: int | None, limit_tokens: int | None, *, scale: int = 1) -> bool:
        """Whether value / scale tokens hold it; a figure or limit that is not known never makes it hold."""
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
        """The smallest figure at which it begins to hold; None if that is not known, or it holds from 0 on."""
        if self.op == "lt":
            return None
        if self.tokens is not None:
            return self.tokens + (self.op == "gt")
        if limit_tokens is None or self.fraction is None:
            return None
        if self.whole:
            return max(1, self.fraction.floor_of(limit_tokens)) + (self.op == "gt")
        return self.fraction.ceil_of(limit_tokens) if self.op == "ge" else self.fraction.floor_of(limit_tokens) + 1


def begins_above(condition: Condition, other: Condition) -> bool:
    """Whether it begins to hold later than the other; conditions that cannot be compared may."""
    if condition.figure != other.figure:
        return True
    if condition.fraction is not None and other.fraction is not None:
        if condition.fraction.is_above(other.fraction):
            return True
        return not other.fraction.is_above(condition.fraction) and (condition.op, other.op) == ("gt", "ge")
    if condition.tokens is not None and other.tokens is not None:
        return condition.tokens + (condition.op == "gt") > other.tokens + (other.op == "gt")
    return True


def whole_count(value: Any) -> int | None:
    """A setting as a count: rounded down, None unless at least 1 remains (then the default stands)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return None
    return int(value) if value >= 1 else None
