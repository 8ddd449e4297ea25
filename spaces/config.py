"""space.yaml as one typed, frozen model; everything wrong with it is said with file, line and column.

Owns the keys and their meaning, not what is done with them: tokens are made in `auth`, programs are started by
the supervisor, capability patterns are read by `protocol.capability`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from protocol.codec import DEFAULT_MAX_BYTES
from protocol.ids import id_problem
from spaces.errors import SpaceConfigError

BRIDGE = "mcp-bridge"
"""The one `type` of a participant that changes what is started."""

_KEY_MARK = "[key]"
"""How pydantic marks an error in a mapping's key."""

_DEFAULT_CAPABILITIES: tuple[dict[str, Any], ...] = ({"kind": "chat"},)


def _checked_id(text: str) -> str:
    problem = id_problem(text)
    if problem:
        raise ValueError(problem)
    return text


def _as_text(value: object) -> object:
    """YAML reads `PORT: 8080` as a number; programs want text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _as_capability(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f"a capability is a mapping, write {{kind: {value!r}}}")
    return value


def _nothing_as_empty(value: object) -> object:
    """`ada:` alone is a person with the default capabilities."""
    return {} if value is None else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Capability(_Section):
    """One pattern of what a participant may send; `protocol.capability` says how it matches."""

    id: str | None = None
    kind: str | tuple[str, ...]
    to: str | tuple[str, ...] | None = None
    payload: dict[str, Any] | None = None

    def pattern(self) -> dict[str, Any]:
        """The pattern as it travels in welcome and presence."""
        return self.model_dump(mode="json", exclude_unset=True)


Id = Annotated[str, AfterValidator(_checked_id)]
Text = Annotated[str, BeforeValidator(_as_text)]
Capabilities = tuple[Annotated[Capability, BeforeValidator(_as_capability)], ...]


class SpaceSection(_Section):
    """What the space is called. `default_participant` is who one-shot commands and the terminal speak as."""

    id: Id
    name: str | None = None
    description: str | None = None
    default_participant: str | None = None
    ui_theme: str | None = None


class McpServer(_Section):
    """The MCP server that a bridge participant starts and speaks for."""

    command: str
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    cwd: str | None = None


class BridgeOptions(_Section):
    """`bridge_config`; `init_timeout` in milliseconds, as the reference has it."""

    init_timeout: int = Field(default=30_000, gt=0)
    reconnect: bool = True
    max_reconnects: int = Field(default=3, ge=0)


class AgentOptions(_Section):
    """`agent:`, short for `command: mew` with `args: [agent, run, ...]`; the agent's own configuration.

    `context_token_limit` in tokens. `policy` is a preset's name or a whole policy. `api_key_env` names the
    environment variable that holds the key, so that the key itself stays out of the file.
    """

    name: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    system_prompt: str | None = None
    policy: str | dict[str, Any] | None = None
    context_token_limit: int | None = Field(default=None, gt=0)
    conversation_history_length: int | None = Field(default=None, ge=0)
    max_iterations: int | None = Field(default=None, gt=0)
    request_timeout_seconds: float | None = Field(default=None, gt=0)
    reasoning_enabled: bool | None = None
    auto_respond: bool | None = None
    log_level: str | None = None
    chat_response: dict[str, Any] | None = None
    message_queue: dict[str, Any] | None = None
    prompts: dict[str, str] | None = None


class ParticipantConfig(_Section):
    """One participant. Without `command`, `agent` and MCP server it is a person."""

    type: str | None = None
    name: str | None = None
    capabilities: Capabilities | None = None
    tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    command: str | None = None
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    cwd: str | None = None
    auto_start: bool = False
    restart_policy: Literal["never", "on-failure", "always"] = "never"
    agent: AgentOptions | None = None
    mcp_server: McpServer | None = None
    bridge_config: BridgeOptions = BridgeOptions()
    default_to: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    output_log: str | None = None
    auto_connect: bool = False
    fifo: bool = False
    io: str | None = None

    @property
    def is_bridge(self) -> bool:
        """Whether it speaks for an MCP server."""
        return self.type == BRIDGE or self.mcp_server is not None

    @property
    def is_person(self) -> bool:
        """Whether no program stands behind it: it may hold several sockets at once."""
        return self.command is None and self.agent is None and not self.is_bridge

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.command is not None and self.agent is not None:
            raise ValueError("give either 'command' or 'agent', not both")
        if self.type == BRIDGE and self.mcp_server is None:
            raise ValueError(f"a participant of type '{BRIDGE}' needs 'mcp_server'")
        return self


class Routing(_Section):
    """Default addressees by kind, for what is typed in a terminal."""

    default_to: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Defaults(_Section):
    """What holds for participants without a list of their own."""

    capabilities: Capabilities = tuple(Capability.model_validate(one) for one in _DEFAULT_CAPABILITIES)
    routing: Routing = Routing()


class LogSwitch(_Section):
    """One of the gateway's logs."""

    enabled: bool = True


class GatewayLogging(_Section):
    """Which logs the gateway writes under `<state>/logs`."""

    enabled: bool = True
    envelope_history: LogSwitch = LogSwitch()
    capability_decisions: LogSwitch = LogSwitch()


class CapabilityOptions(_Section):
    """`ignore_to: true` leaves `to` in capabilities unread, as the reference does."""

    ignore_to: bool = False


class Limits(_Section):
    """Bounds on what clients may cost. Sizes in bytes, times in seconds."""

    message_bytes: int = Field(default=DEFAULT_MAX_BYTES, ge=1024)
    http_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    write_buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=4096)
    """What may wait for a member beyond one message of the largest size; then it is a slow consumer."""
    join_timeout_seconds: float = Field(default=10.0, gt=0)
    history_envelopes: int = Field(default=10_000, ge=0)
    history_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    members: int = Field(default=4096, ge=1)
    sockets_per_member: int = Field(default=64, ge=1)
    streams_per_member: int = Field(default=256, ge=1)


class ModelMetadata(_Section):
    """What is known of a model, by its name under `models:`. Lengths in tokens, the cadence in generations."""

    context_length: int | None = Field(default=None, gt=0)
    input_length: int | None = Field(default=None, gt=0)
    optimal_max_tokens: int | None = Field(default=None, gt=0)
    critical_max_tokens: int | None = Field(default=None, gt=0)
    caution_remediation_cadence_generations: int | None = Field(default=None, gt=0)


class SpaceConfig(_Section):
    """A whole space.yaml."""

    space: SpaceSection
    participants: dict[Id, Annotated[ParticipantConfig, BeforeValidator(_nothing_as_empty)]] = Field(
        default_factory=dict
    )
    defaults: Defaults = Defaults()
    capabilities: CapabilityOptions = CapabilityOptions()
    limits: Limits = Limits()
    models: dict[str, ModelMetadata] = Field(default_factory=dict)
    gateway_logging: GatewayLogging = GatewayLogging()

    def is_person(self, participant: str) -> bool:
        """Whether this id is configured and no program stands behind it."""
        configured = self.participants.get(participant)
        return configured is not None and configured.is_person

    def patterns_of(self, participant: str) -> tuple[dict[str, Any], ...]:
        """The capability patterns of a participant: its own list, else the defaults."""
        configured = self.participants.get(participant)
        own = configured.capabilities if configured is not None else None
        return tuple(one.pattern() for one in (self.defaults.capabilities if own is None else own))


def load_space(path: Path | str) -> SpaceConfig:
    """Read and check a space.yaml. Raises `SpaceConfigError` naming file, line, column and what was expected."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpaceConfigError(path, "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceConfigError(path, f"cannot be read: {error}") from None
    return parse_space(text, path=path)


def parse_space(text: str, *, path: Path | str = "space.yaml") -> SpaceConfig:
    """Read and check the text of a space.yaml; `path` is only named in errors. Raises `SpaceConfigError`."""
    document = _Document(text, Path(path))
    try:
        config = SpaceConfig.model_validate(document.value)
    except ValidationError as error:
        raise document.error_of(error.errors(include_url=False)[0]) from None
    _check_across(config, document)
    return config


def _check_across(config: SpaceConfig, document: "_Document") -> None:
    """What no single key can say: names that must exist, tokens that must be unique."""
    default = config.space.default_participant
    if default is not None and default not in config.participants:
        hint = _closest(default, config.participants)
        raise document.error_at(
            ("space", "default_participant"), f"participant '{default}' is not under 'participants'{hint}"
        )
    owners: dict[str, str] = {}
    for name, participant in config.participants.items():
        for index, token in enumerate(participant.tokens):
            if owners.setdefault(token, name) != name:
                raise document.error_at(
                    ("participants", name, "tokens", index),
                    f"participant '{name}' has a token of '{owners[token]}'; a token names exactly one participant",
                )


class _Document:
    """A YAML text as a value, with the way back from a place in the value to a line and column."""

    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        loader = yaml.SafeLoader(text)
        try:
            self._root = loader.get_single_node()
            if self._root is not None:
                self._refuse_duplicates(self._root, set())
            self.value: Any = loader.construct_document(self._root) if self._root is not None else {}
        except yaml.MarkedYAMLError as error:
            raise self._malformed(error) from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SpaceConfigError(path, f"malformed YAML: {error}") from None
        finally:
            loader.dispose()

    def error_at(self, place: Sequence[int | str], problem: str, *, at_key: bool = False) -> SpaceConfigError:
        """The error for a place of the value: its own mark, or that of the nearest thing above it."""
        mark = self._mark_at(place, at_key=at_key)
        if mark is None:
            return SpaceConfigError(self.path, problem)
        return SpaceConfigError(self.path, problem, mark.line + 1, mark.column + 1)

    def error_of(self, detail: ErrorDetails) -> SpaceConfigError:
        """Say a validation error in the words of the file."""
        place = tuple(self._steps(detail["loc"]))
        if place and place[-1] == _KEY_MARK:
            return self.error_at(place[:-1], f"{_dotted(place[:-1])}: {_words(detail)}", at_key=True)
        under, name = _dotted(place[:-1]), str(place[-1]) if place else ""
        beneath = f" under {under}" if under else ""
        match detail["type"]:
            case "extra_forbidden":
                hint = _closest(name, known) if (known := _known_keys(place[:-1])) else ""
                expected = f"; expected one of {', '.join(known)}" if known and not hint else ""
                return self.error_at(place, f"unknown key '{name}'{beneath}{hint}{expected}", at_key=True)
            case "missing":
                return self.error_at(place[:-1], f"'{name}' is missing{beneath}")
            case "model_type" | "dict_type" if not place:
                return self.error_at(place, "a space.yaml is a mapping with 'space' and 'participants'")
        return self.error_at(place, f"{_dotted(place)}: {_words(detail)}")

    def _steps(self, location: Sequence[int | str]) -> Iterator[int | str]:
        """Leave out what pydantic adds to a location: names of union branches and key marks."""
        node: Any = self.value
        for step in location:
            if isinstance(node, Mapping):
                if step in node or step == location[-1]:
                    yield step
                    node = node.get(step)
            elif isinstance(node, Sequence) and not isinstance(node, str) and isinstance(step, int):
                yield step
                node = node[step] if step < len(node) else None

    def _mark_at(self, place: Sequence[int | str], *, at_key: bool) -> yaml.Mark | None:
        node = self._root
        mark = node.start_mark if node is not None else None
        for depth, step in enumerate(place):
            last = depth == len(place) - 1
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == str(step)), None)
                if pair is None:
                    return mark
                node = pair[1]
                mark = pair[0].start_mark if (last and at_key) else node.start_mark
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            else:
                return mark
        return mark

    def _refuse_duplicates(self, node: yaml.Node, seen: set[int]) -> None:
        """YAML keeps the last of two equal keys without a word; a lost capability list deserves one."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._refuse_duplicates(item, seen)
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
                    mark = key.start_mark
                    raise SpaceConfigError(
                        self.path, f"key '{key.value}' is given twice", mark.line + 1, mark.column + 1
                    )
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else "")
                self._refuse_duplicates(value, seen)

    def _malformed(self, error: yaml.MarkedYAMLError) -> SpaceConfigError:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part) or "cannot be read"
        problem = f"malformed YAML: {said}"
        if mark is None:
            return SpaceConfigError(self.path, problem)
        return SpaceConfigError(self.path, problem, mark.line + 1, mark.column + 1)


def _words(detail: ErrorDetails) -> str:
    """What was expected and what was found, in the words of someone who writes YAML."""
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = re.sub(r"a valid (dictionary|dict)( or instance of \w+)?", "a mapping", message)
    message = message.replace("a valid tuple", "a list").replace("a valid ", "a ")
    found = detail["input"]
    if not message.startswith("must be") or not isinstance(found, str | int | float | None):
        return message
    quoting = "; quote it" if message == "must be a string" and isinstance(found, int | float) else ""
    return f"{message}, not {'nothing' if found is None else repr(found)}{quoting}"


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(str(step) for step in place)


def _closest(word: str, known: Mapping[str, object] | Sequence[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _known_keys(place: Sequence[int | str]) -> list[str]:
    """The keys that may stand at a place, by walking the models along it."""
    kind: Any = SpaceConfig
    for step in place:
        kind = _model_in(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and step in kind.model_fields:
            kind = kind.model_fields[str(step)].annotation
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif get_origin(kind) is tuple:
            kind = get_args(kind)[0]
    kind = _model_in(kind)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _model_in(kind: Any) -> Any:
    """Strip `Annotated` and pick the branch of an optional that can hold keys."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        branches = [one for one in get_args(kind) if one is not type(None)]
        kind = branches[0]
    return kind
