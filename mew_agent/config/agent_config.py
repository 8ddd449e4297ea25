"""An agent's configuration: one frozen model, and the places its values come from.

Owns the keys, their defaults and the order of the sources: flags, then `MEW_AGENT_CONFIG` (JSON), then a YAML or
JSON file, then the environment. Knows no space.yaml; `mew up` hands an agent's section over as one more source.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import yaml
from mew_protocol.ids import id_problem
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from mew_agent.config.policy_choice import ChosenPolicy, choose, mapping_of, policy_from
from mew_agent.context.policy import PRESETS, Policy
from mew_agent.errors import ConfigError
from mew_agent.suggestions import did_you_mean
from mew_agent.tokens.tokenizers import TokenizerSettings, Wanted, refuse_unavailable

DEFAULT_GATEWAY: Final = "ws://127.0.0.1:8080"
DEFAULT_MODEL: Final = "gpt-4o"

REHEARSAL: Final = "rehearsal"
"""As `base_url`: the embedded rehearsal model, for trying things out without a provider."""

NO_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mock_llm": f"use `base_url: {REHEARSAL}` to run without a provider",
        "prompts": "the prompts of the single steps are fixed; `system_prompt` is yours",
        "chat_response": "an agent answers what is addressed to it, mentions it, or asks everybody; `answer_broadcasts`"
        " changes the last",
        "message_queue": "chats that arrive while an agent is busy are acknowledged, queued and answered in turn",
        "request_timeout": "calls to the model have bounds of their own",
    }
)
"""Keys of the TypeScript agent that are accepted so that its files load, but change nothing; with the reason."""

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

_INSTEAD_OF: Final[Mapping[str, str]] = MappingProxyType({"api_key": "api_key_env", "api_key_env": "api_key"})
"""Two ways to say one thing: the stronger source's way stands."""

_SECRETS: Final = frozenset({"token", "api_key"})


def _gateway_url(text: str) -> str:
    """A gateway is one port for WebSocket and HTTP, so either scheme names it."""
    scheme, mark, rest = text.partition("://")
    swapped = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}.get(scheme.lower())
    if not mark or swapped is None or not rest.strip("/"):
        raise ValueError("should be a URL like ws://127.0.0.1:8080")
    return f"{swapped}://{rest}"


def _model_url(text: str) -> str:
    if text == REHEARSAL or re.match(r"https?://[^/]", text):
        return text
    raise ValueError(f"should be a URL like http://127.0.0.1:1234/v1, or '{REHEARSAL}'")


def _name_of_participant(text: str) -> str:
    problem = id_problem(text)
    if problem:
        raise ValueError(problem)
    return text


def _not_a_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _off_is_a_word(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


Count = Annotated[int, BeforeValidator(_not_a_truth_value)]
Seconds = Annotated[float, BeforeValidator(_not_a_truth_value), Field(allow_inf_nan=False)]
Setting = Annotated[float, BeforeValidator(_not_a_truth_value)]


class ModelFacts(BaseModel):
    """What is known of a model. Lengths in tokens, cadences in generations."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    context_length: Count | None = Field(default=None, gt=0)
    input_length: Count | None = Field(default=None, gt=0)
    optimal_max_tokens: Count | None = Field(default=None, gt=0)
    critical_max_tokens: Count | None = Field(default=None, gt=0)
    caution_remediation_cadence_generations: Count | None = Field(default=None, gt=0)
    caution_cadence_generations: Count | None = Field(default=None, gt=0)
    withhold_tool_results_above_bytes: Count | None = Field(default=None, gt=0)


class Summariser(BaseModel):
    """The model that writes summaries; without `base_url` it is on the agent's own server, under its key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    base_url: Annotated[str, AfterValidator(_model_url)] | None = None
    api_key: SecretStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: object) -> object:
        return {"model": given} if isinstance(given, str) else given


class AgentConfig(BaseModel):
    """Everything an agent is told. `conversation_history_length` None keeps the whole history.

    `context_token_limit` in tokens; None asks the model's server and assumes 128,000 if it does not tell.
    `policy` is a preset's name, a file, or a whole policy; `policy_settings` and what `models` says of the model
    replace its defaults. `provider` names who serves the model, for policies that are for one only; `policy_scope: any`
    uses them anyway. `reminders` offers the tools for them (None: where the policy speaks of them), `upkeep` lets the
    model put its context in order when nobody asks anything.
    `answer_broadcasts`: what is said to everybody and names nobody is answered where it has a question mark (`rules`),
    where the `model` says in a small call of its own that it is for it, or `never`.
    `tokenizer` counts texts exactly: a family by name, `auto` for the one that the model's name tells if it can be had,
    or `off`; `tokenizer_file` is its vocabulary, where the extra does not bring one.
    `store` is the session's file; None keeps it in memory. `max_result_tokens` None bounds a tool's result by the room
    there is. Times are seconds: `peer_timeout_seconds` until a peer answers, `proposal_timeout_seconds` until somebody
    fulfils a proposal, `tool_timeout_seconds` for functions of our own, `max_turn_seconds` for a whole answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    space: str = Field(min_length=1)
    id: Annotated[str, AfterValidator(_name_of_participant)]
    token: str = Field(min_length=1, repr=False)
    gateway: Annotated[str, AfterValidator(_gateway_url)] = DEFAULT_GATEWAY
    name: str | None = None
    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    base_url: Annotated[str, AfterValidator(_model_url)] | None = None
    api_key: SecretStr | None = None
    system_prompt: str | None = None
    context_token_limit: Count | None = Field(default=None, gt=0)
    policy: str | dict[str, Any] = "mew"
    policy_settings: dict[str, Setting] = Field(default_factory=dict)
    policy_scope: Literal["any"] | None = None
    provider: str | None = None
    models: dict[str, ModelFacts] = Field(default_factory=dict)
    summariser: Summariser | None = None
    reminders: bool | None = None
    upkeep: bool = True
    tokenizer: Annotated[Wanted, BeforeValidator(_off_is_a_word)] = "auto"
    tokenizer_file: Path | None = None
    conversation_history_length: Count | None = Field(default=None, ge=0)
    auto_respond: bool = True
    answer_broadcasts: Literal["rules", "model", "never"] = "rules"
    max_iterations: Count = Field(default=10, gt=0)
    max_turn_seconds: Seconds = Field(default=1800.0, gt=0)
    tool_timeout_seconds: Seconds = Field(default=300.0, gt=0)
    peer_timeout_seconds: Seconds = Field(default=60.0, gt=0)
    proposal_timeout_seconds: Seconds = Field(default=300.0, gt=0)
    discover_tools: bool = True
    board_tools: bool = True
    context_line: bool = False
    max_result_tokens: Count | None = Field(default=None, gt=0)
    long_results: Literal["cut", "refuse"] = "cut"
    reasoning_enabled: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    store: Path | None = None

    @property
    def tokenizer_settings(self) -> TokenizerSettings:
        """What counters of tokens are told."""
        return TokenizerSettings(self.model, self.tokenizer_file)

    @property
    def windows(self) -> dict[str, int]:
        """The windows of the models that `models` tells of, in tokens by name."""
        lengths = {name: facts.context_length or facts.input_length for name, facts in self.models.items()}
        return {name: tokens for name, tokens in lengths.items() if tokens is not None}

    def summariser_model(self) -> Summariser | None:
        """Who writes the summaries: as configured, else as the policy names a model; None: the agent's own model."""
        if self.summariser is not None:
            return self.summariser
        named = chosen_policy(self).policy.summariser
        return None if named in (None, "same") else Summariser.model_validate(named)


@dataclass(frozen=True)
class Source:
    """Values from one place, under any spelling of their keys. `where` names the place in errors.

    `places` maps a key as written to something more exact than `where`, such as file:line:column or a flag.
    """

    where: str
    values: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """Where the files are that it names; None: the working directory."""

    def place(self, key: str) -> str:
        """Where a key of this source stands."""
        return self.places.get(key, self.where)


def load_agent_config(
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None = None,
    fallback: Source | None = None,
) -> tuple[AgentConfig, tuple[str, ...]]:
    """The configuration from all its places; flags that are None were not given.

    `fallback` is weaker than everything else. Returns it with a line for every key that is accepted without
    effect. Raises `ConfigError`.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    sources = [
        *([fallback] if fallback is not None else []),
        environment_source(environ),
        *([file_source(file)] if file is not None else []),
        *([json_source(environ["MEW_AGENT_CONFIG"])] if environ.get("MEW_AGENT_CONFIG") else []),
        Source("command line", given, {key: f"--{key.replace('_', '-')}" for key in given}),
    ]
    return build_agent_config(sources, environ=environ)


def build_agent_config(sources: Iterable[Source], *, environ: Mapping[str, str]) -> tuple[AgentConfig, tuple[str, ...]]:
    """Merge sources, weakest first, and check the outcome. Raises `ConfigError` naming the source of the fault."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    notices: list[str] = []
    for source in sources:
        seen: set[str] = set()
        for written, value in source.values.items():
            key = _canonical(written, source)
            if key in seen:
                raise ConfigError(source.place(written), f"'{key}' is given twice, in two spellings")
            seen.add(key)
            if key in NO_EFFECT:
                notices.append(f"{source.place(written)}: '{written}' has no effect: {NO_EFFECT[key]}")
            elif value is not None:
                values.pop(_INSTEAD_OF.get(key, ""), None)
                values[key], places[key] = _beside(key, value, source), source.place(written)
    if "api_key_env" in values:
        values["api_key"] = _key_from(environ, values.pop("api_key_env"), places["api_key_env"])
    if isinstance(values.get("summariser"), dict) and "api_key_env" in values["summariser"]:
        own = dict(values["summariser"])
        values["summariser"] = {**own, "api_key": _key_from(environ, own.pop("api_key_env"), places["summariser"])}
        values["summariser"].pop("api_key_env")
    try:
        config = AgentConfig.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    else:
        chosen_policy(config, places)
        _check_tokenizer(config, places)
        return config, tuple(notices)
    key = str(detail["loc"][0])
    inside = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        where = _origins_of(key) if inside == key else places.get(key, key)
        raise ConfigError(where, f"'{inside}' is missing")
    shown = f", not {detail['input']!r}" if key not in _SECRETS else ""
    raise ConfigError(places.get(key, key), f"{inside}: {detail['msg'].removeprefix('Value error, ')}{shown}")


def load_policy(name_or_file: str, *, where: str = "--policy") -> Policy:
    """A preset by its name, or a policy from a YAML or JSON file. Raises `ConfigError`.

    A file holds a policy's keys. `based_on: PRESET` takes the keys it does not name from there, `settings` are a
    model's own values (see `Policy.configured`).
    """
    preset = PRESETS.get(name_or_file)
    if preset is not None:
        return preset
    path = Path(name_or_file)
    if not name_or_file or (not _is_file_name(name_or_file) and not path.exists()):
        problem = f"there is no policy '{name_or_file}'{did_you_mean(name_or_file, PRESETS)}"
        raise ConfigError(where, problem, f"one of {', '.join(PRESETS)}, or a file")
    source = file_source(path)
    return policy_from(source.values, source.where, source.place)


def chosen_policy(config: AgentConfig, places: Mapping[str, str] = MappingProxyType({})) -> ChosenPolicy:
    """The policy an agent is told to follow, with its settings. Raises `ConfigError` naming the place of the fault.

    `places` says where keys of the configuration stand.
    """
    where = places.get("policy", "policy")
    if isinstance(config.policy, str):
        policy = load_policy(config.policy, where=where)
    else:
        policy = policy_from(config.policy, where, lambda key: f"{where}.{key}")
    facts = config.models.get(config.model)
    settings: dict[str, float] = {} if facts is None else facts.model_dump(exclude_none=True)
    return choose(
        policy,
        facts=settings,
        settings=config.policy_settings,
        limit_tokens=config.context_token_limit,
        provider=config.provider,
        scope=config.policy_scope,
        where=places.get("policy_settings", where) if config.policy_settings else where,
    )


def _check_tokenizer(config: AgentConfig, places: Mapping[str, str]) -> None:
    """Refuse a tokenizer that was asked for by name and is not there. Raises `ConfigError` naming the place."""
    try:
        refuse_unavailable(config.tokenizer, config.tokenizer_settings)
    except ConfigError as error:
        place = places.get(error.where) or places.get("tokenizer", error.where)
        raise ConfigError(place, error.problem, error.expected) from None


def check_model_source(config: AgentConfig, *, where: str) -> None:
    """Refuse an agent whose model is nowhere to be found. Raises `ConfigError` saying what to set."""
    if config.api_key is None and config.base_url is None:
        raise ConfigError(
            where,
            f"no model is configured for '{config.id}': set OPENAI_API_KEY, or OPENAI_BASE_URL (or base_url) to an"
            f" OpenAI-compatible server; `base_url: {REHEARSAL}` tries things out without one",
        )


def environment_source(environ: Mapping[str, str]) -> Source:
    """What the environment says; an empty variable says nothing."""
    named = {key: variable for variable, key in _ENVIRONMENT.items() if environ.get(variable)}
    return Source("environment", {key: environ[variable] for key, variable in named.items()}, named)


def json_source(text: str, *, where: str = "MEW_AGENT_CONFIG") -> Source:
    """A JSON object of settings. Raises `ConfigError`."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}:{error.lineno}:{error.colno}", f"malformed JSON: {error.msg}") from None
    return Source(where, mapping_of(values, where))


def file_source(path: Path) -> Source:
    """A YAML or JSON file of settings. Raises `ConfigError` naming line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None
    if path.suffix == ".json":
        return replace(json_source(text, where=str(path)), folder=path.parent)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(where, f"malformed YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(str(path), f"malformed YAML: {error}") from None
    keys = [key for key, _ in root.value] if isinstance(root, yaml.MappingNode) else []
    places = {key.value: f"{path}:{key.start_mark.line + 1}:{key.start_mark.column + 1}" for key in keys}
    return Source(str(path), mapping_of({} if values is None else values, str(path)), places, path.parent)


def _is_file_name(text: str) -> bool:
    return Path(text).suffix in (".yaml", ".yml", ".json")


def _beside(key: str, value: object, source: Source) -> object:
    """A file of a policy or a vocabulary is looked for beside the file that names it."""
    is_file = key == "tokenizer_file" or (key == "policy" and isinstance(value, str) and _is_file_name(value))
    if is_file and isinstance(value, str) and source.folder is not None:
        return str(source.folder / value)
    return value


def _canonical(written: str, source: Source) -> str:
    """The one name of a key, whichever way it is spelled. Raises `ConfigError` for a key nobody knows."""
    key = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", written).lower()
    # Ours counts seconds, the TypeScript agent's milliseconds; neither changes anything.
    key = "request_timeout" if key == "request_timeout_seconds" else key
    known = (*AgentConfig.model_fields, "api_key_env", *NO_EFFECT)
    if key not in known:
        hint = did_you_mean(key, known)
        expected = None if hint else f"one of {', '.join(known)}"
        raise ConfigError(source.place(written), f"unknown key '{written}'{hint}", expected)
    return key


def _key_from(environ: Mapping[str, str], variable: str, where: str) -> str:
    value = environ.get(variable)
    if not value:
        raise ConfigError(where, f"the environment variable '{variable}' holds no key")
    return value


def _origins_of(key: str) -> str:
    variable = next((name for name, target in _ENVIRONMENT.items() if target == key), None)
    return f"--{key}" + (f" or {variable}" if variable else "")
