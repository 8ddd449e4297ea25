"""The plan of `mew up`: everything checked and chosen before a program starts.

Collects the file, the address, the tokens and each agent's settings that a space needs to run. `start_checks` finds
mistakes in them. A plan is made once; a space in the background gets it as JSON. Starts nothing and prints nothing.
"""

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from mew_listener.listen_address import ListenAddress
from mew_settings.private_files import make_private_folder
from mew_spaces.config.loading import SpaceConfig, load_space, place_in
from mew_spaces.errors import PortInUse
from mew_spaces.gateway.auth import ensure_token, state_dir
from mew_spaces.gateway.certificate import tls_files
from mew_spaces.launch.launch import Launch, Program
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.program_logs import log_folder
from mew_spaces.launch.run_file import Pids, RunFile, read_run_file, remove_run_file, run_file_path
from pydantic import TypeAdapter

from mew_agent.certificates import CA_VARIABLE
from mew_agent.cli.app.addresses import certified_host, choose_address
from mew_agent.cli.app.locate import (
    OWN_COMMAND,
    REFERENCE_NOTICE,
    dashboard_url,
    default_person,
    in_mode,
    not_in_space,
    on_backplane,
    people_of,
    space_config_path,
    space_folder,
    which_person,
)
from mew_agent.cli.app.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    BackplaneOption,
    FolderOption,
    HostOption,
    LogLevelOption,
    complete_participants,
    option,
)
from mew_agent.cli.space.agent_sections import (
    AgentSection,
    ServedModel,
    check_served,
    process_settings,
    read_section,
    server_arguments,
    shared_model,
    unreachable_models,
)
from mew_agent.cli.space.agent_type import AGENT_KEY
from mew_agent.cli.space.start_checks import check_programs, warnings_about
from mew_agent.config.agent_config import AgentConfig
from mew_agent.errors import ConfigError
from mew_agent.model.builtin import is_builtin

INTERPRETER: Final = "MEW_PYTHON"
"""Variable with the running Python, so that a space's own programs find the same packages."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `mew up`. With `joins`, the user also joins as `participant` (default: the space's person)."""

    joins: Annotated[bool, option("--interactive, -i", "Run in the background and join from this terminal.")] = False
    participant: Annotated[
        str | None,
        option(
            "--participant ID",
            "With -i: participant to act as (default: the space's person).",
            autocompletion=complete_participants,
        ),
    ] = None
    port: Annotated[
        int | None,
        option(
            "--port, -p PORT",
            f"Port to listen on; 0 picks a free port (default: {DEFAULT_PORT}, else one up to {DEFAULT_PORT + 9}).",
            min=0,
            max=65535,
        ),
    ] = None
    config: Annotated[
        Path | None, option("--config, -c, --space-config FILE", "Path of space.yaml (default: found in the folder).")
    ] = None
    folder: FolderOption = None
    host: HostOption = DEFAULT_HOST
    backplane: BackplaneOption = None
    log_level: LogLevelOption = "info"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A space that is ready to start: checked, with its tokens and addresses.

    `served` is the model of its own model server; None without one.
    """

    launch: Launch
    state: Path
    model_port: int | None = None
    served: ServedModel | None = None
    model_arguments: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    person: str | None = None

    @property
    def space(self) -> str:
        """The space's id."""
        return self.launch.config.space.id

    @property
    def logs(self) -> Path:
        """The folder of the programs' logs, next to the gateway's logs."""
        return log_folder(self.state)

    @property
    def log_links(self) -> Path | None:
        """In reference mode, the folder of the TypeScript CLI's logs."""
        return self.launch.folder / "logs" if self.launch.config.is_reference else None

    @property
    def run_path(self) -> Path:
        """The path of the run file."""
        return run_file_path(self.state)

    def services(self) -> list[Program]:
        """Return the programs that participants need before they start."""
        model = [self.launch.model(self.model_port, self.model_arguments)] if self.model_port else []
        return [self.launch.gateway(), *model]

    def run_file(self) -> RunFile:
        """Return the initial run file, with this process as the supervisor."""
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
            ca_file=str(self.launch.ca_file) if self.launch.ca_file is not None else None,
            host=self.launch.address.host,
            log_level=self.launch.log_level,
            marks={str(me): started_mark(me) or ""},
        )

    @property
    def people(self) -> list[str]:
        """The default person of the space, else all people."""
        return [self.person] if self.person is not None else people_of(self.launch.config)

    def dashboards(self) -> list[tuple[str, str]]:
        """Return each person with their dashboard URL; without people, the page that asks for a token."""
        base = self.launch.config.gateway.public_url or self.launch.address.http
        pages = [(name, dashboard_url(base, self.space, name, self.launch.tokens[name])) for name in self.people]
        return pages or [("dashboard", f"{base}/dashboard")]

    def to_json(self) -> bytes:
        """Return the plan as JSON for another process of this user. Contains tokens; the environment is inherited."""
        launch = replace(self.launch, mew=(), environ={})
        values: dict[str, Any] = _plan_adapter().dump_python(replace(self, launch=launch), mode="json")
        # Only written keys: the settings of agents and capabilities depend on whether a key was given.
        values["launch"]["config"] = self.launch.config.model_dump(mode="json", exclude_unset=True)
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes, environ: Mapping[str, str] | None = None) -> "LaunchPlan":
        """Read a plan made by another process."""
        environ = os.environ if environ is None else environ
        plan = _plan_adapter().validate_json(data)
        return replace(plan, launch=replace(plan.launch, mew=OWN_COMMAND, environ=_program_environment(environ)))


@cache  # not at import: it takes 40 ms, and most commands that check a plan start nothing in the background
def _plan_adapter() -> TypeAdapter[LaunchPlan]:
    return TypeAdapter(LaunchPlan)


def make_launch_plan(options: StartOptions, environ: Mapping[str, str] | None = None) -> LaunchPlan:
    """Check everything and choose the open values. Raises `ConfigError` and errors of `mew_spaces`."""
    environ = os.environ if environ is None else environ
    path = space_config_path(options.config, options.folder)
    config = in_mode(on_backplane(load_space(path), options.backplane), environ)
    if options.joins:
        check_person(config, options.participant)
    state, folder = state_dir(path), space_folder(path)
    _refuse_second_start(state)
    agents = _read_agents(config, path, environ)
    configs = [agent.config for agent in agents.values()]
    served = shared_model(configs)
    model_port = choose_address("127.0.0.1", 0).port if served else None
    sessions = state / "sessions"
    address, tls = _chosen_or_next_address(options), tls_files(config, folder.resolve())
    if tls is not None:
        address = replace(address, has_tls=True, name=certified_host(tls, address))
        os.environ.setdefault(CA_VARIABLE, str(tls.cert))  # for the requests of this process
    launch = Launch(
        config=config,
        config_path=path.resolve(),
        folder=folder,
        address=address,
        ca_file=tls.cert if tls is not None else None,
        run_id=secrets.token_hex(8),
        mew=OWN_COMMAND,
        tokens={name: ensure_token(state, name, environ=environ) for name in config.participants},
        environ=_program_environment(environ),
        prepared={name: process_settings(agent, sessions / f"{name}.db", model_port) for name, agent in agents.items()},
        backplane=options.backplane,
        log_level=options.log_level,
        sessions=sessions,
    )
    check_programs(launch, launch.participants(), path)
    make_private_folder(sessions)
    notices = [notice for agent in agents.values() for notice in agent.notices]
    if options.port is None and address.port != DEFAULT_PORT:
        notices.insert(0, f"port {DEFAULT_PORT} is in use by another program; the gateway listens on {address.port}")
    return LaunchPlan(
        launch=launch,
        state=state,
        model_port=model_port,
        served=served,
        model_arguments=("--of-space", *server_arguments(served, configs)) if served else (),
        notices=(*notices, *_notices(launch, configs, path)),
        person=default_person(config),
    )


def _read_agents(config: SpaceConfig, path: Path, environ: Mapping[str, str]) -> dict[str, AgentSection]:
    """Read the sections of the agents to start. Raises `ConfigError`."""
    return {
        name: read_section(name, participant.section(AGENT_KEY), config, path, environ)
        for name, participant in config.participants.items()
        if participant.type_key == AGENT_KEY and participant.auto_start
    }


def _notices(launch: Launch, agents: Sequence[AgentConfig], path: Path) -> Iterator[str]:
    """Yield warnings before the start: variables that are not set, models out of reach, doubtful settings."""
    for place, name in launch.unset_variables():
        yield (
            f"{place_in(path, place)}: {'.'.join(place)}: {name} is not set; the program gets ${{{name}}}. "
            f"Set it before `mew up`: export {name}=..."
        )
    if launch.config.is_reference:
        yield REFERENCE_NOTICE
    yield from unreachable_models(agents)
    yield from warnings_about(launch.config, path)


def add_new_participants(
    plan: LaunchPlan, environ: Mapping[str, str] | None = None, *, again: Sequence[str] = ()
) -> tuple[LaunchPlan, list[Program]]:
    """Return the plan with the participants added to space.yaml since the start, and their programs.

    Includes the programs of the participants `again` with their current settings. The running gateway has already
    created the tokens. Raises the errors of `make_launch_plan`, and `ConfigError` for a model that the space's own
    server does not serve.
    """
    environ = os.environ if environ is None else environ
    path, known = plan.launch.config_path, plan.launch.config.participants
    config = in_mode(load_space(path), environ)
    added = {name: one for name, one in config.participants.items() if name not in known or name in again}
    tokens, settings = dict(plan.launch.tokens), dict(plan.launch.prepared)
    for name, participant in added.items():
        tokens[name] = ensure_token(plan.state, name, environ=environ)
        if participant.type_key == AGENT_KEY and (participant.auto_start or name in again):
            agent = read_section(name, participant.section(AGENT_KEY), config, path, environ)
            check_served(agent.config, plan.served)
            settings[name] = process_settings(agent, plan.state / "sessions" / f"{name}.db", plan.model_port)
    launch = replace(plan.launch, config=config, tokens=tokens, prepared=settings)
    programs = [program for program in launch.participants(again) if program.name in added]
    check_programs(launch, programs, path)
    make_private_folder(plan.state / "sessions")
    return replace(plan, launch=launch), programs


def check_new_participant(
    name: str, config: SpaceConfig, path: Path, *, has_model_server: bool = True
) -> tuple[str, ...]:
    """Run the checks of `add_new_participants` before anything changes. Raises `ConfigError`.

    `has_model_server`: the running space has started one, or the space does not run. Returns warnings.
    """
    one = config.participants[name]
    launch = Launch(
        config=config,
        config_path=path,
        folder=space_folder(path),
        address=ListenAddress("127.0.0.1", DEFAULT_PORT),
        run_id="",
        mew=OWN_COMMAND,
        tokens=dict.fromkeys(config.participants, ""),
        environ=_program_environment(os.environ),
    )
    check_programs(launch, [program for program in launch.participants((name,)) if program.name == name], path)
    if one.type_key != AGENT_KEY:
        return ()
    agents = {
        other: read_section(other, section, config, path, os.environ).config
        for other, participant in config.participants.items()
        if (section := participant.section(AGENT_KEY)) is not None
        if other == name or (participant.auto_start and is_builtin(section.base_url))
    }
    if not has_model_server:
        check_served(agents[name], None)
    shared_model(agents.values())
    return tuple(unreachable_models([agents[name]]))


def check_person(config: SpaceConfig, chosen: str | None) -> None:
    """Refuse to join as a participant that the space does not have. Raises `ConfigError`."""
    if chosen is not None and chosen not in config.participants:
        raise not_in_space("--participant", chosen, config, f"space '{config.space.id}'")
    if chosen is None and default_person(config) is None:
        raise ConfigError("--participant", which_person(config))


def _chosen_or_next_address(options: StartOptions) -> ListenAddress:
    """Return the requested address, else the first free one from the default port on, as the TypeScript CLI does."""
    if options.port is not None:
        return choose_address(options.host, options.port)
    for port in range(DEFAULT_PORT, DEFAULT_PORT + 9):
        with contextlib.suppress(PortInUse):
            return choose_address(options.host, port)
    return choose_address(options.host, DEFAULT_PORT + 9)


def _program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, INTERPRETER: sys.executable}


def _refuse_second_start(state: Path) -> None:
    path = run_file_path(state)
    run = read_run_file(path)
    if run is not None and (run.is_running(run.pids.supervisor) or run.is_running(run.pids.gateway)):
        raise ConfigError(
            run.space, f"is already running at {run.gateway} since {run.started_at}; see `mew status`, or `mew down`"
        )
    if run is not None and run.is_alive:
        raise ConfigError(run.space, "has ended, but some of its programs still run; `mew down` stops them")
    remove_run_file(path)
