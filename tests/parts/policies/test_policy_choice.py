"""The policy of an agent: settings, window, and allowed providers."""

from typing import Any

import pytest

from mew_agent.config.agent_config import AgentConfig, chosen_policy
from mew_agent.config.policy_choice import ChosenPolicy, mapping_of, policy_from, server_refusal
from mew_agent.context.policy import MEW, ContextSnapshot, PolicyState, decide
from mew_agent.context.policy.threshold import Condition
from mew_agent.errors import ConfigError
from mew_agent.model.interface import Window
from mew_agent.parts.policies.presets import LMSTUDIO


def chosen(**values: Any) -> ChosenPolicy:
    return chosen_policy(AgentConfig.model_validate({"space": "s", "id": "i", "token": "t", "model": "m", **values}))


def mark_of(policy: Any, level: str) -> Condition:
    found = policy.level_named(level)
    assert found is not None
    return Condition.model_validate(found.at.model_dump())


def test_the_default_is_mew_with_no_window_of_its_own() -> None:
    assert chosen() == ChosenPolicy(MEW, None)


def test_settings_win_over_facts_about_the_model() -> None:
    facts = {"m": {"context_length": 272_000, "optimal_max_tokens": 200_000, "critical_max_tokens": 240_000}}
    known = chosen(policy="dominds-v3", models=facts)
    assert known.limit_tokens == 272_000
    assert mark_of(known.policy, "caution").tokens == 200_000
    own = chosen(policy="dominds-v3", models=facts, policy_settings={"optimal_max_tokens": 60_000})
    assert mark_of(own.policy, "caution").tokens == 60_000
    assert mark_of(own.policy, "critical").tokens == 240_000
    assert mark_of(chosen(policy="dominds-v3", models={"other": facts["m"]}).policy, "caution").tokens == 100_000


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"models": {"m": {"input_length": 128_000}}}, 128_000),
        ({"models": {"m": {"input_length": 128_000, "context_length": 200_000}}}, 200_000),
        ({"models": {"m": {"context_length": 200_000}}, "context_token_limit": 100_000}, 100_000),
        ({"policy": "tachikoma", "policy_settings": {"max_tokens": 50_000}}, 50_000),
        ({"policy": "tachikoma", "policy_settings": {"max_tokens": 50_000}, "context_token_limit": 9_000}, 9_000),
    ],
)
def test_the_window_comes_from_the_agent_then_settings_then_facts(values: dict[str, Any], limit: int) -> None:
    assert chosen(**values).limit_tokens == limit


def test_unused_facts_are_ignored_but_unknown_settings_are_refused() -> None:
    assert chosen(models={"m": {"optimal_max_tokens": 5}}).policy == MEW
    with pytest.raises(ConfigError, match="unknown setting 'optimal_max_tokens'"):
        chosen(policy_settings={"optimal_max_tokens": 5})


def test_a_setting_with_two_names_is_one_setting() -> None:
    facts = {"m": {"caution_remediation_cadence_generations": 7, "context_length": 272_000}}
    own = {"caution_cadence_generations": 3, "input_length": 128_000}
    known = chosen(policy="dominds-v3", models=facts, policy_settings=own)
    state, prompted = PolicyState(), []
    for call in range(5):
        snapshot = ContextSnapshot(110_000, "reported", known.limit_tokens, call_id=str(call))
        state, actions = decide(known.policy, state, snapshot, "after_call")
        prompted.append(bool(actions))
    assert prompted == [True, False, False, True, False]
    assert known.limit_tokens == 128_000
    with pytest.raises(ConfigError, match="two names of one setting"):
        chosen(policy="dominds-v3", policy_settings={**own, **facts["m"]})


def test_a_policy_may_be_written_where_it_is_chosen() -> None:
    policy = chosen(policy={"name": "team", "based_on": "dominds-v3", "settings": {"optimal_max_tokens": 7}}).policy
    assert (policy.name, mark_of(policy, "caution").tokens) == ("team", 7)
    with pytest.raises(ConfigError, match=r"policy\.based_on: unknown preset 'domino'"):
        chosen(policy={"name": "team", "based_on": "domino"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"based_on": "mew"}, "'name' is missing"),
        ({"name": "mew"}, "'mew' is the name of a preset"),
        ({"name": "x", "settings": {"a": "b"}}, "a is 'b' .expected a number"),
        ({"name": "x", "based_on": "mew", "settings": {"speed": 1}}, "unknown setting 'speed'"),
        ({"name": "x", "levels": [{"name": "a", "severity": 9}]}, r"levels\[0\]\.severity"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_with_its_place(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        policy_from(given, "team.yaml", lambda key: f"team.yaml:{key}")
    assert refused.value.where.startswith("team.yaml")


@pytest.mark.parametrize(
    ("window", "refused"),
    [
        (Window(4096, "loaded", "LM Studio loaded_context_length"), False),
        (Window(4096, "loaded", "/v1/models loaded_context_length"), False),
        (Window(4096, "loaded", "/v1/models meta.n_ctx"), True),
        (None, True),
    ],
)
def test_a_server_is_recognised_by_its_window(window: Window | None, refused: bool) -> None:
    assert (server_refusal(LMSTUDIO, "http://x/v1", window) is not None) == refused
    assert server_refusal(MEW, "http://x/v1", window) is None


def test_a_named_provider_is_refused_when_the_configuration_is_read() -> None:
    with pytest.raises(ConfigError, match="is for lmstudio, not for openai; `policy_scope: any`"):
        chosen(policy="lmstudio", provider="openai")
    assert chosen(policy="lmstudio", provider="LMStudio").policy.name == "lmstudio"
    assert chosen(policy="lmstudio", provider="openai", policy_scope="any").policy.name == "lmstudio"


def test_settings_are_a_mapping() -> None:
    assert mapping_of({1: 2}, "here") == {"1": 2}
    with pytest.raises(ConfigError, match="here: must be a mapping of settings"):
        mapping_of([], "here")
