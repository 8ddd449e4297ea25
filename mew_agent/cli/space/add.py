"""`mew agent add`, and tokens in a running space: somebody new comes in without a restart.

Owns the order of the steps: the running gateway makes the place and its token (`space/invite`), space.yaml gets the
participant for the next start, and the process of `mew up` starts its program. Where no space runs only the file
changes.
"""

import json
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mew_protocol import kinds
from mew_protocol.ids import id_problem
from mew_spaces.config.loading import parse_space, with_participant
from mew_spaces.launch.run_file import RunFile, read_run_file

from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import Flags
from mew_agent.cli.remote.identity import find_run, take_seat
from mew_agent.cli.space.locate import space_config_path, space_folder
from mew_agent.cli.space.plan import check_newcomer
from mew_agent.cli.space.up import LOOK_AGAIN
from mew_agent.errors import ConfigError, GatewayError

AGENT_CAPABILITIES: Final = (
    "chat",
    "chat/*",
    "reasoning/*",
    "stream/*",
    "participant/status",
    "participant/compact-done",
)
JOIN_SECONDS: Final = 15.0

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Who is added, as it was typed. With neither a command nor `is_person` it is an agent of ours."""

    name: str
    model: str | None = None
    base_url: str | None = None
    system_prompt: str | None = None
    command: str | None = None
    capabilities: str | None = None
    is_person: bool = False
    starts: bool = True

    def settings(self) -> dict[str, Any]:
        """The participant's section of space.yaml. Raises `ConfigError`."""
        capabilities = patterns_of(self.capabilities)
        if self.is_person:
            return {"capabilities": capabilities or [{"kind": "chat"}]}
        section: dict[str, Any]
        if self.command is not None:
            program, *arguments = shlex.split(self.command) or [""]
            section = {"command": program, "args": arguments}
            usual = ["chat", "mcp/response", "participant/status"]
        else:
            told = {"model": self.model, "base_url": self.base_url, "system_prompt": self.system_prompt}
            section = {"agent": {key: value for key, value in told.items() if value is not None}}
            usual = [*AGENT_CAPABILITIES]
        return {
            **section,
            "auto_start": self.starts,
            "capabilities": capabilities or [{"kind": kind} for kind in usual],
        }


def add(newcomer: Newcomer, folder: Path | None, config: Path | None) -> int:
    """Add a participant. Returns the exit code. Raises what can be wrong before anything is changed."""
    problem = id_problem(newcomer.name)
    if problem:
        raise ConfigError("NAME", problem)
    path = space_config_path(config, folder)
    text = path.read_text(encoding="utf-8")
    settings = newcomer.settings()
    changed = with_participant(text, newcomer.name, settings, path=path)
    run_path, run = _running(path)
    starts = newcomer.starts and not newcomer.is_person
    if starts:
        check_newcomer(
            newcomer.name, parse_space(changed, path=path), path, rehearses=run is None or bool(run.pids.model)
        )
    if run is not None and run_path is not None:
        invite(newcomer.name, settings["capabilities"], folder=run_path.parent.parent, is_person=newcomer.is_person)
    _replace(path, changed)
    if run is None or run_path is None:
        terminal.say(f"{newcomer.name}: added to {path}; `mew up` starts the space")
        return terminal.DONE
    if not starts:
        terminal.say(f"{newcomer.name}: added; its token is in {run_path.parent / 'tokens'}")
        return terminal.DONE
    return _start(newcomer.name, run_path, run)


def let_into_running(name: str, capabilities: list[dict[str, Any]], path: Path, *, is_person: bool) -> bool:
    """Make a place in the running space of a file, unless it has one or nobody here could. Returns whether one runs."""
    run_path, run = _running(path)
    if run is None or run_path is None:
        return False
    if run.person is None:
        return True
    folder = run_path.parent.parent
    members = {entry["id"] for entry in take_seat(Flags(folder=folder)).api.board()["participants"]}
    if name not in members:
        invite(name, capabilities, folder=folder, is_person=is_person)
    return True


def invite(name: str, capabilities: list[dict[str, Any]], *, folder: Path, is_person: bool) -> None:
    """Let the running gateway of a folder make a place; it stores the token. Raises `GatewayError`, `NotPermitted`."""
    seat = take_seat(Flags(folder=folder))
    payload = {"participant_id": name, "initial_capabilities": capabilities, "several_sockets": is_person}
    seat.api.send({"kind": kinds.SPACE_INVITE, "payload": payload})


def patterns_of(text: str | None) -> list[dict[str, Any]]:
    """Capabilities given as JSON: a list of patterns or of kinds. Raises `ConfigError`."""
    if text is None:
        return []
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError("--capabilities", f"is no JSON: {error}", '["chat"] or [{"kind": "chat"}]') from None
    patterns = [{"kind": one} if isinstance(one, str) else one for one in value] if isinstance(value, list) else []
    if not patterns or not all(isinstance(one, dict) and "kind" in one for one in patterns):
        raise ConfigError("--capabilities", "is no list of patterns", '["chat"] or [{"kind": "chat"}]')
    return patterns


def _start(name: str, run_path: Path, run: RunFile) -> int:
    """Let the process of `mew up` start the newcomer, and wait until it has joined."""
    supervisor = run.pids.supervisor
    if supervisor is None or not run.is_running(supervisor):
        terminal.say(f"{name}: added; nobody can start it here, since `mew up` has ended: `mew agent run --id {name}`")
        return terminal.DONE
    os.kill(supervisor, LOOK_AGAIN)
    seat = take_seat(Flags(folder=run_path.parent.parent))
    until = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < until:
        newest = read_run_file(run_path)
        fault = newest.faults().get(name) if newest is not None else "the space has ended"
        if fault is not None:
            terminal.say(f"{name}: added, but it {fault} (see logs/{name}.log)")
            return terminal.FAILED
        if any(entry["id"] == name and entry["connected"] for entry in seat.api.board()["participants"]):
            terminal.say(f"{name}: added and joined")
            return terminal.DONE
        time.sleep(_POLL_SECONDS)
    terminal.say(f"{name}: added, but has not joined; see logs/{name}.log and logs/mew.log")
    return terminal.FAILED


def _running(path: Path) -> tuple[Path | None, RunFile | None]:
    """The run of the space of this very file, if it runs."""
    found = find_run(space_folder(path))
    if found is None or not found[1].is_running(found[1].pids.gateway):
        return None, None
    if Path(found[1].config).resolve() != path.resolve():
        raise GatewayError(f"another space runs in this folder: {found[1].config}")
    return found


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(path.stat().st_mode & 0o777)
    draft.replace(path)
