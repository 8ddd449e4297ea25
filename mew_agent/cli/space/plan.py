"""Everything `mew up` checks and settles before anything is started.

Owns what a space needs to run: its file, addresses, tokens, each agent's settings, programs that exist. Starts
nothing and prints nothing.
"""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mew_protocol.agent_settings import REHEARSAL
from mew_spaces.config.loading import SpaceConfig, load_space, place_in
from mew_spaces.gateway.auth import ensure_token, state_dir
from mew_spaces.launch.launch import BRIDGE_CONFIG, Launch, Program, bridges
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.run_file import Pids, RunFile, read_run_file, run_file_path

from mew_agent.bridge.settings import require_mcp
from mew_agent.cli.space.agent_sections import check_rehearsal, handed_over, read_section, window_for
from mew_agent.cli.space.locate import place_of, space_config_path, space_folder
from mew_agent.cli.space.ports import free_port, place_to_listen
from mew_agent.errors import ConfigError

MEW: Final = (sys.executable, "-P", "-m", "mew_agent")
"""This very `mew`, whatever PATH says, and whatever modules lie in the space's folder."""

INTERPRETER: Final = "MEW_PYTHON"
"""Variable that names the Python this runs under, so that a space's own programs find the same packages."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    config: Path | None = None
    folder: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Plan:
    """A space that is ready to be started: checked, with its tokens and addresses."""

    launch: Launch
    state: Path
    model_port: int | None = None
    model_arguments: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    person: str | None = None

    @property
    def space(self) -> str:
        """The space's id."""
        return self.launch.config.space.id

    @property
    def logs(self) -> Path:
        """The folder of the programs' logs."""
        return self.launch.folder / "logs"

    def services(self) -> list[Program]:
        """What the participants need before they start."""
        model = [self.launch.model(self.model_port, self.model_arguments)] if self.model_port else []
        return [self.launch.gateway(), *model]

    def run_file(self) -> RunFile:
        """The run file of the moment before anything is started, with this process as the supervisor."""
        me = os.getpid()
        return RunFile(
            space=self.space,
            name=self.launch.config.space.name,
            gateway=self.launch.address.http,
            ws=self.launch.address.ws,
            pids=Pids(supervisor=me),
            started_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            run_id=self.launch.run_id,
            config=str(self.launch.config_path),
            person=self.person,
            marks={str(me): started_mark(me) or ""},
        )

    def dashboard(self) -> str:
        """The dashboard's address. The token stands behind the `#`, so it is sent to nobody."""
        page = f"{self.launch.address.http}/dashboard"
        if self.person is None:
            return page
        told = {"token": self.launch.tokens[self.person], "space": self.space, "participant": self.person}
        return f"{page}#" + "&".join(f"{key}={quote(value, safe='')}" for key, value in told.items())


def make_plan(request: Request, environ: Mapping[str, str] = os.environ) -> Plan:
    """Check everything. Raises `ConfigError`, `SpaceConfigError`, `TokenError` or `PortInUse`."""
    path = space_config_path(request.config, request.folder)
    config = load_space(path)
    state, folder = state_dir(path), space_folder(path)
    _refuse_second_start(state)
    agents = {
        name: read_section(name, participant.agent, config, path, environ)
        for name, participant in config.participants.items()
        if participant.agent is not None and participant.auto_start
    }
    rehearsing = [agent.config for agent in agents.values() if agent.config.base_url == REHEARSAL]
    model_port = free_port("127.0.0.1") if rehearsing else None
    sessions = state / "sessions"
    launch = Launch(
        config=config,
        config_path=path.resolve(),
        folder=folder,
        address=place_to_listen(request.host, request.port),
        run_id=secrets.token_hex(8),
        mew=MEW,
        tokens={name: ensure_token(state, name, environ=environ) for name in config.participants},
        environ={**environ, INTERPRETER: sys.executable},
        agent_settings={
            name: handed_over(agent, sessions / f"{name}.db", model_port) for name, agent in agents.items()
        },
        log_level=request.log_level,
    )
    _check_programs(launch.participants(), path)
    _check_bridges(launch, bridges(config), path)
    if agents:
        sessions.mkdir(parents=True, exist_ok=True)
    return Plan(
        launch=launch,
        state=state,
        model_port=model_port,
        model_arguments=("--of-space", *window_for(rehearsing)),
        notices=(*(notice for agent in agents.values() for notice in agent.notices), *_unfilled(launch, path)),
        person=person_of(config),
    )


def newcomers(plan: Plan, environ: Mapping[str, str] = os.environ) -> tuple[Plan, list[Program]]:
    """The plan with the participants that were added to a space's file after it was started, and their programs.

    Their tokens exist by then: the running gateway made them. Raises as `make_plan`, and for an agent on the
    rehearsal model in a space that was started without it.
    """
    path, known = plan.launch.config_path, plan.launch.config.participants
    config = load_space(path)
    added = {name: one for name, one in config.participants.items() if name not in known}
    tokens, settings = dict(plan.launch.tokens), dict(plan.launch.agent_settings)
    for name, participant in added.items():
        tokens[name] = ensure_token(plan.state, name, environ=environ)
        if participant.agent is not None and participant.auto_start:
            agent = read_section(name, participant.agent, config, path, environ)
            check_rehearsal(agent.config, runs=plan.model_port is not None)
            settings[name] = handed_over(agent, plan.state / "sessions" / f"{name}.db", plan.model_port)
    launch = replace(plan.launch, config=config, tokens=tokens, agent_settings=settings)
    programs = [program for program in launch.participants() if program.name in added]
    _check_programs(programs, path)
    _check_bridges(launch, [name for name in bridges(config) if name in added], path)
    (plan.state / "sessions").mkdir(parents=True, exist_ok=True)
    return replace(plan, launch=launch), programs


def check_newcomer(name: str, config: SpaceConfig, path: Path, *, rehearses: bool) -> None:
    """Refuse what `newcomers` would refuse, before anything is changed. Raises `ConfigError`."""
    section, command = config.participants[name].agent, config.participants[name].command
    found = command is None or "${" in command or shutil.which(command) or (space_folder(path) / command).is_file()
    if not found and command != "mew":
        raise ConfigError(name, f"there is no program '{command}'")
    if section is not None:
        check_rehearsal(read_section(name, section, config, path, os.environ).config, runs=rehearses)


def person_of(config: SpaceConfig) -> str | None:
    """Who one-shot commands speak as: the default participant, else the only person."""
    if config.space.default_participant is not None:
        return config.space.default_participant
    people = [name for name in config.participants if config.is_person(name)]
    return people[0] if len(people) == 1 else None


def check_person(config: SpaceConfig, named: str | None) -> None:
    """Refuse to talk as somebody whom the space does not have, or as nobody. Raises `ConfigError`."""
    if named is not None and named not in config.participants:
        raise ConfigError("--participant", f"'{named}' is not in {config.space.id}", ", ".join(config.participants))
    if named is None and person_of(config) is None:
        raise ConfigError("--participant", "who talks?", "one of its people, or space.default_participant in its file")


def _refuse_second_start(state: Path) -> None:
    path = run_file_path(state)
    run = read_run_file(path)
    if run is not None and (run.is_running(run.pids.supervisor) or run.is_running(run.pids.gateway)):
        raise ConfigError(
            run.space, f"runs already, at {run.gateway} since {run.started_at}; see `mew status`, or `mew down`"
        )
    if run is not None and run.is_alive:
        raise ConfigError(run.space, "it ended, and left programs that still run; `mew down` stops them")
    path.unlink(missing_ok=True)


def _check_programs(programs: Sequence[Program], path: Path) -> None:
    for program in programs:
        name = program.command[0]
        found = shutil.which(name, path=program.environment.get("PATH"))
        if found is None and not (program.folder / name).is_file():
            raise ConfigError(place_of(path, program.name, "command"), f"there is no program '{name}'")
        if not program.folder.is_dir():
            raise ConfigError(place_of(path, program.name, "cwd"), f"there is no folder '{program.folder}'")


def _unfilled(launch: Launch, path: Path) -> Iterator[str]:
    for place, variable in launch.unset_variables():
        yield f"{place_in(path, place)}: {'.'.join(place)}: no {variable} is set; it is handed over as ${{{variable}}}"


def _check_bridges(launch: Launch, names: Sequence[str], path: Path) -> None:
    """Bridges are ours; what can be missing is the package they need, and the server's own program."""
    if names:
        require_mcp()
    for program in launch.participants():
        if program.name not in names:
            continue
        server = json.loads(program.environment[BRIDGE_CONFIG])["server"]
        if server["transport"] != "stdio":
            continue
        folder = Path(server["cwd"] or program.folder)
        if not folder.is_dir():
            raise ConfigError(place_of(path, program.name, "mcp_server", "cwd"), f"there is no folder '{folder}'")
        name, search = server["command"], server["env"].get("PATH", program.environment.get("PATH"))
        if shutil.which(name, path=search) is None and not (folder / name).is_file():
            raise ConfigError(place_of(path, program.name, "mcp_server", "command"), f"there is no program '{name}'")
