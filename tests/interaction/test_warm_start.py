"""A copy of the server of `tests.support.warm_start` is a process like one that Python starts."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from mew_spaces.launch.processes import RUN_VARIABLE

from tests.support.cli import Outcome, run_program
from tests.support.space_folder import Folder, environment
from tests.support.waiting import until
from tests.support.warm_start import MEW, PYTHON, REAL_MEW, SERVER, SHOWN_BYTES, WarmPopen

pytestmark = pytest.mark.skipif(subprocess.Popen is not WarmPopen, reason="processes are copied on Linux only")

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {role: agent, auto_start: true, agent: {base_url: "http://127.0.0.1:1", model: none}}
"""

PROGRAM = """
import os, signal, sys, threading
shown = (__name__, sys.argv[1:], sys.stdin.read(), os.getcwd(), os.environ.get("WORD"), "PATH" in os.environ)
print(*shown, os.getppid(), os.getsid(0) == os.getpid(), threading.active_count(), sys.path[0], sep="|")
print(sorted(os.listdir("/proc/self/fd"), key=int)[:-1], file=sys.stderr)
"""


def test_a_copy_has_its_own_streams_folder_environment_and_parent(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    environment = {"WORD": "w", **{name: text for name, text in os.environ.items() if name.startswith("PYTHON")}}
    copied, started = (
        run_program((python, str(file), "a", "b c"), tmp_path, environment, "typed")
        for python in (PYTHON, str(sys.executable))
    )
    assert copied == started
    words = f"__main__|['a', 'b c']|typed|{tmp_path}|w|False|{os.getpid()}|False|1|{tmp_path}\n"
    assert copied == Outcome(0, words, "['0', '1', '2']\n")


@pytest.mark.parametrize(
    "last",
    [
        "",
        "sys.exit(3)",
        "sys.exit('a reason')",
        "1 / 0",
        "sys.stdout.close()",
        "threading.Timer(0.05, print, ['of a thread']).start()",
        "cycle = [wait()]; cycle.append(cycle); del cycle",
    ],
)
def test_a_copy_ends_as_a_started_program_does(last: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import asyncio, atexit, sys, threading\n"
        "async def wait(): await asyncio.Event().wait()\n"
        "atexit.register(print, 'at the end', file=sys.stderr)\n"
        f"print('written')\n{last}\n"
    )
    copied, started = (run_program((one, str(file)), tmp_path, os.environ) for one in (PYTHON, str(sys.executable)))
    print(copied, started)
    assert (copied.code, copied.out) == (started.code, started.out)
    assert messages(copied.err) == messages(started.err)


def messages(text: str) -> list[str]:
    """The lines of an output that name no place in a program."""
    return [line.partition("Warning: ")[2] or line for line in text.splitlines() if not line.startswith((" ", "Trace"))]


def test_the_server_names_modules_that_exist() -> None:
    program = f"import runpy; print(*runpy.run_path({str(SERVER)!r})['IMPORTED'])"
    names = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len(names) > 10
    assert [name for name in names if find_spec(name) is None] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_copy_ends_by_a_signal_that_comes_at_once(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import time\ntime.sleep(60)\n")
    with subprocess.Popen((PYTHON, str(file)), stderr=subprocess.PIPE, start_new_session=True) as process:
        assert os.getsid(process.pid) == process.pid
        process.send_signal(number)
        assert process.wait() == -number


def test_a_copy_of_mew_prints_its_version_and_knows_wrong_commands(tmp_path: Path) -> None:
    assert run_program((*MEW, "--version"), tmp_path, os.environ).out.startswith("mew ")
    assert run_program((*MEW, "nonsense"), tmp_path, os.environ).code == 2


@pytest.mark.parametrize("command", [MEW, REAL_MEW], ids=["copied", "real"])
async def test_programs_of_a_copied_space_are_like_those_of_a_real_one(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    folder = Folder(tmp_path / "room", SPACE)
    started = run_program((*command, "up", "--port", "0", "--detach"), folder.path, environment())
    try:
        assert started.code == 0, started
        supervisor = psutil.Process(folder.run.pids.supervisor)
        below = supervisor.children(recursive=True)
        programs = [psutil.Process(pid) for pid in folder.run.processes if pid != supervisor.pid]
        assert len(programs) == 2
        for program in programs:
            assert program.ppid() == supervisor.pid
            assert os.getsid(program.pid) == os.getpgid(program.pid) == program.pid
            assert program.cmdline()[:4] == [sys.executable, "-P", "-m", "mew_agent"]
            assert program.environ()[RUN_VARIABLE] == folder.run.run_id
            assert (is_copy(program.pid), "ROOM" in program.environ()) == (command == MEW, False)
        await folder.stop()
        await until(lambda: not any(one.is_running() for one in (supervisor, *below)))
    finally:
        await folder.stop()


def is_copy(pid: int) -> bool:
    """Return whether a process has the room for an environment that a copy has."""
    return Path(f"/proc/{pid}/environ").read_bytes().count(b"\0") > SHOWN_BYTES // 2
