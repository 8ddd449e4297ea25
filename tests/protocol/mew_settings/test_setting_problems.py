"""Mistakes in settings are named in the words of the file, not in those of Python."""

from typing import Any, Literal

import pytest
from mew_protocol.expectations import expectation
from mew_settings.setting_problems import did_you_mean, first_problem, unreadable
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_agent.settings import AgentSettings


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"max_iterations": "many"}, "must be a whole number, not 'many'"),
        ({"max_iterations": 1.5}, "must be a whole number, not 1.5"),
        ({"max_turn_seconds": "long"}, "must be a number, not 'long'"),
        ({"auto_respond": "maybe"}, "must be true or false, not 'maybe'"),
        ({"model": 5}, "must be a string, not 5; quote it"),
        ({"model": ""}, "must not be empty"),
        ({"pins": "be brief"}, "must be a list, not 'be brief'"),
        ({"loop_limits": 3}, "must be a mapping, not 3"),
        ({"compact_at": "most"}, "must be a part of the window, such as 75% or 3/4, not 'most'"),
        ({"long_results": "cutt"}, "must be 'cut' or 'refuse', not 'cutt' (did you mean 'cut'?)"),
    ],
)
def test_a_mistake_is_named_with_the_valid_values(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AgentSettings.model_validate(setting)
    assert expectation(caught.value.errors()[0]) == said


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        AgentSettings.model_validate({"model": 5})
    assert expectation(caught.value.errors()[0], shows_found=False) == "must be a string"


def test_the_name_of_another_program_is_translated() -> None:
    known = ("model", "context_token_limit")
    assert did_you_mean("n_ctx", known) == " (did you mean 'context_token_limit'?)"
    assert did_you_mean("modle", known) == " (did you mean 'model'?)"
    assert did_you_mean("zzz", known) == ""


def test_unreadable_file_is_described_without_its_name() -> None:
    assert unreadable(PermissionError(13, "Permission denied", "space.yaml")) == "cannot be read: Permission denied"
    with pytest.raises(UnicodeDecodeError) as caught:
        b"ab\xff".decode()
    assert unreadable(caught.value) == "is not UTF-8 text (at byte 2)"


class Sizes(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=1, ge=1, le=2_000)
    share: float = Field(default=0.5, gt=0, lt=1)
    name: str = Field(default="x", min_length=1, max_length=1_000)
    parts: tuple[str, ...] = Field(default=(), max_length=2)
    word: Literal["threshold", "manual"] = "manual"
    is_on: bool = False
    inner: dict[str, "Sizes"] = {}


class Whole(BaseModel):
    sizes: Sizes


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"count": "many"}, "count: must be a whole number, not 'many'"),
        ({"count": 1.5}, "count: must be a whole number, not 1.5"),
        ({"count": 0}, "count: must be at least 1, not 0"),
        ({"count": 2_001}, "count: must be at most 2000, not 2001"),
        ({"share": 0}, "share: must be greater than 0, not 0"),
        ({"share": "half"}, "share: must be a number, not 'half'"),
        ({"name": ""}, "name: must not be empty"),
        ({"name": "x" * 1_001}, "name: must have at most 1,000 characters"),
        ({"name": 5}, "name: must be a string, not 5; quote it"),
        ({"name": None}, "name: must be a string, not nothing"),
        ({"parts": "one"}, "parts: must be a list, not 'one'"),
        ({"parts": ["a"] * 3}, "parts: must have at most 2 items"),
        ({"word": "treshold"}, "word: must be 'threshold' or 'manual', not 'treshold' (did you mean 'threshold'?)"),
        ({"name": True}, "name: must be a string, not true; quote it"),
        ({"is_on": "perhaps"}, "is_on: must be true or false, not 'perhaps'"),
        ({"inner": {"a": 5}}, "inner.a: must be a mapping, not 5"),
        ({"inner": {"a": {"count": "x"}}}, "inner.a.count: must be a whole number, not 'x'"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_mistake_names_the_place_and_the_expected_value(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Sizes.model_validate(values)
    assert first_problem(refused.value) == problem


def test_missing_key_is_named_without_hidden_steps() -> None:
    with pytest.raises(ValidationError) as refused:
        Whole.model_validate({})
    assert first_problem(refused.value) == "'sizes' is missing"
    with pytest.raises(ValidationError) as refused:
        Whole.model_validate({"sizes": {"count": "x"}})
    assert first_problem(refused.value, hidden_steps=("sizes",)) == "count: must be a whole number, not 'x'"
