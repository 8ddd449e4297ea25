"""`mew restart`: restarts a running space, or the program of one participant.

Owns what is checked and printed. `up` starts a space; the process of `mew up` restarts a program.
"""

import os
import time
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from mew_spaces.config.loading import load_space
from mew_spaces.launch.run_file import RunFile, read_run_file, request_restart
from mew_spaces.launch.supervisor import stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import find_run
from mew_agent.cli.app.options import ConnectionOptions, FolderOption, JsonOption, LogLevel, participant_argument
from mew_agent.cli.remote.session import open_session
from mew_agent.cli.space.plan import StartOptions, make_launch_plan
from mew_agent.cli.space.up import RELOAD_SIGNAL, start_detached
from mew_agent.errors import ConfigError, did_you_mean

RESTART_SECONDS: Final = 20.0
"""Time for a program to end, start again and join."""

_POLL_SECONDS: Final = 0.05


def restart(
    participant: Annotated[
        str | None, participant_argument("Id of the participant (default: the whole space).")
    ] = None,
    *,
    as_json: JsonOption = False,
    space_dir: FolderOption = None,
) -> int:
    """Restart the running space, or one participant.

    Programs start with the settings that space.yaml has now. A space keeps its address, and runs in the background
    afterwards.
    """
    found = find_run(space_dir)
    if found is None:
        raise ConfigError(str(space_dir or Path.cwd()), "no space is running here; `mew up` starts one")
    path, run = found
    if participant is not None:
        return _restart_participant(participant, path, run, as_json=as_json)
    load_space(run.config)  # a mistake in it must not stop the space
    options = StartOptions(
        port=urlsplit(run.ws).port, config=Path(run.config), host=run.host, log_level=LogLevel(run.log_level)
    )
    stop_space(path, run)
    return start_detached(make_launch_plan(options), as_json=as_json)


def _restart_participant(name: str, path: Path, run: RunFile, *, as_json: bool) -> int:
    """Have the process of `mew up` restart a program, and wait until the new one has joined or ended."""
    config = load_space(run.config)
    if name not in config.participants:
        raise ConfigError("PARTICIPANT", f"'{name}' is not in {run.config}{did_you_mean(name, config.participants)}")
    if name not in run.pids.participants and name not in run.exits:
        raise ConfigError("PARTICIPANT", f"`mew up` started no program for '{name}'")
    supervisor = run.pids.supervisor
    if supervisor is None or not run.is_running(supervisor):
        raise ConfigError(run.space, "its `mew up` has ended; use `mew restart` without a participant")
    request_restart(path, name)
    os.kill(supervisor, RELOAD_SIGNAL)
    fault = _wait_restarted(name, path, run)
    text = f"{name}: restarted" if fault is None else f"{name}: {fault}"
    terminal.print_outcome(text, {"participant": name, "restarted": fault is None, "fault": fault}, as_json=as_json)
    return ExitCode.DONE if fault is None else ExitCode.FAILED


def _wait_restarted(name: str, path: Path, run: RunFile) -> str | None:
    """Wait until a new program of the participant has joined. Returns what is wrong; None if nothing is."""
    connection = ConnectionOptions(name, gateway=run.gateway, space=run.space, folder=path.parent.parent)
    api = open_session(connection).api  # reads as the participant itself, which every space has a token of
    until = time.monotonic() + RESTART_SECONDS
    while time.monotonic() < until:
        newest = read_run_file(path)
        if newest is None:
            return "the space has ended"
        if (newest.pids.participants.get(name), newest.exits.get(name)) != (
            run.pids.participants.get(name),
            run.exits.get(name),
        ):
            if (fault := newest.faults().get(name)) is not None:
                return fault
            if any(entry["id"] == name and entry["connected"] for entry in api.board()["participants"]):
                return None
        time.sleep(_POLL_SECONDS)
    return f"has not joined within {RESTART_SECONDS:g} seconds"
