"""`mew agent add`: adds a participant to a space, without a restart if the space runs.

Owns the order of the steps: the running gateway admits the participant and creates its token (`space/invite`),
space.yaml gets its section for the next start, and the process of `mew up` starts its program. If no space runs, only
the file changes.
"""

import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from mew_protocol import kinds
from mew_protocol.capability import patterns_problem
from mew_protocol.ids import id_problem
from mew_spaces.config.loading import parse_space, with_participant
from mew_spaces.launch.run_file import RunFile, read_run_file

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import find_run, space_config_path, space_folder
from mew_agent.cli.app.options import ConnectionOptions, SpaceFileOptions, option, with_option_groups
from mew_agent.cli.remote.session import open_session
from mew_agent.cli.space.plan import check_new_participant
from mew_agent.cli.space.up import RELOAD_SIGNAL
from mew_agent.errors import ConfigError, GatewayError

AGENT_CAPABILITIES: Final[tuple[str, ...]] = (
    "chat",
    "chat/*",
    "reasoning/*",
    "stream/*",
    "participant/status",
    "participant/compact-done",
)
PROGRAM_CAPABILITIES: Final[tuple[str, ...]] = ("chat", "mcp/response", "participant/status")
JOIN_SECONDS: Final = 15.0

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class NewParticipant:
    """A participant to add, as given on the command line. Without `command` and `is_person` it is an agent."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="Id of the new participant.")]
    model: Annotated[str | None, option("--model, -m NAME", "Model (default: OPENAI_MODEL).")] = None
    base_url: Annotated[str | None, option("--base-url URL", "Model server (default: OPENAI_BASE_URL).")] = None
    system_prompt: Annotated[str | None, option("--prompt TEXT", "System prompt.")] = None
    command: Annotated[str | None, option("--command COMMAND", "Run this program instead of an agent.")] = None
    is_person: Annotated[bool, option("--person", "Add a person; starts no program.")] = False
    capabilities: Annotated[
        str | None, option("--capabilities, -c JSON", "List of patterns or kinds (default: those it needs to work).")
    ] = None
    starts: Annotated[bool, option("--start/--no-start", "Start it now, and with the space.")] = True

    def settings(self) -> dict[str, Any]:
        """The participant's section of space.yaml. Raises `ConfigError`."""
        capabilities = parse_capabilities(self.capabilities)
        if self.is_person:
            return {"capabilities": capabilities or [{"kind": "chat"}]}
        section: dict[str, Any]
        defaults = AGENT_CAPABILITIES
        if self.command is not None:
            program, *arguments = shlex.split(self.command) or [""]
            section = {"command": program, "args": arguments}
            defaults = PROGRAM_CAPABILITIES
        else:
            given = {"model": self.model, "base_url": self.base_url, "system_prompt": self.system_prompt}
            section = {"agent": {key: value for key, value in given.items() if value is not None}}
        capabilities = capabilities or [{"kind": kind} for kind in defaults]
        return {**section, "auto_start": self.starts, "capabilities": capabilities}


@with_option_groups
def add(newcomer: NewParticipant, place: SpaceFileOptions) -> int:
    """Add a participant, even while the space runs.

    No restart needed.
    """
    # Everything is checked before anything is changed.
    problem = id_problem(newcomer.name)
    if problem:
        raise ConfigError("NAME", problem)
    path = space_config_path(place.config, place.folder)
    settings = newcomer.settings()
    changed = with_participant(path.read_text(encoding="utf-8"), newcomer.name, settings, path=path)
    run_path, run = _running_space(path)
    starts = newcomer.starts and not newcomer.is_person
    if starts:
        has_rehearsal = run is None or bool(run.pids.model)
        check_new_participant(newcomer.name, parse_space(changed, path=path), path, has_rehearsal=has_rehearsal)
    if run_path is not None:
        invite(newcomer.name, settings["capabilities"], folder=run_path.parent.parent, is_person=newcomer.is_person)
    _replace_text(path, changed)
    if run is None or run_path is None:
        terminal.print_line(f"{newcomer.name}: added to {path}; `mew up` starts the space")
        return ExitCode.DONE
    if not starts:
        terminal.print_line(f"{newcomer.name}: added; its token is in {run_path.parent / 'tokens'}")
        return ExitCode.DONE
    return _start(newcomer.name, run_path, run)


def admit_to_running_space(name: str, capabilities: list[dict[str, Any]], path: Path, *, is_person: bool) -> bool:
    """Invite a participant into the running space of a file, unless it is a member. Returns whether the space runs.

    A space without a default person is left alone, because nobody could send the invitation.
    """
    run_path, run = _running_space(path)
    if run is None or run_path is None:
        return False
    if run.person is None:
        return True
    folder = run_path.parent.parent
    members = {entry["id"] for entry in open_session(ConnectionOptions(folder=folder)).api.board()["participants"]}
    if name not in members:
        invite(name, capabilities, folder=folder, is_person=is_person)
    return True


def invite(name: str, capabilities: list[dict[str, Any]], *, folder: Path, is_person: bool) -> None:
    """Have the gateway of a folder admit a participant and store its token. Raises `GatewayError`, `NotPermitted`."""
    payload = {"participant_id": name, "initial_capabilities": capabilities, "several_sockets": is_person}
    open_session(ConnectionOptions(folder=folder)).api.send({"kind": kinds.SPACE_INVITE, "payload": payload})


def parse_capabilities(text: str | None) -> list[dict[str, Any]]:
    """Read capabilities from JSON: a list of patterns or of kinds. Raises `ConfigError`."""
    if text is None:
        return []
    expected = '["chat"] or [{"kind": "chat"}]'
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError("--capabilities", f"is not JSON: {error}", expected) from None
    patterns = [{"kind": one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else []
    if not patterns or not all(isinstance(one, dict) and "kind" in one for one in patterns):
        raise ConfigError("--capabilities", "is not a list of patterns", expected)
    if (found := patterns_problem(patterns)) is not None:
        index, problem = found
        raise ConfigError("--capabilities", problem if index is None else f"pattern {index + 1}: {problem}")
    return patterns


def _start(name: str, run_path: Path, run: RunFile) -> int:
    """Have the process of `mew up` start the program, and wait until it has joined."""
    supervisor = run.pids.supervisor
    if supervisor is None or not run.is_running(supervisor):
        terminal.print_line(
            f"{name}: added, but `mew up` has ended; start it with `mew agent run --participant {name}`"
        )
        return ExitCode.DONE
    os.kill(supervisor, RELOAD_SIGNAL)
    api = open_session(ConnectionOptions(folder=run_path.parent.parent)).api
    until = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < until:
        newest = read_run_file(run_path)
        fault = newest.faults().get(name) if newest is not None else "the space has ended"
        if fault is not None:
            terminal.print_line(f"{name}: added, but {fault} (see logs/{name}.log)")
            return ExitCode.FAILED
        if any(entry["id"] == name and entry["connected"] for entry in api.board()["participants"]):
            terminal.print_line(f"{name}: added and joined")
            return ExitCode.DONE
        time.sleep(_POLL_SECONDS)
    terminal.print_line(f"{name}: added, but has not joined; see logs/{name}.log and logs/mew.log")
    return ExitCode.FAILED


def _running_space(path: Path) -> tuple[Path | None, RunFile | None]:
    """The run of the space of this file; None if it does not run. Raises `GatewayError` for another space."""
    found = find_run(space_folder(path))
    if found is None or not (found[1].is_running(found[1].pids.gateway) or found[1].is_gateway_restarting):
        return None, None
    if Path(found[1].config).resolve() != path.resolve():
        raise GatewayError(f"another space is running in this folder: {found[1].config}")
    return found


def _replace_text(path: Path, text: str) -> None:
    """Replace a file in one step and keep its permissions."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(path.stat().st_mode & 0o777)
    draft.replace(path)
