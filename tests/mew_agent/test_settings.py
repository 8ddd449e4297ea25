"""The settings of an agent, apart from any file."""

from typing import Any

import pytest
from pydantic import ValidationError

from mew_agent.settings import IGNORED_KEYS, AgentSettings, WrittenAgentSettings


def test_a_key_without_a_value_counts_as_not_given() -> None:
    written = WrittenAgentSettings.model_validate({"model": None, "policy": "tachikoma"})
    assert written.given() == {"policy": "tachikoma"}
    assert written.model == AgentSettings().model


def test_given_settings_hold_the_summarisers_api_key_in_plain_text() -> None:
    written = WrittenAgentSettings.model_validate({"summariser": {"model": "small", "api_key": "sk-small"}})
    assert written.given() == {"summariser": {"model": "small", "api_key": "sk-small"}}
    assert "sk-small" not in repr(written)


def test_a_summariser_may_be_given_by_name_alone() -> None:
    assert WrittenAgentSettings.model_validate({"summariser": "small"}).given() == {"summariser": {"model": "small"}}


@pytest.mark.parametrize(
    "values",
    [
        {"max_iterations": True},
        {"max_turn_seconds": float("inf")},
        {"context_token_limit": 0},
        {"base_url": "localhost:1234"},
        {"policy_settings": {"critical_max_tokens": True}},
        {"modle": "x"},
    ],
)
def test_a_value_out_of_bounds_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AgentSettings.model_validate(values)


def test_a_bare_off_in_yaml_turns_the_tokenizer_off() -> None:
    assert AgentSettings.model_validate({"tokenizer": False}).tokenizer == "off"


def test_ignored_keys_are_no_settings_of_a_running_agent() -> None:
    assert not IGNORED_KEYS.keys() & AgentSettings.model_fields.keys()
