"""The run file: what of a space is running where, for every command typed in its folder.

Owns `<state>/run.json` and its shape. It holds process ids with the moment each started, never tokens.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mew_spaces.errors import SpacesError
from mew_spaces.gateway.auth import STATE_NAME
from mew_spaces.launch.processes import is_running

RUN_FILE_NAME: Final = "run.json"

Role = Literal["gateway", "model", "participant"]
"""What a program is to its space."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Pids(_Section):
    """Process ids: the supervisor, the gateway, the rehearsal model if the space has one, participants by id."""

    supervisor: int | None = None
    gateway: int | None = None
    model: int | None = None
    participants: dict[str, int] = Field(default_factory=dict)

    @property
    def programs(self) -> tuple[int, ...]:
        """All but the supervisor."""
        return tuple(pid for pid in (self.gateway, self.model, *self.participants.values()) if pid is not None)

    @property
    def all(self) -> tuple[int, ...]:
        """Every process."""
        return self.programs if self.supervisor is None else (self.supervisor, *self.programs)


class Exit(_Section):
    """How a program ended. `code` is negative for a signal; None when it could not be started."""

    code: int | None
    at: str
    detail: str = ""

    @property
    def words(self) -> str:
        """How it ended, with the last it said."""
        if self.code is None:
            how = "could not be started"
        elif self.code < 0:
            how = f"was ended by signal {-self.code}"
        else:
            how = f"exited with code {self.code}"
        return f"{how}: {self.detail}" if self.detail else how


class RunFile(_Section):
    """A running space. `ready` is set once everything was started; `marks` tell our processes from strangers.

    `person` is who one-shot commands speak as unless told otherwise.
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
    ready: bool = False
    marks: dict[str, str] = Field(default_factory=dict)
    exits: dict[str, Exit] = Field(default_factory=dict)
    fifos: tuple[str, ...] = ()
    """FIFOs that its programs make; they go with the run."""

    def is_running(self, pid: int | None) -> bool:
        """Whether this process of ours still runs."""
        return pid is not None and is_running(pid, self.marks.get(str(pid)))

    @property
    def processes(self) -> dict[int, str | None]:
        """Every recorded process but the supervisor, with its mark."""
        return {pid: self.marks.get(str(pid)) for pid in self.pids.programs}

    @property
    def is_alive(self) -> bool:
        """Whether anything of it still runs."""
        return self.is_running(self.pids.supervisor) or any(self.is_running(pid) for pid in self.processes)

    def with_started(self, role: Role, name: str, pid: int, mark: str, fifos: Iterable[Path] = ()) -> "RunFile":
        """The run once a program was started. Of an earlier start of the same one nothing stays."""
        if role == "participant":
            pids = self.pids.model_copy(update={"participants": {**self.pids.participants, name: pid}})
        else:
            pids = self.pids.model_copy(update={role: pid})
        named = {str(one) for one in pids.all}
        changes = {
            "pids": pids,
            "marks": {one: begun for one, begun in {**self.marks, str(pid): mark}.items() if one in named},
            "exits": {one: exit_ for one, exit_ in self.exits.items() if one != name},
            "fifos": tuple(dict.fromkeys((*self.fifos, *map(str, fifos)))),
        }
        return self.model_copy(update=changes)

    def with_ended(self, participant: str, exit_: Exit) -> "RunFile":
        """The run once a participant's program has ended, or could not be started."""
        return self.model_copy(update={"exits": {**self.exits, participant: exit_}})

    def faults(self) -> dict[str, str]:
        """What is wrong with the programs of participants, in words, by participant."""
        found = {name: exit_.words for name, exit_ in self.exits.items()}
        for name, pid in self.pids.participants.items():
            if name not in found and not self.is_running(pid):
                found[name] = "its program is gone"
        return found


def run_file_path(state: Path) -> Path:
    """Where a space's run file lies."""
    return state / RUN_FILE_NAME


def read_run_file(path: Path) -> RunFile | None:
    """The run file, or None when there is none. Raises `SpacesError` for one that cannot be understood."""
    try:
        return RunFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError):
        raise SpacesError(f"{path}: is no run file; stop what it may name by hand and remove it") from None


def write_run_file(path: Path, run: RunFile) -> None:
    """Replace the run file in one step, readable by its owner alone. Raises `SpacesError` where that cannot be."""
    with _draft(path, run) as draft:
        draft.replace(path)


def claim_run_file(path: Path, run: RunFile) -> None:
    """Write the run file unless there is one: of two who start a space at once, one is told. Raises `SpacesError`."""
    with _draft(path, run) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            raise SpacesError(f"{path}: this space is being started by somebody else") from None


@contextmanager
def _draft(path: Path, run: RunFile) -> Iterator[Path]:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(run.model_dump_json(indent=2) + "\n")
        yield draft
    except OSError as error:
        raise SpacesError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def find_run_file(start: Path) -> Path | None:
    """The run file of the nearest folder from `start` upwards."""
    start = start.resolve()
    for folder in (start, *start.parents):
        path = run_file_path(folder / STATE_NAME)
        if path.is_file():
            return path
    return None
