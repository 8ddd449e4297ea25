"""Recognises the processes that a space started, and stops them together with everything they started.

Process ids are reused, so an id alone never justifies a signal. Each program leads its own session and process group,
and is recognised by its id and start time. Its remaining child processes are recognised by its group, and by the run id
in their environment. Needs POSIX, as `mew up` does. Owns no file and no policy.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import psutil

RUN_VARIABLE: Final = "MEW_RUN"
"""Environment variable that every program of a space gets, with the id of its run."""

_POLL_SECONDS: Final = 0.02


def started_mark(pid: int) -> str | None:
    """Return a running process's start time as text, for comparison; None if it does not run or is a zombie."""
    # Linux counts from the boot, and psutil adds the boot time, which changes when the clock is set. psutil keeps the
    # last boot time that it read, so read it before the process.
    offset = psutil.boot_time() if sys.platform.startswith("linux") else 0.0
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"{process.create_time() - offset:.2f}"
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_running(pid: int, mark: str | None) -> bool:
    """Return whether the process with this id and start time still runs. Returns False without a mark."""
    return mark is not None and started_mark(pid) == mark


def signal_group(pid: int, mark: str | None, number: signal.Signals) -> bool:
    """Signal a program and its whole group. Returns False if it no longer runs.

    SIGKILL also reaches the programs that it started in groups of their own: it can no longer end them itself.
    """
    if not is_running(pid, mark):
        return False
    started = _descendants(pid) if number == signal.SIGKILL else []
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    for one in started:
        with suppress(psutil.Error):
            one.kill()
    return True


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def left_behind(groups: Iterable[int], run_id: str) -> list[int]:
    """Return the running processes of these groups and this run; none if the system hides environments."""
    wanted, found = set(groups), []
    for pid in psutil.pids():
        try:
            is_other = os.getpgid(pid) in wanted and pid != os.getpid()
            # A zombie has no environment.
            if is_other and psutil.Process(pid).environ().get(RUN_VARIABLE) == run_id:
                found.append(pid)
        except (psutil.Error, OSError):
            continue
    return found


def stop_groups(marks: Mapping[int, str | None], run_id: str, *, grace_seconds: float) -> list[int]:
    """Stop every group of a run: ask, wait, then kill. Blocks for at most the grace period plus one second.

    `marks` are the ids of group leaders with their start times. Returns the leaders that were running.
    """

    def signal_all(number: signal.Signals) -> list[int]:
        signalled = [pid for pid, mark in marks.items() if signal_group(pid, mark, number)]
        # Without its leader, the id of a group may belong to other programs now, so each member is checked.
        for pid in left_behind(marks, run_id):
            _signal(pid, number)
        return signalled

    running = signal_all(signal.SIGTERM)
    if not _wait_until_gone(marks, run_id, grace_seconds):
        signal_all(signal.SIGKILL)
        _wait_until_gone(marks, run_id, 1.0)
    return running


def _wait_until_gone(marks: Mapping[int, str | None], run_id: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(is_running(pid, mark) for pid, mark in marks.items()) or left_behind(marks, run_id):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        psutil.Process(pid).send_signal(number)
