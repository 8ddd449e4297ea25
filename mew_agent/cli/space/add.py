"""`mew agent add`: adds a participant to a space, without a restart if the space runs.

Owns the steps: the running gateway admits the participant and creates its token (`space/invite`), space.yaml gets its
section, and the process of `mew up` starts its program. A participant whose program fails at once is removed again. If
no space runs, only the file changes.
"""

import shlex
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from mew_protocol import kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft
from mew_protocol.ids import typed_id_problem
from mew_settings.participant_types import AddedBy, participant_types
from mew_settings.private_files import replace_file
from mew_settings.roles import Role, invitation
from mew_settings.setting_problems import first_problem
from mew_spaces.config.loading import ParticipantConfig, SpaceConfig, parse_space, with_participant
from mew_spaces.launch.program_logs import log_folder, log_path
from mew_spaces.launch.run_file import RunFile
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.capabilities import read_capabilities, warn_of_unknown_kinds
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import find_run, people_of, relative_to, space_config_path, space_folder
from mew_agent.cli.app.options import ConnectionOptions, SpaceFileOptions, option
from mew_agent.cli.board.board_events import entry_of
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.space.agent_type import AGENT_KEY
from mew_agent.cli.space.plan import INTERPRETER, check_new_participant
from mew_agent.cli.space.restart import reload, start_program, supervisor_of
from mew_agent.errors import ConfigError, GatewayError, MewAgentError


def _help(by: AddedBy) -> str:
    return f"{by.help[:-1]}: {', '.join(by.choices)}." if by.choices else by.help


class _SectionOptions:
    """One option for each participant type that can be added from the command line."""

    def given(self) -> dict[str, str]:
        """Return the given values by section key."""
        return {key: value for key in participant_types() if (value := getattr(self, key, None)) is not None}


if TYPE_CHECKING:

    class SectionOptions(_SectionOptions):
        """Accepts the values by section key."""

        def __init__(self, **given: str | None) -> None: ...

else:
    _FIELDS = [
        (key, Annotated[str | None, option(f"{by.option} {by.value.upper()}", _help(by))], None)
        for key, kind in participant_types().items()
        if (by := kind.added_by) is not None
    ]
    SectionOptions = make_dataclass("SectionOptions", _FIELDS, bases=(_SectionOptions,), frozen=True)


@dataclass(frozen=True, slots=True)
class NewParticipant:
    """A participant to add, as given on the command line (default: an agent)."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="Id of the new participant.")]
    of_types: SectionOptions = field(default_factory=SectionOptions)
    model: Annotated[str | None, option("--model, -m NAME", "Model (default: OPENAI_MODEL).")] = None
    base_url: Annotated[str | None, option("--base-url URL", "Model server (default: OPENAI_BASE_URL).")] = None
    api_key_env: Annotated[
        str | None, option("--api-key-env NAME", "Environment variable with its API key (default: OPENAI_API_KEY).")
    ] = None
    system_prompt: Annotated[str | None, option("--prompt TEXT", "System prompt.")] = None
    command: Annotated[
        str | None, option("--command COMMAND", "Run this program, or FILE.py, instead of an agent.")
    ] = None
    is_person: Annotated[bool, option("--person", "Add a person; starts no program.")] = False
    role: Annotated[Role | None, option("--role ROLE", "agent, tool, person or observer (default: by type).")] = None
    capabilities: Annotated[
        str | None, option("--capabilities, -c JSON", "List of patterns or kinds (default: those of its role).")
    ] = None
    starts: Annotated[bool, option("--start/--no-start", "Start it now, and with the space.")] = True

    def settings(self) -> dict[str, Any]:
        """Return the participant's section of space.yaml. Raises `ConfigError`."""
        self._refuse_two_kinds()
        section = self._program_section()
        if section:
            section["auto_start"] = self.starts
        if self.role is not None or self.capabilities is None:
            try:
                section["role"] = self.role or ParticipantConfig.model_validate(section).acts_as
            except ValidationError as error:
                raise ConfigError(self.name, first_problem(error)) from None
        if self.capabilities is not None:
            section["capabilities"] = read_capabilities("--capabilities", self.capabilities)
            warn_of_unknown_kinds(section["capabilities"])
        return section

    def _refuse_two_kinds(self) -> None:
        """Raise `ConfigError` for options of two participant types."""
        types = participant_types()
        kinds_given = [by.option for key in self.of_types.given() if (by := types[key].added_by) is not None]
        kinds_given += [flag for flag, value in (("--command", self.command), ("--person", self.is_person)) if value]
        of_agents = {"--model": self.model, "--base-url": self.base_url, "--prompt": self.system_prompt}
        given = kinds_given + [flag for flag, value in of_agents.items() if value is not None]
        if kinds_given and len(given) > 1:
            raise ConfigError(given[0], f"cannot be combined with {given[1]}")

    def _program_section(self) -> dict[str, Any]:
        """Return the section's part that names a program; empty for a person."""
        for key, text in self.of_types.given().items():
            return {key: participant_types()[key].section_from(text)}
        if self.command is not None:
            words = shlex.split(self.command) or [""]
            if words[0].endswith(".py"):
                words.insert(0, f"${{{INTERPRETER}}}")
            return {"command": words[0], "args": words[1:]}
        if self.is_person or self.role not in (None, "agent"):
            return {}
        keys = ("model", "base_url", "api_key_env", "system_prompt")
        return {AGENT_KEY: {key: value for key in keys if (value := getattr(self, key)) is not None}}


@dataclass(frozen=True, slots=True)
class AddOutcome:
    """The outcome of an addition: a text and two flags."""

    text: str
    is_added: bool = True
    has_joined: bool = False


def add(newcomer: NewParticipant, place: SpaceFileOptions) -> int:
    """Add a participant, even while the space runs.

    No restart needed.
    """
    done = _add(newcomer, place)
    outcome = {"participant": newcomer.name, "added": done.is_added, "joined": done.has_joined, "text": done.text}
    terminal.print_outcome(f"{newcomer.name}: {done.text}", outcome)
    return ExitCode.DONE if done.is_added else ExitCode.FAILED


def _add(newcomer: NewParticipant, place: SpaceFileOptions) -> AddOutcome:
    # Check everything before the first change.
    problem = typed_id_problem(newcomer.name)
    if problem:
        raise ConfigError("NAME", problem)
    path = space_config_path(place.config, place.folder)
    before = path.read_text(encoding="utf-8")
    changed = with_participant(before, newcomer.name, newcomer.settings(), path=path)
    config = parse_space(changed, path=path)
    running = running_space(path, config)
    starts = newcomer.starts and config.participants[newcomer.name].has_program
    if starts:
        has_model_server = running is None or bool(running.run.pids.model)
        for notice in check_new_participant(newcomer.name, config, path, has_model_server=has_model_server):
            terminal.warn(notice)
    if running is not None:
        running.invite(newcomer.name, [*config.patterns_of(newcomer.name)])
    replace_file(path, changed)
    if running is None:
        return AddOutcome(f"added to {path}; `mew up` starts the space")
    state = running.run_path.parent
    if not starts:
        if config.is_person(newcomer.name):
            return AddOutcome(f"added; `mew dashboard --participant {newcomer.name}` prints the address that signs in")
        return AddOutcome(f"added; its token is in {state / 'tokens'}")
    done = _start(newcomer.name, running)
    if not done.is_added:
        if path.read_text(encoding="utf-8") == changed:
            replace_file(path, before)
        _withdraw(newcomer.name, running)
        log = relative_to(Path.cwd(), log_path(log_folder(state), newcomer.name))
        return replace(done, text=f"not added: {done.text} (see {log})")
    return done


@dataclass(frozen=True, slots=True)
class RunningSpace:
    """A running space, for inviting participants into it."""

    run_path: Path
    run: RunFile
    config: SpaceConfig

    def access(self) -> GatewayApi:
        """Return access as the inviting person."""
        folder = self.run_path.parent.parent
        return find_gateway(ConnectionOptions(participant=inviter_of(self.config, self.run), folder=folder))

    def has_member(self, name: str) -> bool:
        """Return True if the space has this participant, connected or not."""
        return entry_of(self.access().board(), name) is not None

    def invite(self, name: str, patterns: list[dict[str, Any]]) -> None:
        """Have the gateway admit a participant and store its token. Raises `GatewayError` and `NotPermitted`."""
        is_known = name in self.config.participants
        payload = invitation(name, patterns)
        payload["several_sockets"] = not is_known or self.config.is_person(name)
        # After a restart space.yaml alone lists its participants, so removing one there is enough.
        payload["until_restart"] = is_known
        self.access().send({"kind": kinds.SPACE_INVITE, "payload": payload})


def running_space(path: Path, config: SpaceConfig) -> RunningSpace | None:
    """Return the running space of this file; None if it does not run. Raises `GatewayError` for another space."""
    found = find_run(space_folder(path))
    if found is None or not (found[1].is_running(found[1].pids.gateway) or found[1].is_gateway_restarting):
        return None
    if Path(found[1].config).resolve() != path.resolve():
        raise GatewayError(f"another space is running in this folder: {found[1].config}; stop it with `mew down` first")
    return RunningSpace(*found, config)


def inviter_of(config: SpaceConfig, run: RunFile) -> str | None:
    """Return the inviting person: the default one, else the first with the capability; None without people."""
    if run.person is not None:
        return run.person
    people = people_of(config)
    may_invite = (
        name for name in people if CapabilitySet(config.patterns_of(name)).allows(Draft(kind=kinds.SPACE_INVITE))
    )
    return next(may_invite, people[0] if people else None)


def _withdraw(name: str, running: RunningSpace) -> None:
    """Remove a participant after its program failed, from the running space and from `mew up`."""
    payload = {"participant_id": name, "reason": "it failed to start"}
    try:
        running.access().send({"kind": kinds.SPACE_KICK, "payload": payload})
    except MewAgentError as error:
        terminal.warn(f"'{name}' stays a member until the next start: {error}")
    reload(running.run)


def _start(name: str, running: RunningSpace) -> AddOutcome:
    """Have the process of `mew up` start the program, and wait until it has joined. Returns the outcome as text."""
    if supervisor_of(running.run) is None:
        return AddOutcome(f"added, but `mew up` has ended; start it with `mew agent run --participant {name}`")
    try:
        fault = start_program(name, running.run_path, running.run, running.access())
    except TimeoutError:
        folder = log_folder(running.run_path.parent)
        log = name if log_path(folder, name).exists() else "mew"  # `mew up` did not start it
        return AddOutcome(f"added, but has not joined yet; `mew logs {log}` shows why")
    return AddOutcome(fault, is_added=False) if fault is not None else AddOutcome("added and joined", has_joined=True)
