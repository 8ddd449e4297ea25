"""[pure] The keys of a space.yaml as one typed, frozen model.

Owns what may stand there and what it means by itself. Reading files and telling mistakes with their place is
`config`'s business; what is done with the values is everybody else's.
"""

from typing import Annotated, Any, Literal, Self

from mew_protocol.agent_settings import ModelFacts, WrittenAgentSettings
from mew_protocol.codec import DEFAULT_MAX_BYTES, DEFAULT_MAX_DEPTH
from mew_protocol.ids import MAX_ID_LENGTH, id_problem
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

BRIDGE = "mcp-bridge"
"""The one `type` of a participant that changes what is started."""

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
    """One pattern of what a participant may send; `mew_protocol.capability` says how it matches."""

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


class McpServerConfig(_Section):
    """The MCP server that a bridge participant speaks for: a program that it starts, or one that runs at `url`."""

    command: str | None = Field(default=None, min_length=1)
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = Field(default=None, min_length=1)
    headers: dict[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either 'command' or 'url'")
        of_program = [key for key, value in (("args", self.args), ("env", self.env), ("cwd", self.cwd)) if value]
        if self.url is not None and of_program:
            raise ValueError(f"'{of_program[0]}' belongs to a 'command', not to a 'url'")
        if self.command is not None and self.headers:
            raise ValueError("'headers' belong to a 'url', not to a 'command'")
        return self


class BridgeOptions(_Section):
    """`bridge_config`; times in milliseconds, as the reference has them."""

    init_timeout: int = Field(default=30_000, gt=0)
    request_timeout: int = Field(default=300_000, gt=0)
    reconnect: bool = True
    max_reconnects: int = Field(default=3, ge=0)


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
    """A program that anybody asked to terminate, and that ended in order (exit code 0), has not failed."""
    agent: WrittenAgentSettings | None = None
    """Short for `command: mew` with `args: [agent, run, ...]`: the settings of an agent."""
    mcp_server: McpServerConfig | None = None
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
    """Which logs the gateway writes under `<state>/logs`, and how long they may become.

    `delivered` says how deliveries are logged: `per_member`, one line for each of up to `per_member_up_to`
    recipients and one line with their number above that; `always`, one line for each however many; `never`.
    """

    enabled: bool = True
    delivered: Literal["always", "per_member", "never"] = "per_member"
    per_member_up_to: int = Field(default=16, ge=0)
    max_envelope_bytes: int = Field(default=256 * 1024, ge=0)
    """Of an envelope longer than this only its size is logged."""
    max_file_bytes: int = Field(default=64 * 1024 * 1024, ge=4096)
    kept_files: int = Field(default=3, ge=0)
    envelope_history: LogSwitch = LogSwitch()
    capability_decisions: LogSwitch = LogSwitch()


class CapabilityOptions(_Section):
    """How capabilities are read and passed on.

    `ignore_to: true` leaves `to` in capabilities unread, as the reference does. `check_grants` and `check_invites`
    say whether a grant or an invitation may give only what its sender holds itself.
    """

    ignore_to: bool = False
    check_grants: bool = True
    check_invites: bool = False


class ControlOptions(_Section):
    """Whether the gateway itself holds participants to `participant/pause` and `participant/shutdown`."""

    enforce_pause: bool = True
    enforce_shutdown: bool = True


class Limits(_Section):
    """Bounds on what clients may cost. Sizes in bytes, times in seconds."""

    message_bytes: int = Field(default=DEFAULT_MAX_BYTES, ge=1024)
    json_depth: int = Field(default=DEFAULT_MAX_DEPTH, ge=4, le=200)
    name_chars: int = Field(default=MAX_ID_LENGTH, ge=8, le=MAX_ID_LENGTH)
    """Of participants and kinds; ids of envelopes may be four times as long."""
    http_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    write_buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=4096)
    """What may wait for a member beyond one message of the largest size; then it is a slow consumer."""
    join_timeout_seconds: float = Field(default=10.0, gt=0)
    ping_interval_seconds: float = Field(default=20.0, ge=0)
    """How often a socket is asked whether it is still there; 0 never."""
    ping_timeout_seconds: float = Field(default=20.0, gt=0)
    """How long it may take to answer, then it is closed."""
    history_envelopes: int = Field(default=10_000, ge=0)
    history_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    members: int = Field(default=4096, ge=1)
    sockets_per_member: int = Field(default=64, ge=1)
    streams_per_member: int = Field(default=256, ge=1)
    grants_per_member: int = Field(default=1024, ge=1)
    """Patterns that somebody may be granted on top of its own."""
    kept_payload_bytes: int = Field(default=64 * 1024, ge=256)
    """The payload of what is kept for those who come later: stream requests, grants, invitations, statuses."""
    envelopes_per_second: float = Field(default=5_000.0, gt=0)
    """Of one participant, frames included; `envelope_burst` is how many may come at once."""
    envelope_burst: int = Field(default=10_000, ge=1)


class HistoryOptions(_Section):
    """How the accepted envelopes of a space are kept. `limits` bounds how many and how large they may be together."""

    durability: Literal["memory", "flushed", "synced"] = "flushed"
    """What accepted means: in memory, handed to the operating system, or written to the disk."""
    age_seconds: float | None = Field(default=None, gt=0)
    """How long an envelope is kept at most (default: no limit of age)."""


class SpaceConfig(_Section):
    """A whole space.yaml."""

    space: SpaceSection
    participants: dict[Id, Annotated[ParticipantConfig, BeforeValidator(_nothing_as_empty)]] = Field(
        default_factory=dict
    )
    defaults: Defaults = Defaults()
    capabilities: CapabilityOptions = CapabilityOptions()
    control: ControlOptions = ControlOptions()
    limits: Limits = Limits()
    history: HistoryOptions = HistoryOptions()
    models: dict[str, ModelFacts] = Field(default_factory=dict)
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
