"""Which programs a space has, and the arguments and environment of each.

Owns the substitution of `${PORT}`, `${SPACE}`, `${TOKEN}` and `${VARIABLE}`, and what the program of a participant gets
of the environment: an allow-list, and what space.yaml names. Starts nothing. The command line of `mew` is an argument,
because this package does not know it.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mew_protocol.acp_settings import ACP_CONFIG, AcpSettings
from mew_protocol.agent_settings import LOCAL, REHEARSAL
from mew_protocol.bridge_settings import BRIDGE_CONFIG, McpServerSettings
from mew_protocol.environment import COMPAT_VARIABLE, inherited

from mew_spaces.config.loading import ParticipantConfig, SpaceConfig
from mew_spaces.gateway.auth import token_variable
from mew_spaces.launch.processes import RUN_VARIABLE
from mew_spaces.launch.run_file import Role

GATEWAY: Final = "gateway"
MODEL: Final = "system:model"
"""Names of programs. No participant may have one of these two ids."""

FIFOS: Final = "fifos"
"""Folder of the FIFOs `<id>-in` and `<id>-out`, in the folder of the space."""

Restart = Literal["never", "on-failure", "always"]

Place = tuple[str, ...]
"""The path of keys to a value in space.yaml."""

_MODEL_VARIABLES: Final = ("OPENAI_BASE_URL", "OPENAI_MODEL", "MEW_TOKENIZER_FILE")
"""Settings of agents that are not secrets."""

_API_KEY: Final = "OPENAI_API_KEY"
"""The key that an agent uses if its settings name no other."""

_PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the gateway listens. `name` is the host to connect to if its certificate is for another name."""

    host: str
    port: int
    has_tls: bool = False
    name: str | None = None

    @property
    def connect_host(self) -> str:
        """The host to connect to; for a wildcard address this is the loopback address."""
        local = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
        return self.name or local.get(self.host, self.host)

    @property
    def http(self) -> str:
        host = f"[{self.connect_host}]" if ":" in self.connect_host else self.connect_host
        return f"http{'s' if self.has_tls else ''}://{host}:{self.port}"

    @property
    def ws(self) -> str:
        return "ws" + self.http.removeprefix("http")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. `environment` is complete; `opens` is the address where it listens when it is ready."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    role: Role = "participant"
    restart: Restart = "never"
    opens: ListenAddress | None = None
    fifos: tuple[Path, ...] = ()
    """FIFOs that the program creates; they are removed when the space stops."""

    @property
    def label(self) -> str:
        """Its name in messages."""
        return {"gateway": "gateway", "model": "model server"}.get(self.role, self.name)


@dataclass(frozen=True, slots=True)
class Launch:
    """What all programs of one run of a space have in common.

    `ca_file` is a certificate that clients need to trust the gateway. `mew` is the command line of this project's own
    commands. `tokens` has the token of each participant,
    `agent_settings` the checked settings of each participant with `agent:`.
    """

    config: SpaceConfig
    config_path: Path
    folder: Path
    address: ListenAddress
    run_id: str
    mew: Sequence[str]
    tokens: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    agent_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    log_level: str = "info"
    ca_file: Path | None = None
    backplane: str | None = None
    """NATS servers in place of those in space.yaml."""
    compat: str | None = None
    """The mode of `--compat`, in place of the one in space.yaml."""
    sessions: Path | None = None
    """Folder of what agents keep between starts."""

    def gateway(self) -> Program:
        """Return the gateway. Only it gets all tokens of the environment."""
        command = (
            *self.mew, "gateway", "start", "--host", self.address.host, "--port", str(self.address.port),
            "--config", str(self.config_path), "--log-level", self.log_level, "--no-auto-start",
            *(("--backplane", self.backplane) if self.backplane is not None else ()),
            *(("--compat", self.compat) if self.compat is not None else ()),
        )  # fmt: skip
        environment = {**self.environ, RUN_VARIABLE: self.run_id}
        return Program(GATEWAY, command, self.folder, environment, "gateway", opens=self.address)

    def model(self, port: int, arguments: Sequence[str] = ()) -> Program:
        """Return the model server, for agents on the rehearsal model or on a local one."""
        command = (*self.mew, "model", "serve", "--port", str(port), *arguments)
        environment = self._reduced(())
        return Program(MODEL, command, self.folder, environment, "model", opens=ListenAddress("127.0.0.1", port))

    def participants(self, also: Collection[str] = ()) -> list[Program]:
        """Return the programs of participants with `auto_start` and of `also`, and the clients of FIFO participants."""
        return [
            self._participant(name, participant)
            for name, participant in self.config.participants.items()
            if ((participant.auto_start or name in also) and participant.has_program) or uses_fifos(participant)
        ]

    def unset_variables(self) -> list[tuple[Place, str]]:
        """Return each `${NAME}` without a value, with its place in space.yaml. The program gets it unchanged.

        Checks only texts that no shell substitutes later: environments, and the URL and headers of an MCP server.
        """
        unset: list[tuple[Place, str]] = []
        for program in self.participants():
            participant = self.config.participants[program.name]
            place, known = ("participants", program.name), self._common() | self._own_variables(program.name)
            for inner, text in _texts_with_variables(participant):
                unset += [((*place, *inner), name) for name in _PLACEHOLDER.findall(text) if name not in known]
            unset += [((*place, "env_from"), name) for name in participant.env_from if name not in self.environ]
        return unset

    def _own_variables(self, name: str) -> dict[str, str]:
        """Return the variables that identify a participant to its program."""
        own = {
            "PORT": str(self.address.port),
            "SPACE": self.config.space.id,
            "TOKEN": self.tokens[name],
            token_variable(name): self.tokens[name],
            "MEW_GATEWAY": self.address.ws,
            "MEW_SPACE": self.config.space.id,
            "MEW_TOKEN": self.tokens[name],
            "MEW_PARTICIPANT_ID": name,
        }
        if self.ca_file is not None:
            own["MEW_CA_FILE"] = str(self.ca_file)
        if name in self.agent_settings:
            own["MEW_AGENT_CONFIG"] = json.dumps(self.agent_settings[name])
        return own

    def _participant(self, name: str, participant: ParticipantConfig) -> Program:
        own = self._own_variables(name)
        known = self._common() | own
        environment = {
            **self._reduced((*_agent_variables(participant), *participant.env_from)),
            **own,
            **({COMPAT_VARIABLE: self.config.compat} if self.config.compat is not None else {}),
            **{key: substitute(value, known) for key, value in participant.env.items()},
        }
        fifos: tuple[Path, ...] = ()
        joins = ("--gateway", self.address.ws, "--space", self.config.space.id, "--participant", name)
        if participant.agent is not None:
            command = (*self.mew, "agent", "run", *joins)
        elif participant.acp is not None:
            environment[ACP_CONFIG] = json.dumps(self._acp_settings(name, participant, participant.acp, known))
            command = (*self.mew, "acp", "start", *joins)
        elif participant.meter is not None:
            meter = participant.meter
            window = ("--window", str(meter.window)) if meter.window is not None else ()
            upstream = substitute(meter.upstream, known)
            command = (*self.mew, "meter", "--upstream", upstream, "--listen", meter.listen, *window, *joins)
        elif participant.mcp_server is not None and participant.command is None:
            environment[BRIDGE_CONFIG] = json.dumps(self._bridge_settings(participant, participant.mcp_server, known))
            command = (*self.mew, "bridge", "start", *joins)
        elif uses_fifos(participant):
            fifo_in, fifo_out = fifos = tuple(self.folder / FIFOS / f"{name}-{way}" for way in ("in", "out"))
            # With `output_log` the gateway writes what the participant receives.
            output = ("--output-file", os.devnull) if participant.output_log else ("--fifo-out", str(fifo_out))
            client = (*self.mew, "client", "connect", *joins)
            command = (*client, "--fifo-in", str(fifo_in), *output)
        else:
            command = self._command(participant.command or "", participant.args, known)
        folder = self.folder / participant.cwd if participant.cwd else self.folder
        return Program(name, command, folder, environment, restart=participant.restart_policy, fifos=fifos)

    def _command(self, program: str, arguments: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
        """Return a program with its arguments; `mew` is this project's own."""
        first = tuple(self.mew) if program == "mew" else (substitute(program, known),)
        return (*first, *(substitute(one, known) for one in arguments))

    def _named_variables(
        self, participant: ParticipantConfig, own: Mapping[str, str], known: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the variables that space.yaml names for a program that a participant starts."""
        named = {key: self.environ[key] for key in participant.env_from if key in self.environ}
        return named | {key: substitute(value, known) for key, value in {**participant.env, **own}.items()}

    def _acp_settings(
        self, name: str, participant: ParticipantConfig, acp: AcpSettings, known: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the settings of an ACP agent as `mew acp start` reads them."""
        return {
            **acp.model_dump(mode="json", exclude_none=True),
            **({} if acp.command is None else {"command": substitute(acp.command, known)}),
            "args": [substitute(one, known) for one in acp.args],
            "env": self._named_variables(participant, acp.env, known),
            "cwd": str(self.folder / (participant.cwd or "")),
            "store": None if self.sessions is None else str(self.sessions / f"{name}.db"),
        }

    def _bridge_settings(
        self, participant: ParticipantConfig, server: McpServerSettings, known: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the settings of a bridge as `mew bridge start` reads them."""
        if server.url is not None:
            headers = {key: substitute(value, known) for key, value in server.headers.items()}
            reached: dict[str, Any] = {"url": substitute(server.url, known), "headers": headers}
        else:
            program, *arguments = self._command(server.command or "", server.args, known)
            reached = {
                "command": program,
                "args": arguments,
                "env": self._named_variables(participant, server.env, known),
                "cwd": str(self.folder / (participant.cwd or "") / server.cwd) if server.cwd else None,
            }
        return {"server": reached, **participant.bridge_config.model_dump()}

    def _common(self) -> dict[str, str]:
        """Return the whole environment without tokens of other participants and settings of other agents."""
        hidden = (
            "MEW_TOKEN",
            "MEW_PARTICIPANT_ID",
            "MEW_AGENT_CONFIG",
            BRIDGE_CONFIG,
            ACP_CONFIG,
            "MEW_GATEWAY",
            "MEW_SPACE",
        )
        names = (key for key in self.environ if key not in hidden and not key.startswith("MEW_TOKEN_"))
        return {**{key: self.environ[key] for key in names}, RUN_VARIABLE: self.run_id}

    def _reduced(self, also: Sequence[str]) -> dict[str, str]:
        """Return the allow-list of the environment, and the variables `also`."""
        # Without it, a Python program prints nothing until its buffer is full.
        return {"PYTHONUNBUFFERED": "1", **inherited(self._common(), also)}


def _agent_variables(participant: ParticipantConfig) -> tuple[str, ...]:
    """Return the variables with model and API key that the program of an agent gets; nothing for other programs."""
    agent = participant.agent
    if agent is None:
        return (*_MODEL_VARIABLES, _API_KEY) if participant.is_agent else ()
    given = agent.given()
    summariser = given.get("summariser")
    named = [one["api_key_env"] for one in (given, summariser) if isinstance(one, Mapping) and one.get("api_key_env")]
    has_key = "api_key_env" in given or given.get("base_url") in (REHEARSAL, LOCAL)
    return (*_MODEL_VARIABLES, *named, *(() if has_key else (_API_KEY,)))


def _texts_with_variables(participant: ParticipantConfig) -> Iterator[tuple[Place, str]]:
    yield from ((("env", key), text) for key, text in participant.env.items())
    if participant.acp is not None:
        yield from ((("acp", "env", key), text) for key, text in participant.acp.env.items())
    if participant.meter is not None:
        yield ("meter", "upstream"), participant.meter.upstream
    if (server := participant.mcp_server) is not None:
        yield from ((("mcp_server", "env", key), text) for key, text in server.env.items())
        yield from ((("mcp_server", "headers", key), text) for key, text in server.headers.items())
        yield ("mcp_server", "url"), server.url or ""


def uses_fifos(participant: ParticipantConfig) -> bool:
    """Return whether scripts act as this participant through FIFOs: `fifo`, `auto_connect`, and no program."""
    return participant.fifo and participant.auto_connect and not participant.has_program


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace each `${NAME}` by its value; a name without a value stays."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)
