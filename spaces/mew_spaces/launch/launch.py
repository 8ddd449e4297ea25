"""The programs of a space, with their arguments and environments.

Owns the substitution of `${PORT}`, `${SPACE}`, `${TOKEN}` and `${VARIABLE}`, and the environment of participants'
programs: an allow-list, and the variables named in space.yaml. Starts nothing. The command line of `mew` is an
argument, because this package does not know it.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from mew_listener.listen_address import ListenAddress
from mew_settings.environment import COMPAT_VARIABLE, inherited
from mew_settings.participant_types import (
    ParticipantStart,
    Place,
    ProgramStart,
    StartCheck,
    participant_types,
)
from pydantic import BaseModel

from mew_spaces.config.loading import ParticipantConfig, SpaceConfig
from mew_spaces.gateway.auth import token_variable
from mew_spaces.launch.processes import RUN_VARIABLE
from mew_spaces.launch.run_file import Role

GATEWAY: Final = "gateway"
MODEL: Final = "system:model"
SHARED_PROCESSES: Final = "system:agents"
"""Names of programs. No participant may have one of these ids."""

FIFOS: Final = "fifos"
"""Folder of the FIFOs `<id>-in` and `<id>-out`, in the folder of the space."""

RestartWhen = Literal["never", "on-failure", "always"]

_PLACEHOLDER: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. `environment` is complete; `opens` is its listening address when ready."""

    name: str
    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    role: Role = "participant"
    restart: RestartWhen = "never"
    opens: ListenAddress | None = None
    fifos: tuple[Path, ...] = ()
    """FIFOs that the program creates; they are removed when the space stops."""
    start: ProgramStart | None = field(default=None, repr=False)
    """How its participant type starts it."""
    own_variables: frozenset[str] = frozenset()
    """The variables that may differ between programs in one process."""

    @property
    def host(self) -> tuple[str, ...]:
        """The command of a process that can run it with others; empty if it needs its own process."""
        return () if self.start is None else self.start.host

    @property
    def label(self) -> str:
        """The program's name in messages."""
        return {"gateway": "gateway", "model": "model server"}.get(self.role, self.name)


@dataclass(frozen=True, slots=True)
class Launch:
    """The common values of all programs of a run.

    `ca_file` is a certificate with which clients trust the gateway. `mew` is the command line of this project's
    commands. `tokens` has each participant's token; `prepared` has the settings made for this run.
    """

    config: SpaceConfig
    config_path: Path
    folder: Path
    address: ListenAddress
    run_id: str
    mew: Sequence[str]
    tokens: Mapping[str, str] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    prepared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    log_level: str = "info"
    ca_file: Path | None = None
    backplane: str | None = None
    """Addresses of `--backplane`, in place of those in space.yaml."""
    sessions: Path | None = None
    """Folder for the files that agents keep between starts."""

    def gateway(self) -> Program:
        """Return the gateway. Only the gateway gets all tokens of the environment."""
        command = (
            *self.mew, "gateway", "start", "--host", self.address.host, "--port", str(self.address.port),
            "--config", str(self.config_path), "--log-level", self.log_level, "--no-auto-start",
            *(("--backplane", self.backplane) if self.backplane is not None else ()),
        )  # fmt: skip
        environment = {**self.environ, RUN_VARIABLE: self.run_id}
        return Program(GATEWAY, command, self.folder, environment, "gateway", opens=self.address)

    def model(self, port: int, arguments: Sequence[str] = ()) -> Program:
        """Return the model server, for agents on a built-in model."""
        command = (*self.mew, "serve", "model", "--port", str(port), *arguments)
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

        Checks only texts that no shell substitutes later: environments, and the keys that a type checks.
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
        return own

    def _participant(self, name: str, participant: ParticipantConfig) -> Program:
        own = self._own_variables(name)
        known = self._common() | own
        joins = ("--gateway", self.address.ws, "--space", self.config.space.id, "--participant", name)
        folder = self.folder / participant.cwd if participant.cwd else self.folder
        start, fifos, settings = None, tuple[Path, ...](), dict[str, str]()
        identity = {"TOKEN", token_variable(name), "MEW_TOKEN", "MEW_PARTICIPANT_ID"}
        if participant.command is None and participant.type_key is not None:
            start = self._start(name, participant, participant.type_key, joins, known)
            command = start.command
            variable = participant_types()[participant.type_key].variable
            if variable is not None and start.settings is not None:
                settings[variable] = json.dumps(start.settings)
        elif uses_fifos(participant):
            fifo_in, fifo_out = fifos = (self.folder / FIFOS / f"{name}-in", self.folder / FIFOS / f"{name}-out")
            # With `output_log` the gateway writes the messages of the participant.
            output = ("--output-file", os.devnull) if participant.output_log else ("--fifo-out", str(fifo_out))
            command = (*self.mew, "connect", "--json", *joins, "--fifo-in", str(fifo_in), *output)
        else:
            command = self._command(participant.command or "", participant.args, known)
        environment = {
            **self._reduced((*_inherited_by(participant), *participant.env_from)),
            **own,
            **({COMPAT_VARIABLE: self.config.compat} if self.config.compat is not None else {}),
            **{key: substitute(value, known) for key, value in participant.env.items()},
            **settings,
        }
        return Program(
            name,
            command,
            folder,
            environment,
            restart=participant.restart_policy,
            fifos=fifos,
            start=start,
            own_variables=frozenset(identity | settings.keys()),
        )

    def _start(
        self, name: str, participant: ParticipantConfig, key: str, joins: tuple[str, ...], known: Mapping[str, str]
    ) -> ProgramStart:
        """Return the program of a participant's type."""
        kind, section = participant_types()[key], participant.section(key)
        settings = section.model_dump(mode="json", exclude_none=True)
        settings |= {one: _substituted(settings[one], known) for one in kind.with_variables if one in settings}
        if "env" in kind.with_variables:
            named = {one: self.environ[one] for one in participant.env_from if one in self.environ}
            shared = {one: substitute(value, known) for one, value in participant.env.items()}
            settings["env"] = named | shared | settings.get("env", {})
        for one in kind.more_keys:
            value = getattr(participant, one)
            settings[one] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        return kind.start(
            ParticipantStart(
                name=name,
                settings=settings,
                folder=self.folder / (participant.cwd or ""),
                mew=tuple(self.mew),
                joins=joins,
                prepared=self.prepared.get(name),
                session=None if self.sessions is None else self.sessions / f"{name}.db",
            )
        )

    def _command(self, program: str, arguments: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
        """Return a program with its arguments; `mew` is this project's own."""
        first = tuple(self.mew) if program == "mew" else (substitute(program, known),)
        return (*first, *(substitute(one, known) for one in arguments))

    def _common(self) -> dict[str, str]:
        """Return the whole environment, except other participants' tokens and other agents' settings."""
        settings = (one.variable for one in participant_types().values() if one.variable is not None)
        hidden = {"MEW_TOKEN", "MEW_PARTICIPANT_ID", "MEW_GATEWAY", "MEW_SPACE", *settings}
        names = (key for key in self.environ if key not in hidden and not key.startswith("MEW_TOKEN_"))
        return {**{key: self.environ[key] for key in names}, RUN_VARIABLE: self.run_id}

    def _reduced(self, also: Sequence[str]) -> dict[str, str]:
        """Return the allow-listed environment, and the variables `also`."""
        # Without it, a Python program prints nothing until its buffer is full.
        return {"PYTHONUNBUFFERED": "1", **inherited(self._common(), also)}


def start_check(program: Program, participant: ParticipantConfig, path: Path) -> StartCheck | None:
    """Return the input of a type's check before the start; None for a program without a type."""
    if program.start is None:
        return None
    return StartCheck(program.name, program.start, program.folder, program.environment.get("PATH"), path)


def _inherited_by(participant: ParticipantConfig) -> tuple[str, ...]:
    """Return the environment variables that a participant's type passes to its program."""
    if participant.participant_type is None:
        return ()
    return participant.participant_type.inherits(participant.section(participant.type_key or ""))


def _texts_with_variables(participant: ParticipantConfig) -> Iterator[tuple[Place, str]]:
    yield from _texts(participant.env, ("env",))
    key = participant.type_key
    if key is not None:
        settings = participant.section(key).model_dump(mode="json", exclude_none=True)
        for one in participant_types()[key].checked_variables():
            yield from _texts(settings.get(one, ""), (key, one))


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the texts in a value, at any depth."""
    match value:
        case str():
            yield place, value
        case Mapping():
            yield from ((found, text) for key, one in value.items() for found, text in _texts(one, (*place, key)))
        case list():
            yield from ((place, text) for one in value for _, text in _texts(one, place))
        case _:
            return


def _substituted(value: Any, values: Mapping[str, str]) -> Any:
    """Replace the variables in a text, or in the texts of a mapping or list."""
    match value:
        case str():
            return substitute(value, values)
        case Mapping():
            return {key: _substituted(one, values) for key, one in value.items()}
        case list():
            return [_substituted(one, values) for one in value]
        case _:
            return value


def uses_fifos(participant: ParticipantConfig) -> bool:
    """Return True if scripts use this participant through FIFOs: `fifo`, `auto_connect`, and no program."""
    return participant.fifo and participant.auto_connect and not participant.has_program


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace each `${NAME}` with its value; names without a value stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match.group(1), match.group(0)), text)
