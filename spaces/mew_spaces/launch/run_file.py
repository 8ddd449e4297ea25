"""The run file: the running processes of a space, for every command in its folder.

Owns `<state>/run.json` and its form. It contains process ids with their start times, and never tokens. Next to it is
`pids.json` for the TypeScript CLI, whose `mew connect` uses it to find a space.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from mew_settings.private_files import create_private_file, replace_private_file
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import STATE_NAME, space_folder
from mew_spaces.launch.processes import is_running

RUN_FILE_NAME: Final = "run.json"
LAST_RUN_FILE_NAME: Final = "last-run.json"
PIDS_FILE_NAME: Final = "pids.json"
RESTART_FILE_NAME: Final = "restart.txt"

Role = Literal["gateway", "model", "participant"]
"""The role of a program in its space."""


class _RunRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Pids(_RunRecord):
    """Process ids of the supervisor, the gateway, the model server and the participants."""

    supervisor: int | None = None
    gateway: int | None = None
    model: int | None = None
    participants: dict[str, int] = Field(default_factory=dict)

    @property
    def programs(self) -> tuple[int, ...]:
        """All processes except the supervisor."""
        return tuple(pid for pid in (self.gateway, self.model, *self.participants.values()) if pid is not None)


class Exit(_RunRecord):
    """How a program ended. `code` is negative for a signal, and None if the program could not be started."""

    code: int | None
    at: str
    detail: str = ""

    @property
    def words(self) -> str:
        """Its end in words, with the last line of its output."""
        how = "could not be started"
        if self.code is not None:
            how = f"was ended by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{how}: {self.detail}" if self.detail else how


class RunFile(_RunRecord):
    """A running space. `ready` is set while everything is started.

    `marks` are the start times of the processes. `gateway_exit` says how the gateway ended, until it listens again.
    `person` is the default participant of one-shot commands. `ca_file` is the gateway's certificate, which clients on
    this machine trust.
    """

    space: str
    name: str | None = None
    gateway: str
    ws: str
    pids: Pids = Pids()
    started_at: str
    run_id: str = ""
    config: str = ""
    person: str | None = None
    ca_file: str | None = None
    host: str = "127.0.0.1"
    """The address that the gateway listens on, as it was configured."""
    log_level: str = "info"
    ready: bool = False
    marks: dict[str, str] = Field(default_factory=dict)
    starts: dict[str, int] = Field(default_factory=dict)
    """How often the program of each participant was started."""
    exits: dict[str, Exit] = Field(default_factory=dict)
    gateway_exit: Exit | None = None
    fifos: tuple[str, ...] = ()
    """FIFOs that its programs create; they are removed when the space stops."""

    def is_running(self, pid: int | None) -> bool:
        """Return whether this recorded process still runs."""
        return pid is not None and is_running(pid, self.marks.get(str(pid)))

    @property
    def processes(self) -> dict[int, str | None]:
        """Every recorded process except the supervisor, with its start time."""
        return {pid: self.marks.get(str(pid)) for pid in self.pids.programs}

    @property
    def is_alive(self) -> bool:
        """Whether any of its processes still runs."""
        return self.is_running(self.pids.supervisor) or any(self.is_running(pid) for pid in self.processes)

    @property
    def is_gateway_restarting(self) -> bool:
        """Whether the gateway has ended and the supervisor restarts it."""
        if not self.ready or not self.is_running(self.pids.supervisor):
            return False
        return self.gateway_exit is not None or not self.is_running(self.pids.gateway)

    def with_started(self, role: Role, name: str, pid: int, mark: str, fifos: Iterable[Path] = ()) -> "RunFile":
        """Return the run with a started program, which replaces its earlier start."""
        if role == "participant":
            pids = self.pids.model_copy(update={"participants": {**self.pids.participants, name: pid}})
        else:
            pids = self.pids.model_copy(update={role: pid})
        named = {str(one) for one in (pids.supervisor, *pids.programs)}
        changes = {
            "pids": pids,
            "marks": {one: begun for one, begun in {**self.marks, str(pid): mark}.items() if one in named},
            "starts": {**self.starts, name: self.starts.get(name, 0) + 1},
            "exits": {one: exit_ for one, exit_ in self.exits.items() if one != name},
            "fifos": tuple(dict.fromkeys((*self.fifos, *map(str, fifos)))),
        }
        return self.model_copy(update=changes)

    def with_ended(self, participant: str, exit_: Exit) -> "RunFile":
        """Return the run with the end, or the failed start, of a participant's program."""
        return self.model_copy(update={"exits": {**self.exits, participant: exit_}})

    def without(self, participant: str) -> "RunFile":
        """Return the run without a participant whose program has ended."""
        pids = {name: pid for name, pid in self.pids.participants.items() if name != participant}
        exits = {name: exit_ for name, exit_ in self.exits.items() if name != participant}
        return self.model_copy(update={"pids": self.pids.model_copy(update={"participants": pids}), "exits": exits})

    def faults(self) -> dict[str, str]:
        """Return the problems of programs, by participant; an exit with code 0 is no problem."""
        done = {name for name, exit_ in self.exits.items() if exit_.code == 0}
        return {name: words for name, words in self.ended().items() if name not in done}

    def ended(self) -> dict[str, str]:
        """Return how ended programs ended, by participant."""
        ended = {name: exit_.words for name, exit_ in self.exits.items()}
        silent = [
            name for name, pid in self.pids.participants.items() if name not in ended and not self.is_running(pid)
        ]
        return {**ended, **dict.fromkeys(silent, "its program is not running")}


class LastRun(_RunRecord):
    """How and when the last run of a space ended."""

    space: str
    how: str
    """A predicate, such as "was stopped with Ctrl-C"."""
    at: datetime


def run_file_path(state: Path) -> Path:
    """Return the path of a space's run file."""
    return state / RUN_FILE_NAME


def find_file(start: Path, find: Callable[[Path], Path | None]) -> Path | None:
    """Return what `find` returns for `start` or its nearest parent folder, or None.

    A file in a parent folder counts only if it belongs to this user or to root: it names programs to start or to stop,
    and anybody can put one into a folder such as /tmp.
    """
    folder = start.resolve()
    owners = {0, getattr(os, "geteuid", int)()}
    in_parents = (path for parent in folder.parents if (path := find(parent)) is not None)
    return find(folder) or next((path for path in in_parents if path.lstat().st_uid in owners), None)


def find_run_file(start: Path) -> Path | None:
    """Return the run file of `start` or its nearest parent folder with one, or None."""
    # The nearest one counts, so that commands work in any folder inside the space's folder.
    return find_file(start, lambda folder: _state_file(folder, RUN_FILE_NAME))


def _state_file(folder: Path, name: str) -> Path | None:
    path = folder / STATE_NAME / name
    return path if path.is_file() else None


def read_run_file(path: Path) -> RunFile | None:
    """Read a run file; None if there is none. Raises `SpacesError` if it is invalid."""
    try:
        return RunFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError):
        raise SpacesError(f"{path}: not a valid run file; stop its programs by hand and delete it") from None


def claim_run_file(path: Path, run: RunFile) -> None:
    """Create the run file. Raises `SpacesError` if it exists, so that only one of two concurrent starts succeeds."""
    with _errors_named(path):
        if not create_private_file(path, run.model_dump_json(indent=2) + "\n"):
            raise SpacesError(f"{path}: another process is starting this space")


def write_run_file(path: Path, run: RunFile) -> None:
    """Replace the run file atomically, and the pids file. Raises `SpacesError` if one cannot be written."""
    with _errors_named(path):
        replace_private_file(path, run.model_dump_json(indent=2) + "\n")
        pids = {
            "spaceId": run.space,
            "spaceName": run.name or run.space,
            "spaceDir": str(space_folder(path.parent.resolve())),
            "port": urlsplit(run.ws).port,
            "gateway": run.pids.gateway,
            "agents": run.pids.participants,
            "clients": {},
        }
        replace_private_file(path.with_name(PIDS_FILE_NAME), json.dumps(pids, indent=2) + "\n")


def end_run(path: Path, run: RunFile, how: str, *, at: datetime | None = None) -> None:
    """Remove the run file, and record how the run ended: `how` is a predicate, `at` the time (default: now)."""
    last = LastRun(space=run.space, how=how, at=at or datetime.now(UTC))
    with suppress(OSError):  # the record is optional; the space has ended in any case
        replace_private_file(path.with_name(LAST_RUN_FILE_NAME), last.model_dump_json(indent=2) + "\n")
    remove_run_file(path)


def find_last_run(folder: Path | None) -> LastRun | None:
    """Return how the last run of a folder ended; None if unknown.

    Without a folder, looks in the working folder and its parents.
    """

    def find(one: Path) -> Path | None:
        return _state_file(one, LAST_RUN_FILE_NAME)

    path = find(folder) if folder is not None else find_file(Path.cwd(), find)
    try:
        return LastRun.model_validate_json(path.read_bytes()) if path is not None else None
    except (OSError, ValidationError):
        return None


def remove_run_file(path: Path) -> None:
    """Remove the run file and the files next to it."""
    path.unlink(missing_ok=True)
    for name in (PIDS_FILE_NAME, RESTART_FILE_NAME):
        path.with_name(name).unlink(missing_ok=True)


def request_restart(path: Path, participant: str) -> None:
    """Ask the supervisor of a run file to restart a participant's program; it reads the request when signalled."""
    with _errors_named(path), path.with_name(RESTART_FILE_NAME).open("a", encoding="utf-8") as file:
        file.write(f"{participant}\n")


def pop_restart_requests(path: Path) -> list[str]:
    """Return the participants to restart, and delete the requests. Raises `SpacesError`."""
    file = path.with_name(RESTART_FILE_NAME)
    with _errors_named(file):
        try:
            # A request that arrives in the meantime starts a new file.
            requests = file.rename(file.with_suffix(".read"))
        except FileNotFoundError:
            return []
        names = requests.read_text(encoding="utf-8", errors="replace").splitlines()
        requests.unlink()
    return list(dict.fromkeys(names))


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpacesError(f"{path}: cannot be written: {error.strerror or error}") from None
