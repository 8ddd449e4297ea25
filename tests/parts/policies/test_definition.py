"""The settings of a policy and what they change."""

import pytest

from mew_agent.config.policy_choice import presets
from mew_agent.context.policy import MEW
from mew_agent.parts.policies.presets import DOMINDS_V1, DOMINDS_V3, LMSTUDIO, TACHIKOMA
from mew_agent.parts.policies.rules import Cadence, InjectRule


def test_a_policy_lists_the_settings_it_accepts() -> None:
    assert DOMINDS_V1.setting_names() == ("optimal_max_tokens", "context_length", "input_length")
    assert DOMINDS_V3.setting_names() == (
        "optimal_max_tokens",
        "critical_max_tokens",
        "caution_remediation_cadence_generations",
        "caution_cadence_generations",
        "withhold_tool_results_above_bytes",
        "context_length",
        "input_length",
    )
    assert MEW.setting_names() == ("context_token_limit",)


def test_settings_change_a_copy_and_never_the_preset() -> None:
    before = {name: policy.model_dump_json() for name, policy in presets().items()}
    settings = dict.fromkeys(DOMINDS_V3.setting_names(), 5000.0)
    assert all(policy.configured(settings) is not policy for policy in presets().values())
    assert {name: policy.model_dump_json() for name, policy in presets().items()} == before


def test_a_policy_without_settings_is_unchanged() -> None:
    for policy in presets().values():
        assert policy.configured({}) == policy


def test_the_first_length_in_the_settings_is_the_window() -> None:
    assert DOMINDS_V1.limit_from({"input_length": 128_000}) == 128_000
    assert DOMINDS_V1.limit_from({"input_length": 128_000, "context_length": 200_000.9}) == 200_000
    assert DOMINDS_V1.limit_from({"context_length": 0, "input_length": 9}) == 9
    assert DOMINDS_V1.limit_from({}) is None


def test_the_long_cadence_setting_overrides_the_short_one() -> None:
    both = {"caution_remediation_cadence_generations": 4, "caution_cadence_generations": 7}
    for settings, generations in ((both, 4), ({"caution_cadence_generations": 7.5}, 7), ({}, 10)):
        rules = DOMINDS_V3.configured(settings).rules
        cadences = [r.repeat for r in rules if isinstance(r, InjectRule) and isinstance(r.repeat, Cadence)]
        assert [cadence.generations for cadence in cadences] == [generations]


def test_levels_are_found_by_name() -> None:
    level = TACHIKOMA.level_named("redlined")
    assert level is not None
    assert level.needs_reset
    assert TACHIKOMA.level_named("nominal") is None


def test_only_policies_that_sum_up_messages_say_so() -> None:
    assert [name for name, policy in presets().items() if policy.counts_messages] == ["tachikoma"]


def test_a_provider_is_compared_without_regard_to_case() -> None:
    assert LMSTUDIO.refuses_provider("LMSTUDIO") is None


def test_settings_with_several_names_come_under_the_first_one() -> None:
    assert DOMINDS_V3.with_canonical_names({"caution_cadence_generations": 3, "optimal_max_tokens": 5}) == {
        "caution_remediation_cadence_generations": 3,
        "optimal_max_tokens": 5,
    }
    with pytest.raises(ValueError, match="two names of one setting"):
        DOMINDS_V3.with_canonical_names(
            {"caution_cadence_generations": 3, "caution_remediation_cadence_generations": 3}
        )
