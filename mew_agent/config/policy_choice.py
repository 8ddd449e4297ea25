"""[pure] Which policy an agent follows: a preset or one of its own, with its model's settings and its window.

Owns how a policy is read from the keys of a file, which settings it takes from where, and whom it may be used with.
It opens no file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from mew_agent.context.policy import PRESETS, Policy
from mew_agent.context.policy.faults import first_fault
from mew_agent.errors import ConfigError
from mew_agent.model.interface import Window
from mew_agent.suggestions import did_you_mean

LM_STUDIO = "lmstudio"


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """A policy with its settings, and the window that the configuration tells, in tokens; None: it tells none."""

    policy: Policy
    limit_tokens: int | None = None


def policy_from(given: Mapping[str, Any], where: str, place: Callable[[str], str]) -> Policy:
    """A policy from its keys. `place(key)` says where a key stands. Raises `ConfigError`.

    `based_on: PRESET` takes the keys that are not named from there, `settings` are a model's own values.
    """
    values = dict(given)
    settings = _numbers(values.pop("settings", {}), place("settings"))
    if "based_on" in values:
        base = str(values.pop("based_on"))
        if base not in PRESETS:
            problem = f"there is no preset '{base}'{did_you_mean(base, PRESETS)}"
            raise ConfigError(place("based_on"), problem, f"one of {', '.join(PRESETS)}")
        values = {**PRESETS[base].model_dump(exclude={"name"}), **values}
    if str(values.get("name")) in PRESETS:
        raise ConfigError(place("name"), f"'{values['name']}' is a preset; yours needs a name of its own")
    try:
        policy = Policy.model_validate(values)
    except ValidationError as error:
        key, said = first_fault(error.errors(include_url=False))
    else:
        refuse_wrong_settings(policy, settings, place("settings"))
        return policy.configured(settings)
    raise ConfigError(where if key is None else place(key), said)


def configure_policy(
    policy: Policy,
    *,
    facts: Mapping[str, float],
    settings: Mapping[str, float],
    limit_tokens: int | None,
    provider: str | None,
    scope: Literal["any"] | None,
    where: str,
) -> ChosenPolicy:
    """The policy with what is known of the model, and the user's own settings over that.

    A window that is configured for the agent stands above the settings, these above the model's facts. Raises
    `ConfigError` for a setting it does not have, and for a named provider that it is not for.
    """
    refuse_wrong_settings(policy, settings, where)
    refusal = policy.refuses_provider(provider, scope) if provider is not None else None
    if refusal is not None:
        raise ConfigError(where, refusal.replace("`scope: any`", "`policy_scope: any`"))
    known = policy.setting_names()
    of_model = {key: value for key, value in facts.items() if key in known}
    length = int(facts.get("context_length") or facts.get("input_length") or 0) or None
    told = limit_tokens or policy.limit_from(settings) or policy.limit_from(of_model) or length
    refuse_wrong_settings(policy, of_model, where)
    values = {**policy.by_first_names(of_model), **policy.by_first_names(settings)}
    return ChosenPolicy(policy.configured(values), told)


def refuse_wrong_settings(policy: Policy, settings: Mapping[str, float], where: str) -> None:
    """Raise `ConfigError` for the first setting that the policy does not have, or that is given under two names."""
    for key in settings:
        if key not in policy.setting_names():
            names = policy.setting_names()
            expected = f"one of {', '.join(names)}" if names else f"nothing: {policy.name} has no settings"
            raise ConfigError(where, f"unknown setting '{key}'{did_you_mean(key, names)}", expected)
    try:
        policy.by_first_names(settings)
    except ValueError as error:
        raise ConfigError(where, str(error), "one of them") from None


def provider_refusal(
    policy: Policy, *, provider: str | None, scope: Literal["any"] | None, endpoint: str, window: Window | None
) -> str | None:
    """Why a policy for one provider may not be used with this server; None if it may.

    Without a configured name the server is known by how it tells its window; one that tells none could be anybody.
    """
    if policy.scope is None or scope == "any":
        return None
    if provider is None:
        is_lm_studio = window is not None and ("LM Studio" in window.source or "loaded_context_length" in window.source)
        provider = LM_STUDIO if is_lm_studio else endpoint
    refusal = policy.refuses_provider(provider, scope)
    return None if refusal is None else refusal.replace("`scope: any`", "`policy_scope: any`")


def mapping_of(values: object, where: str) -> dict[str, Any]:
    """The values as a mapping of settings. Raises `ConfigError` for anything else."""
    if not isinstance(values, dict):
        raise ConfigError(where, f"holds {type(values).__name__}", "a mapping of settings")
    return {str(key): value for key, value in values.items()}


def _numbers(values: object, where: str) -> dict[str, float]:
    settings = mapping_of(values, where)
    for key, value in settings.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(where, f"{key} is {value!r}", "a number")
    return settings
