"""`mew restart`: restarts a running space, or the program of one participant.

Checks the request, and asks the process of `mew up` to start a program; `up` starts a space.
"""

import os
import time
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from mew_protocol.payloads.participant import BoardEntry
from mew_spaces.config.loading import load_space
from mew_spaces.launch.run_file import RunFile, read_run_file, request_restart
from mew_spaces.launch.supervisor import stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import find_run, not_in_space
from mew_agent.cli.app.options import ConnectionOptions, FolderOption, participant_argument, read_log_level
from mew_agent.cli.board.board_events import entry_of
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.space.plan import StartOptions, check_new_participant, make_launch_plan
from mew_agent.cli.space.up import JOIN_SECONDS, RELOAD_SIGNAL, start_detached
from mew_agent.errors import ConfigError, Unauthorized

_POLL_SECONDS: Final = 0.05


def restart(
    participant: Annotated[
        str | None, participant_argument("Id of the participant (default: the whole space).")
    ] = None,
    *,
    space_dir: FolderOption = None,
) -> int:
    """Restart the running space, or one participant.

    Programs start with the current settings of space.yaml. A participant that is not running is started. A space keeps
    its address and runs in the background afterwards.
    """
    found = find_run(space_dir)
    if found is None:
        raise ConfigError(str(space_dir or Path.cwd()), "no space is running here; `mew up` starts one")
    path, run = found
    if participant is not None:
        return _restart_participant(participant, path, run)
    load_space(run.config)  # a mistake in the file must not stop the space
    options = StartOptions(
        port=urlsplit(run.ws).port, config=Path(run.config), host=run.host, log_level=read_log_level(run.log_level)
    )
    stop_space(path, run)
    return start_detached(make_launch_plan(options))


def _restart_participant(name: str, path: Path, run: RunFile) -> int:
    """Make `mew up` restart a program, and wait until the new one has joined or ended."""
    config = load_space(run.config)
    if name not in config.participants:
        raise not_in_space("PARTICIPANT", name, config, run.config)
    if not config.participants[name].has_program:
        raise ConfigError("PARTICIPANT", f"'{name}' has no program in {run.config}, so there is nothing to restart")
    if supervisor_of(run) is None:
        raise ConfigError(run.space, "its `mew up` has ended; use `mew restart` without a participant")
    is_first = name not in run.pids.participants and name not in run.exits
    api, is_connected = _access(name, path, run, is_first=is_first)
    if is_first:
        if is_connected:
            raise ConfigError("PARTICIPANT", f"the program of '{name}' was not started by `mew up`; stop it first")
        for notice in check_new_participant(name, config, Path(run.config), has_model_server=bool(run.pids.model)):
            terminal.warn(notice)
    request_restart(path, name)
    try:
        fault = start_program(name, path, run, api)
    except TimeoutError as error:
        fault = f"{error}; `mew logs {name}` may show why"
    text = fault or ("started" if is_first else "restarted")
    outcome = {"participant": name, "restarted": fault is None, "fault": fault, "text": text}
    terminal.print_outcome(f"{name}: {text}", outcome)
    return ExitCode.DONE if fault is None else ExitCode.FAILED


def _access(name: str, path: Path, run: RunFile, *, is_first: bool) -> tuple[GatewayApi, bool]:
    """Return access as the participant itself (every space has its token), if it is connected."""
    connection = ConnectionOptions(name, gateway=run.gateway, space=run.space, folder=path.parent.parent)
    try:
        api = find_gateway(connection)
        return api, _entry(api, name).connected
    except (ConfigError, Unauthorized):
        if not is_first:
            raise
        by_hand = f"'{name}' was added to {run.config} by hand"
        advice = "`mew restart` without a participant makes the gateway read it"
        raise ConfigError("PARTICIPANT", f"{by_hand}; {advice}") from None


def supervisor_of(run: RunFile) -> int | None:
    """Return the id of the process of `mew up` that runs a space; None if it has ended."""
    pid = run.pids.supervisor
    return pid if run.is_running(pid) else None


def reload(run: RunFile) -> None:
    """Make the process of `mew up` read space.yaml and its requests again, unless it has ended."""
    if (supervisor := supervisor_of(run)) is not None:
        os.kill(supervisor, RELOAD_SIGNAL)


def start_program(name: str, path: Path, run: RunFile, api: GatewayApi) -> str | None:
    """Make `mew up` read space.yaml and its requests again, and wait until the participant's new program has joined.

    An agent has joined once it has sent a status, so that the board shows none of an earlier program. Returns None, or
    why the program ended. Raises `TimeoutError` if neither happens in time.
    """
    before = _entry(api, name)
    known = before.status_id if before.status is not None and before.status.context is not None else None
    reload(run)
    until = time.monotonic() + JOIN_SECONDS
    entry: BoardEntry | None = None
    with terminal.ProgressLine() as progress:
        while time.monotonic() < until:
            newest = read_run_file(path)
            if newest is None or supervisor_of(newest) is None:
                return "the space has ended; `mew up` starts it again"
            is_new = _program(newest, name) != _program(run, name)
            progress.show(f"{name}: {'waiting until it has joined' if is_new else 'starting'}")
            if is_new:
                if (ended := newest.exits.get(name)) is not None:  # the supervisor records each end with its reason
                    return ended.words
                entry = _entry(api, name)
                if entry.connected and (known is None or entry.status_id != known):
                    return None
            time.sleep(_POLL_SECONDS)
    if entry is not None and entry.connected:  # it sends no further status
        return None
    raise TimeoutError(f"has not joined within {JOIN_SECONDS:g} seconds")


def _program(run: RunFile, name: str) -> tuple[object, object]:
    """Return a value that changes whenever a participant's program starts or ends."""
    return run.starts.get(name), run.exits.get(name)


def _entry(api: GatewayApi, name: str) -> BoardEntry:
    """Return a participant's line of the board; if it has none, a line without a connection."""
    return entry_of(api.board(), name) or BoardEntry(id=name, connected=False)
