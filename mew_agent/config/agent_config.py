"""An agent's configuration: one frozen model and the sources of its values.

Owns the precedence of sources, weakest first: environment, YAML or JSON file, `MEW_AGENT_CONFIG` (JSON), flags. Also
owns spellings, file positions in errors, and the notices for keys without effect. The keys themselves are declared in
`mew_agent.settings`, which space.yaml uses too; `mew up` passes an agent's section as one more source.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from mew_protocol.expectations import expectation
from mew_protocol.ids import checked_id
from mew_settings.model_facts import ModelFacts, ModelPrice
from mew_settings.setting_problems import known_keys, unreadable
from mew_settings.yaml_text import YamlProblem, YamlText
from pydantic import AfterValidator, Field, SecretStr, ValidationError

from mew_agent.config.policy_choice import (
    ChosenPolicy,
    configure_policy,
    mapping_of,
    policy_from,
    policy_problem,
    presets,
)
from mew_agent.context.policy import Policy, compacting_early
from mew_agent.context.policy.threshold import Fraction
from mew_agent.errors import ConfigError, refuse_misspelled, unknown_name
from mew_agent.gateway_address import websocket_url
from mew_agent.model.builtin import builtin_model, keyless_model
from mew_agent.settings import IGNORED_KEYS, AgentSettings, Summariser, WrittenAgentSettings
from mew_agent.tokens.tokenizers import TokenizerSettings, refuse_unavailable

DEFAULT_GATEWAY: Final = "ws://127.0.0.1:8080"

_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "MEW_GATEWAY": "gateway",
        "MEW_SPACE": "space",
        "MEW_TOKEN": "token",
        "MEW_PARTICIPANT_ID": "id",
        "OPENAI_API_KEY": "api_key",
        "OPENAI_BASE_URL": "base_url",
        "OPENAI_MODEL": "model",
        "MEW_TOKENIZER_FILE": "tokenizer_file",
    }
)

_REPLACES: Final[Mapping[str, str]] = MappingProxyType({"api_key": "api_key_env", "api_key_env": "api_key"})
"""Two keys for one value: the one from the stronger source counts, and the other is dropped."""

_SECRETS: Final = frozenset({"token", "api_key"})


def _checked_gateway_url(text: str) -> str:
    try:
        return websocket_url(text)
    except ConfigError as error:
        raise ValueError(f"must be {error.expected}") from None


class AgentConfig(AgentSettings):
    """All settings of one agent: `AgentSettings`, its identity, its API key and its store."""

    space: str = Field(min_length=1)
    """Space to join."""
    id: Annotated[str, AfterValidator(checked_id)]
    """Participant id."""
    token: str = Field(min_length=1, repr=False)
    """Token of the participant."""
    gateway: Annotated[str, AfterValidator(_checked_gateway_url)] = DEFAULT_GATEWAY
    """URL of the gateway, or URLs of several gateways of the space, separated by commas."""
    api_key: SecretStr | None = None
    """API key of the model's server."""
    models: dict[str, ModelFacts] = Field(default_factory=dict)
    """Facts about models, by name."""
    store: Path | None = None
    """Session file (default: keep the session in memory)."""

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        """The model name and the vocabulary file that select a tokenizer."""
        return TokenizerSettings(self.model, self.tokenizer_file)

    @property
    def windows(self) -> dict[str, int]:
        """Context windows from `models`, in tokens by model name."""
        lengths = {name: facts.context_length or facts.input_length for name, facts in self.models.items()}
        return {name: tokens for name, tokens in lengths.items() if tokens is not None}

    @property
    def prices(self) -> dict[str, ModelPrice]:
        """Prices from `models`, by model name."""
        return {name: facts.price for name, facts in self.models.items() if facts.price is not None}

    def summariser_model(self) -> Summariser | None:
        """Return the configured summariser, else the policy's; None means the agent's own model."""
        if self.summariser is not None:
            return self.summariser
        named = chosen_policy(self).policy.summariser
        return None if named in (None, "same") else Summariser.model_validate(named)


@dataclass(frozen=True)
class Source:
    """Values from one source, with keys in any accepted spelling. `where` names the source in errors.

    `places` maps a key as written, or a dotted path of keys, to a more exact position: file:line:column, or a flag.
    """

    where: str
    values: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """Folder that relative file names refer to; None means the working directory."""

    def place(self, *keys: str) -> str:
        """Return the position of a nested key, or of the nearest parent key with a position."""
        for depth in range(len(keys), 0, -1):
            if (place := self.places.get(".".join(keys[:depth]))) is not None:
                return place
        return self.where


def load_agent_config(
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None = None,
    fallback: Source | None = None,
    place_of: Callable[[str], str] | None = None,
) -> tuple[AgentConfig, tuple[str, ...]]:
    """Load the configuration from all sources; flags of None count as not given.

    `fallback` is the weakest source. `place_of` names a flag in errors (default: as an option). Returns the
    configuration and one notice for each key without effect. Raises `ConfigError`.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    sources = [
        *([fallback] if fallback is not None else []),
        environment_source(environ),
        *([file_source(file)] if file is not None else []),
        *([json_source(environ["MEW_AGENT_CONFIG"])] if environ.get("MEW_AGENT_CONFIG") else []),
        Source("command line", given, {key: (place_of or _option_of)(key) for key in given}),
    ]
    return build_agent_config(sources, environ=environ)


def build_agent_config(sources: Iterable[Source], *, environ: Mapping[str, str]) -> tuple[AgentConfig, tuple[str, ...]]:
    """Merge sources, weakest first, and validate the result.

    Returns the configuration and one notice for each key without effect. Raises `ConfigError` with the position of
    the mistake.
    """
    values, origins, notices = _merge(sources)
    _resolve_api_keys(values, origins, environ)
    _resolve_model_file(values, origins)
    try:
        config = AgentConfig.model_validate(values)
    except ValidationError as error:
        raise _error_of(error, origins) from None
    places = {key: origin.place(written) for key, (origin, written) in origins.items()}
    chosen_policy(config, places)
    _check_tokenizer(config, places)
    return config, notices


_Origins = dict[str, tuple[Source, str]]
"""For each key: the source its value is from, and how that source spells it."""


def _merge(sources: Iterable[Source]) -> tuple[dict[str, Any], _Origins, tuple[str, ...]]:
    """Return the strongest source's value of each key, the origins of the values, and notices for ignored keys."""
    values: dict[str, Any] = {}
    origins: _Origins = {}
    notices: list[str] = []
    for source in sources:
        seen: set[str] = set()
        for written, value in source.values.items():
            key = _canonical(written, source)
            if key in seen:
                raise ConfigError(source.place(written), f"'{key}' is given twice, in two spellings")
            seen.add(key)
            if key in IGNORED_KEYS:
                notices.append(f"{source.place(written)}: '{written}' has no effect: {IGNORED_KEYS[key]}")
            elif value is not None:
                values.pop(_REPLACES.get(key, ""), None)
                values[key], origins[key] = _resolve_file_name(key, value, source), (source, written)
    return values, origins, tuple(notices)


def _resolve_api_keys(values: dict[str, Any], origins: _Origins, environ: Mapping[str, str]) -> None:
    """Replace each `api_key_env` by the variable's API key. Raises `ConfigError` if it is not set."""
    if "api_key_env" in values:
        source, written = origins["api_key_env"]
        values["api_key"] = _api_key_from(environ, values.pop("api_key_env"), source.place(written))
    summariser = values.get("summariser")
    if isinstance(summariser, dict) and "api_key_env" in summariser:
        source, written = origins["summariser"]
        api_key = _api_key_from(environ, summariser["api_key_env"], source.place(written, "api_key_env"))
        values["summariser"] = {**summariser, "api_key": api_key, "api_key_env": None}


def _resolve_model_file(values: dict[str, Any], origins: _Origins) -> None:
    """Make the path of a model's file relative to the file that names it. `OPENAI_MODEL` names no file."""
    base_url, model = values.get("base_url"), values.get("model")
    builtin = builtin_model(base_url) if isinstance(base_url, str) else None
    if builtin is None or builtin.model_suffix is None or not isinstance(model, str):
        return
    source, _ = origins["model"]
    if source.folder is not None and model.endswith(builtin.model_suffix):
        values["model"] = str(source.folder / Path(model).expanduser())
    elif source.where == "environment":
        del values["model"]


def _error_of(error: ValidationError, origins: _Origins) -> ConfigError:
    """Return the first validation error with its position, its key and the value found, unless that is a secret.

    An unknown nested key comes first, because it may be a misspelling of a missing one.
    """
    errors = error.errors(include_url=False)
    detail = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    key, *inner = (str(part) for part in detail["loc"])
    dotted = ".".join((key, *inner))
    source, written = origins.get(key, (None, key))
    where = key if source is None else source.place(written, *inner)
    if detail["type"] == "missing":
        if source is not None:
            return ConfigError(where, f"'{dotted}' is missing")
        variables = [f" or {variable}" for variable, target in _ENVIRONMENT.items() if target == key]
        return ConfigError("".join((_option_of(key), *variables)), "required")
    if detail["type"] == "extra_forbidden":
        *outer, wrong = (key, *inner)
        problem = f"unknown key '{wrong}' in {'.'.join(outer)}"
        return unknown_name(where, problem, wrong, known_keys(AgentConfig, outer))
    problem = expectation(detail, shows_found=not _SECRETS & {key, *inner})
    return ConfigError(where, f"{dotted}: {problem}")


def _option_of(key: str) -> str:
    """Return the option of `mew agent run` for a setting."""
    return "--participant" if key == "id" else f"--{key.replace('_', '-')}"


def load_policy(name_or_file: str, *, where: str = "--policy") -> Policy:
    """Load a preset by name, or a policy from a YAML or JSON file. Raises `ConfigError`.

    A file contains the keys of a policy. `based_on: PRESET` fills its missing keys, and `settings` are values for one
    model (see `Policy.configured`).
    """
    preset = presets().get(name_or_file)
    if preset is not None:
        return preset
    path = Path(name_or_file)
    if name_or_file and _is_file_name(name_or_file) and not path.exists():
        raise ConfigError(where, f"policy file {path} does not exist")
    if not name_or_file or not path.exists():
        raise unknown_name(where, f"unknown policy '{name_or_file}'", name_or_file, presets(), ", or a file")
    source = file_source(path)
    return policy_from(source.values, source.where, source.place)


def chosen_policy(config: AgentConfig, places: Mapping[str, str] = MappingProxyType({})) -> ChosenPolicy:
    """Return the agent's policy with its settings. `places` are positions of keys, for errors. Raises `ConfigError`."""
    where = places.get("policy", "policy")
    if isinstance(config.policy, str):
        policy = load_policy(config.policy, where=where)
    else:
        policy = policy_from(config.policy, where, lambda key: f"{where}.{key}")
    if config.compact_at is not None:
        try:
            policy = policy.compacting_at(Fraction.model_validate(config.compact_at))
        except ValueError as error:
            problem = policy_problem(error.errors())[1] if isinstance(error, ValidationError) else str(error)
            raise ConfigError(places.get("compact_at", "compact_at"), problem) from None
    if config.compact_early:
        try:
            policy = compacting_early(policy)
        except ValueError as error:
            raise ConfigError(places.get("compact_early", "compact_early"), str(error)) from None
    facts = config.models.get(config.model)
    settings: dict[str, float] = {} if facts is None else facts.model_dump(exclude_none=True, exclude={"price"})
    where = places.get("policy_settings", where) if config.policy_settings else where
    return configure_policy(policy, config, settings, where)


def _check_tokenizer(config: AgentConfig, places: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a configured tokenizer is not installed."""
    try:
        refuse_unavailable(config.tokenizer, config.tokenizer_settings)
    except ConfigError as error:
        place = places.get(error.where) or places.get("tokenizer", error.where)
        raise ConfigError(place, error.problem, error.expected) from None


def refuse_misspelled_variables(environ: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a misspelt `MEW_` variable. Variables replaced by `settings` may be missing."""
    needed = (name for name, key in _ENVIRONMENT.items() if key not in settings)
    refuse_misspelled(environ, (*needed, "MEW_AGENT_CONFIG", "MEW_CA_FILE"))


def check_model_source(config: AgentConfig, *, where: str) -> None:
    """Raise `ConfigError` if neither an API key nor a base URL is configured."""
    if config.api_key is None and config.base_url is None:
        problem = (
            f"no model is configured for '{config.id}': set OPENAI_API_KEY, or OPENAI_BASE_URL (or base_url) to an"
            " OpenAI-compatible server"
        )
        keyless = keyless_model()
        hint = "" if keyless is None else f"; `base_url: {keyless}` runs without a provider"
        raise ConfigError(where, problem + hint)


def environment_source(environ: Mapping[str, str]) -> Source:
    """Read settings from environment variables; an empty variable counts as not set."""
    named = {key: variable for variable, key in _ENVIRONMENT.items() if environ.get(variable)}
    return Source("environment", {key: environ[variable] for key, variable in named.items()}, named)


def json_source(text: str, *, where: str = "MEW_AGENT_CONFIG") -> Source:
    """Read settings from a JSON object. Raises `ConfigError`."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}:{error.lineno}:{error.colno}", f"malformed JSON: {error.msg}") from None
    return Source(where, mapping_of(values, where))


def file_source(path: Path) -> Source:
    """Read settings from a YAML or JSON file. Raises `ConfigError` with line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), unreadable(error)) from None
    if path.suffix == ".json":
        return replace(json_source(text, where=str(path)), folder=path.parent)
    return _yaml_source(path, text)


def _yaml_source(path: Path, text: str) -> Source:
    try:
        parsed = YamlText(text)
    except YamlProblem as error:
        where = str(path) if error.line is None else f"{path}:{error.line}:{error.column}"
        raise ConfigError(where, error.problem) from None
    places = {".".join(keys): f"{path}:{mark.line + 1}:{mark.column + 1}" for keys, mark in parsed.key_marks()}
    return Source(str(path), mapping_of({} if parsed.value is None else parsed.value, str(path)), places, path.parent)


def _is_file_name(text: str) -> bool:
    return Path(text).suffix in (".yaml", ".yml", ".json")


def _resolve_file_name(key: str, value: object, source: Source) -> object:
    """Make the file name of a policy or a vocabulary relative to the file that holds it."""
    if not isinstance(value, str) or source.folder is None:
        return value
    is_file = key == "tokenizer_file" or (key == "policy" and _is_file_name(value))
    return str(source.folder / value) if is_file else value


def _canonical(written: str, source: Source) -> str:
    """Return the key in snake case, as declared. Raises `ConfigError` for an unknown key."""
    key = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", written).lower()
    known = dict.fromkeys((*AgentConfig.model_fields, *WrittenAgentSettings.model_fields))
    if key not in known:
        raise unknown_name(source.place(written), f"unknown key '{written}'", key, known)
    return key


def _api_key_from(environ: Mapping[str, str], variable: str, where: str) -> str:
    if value := environ.get(variable):
        return value
    raise ConfigError(where, f"the environment variable '{variable}' is not set")
