"""Signals reach the processes of a space and no others."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mew_spaces.launch.processes import RUN_VARIABLE, is_running, left_behind, signal_group, started_mark, stop_groups

from tests.support.waiting import until_in_thread

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX process groups")

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys, time\n"
    f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.DEVNULL)\n"
    "print(child.pid, flush=True)\n"
)


@contextmanager
def program(text: str, run_id: str = "run-1") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program in its own group; yields it with the first line it prints."""
    started = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, RUN_VARIABLE: run_id},
    )
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        for pid in left_behind([started.pid], run_id):
            os.kill(pid, signal.SIGKILL)
        started.kill()
        started.wait()
        started.stdout.close()


def test_a_process_is_recognised_by_its_start_time() -> None:
    with program(SLEEP) as (process, _):
        mark = started_mark(process.pid)
        assert mark
        assert is_running(process.pid, mark)
        assert not is_running(process.pid, f"{mark}0")
        assert not is_running(process.pid, None)


def test_a_zombie_has_no_start_time() -> None:
    with program("print('bye')") as (process, _):
        until_in_thread(lambda: started_mark(process.pid) is None)
        assert process.returncode is None


def test_a_process_with_a_reused_id_is_not_signalled() -> None:
    with program(SLEEP) as (process, _):
        assert not signal_group(process.pid, "another time", signal.SIGKILL)
        assert stop_groups({process.pid: "another time"}, "another run", grace_seconds=0) == []
        assert process.poll() is None


def test_stopping_a_group_stops_its_children() -> None:
    with program(PARENT + "time.sleep(60)") as (process, child):
        child_mark = started_mark(int(child))
        marks = {process.pid: started_mark(process.pid)}
        assert child_mark
        assert stop_groups(marks, "run-1", grace_seconds=5) == [process.pid]
        until_in_thread(lambda: not is_running(int(child), child_mark))
        assert process.wait() == -signal.SIGTERM


def test_a_program_that_ignores_sigterm_is_killed() -> None:
    with program(STUBBORN) as (process, _):
        stop_groups({process.pid: started_mark(process.pid)}, "run-1", grace_seconds=0.05)
        assert process.wait() == -signal.SIGKILL


def test_what_a_killed_program_started_is_killed_with_it() -> None:
    session = PARENT.replace("stdout=", "start_new_session=True, stdout=").replace("sleep(60)", "sleep(600)")
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with program(ignoring + session + "time.sleep(60)") as (process, child):
        try:
            child_mark = started_mark(int(child))
            assert child_mark
            stop_groups({process.pid: started_mark(process.pid)}, "run-1", grace_seconds=0.05)
            assert process.wait() == -signal.SIGKILL
            until_in_thread(lambda: not is_running(int(child), child_mark))
        finally:
            signal_group(int(child), child_mark, signal.SIGKILL)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems may hide the environment of processes")
def test_processes_of_a_dead_leader_are_found_and_stopped() -> None:
    with program(PARENT) as (process, child):
        process.wait()
        # A program counts as started a moment before its environment can be read.
        until_in_thread(lambda: left_behind([process.pid], "run-1") == [int(child)])
        assert left_behind([process.pid], "run-2") == []
        stop_groups({process.pid: None}, "run-1", grace_seconds=5)
        assert left_behind([process.pid], "run-1") == []


@pytest.mark.parametrize("pid", [-1, 2**31 - 1, 2**80])
def test_an_unused_id_has_no_start_time(pid: int) -> None:
    assert started_mark(pid) is None
