"""Mistakes in settings are named in the words of the file, not in those of Python."""

from typing import Any

import pytest
from mew_protocol.agent_settings import AgentSettings
from mew_protocol.setting_problems import did_you_mean, expectation
from pydantic import ValidationError


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
def test_a_mistake_is_named_with_what_is_valid(setting: dict[str, Any], said: str) -> None:
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
