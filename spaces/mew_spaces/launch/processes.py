"""Processes of ours and nobody else's: telling them from strangers, and stopping them with all they started.

A process id is used again sooner or later, so an id alone never decides a signal. What we start leads a session
and a process group of its own; it is recognised by the moment it started, and what it left behind by a mark in
its environment. Owns no file and no policy.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

RUN_VARIABLE: Final = "MEW_RUN"
"""Environment variable that marks everything a space started, with the id of that run."""

_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.02


def started_mark(pid: int) -> str | None:
    """When a process started, as text that is only compared; None when it does not run (a zombie does not)."""
    if _PROC.joinpath("self", "stat").exists():
        fields = _stat(_PROC / str(pid))
        return None if fields is None or fields[0] in "ZX" else fields[19]
    shown = subprocess.run(  # noqa: S603 - a fixed program, and the id is a number
        ["ps", "-o", "state=,lstart=", "-p", str(int(pid))],  # noqa: S607 - ps is where the system has it
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    state, _, moment = shown.partition(" ")
    return None if not moment or state.startswith("Z") else moment.strip()


def is_running(pid: int, mark: str | None) -> bool:
    """Whether the process we started under this id still runs. Without a mark nothing is ours."""
    return mark is not None and started_mark(pid) == mark


def signal_group(pid: int, mark: str | None, number: signal.Signals) -> bool:
    """Signal a process we started and its whole group. Returns False when it does not run any more."""
    if not is_running(pid, mark):
        return False
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def left_behind(groups: Iterable[int], run_id: str) -> list[int]:
    """Processes of these groups that bear the mark of a run, though their leader may be gone.

    Only Linux shows another process's environment; elsewhere the list is empty.
    """
    wanted = set(groups)
    return [
        pid
        for pid, group in _running_with_groups()
        if group in wanted and pid != os.getpid() and _bears_mark(pid, run_id)
    ]


def stop_groups(marks: dict[int, str | None], run_id: str, *, grace_seconds: float) -> list[int]:
    """Stop every group we started: ask, wait, then force. Blocks for at most the grace and one second.

    `marks` are leaders' ids with the mark of their start. Returns the leaders that were running.
    """
    running = [pid for pid, mark in marks.items() if signal_group(pid, mark, signal.SIGTERM)]
    for pid in left_behind(marks, run_id):
        _signal(pid, signal.SIGTERM)
    if _gone(marks, run_id, grace_seconds):
        return running
    for pid, mark in marks.items():
        signal_group(pid, mark, signal.SIGKILL)
    for pid in left_behind(marks, run_id):
        _signal(pid, signal.SIGKILL)
    _gone(marks, run_id, 1.0)
    return running


def _gone(marks: dict[int, str | None], run_id: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(is_running(pid, mark) for pid, mark in marks.items()) or left_behind(marks, run_id):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _stat(folder: Path) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; the name before them may hold spaces and brackets."""
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _running_with_groups() -> Iterator[tuple[int, int]]:
    for folder in _PROC.glob("[0-9]*"):
        fields = _stat(folder)
        if fields is not None and fields[0] not in "ZX":
            yield int(folder.name), int(fields[2])


def _bears_mark(pid: int, run_id: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{RUN_VARIABLE}={run_id}".encode() in environment.split(b"\0")
