"""The policy an agent follows: by name or read from the keys of a file, with settings for its model and its window.

Owns the table of named policies, the reading of policies and settings, their precedence, the check of providers, and
the wording of errors in policy files. Opens no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mew_settings.plugins import load_only, load_table
from mew_settings.setting_problems import did_you_mean, problem_at
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mew_agent.context.policy import MEW, Policy
from mew_agent.errors import ConfigError, unknown_name
from mew_agent.model.interface import Window
from mew_agent.settings import AgentSettings

LM_STUDIO = "lmstudio"
"""How policies name the model server LM Studio among the providers that they accept."""

EXTRA_KEYS = ("based_on", "settings")
"""Keys that a policy file accepts in addition to those of `Policy`."""


TABLE = "mew_agent.policies"
"""Entry points of this group name a `Policy`: `setting_names` are its settings, and `configured` applies them."""

WRITTEN = "mew_agent.written_policies"
"""Entry points of this group name the class of policies that people write: a `Policy` with rules of every kind."""


@cache
def presets() -> Mapping[str, Policy]:
    """Return all named policies: `mew` and the plug-ins of the table."""
    return {MEW.name: MEW, **load_table(TABLE)}


def written_policy() -> type[Policy]:
    """Return the class that reads a policy from its keys."""
    return load_only(WRITTEN) or Policy


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """A policy with its settings, and the configured context window in tokens; None if none is configured."""

    policy: Policy
    limit_tokens: int | None = None


def policy_from(given: Mapping[str, Any], where: str, place: Callable[[str], str]) -> Policy:
    """Read a policy from its keys. `place(key)` returns a key's position, for errors. Raises `ConfigError`.

    `based_on: PRESET` fills the keys that are not given; `settings` are values for one model.
    """
    values = dict(given)
    settings = _numbers(values.pop("settings", {}), place("settings"))
    if "based_on" in values:
        base = str(values.pop("based_on"))
        if base not in presets():
            raise unknown_name(place("based_on"), f"unknown preset '{base}'", base, presets())
        values = {**presets()[base].model_dump(exclude={"name"}), **values}
    if str(values.get("name")) in presets():
        raise ConfigError(place("name"), f"'{values['name']}' is the name of a preset; choose another one")
    try:
        policy = written_policy().model_validate(values)
    except ValidationError as error:
        key, problem = policy_problem(error.errors(include_url=False))
    else:
        refuse_wrong_settings(policy, settings, place("settings"))
        return policy.configured(settings)
    raise ConfigError(where if key is None else place(key), problem)


def configure_policy(policy: Policy, config: AgentSettings, facts: Mapping[str, float], where: str) -> ChosenPolicy:
    """Apply to a policy the facts about the model, then the user's settings.

    The window comes from `context_token_limit`, else the policy's settings, else the facts. Raises `ConfigError` for an
    unknown setting, and for a provider that the policy does not allow.
    """
    settings = config.policy_settings
    refuse_wrong_settings(policy, settings, where)
    refusal = None if config.provider is None else policy.refuses_provider(config.provider, config.policy_scope)
    if refusal is not None:
        raise ConfigError(where, _with_config_key(refusal))
    names = policy.setting_names()
    model_settings = {key: value for key, value in facts.items() if key in names}
    refuse_wrong_settings(policy, model_settings, where)
    values = {**policy.with_canonical_names(model_settings), **policy.with_canonical_names(settings)}
    length = int(facts.get("context_length") or facts.get("input_length") or 0) or None
    limit = config.context_token_limit or policy.limit_from(settings) or policy.limit_from(model_settings) or length
    return ChosenPolicy(policy.configured(values), limit)


def refuse_wrong_settings(policy: Policy, settings: Mapping[str, float], where: str) -> None:
    """Raise `ConfigError` for the first setting that is unknown or given under two names."""
    names = policy.setting_names()
    for key in settings:
        if key not in names:
            if not names:
                raise ConfigError(where, f"unknown setting '{key}'", f"none: {policy.name} has no settings")
            raise unknown_name(where, f"unknown setting '{key}'", key, names)
    try:
        policy.with_canonical_names(settings)
    except ValueError as error:
        raise ConfigError(where, str(error), "one of them") from None


def server_refusal(policy: Policy, endpoint: str, window: Window | None) -> str | None:
    """Return why a provider's policy cannot be used with this server; None if it can."""
    is_lm_studio = window is not None and ("LM Studio" in window.source or "loaded_context_length" in window.source)
    refusal = policy.refuses_provider(LM_STUDIO if is_lm_studio else endpoint)
    return None if refusal is None else _with_config_key(refusal)


def _with_config_key(refusal: str) -> str:
    """Return a refusal with the key's name in the agent's configuration."""
    return refusal.replace("`scope: any`", "`policy_scope: any`")


def mapping_of(values: object, where: str) -> dict[str, Any]:
    """Return the values as a mapping with text keys. Raises `ConfigError` if they are not a mapping."""
    if not isinstance(values, dict):
        raise ConfigError(where, "must be a mapping of settings")
    return {str(key): value for key, value in values.items()}


def _numbers(values: object, where: str) -> dict[str, float]:
    settings = mapping_of(values, where)
    for key, value in settings.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(where, f"{key} is {value!r}", "a number")
    return settings


# -- wording of validation errors ------------------------------------------------------------------------


def policy_problem(errors: Sequence[ErrorDetails]) -> tuple[str | None, str]:
    """Return the most useful of a policy's errors: its top-level key (None for the whole policy) and its text.

    An unknown key comes first, because it may be a misspelling of a missing one.
    """
    detail = next((detail for detail in errors if detail["type"] == "extra_forbidden"), errors[0])
    top = str(detail["loc"][0]) if detail["loc"] else None
    if detail["type"] != "extra_forbidden":
        return top, problem_at(_key_path(detail["loc"]), detail)
    *outer, key = detail["loc"]
    parts = written_policy().model_json_schema()["$defs"].values()
    known = (
        {name for one in parts for name in one.get("properties", ())} if outer else (*Policy.model_fields, *EXTRA_KEYS)
    )
    inside = f" in {_key_path(outer)}" if outer else ""
    return top, f"unknown key '{key}'{inside}{did_you_mean(str(key), known)}"


def _key_path(loc: Sequence[int | str]) -> str:
    """Write a location as `rules[0].when`, without pydantic's addition of the rule's kind."""
    above = (None, *loc)
    keys = [key for at, key in enumerate(loc) if not (at == 2 and loc[0] == "rules") and above[at] != "repeat"]
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
