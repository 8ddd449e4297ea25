"""A child process: its lines, its standard error, and its end."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from mew_agent.parts.shared.child_program import (
    MAX_LINE_BYTES,
    ChildFailed,
    ChildProgram,
    group_exists,
    running_program,
)
from tests.support.waiting import PATIENCE_SECONDS, until


def python(body: str) -> AbstractAsyncContextManager[ChildProgram]:
    return started(sys.executable, "-c", body)


def started(*command: str, cwd: str | None = None) -> AbstractAsyncContextManager[ChildProgram]:
    return running_program(command, os.environ, cwd, ChildFailed)


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return False
    return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def orphans_adopted() -> Iterator[None]:
    """This process becomes the parent of orphans, as the first process of a container does."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
async def test_a_group_of_zombies_no_longer_exists() -> None:
    parent = "import subprocess as s; print(s.Popen(['sleep', '600'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
    with orphans_adopted():
        async with python(parent) as program:
            with anyio.fail_after(PATIENCE_SECONDS):
                orphan = int(await anext(program.lines()))
                await program.process.wait()
            assert group_exists(program.process)
            os.kill(orphan, signal.SIGKILL)
            await until(lambda: not runs(orphan))
            assert Path(f"/proc/{orphan}").exists()
            assert not group_exists(program.process)
        os.waitpid(orphan, 0)


async def test_lines_are_written_and_read() -> None:
    echo = python("import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)")
    async with echo as program:
        lines = program.lines()
        with anyio.fail_after(PATIENCE_SECONDS):
            await program.write_line("one")
            assert await anext(lines) == b"ONE"
            await program.write_line("zwei \u2713")
            assert (await anext(lines)).decode() == "ZWEI \u2713"


async def test_the_last_lines_of_stderr_are_kept() -> None:
    talker = python("import sys\nfor n in range(9): print('line', n, file=sys.stderr)\nsys.exit(4)")
    async with talker as program:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert [line async for line in program.lines()] == []
            assert await program.exit_reason() == "exited with code 4"
        assert program.stderr_tail == "line 4 / line 5 / line 6 / line 7 / line 8"


async def test_a_line_of_stderr_without_end_is_logged_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mew_agent")
    async with python("import sys; sys.stderr.write('x' * 300_000)") as program:
        assert await program.exit_reason() == "exited with code 0"
        assert program.stderr_tail == "x" * 400
    assert max(len(one.getMessage()) for one in caplog.records) < 200_000


async def test_a_signal_is_reported_by_name() -> None:
    async with python("import os; os.kill(os.getpid(), 9)") as program:
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await program.exit_reason() == "was terminated by signal 9"


async def test_output_ends_with_the_program_though_a_daemon_keeps_it_open() -> None:
    leaves_a_daemon = python(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(0.2)\n"
        "sys.exit(3)\n"
    )
    with anyio.fail_after(PATIENCE_SECONDS):
        async with leaves_a_daemon as program:
            lines = [line async for line in program.lines()]
            assert await program.exit_reason() == "exited with code 3"
    os.kill(int(lines[0]), signal.SIGKILL)


async def test_a_line_without_end_is_an_error() -> None:
    endless = python(
        f"import sys\nsys.stdout.write('x' * {MAX_LINE_BYTES + 100_000})\nsys.stdout.flush()\nsys.stdin.read()"
    )
    async with endless as program:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ChildFailed, match="wrote a line of more than"):
            await anext(program.lines())


@pytest.mark.parametrize(
    ("command", "cwd", "problem"),
    [
        ("no-such-program-here", None, "cannot be started: no such file or directory"),
        (sys.executable, "/no/such/folder", "cannot be started: no such file or directory"),
        (__file__, None, "cannot be started: permission denied"),
    ],
)
async def test_a_program_that_cannot_start_is_reported(command: str, cwd: str | None, problem: str) -> None:
    with pytest.raises(ChildFailed, match=problem):
        async with started(command, cwd=cwd):
            pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "behaviour",
    [
        "",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ],
    ids=["ignores closed input", "ignores SIGTERM"],
)
@pytest.mark.parametrize("has_own_group", [False, True])
async def test_a_server_ends_with_all_its_children(behaviour: str, has_own_group: bool) -> None:
    stubborn = python(
        "import os, signal, subprocess, sys, time\n"
        f"{behaviour}\n"
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'],"
        f" stdout=subprocess.PIPE, start_new_session={has_own_group})\n"
        "child.stdout.readline()\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with anyio.fail_after(PATIENCE_SECONDS):
        async with stubborn as program:
            pids = [int(pid) for pid in (await anext(program.lines())).split()]
            assert all(runs(pid) for pid in pids)
        await until(lambda: not any(runs(pid) for pid in pids))


async def test_a_cancelled_block_ends_the_server() -> None:
    pid = 0
    with anyio.fail_after(PATIENCE_SECONDS):
        with anyio.CancelScope() as scope:
            async with python("import sys; sys.stdin.read()") as program:
                pid = program.process.pid
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert not runs(pid)
