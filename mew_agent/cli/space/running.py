"""`mew dashboard`, `mew logs` and `mew down`: look at a running space, and stop it.

Owns the dashboard's address and the display of logs. `mew_spaces.launch.program_logs` writes the logs;
`mew_spaces.launch.supervisor` stops the programs.
"""

import os
import signal
import time
import webbrowser
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Final

from mew_board import words
from mew_settings.line_reader import LineReader
from mew_spaces.gateway.auth import state_dir
from mew_spaces.launch.processes import is_running
from mew_spaces.launch.program_logs import log_folder
from mew_spaces.launch.supervisor import stop_space

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import (
    dashboard_url,
    find_run,
    people_of,
    recorded_gateways,
    relative_to,
    space_config_path,
)
from mew_agent.cli.app.options import OUTPUT, ConnectionOptions, FolderOption, option, participant_argument
from mew_agent.cli.remote.identity import Identity, configuration_at, find_identity
from mew_agent.errors import ConfigError, GatewayError, unknown_name
from mew_agent.gateway_address import addresses, http_url

_POLL_SECONDS: Final = 0.2

DRAIN_LIMIT_SECONDS: Final = 30.0
"""How long a drained gateway may take to end."""


def dashboard(
    *,
    opens: Annotated[bool, option("--open", "Open it in a browser.")] = False,
    connection: ConnectionOptions,
) -> None:
    """Print the address of the dashboard.

    The address signs you in; it contains your token after `#`, which browsers do not send.
    """
    pages = [(who.participant, _page_of(who)) for who in _identities(connection)]
    if OUTPUT.is_json:
        terminal.print_json([{"participant": name, "url": url} for name, url in pages])
    else:
        terminal.print_lines(url if len(pages) == 1 else f"{name}: {url}" for name, url in pages)
    if opens and not webbrowser.open(pages[0][1]):
        terminal.warn("no browser can be started here; open the address yourself")


def _identities(connection: ConnectionOptions) -> list[Identity]:
    """Return the chosen or default participant, or all people if there is no default."""
    try:
        return [find_identity(connection)]
    except ConfigError:
        everyone = ConnectionOptions(folder=connection.folder)
        found = find_run(connection.folder)
        config = configuration_at(found[0]) if found is not None and connection == everyone else None
        people = people_of(config) if config is not None else []
        if len(people) < 2:
            raise
        return [find_identity(everyone, participant=name) for name in people]


def _page_of(who: Identity) -> str:
    config = configuration_at(who.run_path)
    public = config.gateway.public_url if config is not None else None
    return dashboard_url(public or addresses(http_url(who.gateway))[0], who.space, who.participant, who.token)


def logs(
    name: Annotated[str | None, participant_argument("Program whose log to print (default: all).", "NAME")] = None,
    *,
    follow: Annotated[bool, option("--follow, -f", "Keep running and print new lines.")] = False,
    last: Annotated[int, option("--last, -n N", "Number of lines to print from the end of each log.", min=0)] = 20,
    space_dir: FolderOption = None,
) -> None:
    """Print the logs of a space's programs.

    With --follow, --json prints one object per line. NAME is a participant, `gateway`, `mew` (the process of `mew up`)
    or `system:model` (the model server).
    """
    folder = _log_folder(space_dir)
    readers = [_LogReader(path, last) for path in _logs_in(folder, name)]
    if OUTPUT.is_json and not follow:
        terminal.print_json([{"name": one.name, "line": line} for one in readers for line in one.new_lines()])
        return
    if not readers:
        terminal.print_line(f"no logs in {relative_to(Path.cwd(), folder)}")
    width = 0 if name is not None else max((len(reader.name) for reader in readers), default=0)
    while readers:
        printed = sum(_print_new_lines(reader, width) for reader in readers)
        if not follow:
            if not printed:
                terminal.note(f"{name or 'no program'} has written nothing")
            return
        time.sleep(_POLL_SECONDS)


def down(
    space_dir: FolderOption = None,
    *,
    drain: Annotated[
        bool, option("--drain", "Stop a gateway of `mew gateway start` after its members have moved to others.")
    ] = False,
    port: Annotated[
        int | None, option("--port, -p PORT", "Port of the gateway to drain (default: the only one here).")
    ] = None,
    force: Annotated[bool, option("--force", hidden=True)] = False,
) -> None:
    """Stop the running space of this folder.

    Stops everything that `mew up` started. With --drain, stops one gateway on this machine while others keep serving
    its space.
    """
    del force  # programs that do not stop in time are killed in any case
    if drain:
        _drain(port, space_dir)
        return
    if port is not None:
        raise ConfigError("--port", "requires --drain")
    found = find_run(space_dir)
    if found is None:
        terminal.print_outcome("no space is running here", {"space": None, "stopped": False})
        return
    path, run = found
    with terminal.ProgressLine() as progress:
        progress.show(f"{run.space}: stopping {words.count_of(len(run.pids.participants), 'program')}")
        stopped = stop_space(path, run)
    text = f"{run.space}: stopped" if stopped else f"{run.space}: had already ended; cleaned up"
    terminal.print_outcome(text, {"space": run.space, "stopped": stopped})


def _drain(port: int | None, folder: Path | None) -> None:
    running = recorded_gateways(state_dir(space_config_path(None, folder)))
    chosen = next(iter(running)) if port is None and len(running) == 1 else port
    if chosen not in running:
        problem = (
            "several gateways run in this folder" if port is None else f"no gateway of this folder listens on {port}"
        )
        if not running:
            problem = "no gateway of `mew gateway start` runs in this folder"
        raise ConfigError("--port", problem, ", ".join(map(str, sorted(running))) or None)
    pid, mark = running[chosen].pid, running[chosen].mark
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DRAIN_LIMIT_SECONDS
    with terminal.ProgressLine() as progress:
        progress.show(f"waiting for the gateway at port {chosen} to end")
        while is_running(pid, mark):
            if time.monotonic() >= deadline:
                where = f"the gateway at port {chosen} (process {pid})"
                raise GatewayError(f"{where} is still running after {DRAIN_LIMIT_SECONDS:g} seconds; see its output")
            time.sleep(_POLL_SECONDS / 4)
    outcome = {"port": chosen, "stopped": True}
    terminal.print_outcome(f"the gateway at port {chosen} has stopped", outcome)


def _print_new_lines(reader: "_LogReader", width: int) -> int:
    """Print a log's new lines, each after its name in a column of this width (0: no name). Return their number."""
    mark, lines = f"{reader.name:<{width}} | " if width else "", [*reader.new_lines()]
    for line in lines:
        terminal.print_outcome(f"{mark}{line}", {"name": reader.name, "line": line})
    return len(lines)


def _log_folder(space_dir: Path | None) -> Path:
    found = find_run(space_dir)
    return log_folder(found[0].parent if found is not None else state_dir(space_config_path(None, space_dir)))


def _logs_in(folder: Path, name: str | None) -> list[Path]:
    """Return the log of this name, or all logs. Raises `ConfigError` if there is no such log."""
    known = {path.stem: path for path in sorted(folder.glob("*.log")) if not path.stem.endswith(".previous")}
    if name is None:
        return [*known.values()]
    if not known:
        raise ConfigError("NAME", f"no log of '{name}', {relative_to(Path.cwd(), folder)} is empty")
    if name not in known:
        raise unknown_name("NAME", f"no log of '{name}'", name, known)
    return [known[name]]


class _LogReader:
    """Yield the last lines of a log, then new lines."""

    def __init__(self, path: Path, lines: int) -> None:
        self.name = path.stem
        self._path = path
        with path.open("rb") as file:
            ends = deque(accumulate(map(len, file)), maxlen=lines + 1)
        self._offset, self._reader = ends[0] if len(ends) > lines else 0, LineReader()

    def new_lines(self) -> Iterator[str]:
        """Yield the complete lines since the last call. Read a truncated log from its start."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._offset:
                    self._offset, self._reader = 0, LineReader()
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        for line in self._reader.feed(data):
            yield line.decode("utf-8", errors="replace").rstrip("\r")
