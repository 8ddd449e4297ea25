"""[pure] The keys of space.yaml as one typed, frozen model.

Defines the valid keys, their values and their meaning. `loading` reads files and locates mistakes.
"""

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from mew_protocol.capability import number_problem, patterns_problem
from mew_protocol.codec import DEFAULT_MAX_BYTES
from mew_protocol.context_report import MAX_PIN_CHARS
from mew_protocol.ids import checked_id
from mew_protocol.payloads.attention_items import AttentionKind
from mew_protocol.payloads.text_fit import WouldFit
from mew_settings.model_facts import ModelFacts
from mew_settings.participant_types import ParticipantType, participant_types
from mew_settings.roles import ROLE_PATTERNS, Role
from mew_settings.setting_problems import matching
from mew_settings.values import SettingsModel, Text, bare_off_as_text
from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from mew_spaces.config.shared_storages import BackplaneSettings

Compat = Literal["reference"]
"""Another system that a space is compatible with: the TypeScript reference."""

COMPAT_HINT: Final = "`compat: reference` in space.yaml allows it"
"""How to get the TypeScript gateway's behaviour; part of each refusal that it would lift."""

_GUEST_PATTERNS: tuple[dict[str, Any], ...] = ({"kind": "chat"},)
"""The capabilities of a participant that is not in space.yaml."""


def _checked_public_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+/?", text):
        raise ValueError("must be a URL without a path, like https://mew.example.org")
    return text.rstrip("/")


def _checked_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("must be an IP address or network, like 127.0.0.1 or 10.0.0.0/8") from None
    return text


def _as_capability(value: object) -> object:
    """Accept a plain kind, for all its envelopes."""
    return {"kind": value} if isinstance(value, str) else value


def _check_number(value: object) -> object:
    """Check the number before the patterns, to refuse a list of a million at once."""
    if isinstance(value, list | tuple) and (problem := number_problem(value)) is not None:
        raise ValueError(problem)
    return value


def _nothing_as_empty(value: object) -> object:
    """Accept `ada:` without a value as a person with the default capabilities."""
    return {} if value is None else value


class Capability(SettingsModel):
    """One pattern of envelopes that a participant may send; `mew_protocol.capability` defines how it matches."""

    id: str | None = None
    kind: str | tuple[str, ...]
    to: str | tuple[str, ...] | None = None
    payload: dict[str, Any] | None = None
    approve: bool = True
    """`false`: the capability covers calls of the participant itself, and no approvals of proposals by others."""

    def pattern(self) -> dict[str, Any]:
        """Return the pattern in the form of welcome and presence."""
        return self.model_dump(mode="json", exclude_unset=True)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        found = patterns_problem((self.pattern(),))
        if found is not None:
            raise ValueError(found[1])
        return self


def _checked_name(text: str) -> str:
    if " " in text.strip():
        raise ValueError(f"an id of a participant must not contain a space; write {text.replace(' ', '-')}")
    return checked_id(text)


Id = Annotated[str, AfterValidator(checked_id)]
Name = Annotated[str, AfterValidator(_checked_name)]
VariableName = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "must be the name of an environment variable")]
Capabilities = Annotated[
    tuple[Annotated[Capability, BeforeValidator(_as_capability)], ...], BeforeValidator(_check_number)
]


class SpaceSection(SettingsModel):
    """The space itself. `default_participant` is the one that commands and the terminal act as."""

    id: Id
    name: str | None = None
    description: str | None = None
    instructions: str | None = Field(default=None, min_length=1, max_length=MAX_PIN_CHARS)
    """Standing instructions, which every agent of the space keeps in every prompt."""
    would_fit: Annotated[WouldFit | None, BeforeValidator(bare_off_as_text)] = None
    """Action of agents for chats that do not fit into their context; None: their default, `warn`."""
    default_participant: str | None = None
    ui_theme: str | None = None


class CommonParticipant(SettingsModel):
    """The keys that every participant may have. `ParticipantConfig` adds a section for each participant type."""

    type: str | None = None
    name: str | None = None
    description: str | None = Field(default=None, min_length=1, max_length=500)
    """Task of the participant. All agents keep it in every prompt."""
    role: Role | None = None
    """Gives the capabilities that an agent, a tool, a person or an observer needs. `capabilities` adds to them."""
    capabilities: Capabilities | None = None
    tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    command: str | None = None
    args: tuple[Text, ...] = ()
    env: dict[str, Text] = Field(default_factory=dict)
    env_from: tuple[VariableName, ...] = ()
    """Variables of the environment of `mew up` that its program gets, beyond those that every program needs."""
    cwd: str | None = None
    auto_start: bool = False
    restart_policy: Literal["never", "on-failure", "always"] = "never"
    """With `on-failure`, a program that was asked to stop and exits with code 0 has not failed."""
    default_to: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    output_log: str | None = None
    auto_connect: bool = False
    fifo: bool = False
    io: str | None = None

    @property
    def type_key(self) -> str | None:
        """The key of its section; None for a person or a program of another kind."""
        return next((key for key in participant_types() if self.section(key) is not None), None)

    @property
    def participant_type(self) -> ParticipantType | None:
        """The type of its section; without a section, the type of its `mew` command."""
        if self.type_key is not None:
            return participant_types()[self.type_key]
        words = self.args if self.command == "mew" else ()
        return next(
            (one for one in participant_types().values() if one.words and words[: len(one.words)] == one.words), None
        )

    def section(self, key: str) -> Any:
        """Return the section of a participant type; None without one."""
        return getattr(self, key, None)

    @property
    def is_person(self) -> bool:
        """True without a program or another role. A person may hold several sockets at once."""
        return self.acts_as == "person" and not self.has_program

    @property
    def has_program(self) -> bool:
        """True if `mew up` can start a program for it."""
        return self.command is not None or self.type_key is not None

    @property
    def answers_chats(self) -> bool:
        """False for a program that only offers tools or figures."""
        return self.participant_type is None or self.participant_type.answers_chats

    @property
    def acts_as(self) -> Role:
        """The role in space.yaml, else the role of its program."""
        if self.role is not None:
            return self.role
        if self.participant_type is not None:
            return self.participant_type.role
        return "tool" if self.has_program else "person"

    @model_validator(mode="before")
    @classmethod
    def _accept_empty_sections(cls, value: Any) -> Any:
        """Accept `agent:` without a value as an agent with the default settings."""
        if not isinstance(value, dict):
            return value
        return {key: {} if one is None and key in participant_types() else one for key, one in value.items()}

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        types = participant_types()
        programs = [key for key in ("command", *types) if self.section(key) is not None]
        # Files of the TypeScript tools have a command next to a section.
        if len(programs) > 2 or (len(programs) == 2 and (programs[0] != "command" or types[programs[1]].label is None)):
            raise ValueError(f"has both '{programs[0]}' and '{programs[1]}'; remove one of them")
        for key, one in types.items():
            if one.label is not None and one.label == self.type and self.section(key) is None:
                raise ValueError(f"type '{one.label}' needs '{key}'")
        return self


def _type_keys() -> dict[str, Any]:
    """Return the keys of all participant types, in the form of pydantic's `create_model`."""
    keys: dict[str, Any] = {key: (one.settings | None, None) for key, one in participant_types().items()}
    for one in participant_types().values():
        keys |= one.more_keys
    return keys


if TYPE_CHECKING:

    class ParticipantConfig(CommonParticipant):
        """One participant. Without a command and a section of a participant type it is a person."""

else:
    ParticipantConfig = create_model(
        "ParticipantConfig", __base__=CommonParticipant, __module__=__name__, **_type_keys()
    )


class Routing(SettingsModel):
    """Default addressees by kind, for text typed in a terminal."""

    default_to: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Defaults(SettingsModel):
    """Values for participants that set none."""

    capabilities: Capabilities | None = None
    """Capabilities of participants with neither `role` nor `capabilities` (default: those of the role that fits)."""
    routing: Routing = Routing()


class LogSwitch(SettingsModel):
    """One of the gateway's logs."""

    enabled: bool = True


class GatewayLogging(SettingsModel):
    """The gateway's logs under `<state>/logs`, and their size limits.

    `delivered` selects the logging of deliveries. `per_member`: one line per recipient up to `per_member_up_to`, above
    that a single line with their number. `always`: one line per recipient. `never`: none.
    """

    enabled: bool = True
    delivered: Literal["always", "per_member", "never"] = "per_member"
    per_member_up_to: int = Field(default=16, ge=0)
    max_envelope_bytes: int = Field(default=256 * 1024, ge=0)
    """For a larger envelope only its size is logged."""
    max_file_bytes: int = Field(default=64 * 1024 * 1024, ge=4096)
    """Size at which a log is renamed to `<name>.1`; applies to `output_log` files as well."""
    kept_files: int = Field(default=3, ge=0)
    envelope_history: LogSwitch = LogSwitch()
    capability_decisions: LogSwitch = LogSwitch()


class CapabilityOptions(SettingsModel):
    """The checks of capabilities, grants and invitations.

    `ignore_to: true` ignores `to` in capabilities, as the TypeScript gateway does. `check_grants` and `check_invites`
    refuse a grant or an invitation that gives more than its sender has.
    """

    ignore_to: bool = False
    check_grants: bool = True
    check_invites: bool = True


class ControlOptions(SettingsModel):
    """Whether the gateway enforces `participant/pause` and `participant/shutdown`."""

    enforce_pause: bool = True
    enforce_shutdown: bool = True


class Limits(SettingsModel):
    """Limits of clients. Sizes are in bytes, times in seconds."""

    message_bytes: int = Field(default=DEFAULT_MAX_BYTES, ge=1024)
    http_body_bytes: int = Field(default=1024 * 1024, ge=1024)
    write_buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=4096)
    """Bytes that may wait for a member, in addition to one message of the largest size, before it is a slow
    consumer."""
    unjoined_message_bytes: int = Field(default=64 * 1024, ge=1024)
    """Bytes that a client may send before its join; `message_bytes` applies afterwards."""
    unjoined_connections: int = Field(default=2048, ge=1)
    """Connections that have not joined: silent ones, HTTP requests, WebSocket connections before their join. With
    more, the address with the most loses its oldest."""
    unjoined_connections_per_address: int = Field(default=1024, ge=1)
    """Such connections from one address; a further one replaces the oldest of them."""
    header_timeout_seconds: float = Field(default=10.0, gt=0)
    """Time in which a connection must send a complete request."""
    join_timeout_seconds: float = Field(default=10.0, gt=0)
    """Time in which a WebSocket connection must join."""
    ping_interval_seconds: float = Field(default=3.0, ge=0)
    """Interval between pings; 0 sends none. With the timeout it decides how soon a dead link is noticed."""
    ping_timeout_seconds: float = Field(default=6.0, gt=0)
    """Time in which a ping must be answered; then the socket is closed."""
    failed_tokens_per_second: float = Field(default=5.0, gt=0)
    """Rate of requests and joins with a wrong token from one address; a hundred may come at once."""
    joins_per_second: float = Field(default=10.0, gt=0)
    """Rate of joins of one participant, repeated ones included; two hundred may come at once."""
    reads_per_second: float = Field(default=100.0, gt=0)
    """Rate of reads over HTTP of one participant; five hundred may come at once."""
    event_streams_per_token: int = Field(default=64, ge=1)
    """Open event streams of one participant or observer."""
    event_streams_per_address: int = Field(default=1024, ge=1)
    """Open event streams from one address."""
    history_envelopes: int = Field(default=10_000, ge=0)
    history_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    members: int = Field(default=4096, ge=1)
    sockets_per_member: int = Field(default=64, ge=1)
    streams_per_member: int = Field(default=256, ge=1)
    kept_payload_bytes: int = Field(default=64 * 1024, ge=256)
    """Payload of an envelope that is kept for late joiners: a stream request, grant, invitation or status."""
    envelopes_per_second: float = Field(default=5_000.0, gt=0)
    """Rate of one participant, stream frames included; `envelope_burst` may arrive at once."""
    envelope_burst: int = Field(default=10_000, ge=1)


class GatewayOptions(SettingsModel):
    """The gateway's addresses, and its allowed clients. Host names have no port; origins look like
    `https://example.org`.

    `localhost`, IP addresses, the listening host, the host of `public_url`, and the gateway's own pages are always
    accepted. File names are relative to the folder of the space.
    """

    tls_cert: str | None = Field(default=None, min_length=1)
    tls_key: str | None = Field(default=None, min_length=1)
    public_url: Annotated[str, AfterValidator(_checked_public_url)] | None = None
    """Address that people and invited participants use if the gateway is behind a proxy."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(_checked_network)], ...] = ()
    """Addresses and networks that may send `X-Forwarded-*` and `Forwarded` headers."""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ValueError(f"'{given}' needs '{missing}'")
        return self


class HistoryOptions(SettingsModel):
    """The storage of accepted envelopes. `limits` sets their maximum number and total size."""

    durability: Literal["memory", "flushed", "synced"] = "flushed"
    """Accept an envelope when it is in memory, passed to the operating system, or on the disk."""
    age_seconds: float | None = Field(default=None, gt=0)
    """Maximum age of an envelope that can be read (default: no limit)."""


class AttentionOptions(SettingsModel):
    """The webhook for attention items. The secret file is relative to the folder of the space."""

    webhook: Annotated[str, matching(r"https?://\S+", "must be a URL like https://example.org/hook")] | None = None
    secret_file: str | None = Field(default=None, min_length=1)
    """File with a secret for the header `Authorization: Bearer SECRET` of each request."""
    kinds: tuple[AttentionKind, ...] | None = None
    """Kinds to post; None: all of the levels `blocking` and `warning`."""


class SpaceConfig(SettingsModel):
    """A complete space.yaml."""

    space: SpaceSection
    compat: Compat | None = None
    """With `reference`, the gateway behaves as the TypeScript gateway where that is less strict: participants may send
    `stream/open`, invitations may give more than the inviter has, stream requests need no `direction`, log lines are
    written before a request is answered, and programs log to `logs/`."""
    participants: dict[Name, Annotated[ParticipantConfig, BeforeValidator(_nothing_as_empty)]] = Field(
        default_factory=dict
    )
    defaults: Defaults = Defaults()
    capabilities: CapabilityOptions = CapabilityOptions()
    control: ControlOptions = ControlOptions()
    limits: Limits = Limits()
    history: HistoryOptions = HistoryOptions()
    attention: AttentionOptions = AttentionOptions()
    gateway: GatewayOptions = GatewayOptions()
    backplane: BackplaneSettings | None = None
    """Connection of several gateways of the space (default: a single gateway)."""
    models: dict[str, ModelFacts] = Field(default_factory=dict)
    gateway_logging: GatewayLogging = GatewayLogging()

    @property
    def is_reference(self) -> bool:
        """Whether the gateway is as lenient as the TypeScript gateway."""
        return self.compat == "reference"

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the space for the welcome (see `SpaceFacts`); empty if space.yaml has none."""
        described = {name: one.description for name, one in self.participants.items() if one.description is not None}
        facts = {
            "instructions": self.space.instructions,
            "descriptions": described,
            "would_fit": self.space.would_fit,
        }
        return {key: value for key, value in facts.items() if value}

    def is_person(self, participant: str) -> bool:
        """Return whether this id is configured as a person."""
        configured = self.participants.get(participant)
        return configured is not None and configured.is_person

    def patterns_of(self, participant: str) -> tuple[dict[str, Any], ...]:
        """Return the patterns of a participant: its role's and its own; without either, the defaults."""
        configured = self.participants.get(participant)
        own = configured.capabilities if configured is not None else None
        patterns = () if own is None else tuple(one.pattern() for one in own)
        if configured is not None and configured.role is not None:
            return (*ROLE_PATTERNS[configured.role], *patterns)
        if own is not None:
            return patterns
        if self.defaults.capabilities is not None:
            return tuple(one.pattern() for one in self.defaults.capabilities)
        return _GUEST_PATTERNS if configured is None else ROLE_PATTERNS[configured.acts_as]
