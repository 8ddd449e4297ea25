"""Which programs a space consists of, and with which arguments and environment each is started.

Owns the filling of `${PORT}`, `${SPACE}`, `${TOKEN}` and `${VARIABLE}`, and what a participant's program may
see of the environment. Starts nothing; who `mew` is comes as an argument, since this package does not know.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mew_spaces.config.loading import ParticipantConfig, SpaceConfig
from mew_spaces.config.settings import McpServerConfig
from mew_spaces.gateway.auth import token_variable
from mew_spaces.launch.processes import RUN_VARIABLE
from mew_spaces.launch.run_file import Role

GATEWAY: Final = "gateway"
MODEL: Final = "system:model"
"""No participant can have one of these two names."""

BRIDGE_CONFIG: Final = "MEW_BRIDGE_CONFIG"
"""The variable through which a bridge gets its settings: they may hold keys, which `ps` would show."""

FIFOS: Final = "fifos"
"""The folder, in that of the space, of `<id>-in` and `<id>-out`."""

Restart = Literal["never", "on-failure", "always"]

Place = tuple[str, ...]
"""Keys of space.yaml, from the top to where something stands."""

_PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the gateway listens."""

    host: str
    port: int

    @property
    def reached_at(self) -> str:
        """The host to connect to; a wildcard address is reached over loopback."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them."""
        host = self.reached_at
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def http(self) -> str:
        return f"http://{self.netloc}"

    @property
    def ws(self) -> str:
        return f"ws://{self.netloc}"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. `environment` is complete; `opens` is where it listens once it is ready to be used."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    role: Role = "participant"
    restart: Restart = "never"
    opens: ListenAddress | None = None
    fifos: tuple[Path, ...] = ()
    """FIFOs that it makes for others and that mean nothing once it is gone."""

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        return {"gateway": "gateway", "model": "rehearsal model"}.get(self.role, self.name)


@dataclass(frozen=True, slots=True)
class Launch:
    """What every program of one run of a space shares.

    `mew` is the command line that runs this project's own commands. `tokens` are by participant.
    `agent_settings` are the checked settings of participants written as `agent:`, by participant.
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

    def gateway(self) -> Program:
        """The gateway. It alone sees every token that the environment holds."""
        command = (
            *self.mew, "gateway", "start", "--host", self.address.host, "--port", str(self.address.port),
            "--space-config", str(self.config_path), "--log-level", self.log_level, "--no-auto-start",
        )  # fmt: skip
        environment = {**self.environ, RUN_VARIABLE: self.run_id}
        return Program(GATEWAY, command, self.folder, environment, "gateway", opens=self.address)

    def model(self, port: int, arguments: Sequence[str] = ()) -> Program:
        """The rehearsal model server for the agents of this space that ask for it."""
        command = (*self.mew, "model", "serve", "--port", str(port), *arguments)
        return Program(MODEL, command, self.folder, self._common(), "model", opens=ListenAddress("127.0.0.1", port))

    def participants(self) -> list[Program]:
        """Every participant with `auto_start` that has a program, and those that are reached through FIFOs."""
        return [
            self._participant(name, participant)
            for name, participant in self.config.participants.items()
            if (participant.auto_start and not participant.is_person) or speaks_by_fifo(participant)
        ]

    def unfilled(self) -> list[tuple[Place, str]]:
        """Each `${NAME}` that nothing fills, behind the keys that lead to it; the program gets it as it is written.

        Only where no shell could fill it later: in environments, and in the address and headers of an MCP server.
        """
        return [
            (("participants", program.name, *place), variable)
            for program in self.participants()
            for place, text in _texts_to_fill(self.config.participants[program.name])
            for variable in _PLACEHOLDER.findall(text)
            if variable not in self._known(program.name)
        ]

    def _known(self, name: str) -> dict[str, str]:
        """What a participant's program finds in its environment beside what space.yaml puts there."""
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
        if name in self.agent_settings:
            own["MEW_AGENT_CONFIG"] = json.dumps(self.agent_settings[name])
        return {**self._common(), **own}

    def _participant(self, name: str, participant: ParticipantConfig) -> Program:
        known = self._known(name)
        environment = {**known, **{key: fill(value, known) for key, value in participant.env.items()}}
        fifos: tuple[Path, ...] = ()
        if participant.agent is not None:
            command = (
                *self.mew, "agent", "run", "--gateway", self.address.ws, "--space", self.config.space.id, "--id", name,
            )  # fmt: skip
        elif participant.mcp_server is not None and participant.command is None:
            environment[BRIDGE_CONFIG] = json.dumps(self._bridge_settings(participant, participant.mcp_server, known))
            command = (
                *self.mew, "bridge", "start", "--gateway", self.address.ws, "--space", self.config.space.id,
                "--participant-id", name,
            )  # fmt: skip
        elif speaks_by_fifo(participant):
            said, heard = (self.folder / FIFOS / f"{name}-{way}" for way in ("in", "out"))
            fifos = (said, heard)
            command = self._fifo_command(name, participant, said, heard)
        else:
            program = participant.command or ""
            first = tuple(self.mew) if program == "mew" else (fill(program, known),)
            command = (*first, *(fill(argument, known) for argument in participant.args))
        folder = self.folder / participant.cwd if participant.cwd else self.folder
        return Program(name, command, folder, environment, restart=participant.restart_policy, fifos=fifos)

    def _bridge_settings(
        self, participant: ParticipantConfig, server: McpServerConfig, known: Mapping[str, str]
    ) -> dict[str, Any]:
        """The settings of a bridge as `mew bridge start` reads them."""
        if server.url is not None:
            headers = {key: fill(value, known) for key, value in server.headers.items()}
            reached: dict[str, Any] = {"transport": "http", "url": fill(server.url, known), "headers": headers}
        else:
            env = {key: fill(value, known) for key, value in {**participant.env, **server.env}.items()}
            reached = {
                "transport": "stdio",
                "command": fill(server.command or "", known),
                "args": [fill(argument, known) for argument in server.args],
                "env": env,
                "cwd": str(self.folder / (participant.cwd or "") / server.cwd) if server.cwd else None,
            }
        options = participant.bridge_config
        return {
            "server": reached,
            "init_timeout_seconds": options.init_timeout / 1000,
            "request_timeout_seconds": options.request_timeout / 1000,
            "reconnect": options.reconnect,
            "max_reconnects": options.max_reconnects,
        }

    def _fifo_command(self, name: str, participant: ParticipantConfig, said: Path, heard: Path) -> tuple[str, ...]:
        """A client between the space and two FIFOs; with an `output_log` the gateway keeps what it hears."""
        output = ("--output-file", os.devnull) if participant.output_log else ("--fifo-out", str(heard))
        return (
            *self.mew, "client", "connect", "--gateway", self.address.ws, "--space", self.config.space.id,
            "--participant-id", name, "--fifo-in", str(said), *output,
        )  # fmt: skip

    def _common(self) -> dict[str, str]:
        """The environment without other participants' tokens and without settings meant for another agent."""
        hidden = {
            "MEW_TOKEN", "MEW_PARTICIPANT_ID", "MEW_AGENT_CONFIG", BRIDGE_CONFIG, "MEW_GATEWAY", "MEW_SPACE",
        }  # fmt: skip
        kept = {
            key: value for key, value in self.environ.items() if key not in hidden and not key.startswith("MEW_TOKEN_")
        }
        # A Python program would otherwise keep what it says to itself until its buffer is full.
        return {"PYTHONUNBUFFERED": "1", **kept, RUN_VARIABLE: self.run_id}


def _texts_to_fill(participant: ParticipantConfig) -> Iterator[tuple[Place, str]]:
    for key, text in participant.env.items():
        yield ("env", key), text
    server = participant.mcp_server
    if server is not None:
        for key, text in server.env.items():
            yield ("mcp_server", "env", key), text
        for key, text in server.headers.items():
            yield ("mcp_server", "headers", key), text
        yield ("mcp_server", "url"), server.url or ""


def speaks_by_fifo(participant: ParticipantConfig) -> bool:
    """Whether scripts speak as this participant through FIFOs: `fifo` and `auto_connect`, and no program of its own."""
    return participant.fifo and participant.auto_connect and participant.is_person


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace `${NAME}` by its value; a name without one stays as it is written."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)


def bridges(config: SpaceConfig) -> list[str]:
    """Participants with `auto_start` that speak for an MCP server and have no program of their own."""
    return [
        name
        for name, participant in config.participants.items()
        if participant.auto_start and participant.is_bridge and participant.command is None
    ]
