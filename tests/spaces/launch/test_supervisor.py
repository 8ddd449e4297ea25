"""Starting programs in order, watching, restarting and stopping them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mew_listener.listen_address import ListenAddress
from mew_spaces.launch.launch import Program
from mew_spaces.launch.processes import left_behind, started_mark
from mew_spaces.launch.program_logs import log_path
from mew_spaces.launch.run_file import Pids, RunFile, write_run_file
from mew_spaces.launch.supervisor import ProgramFailed, stop_space

from tests.support.ports import unused_ports
from tests.support.supervised import RUN_ID, House, program
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are a POSIX matter")

LISTEN = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
time.sleep(60)
"""
SLEEP = "import time; print('here I am', flush=True); time.sleep(60)"


def gateway(folder: Path) -> Program:
    port = unused_ports()[0]
    return program("gateway", LISTEN, str(port), folder=folder, role="gateway", opens=ListenAddress("127.0.0.1", port))


async def test_participants_start_after_the_gateway_listens(tmp_path: Path) -> None:
    house = House(tmp_path)
    async with house.serving([gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)]):
        await house.until(lambda: ("coder", "here I am") in house.reported)
        run = house.run
        assert run.ready
        assert run.is_running(run.pids.gateway)
        assert run.is_running(run.pids.participants["coder"])
    assert house.reported[0] == ("gateway", "listening")
    assert not run.is_alive
    assert not house.supervisor.run_file.exists()


async def test_output_is_passed_on_and_logged(tmp_path: Path) -> None:
    for tells in (True, False):
        folder = tmp_path / str(tells)
        folder.mkdir()
        house = House(folder, tells=tells)
        path = log_path(house.supervisor.log_folder, "coder")
        async with house.serving([], [program("coder", SLEEP, folder=folder)]):
            await house.until(lambda path=path: path.exists() and "here I am" in path.read_text())  # type: ignore[misc]
        assert bool(house.reported) is tells


async def test_the_log_of_the_previous_run_is_kept(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "coder.log").write_text("old\n")
    house = House(tmp_path)
    async with house.serving([], [program("coder", SLEEP, folder=tmp_path)]):
        pass
    assert (logs / "coder.previous.log").read_text() == "old\n"


async def test_an_exit_is_recorded_with_code_and_last_line(tmp_path: Path) -> None:
    house = House(tmp_path)
    dying = program("coder", "import sys; print('no key'); sys.exit(3)", folder=tmp_path)
    async with house.serving([], [dying]):
        await house.until(lambda: "coder" in house.run.exits)
        assert house.run.faults() == {"coder": "exited with code 3: no key"}
    assert ("mew", "coder exited with code 3: no key") in house.reported


@pytest.mark.parametrize(
    ("end", "words"),
    [("sys.exit(0)", "exited with code 0"), ("os.kill(os.getpid(), 9)", "was ended by signal 9")],
    ids=["done", "ended"],
)
async def test_the_last_line_of_a_successful_program_is_not_recorded(tmp_path: Path, end: str, words: str) -> None:
    house = House(tmp_path)
    text = f"import os, sys; print('something else', flush=True); {end}"
    async with house.serving([], [program("coder", text, folder=tmp_path)]):
        await house.until(lambda: "coder" in house.run.exits)
        assert house.run.ended() == {"coder": words}


async def test_a_participant_that_cannot_start_does_not_stop_others(tmp_path: Path) -> None:
    house = House(tmp_path)
    missing = Program("ghost", ("/no/such/program",), tmp_path, dict(os.environ))
    async with house.serving([], [missing, program("coder", SLEEP, folder=tmp_path)]):
        await house.until(lambda: ("coder", "here I am") in house.reported)
        assert "could not be started: no such file" in house.run.faults()["ghost"]


@pytest.mark.parametrize(
    ("policy", "code", "runs"), [("never", 1, 1), ("on-failure", 0, 1), ("on-failure", 1, 2), ("always", 0, 2)]
)
async def test_a_participant_restarts_by_its_policy(tmp_path: Path, policy: Any, code: int, runs: int) -> None:
    house = House(tmp_path)
    house.supervisor.first_pause_seconds = 0.01
    # The second run stays, so that the number of runs is settled when the test looks.
    text = (
        "import pathlib, sys, time; mark = pathlib.Path('mark'); again = mark.exists(); mark.touch()\n"
        f"print('run', flush=True)\ntime.sleep(60) if again else sys.exit({code})"
    )
    async with house.serving([], [program("coder", text, folder=tmp_path, restart=policy)]):
        if runs == 1:
            await house.until(lambda: "coder" in house.run.exits)
        else:
            await house.until(lambda: house.reported.count(("coder", "run")) == 2)
            await house.until(lambda: "coder" not in house.run.exits)
    assert house.reported.count(("coder", "run")) == runs


@pytest.mark.parametrize("policy", ["on-failure", "always"])
async def test_a_participant_that_the_gateway_refuses_is_not_restarted(tmp_path: Path, policy: Any) -> None:
    house = House(tmp_path)
    house.supervisor.first_pause_seconds = 0.01
    asked: list[str] = []

    def is_refused(one: Program) -> bool:
        asked.append(one.name)
        return len(asked) > 1

    house.supervisor.is_refused = is_refused
    refused = program("coder", "import sys; print('no entry'); sys.exit(2)", folder=tmp_path, restart=policy)
    said = "coder exited with code 2: no entry"
    async with house.serving([], [refused]):
        await house.until(lambda: len(asked) == 2 and house.reported[-1][0] == "mew")
    assert [line for name, line in house.reported if name == "mew"] == [
        f"{said}; it restarts in 0.01 s",
        f"{said}; it does not restart, because the gateway refuses its token",
    ]


async def test_a_forgotten_participant_is_not_restarted(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.supervisor.first_pause_seconds = PATIENCE_SECONDS
    failing = program("coder", "import sys; sys.exit(1)", folder=tmp_path, restart="on-failure")
    async with house.serving([], [failing]):
        await house.until(lambda: bool(house.reported))
        waiting = len(anyio.get_running_tasks())
        house.supervisor.forget("coder")
        await house.until(lambda: len(anyio.get_running_tasks()) < waiting)
        assert not house.run.exits
        assert not house.run.pids.participants


async def test_a_killed_gateway_restarts_and_participants_stay(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.supervisor.run = house.supervisor.run.model_copy(
        update={"pids": Pids(supervisor=os.getpid()), "marks": {str(os.getpid()): started_mark(os.getpid()) or ""}}
    )
    service = gateway(tmp_path)
    async with house.serving([service], [program("coder", SLEEP, folder=tmp_path)]):
        before = house.run
        assert not before.is_gateway_restarting
        os.kill(before.pids.gateway or 0, signal.SIGKILL)
        await house.until(lambda: house.run.is_gateway_restarting)
        await house.until(lambda: not house.run.is_gateway_restarting)
        after = house.run
        assert after.pids.gateway != before.pids.gateway
        assert after.pids.participants == before.pids.participants
        assert service.opens is not None
        async with await anyio.connect_tcp("127.0.0.1", service.opens.port):
            pass
    assert ("mew", "the gateway was ended by signal 9; it restarts in 0.1 s") in house.reported
    assert not any(after.is_running(pid) for pid in after.processes)


async def test_a_gateway_that_fails_to_restart_is_started_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    port = unused_ports()[0]
    text = (  # the second of three runs fails
        "import pathlib, sys; mark = pathlib.Path('runs'); runs = len(mark.read_text()) if mark.exists() else 0\n"
        "mark.write_text('.' * (runs + 1))\n"
        f"if runs == 1: sys.exit('bad space.yaml')\n{LISTEN}"
    )
    service = program(
        "gateway", text, str(port), folder=tmp_path, role="gateway", opens=ListenAddress("127.0.0.1", port)
    )
    async with house.serving([service], []):
        os.kill(house.run.pids.gateway or 0, signal.SIGKILL)
        await house.until(lambda: ("mew", "the gateway is back") in house.reported)
    assert ("mew", "the gateway exited with code 1: bad space.yaml; it restarts in 0.2 s") in house.reported


async def test_a_gateway_that_ends_early_is_named_with_its_last_line(tmp_path: Path) -> None:
    house = House(tmp_path)
    dying = program(
        "gateway",
        "import sys; print('mew: port 1 is taken'); sys.exit(2)",
        folder=tmp_path,
        role="gateway",
        opens=ListenAddress("127.0.0.1", unused_ports()[0]),
    )
    with pytest.raises(ProgramFailed, match="the gateway exited with code 2: mew: port 1 is taken"):
        await house.supervisor.serve([dying], [program("coder", SLEEP, folder=tmp_path)])
    assert house.reported == [("gateway", "mew: port 1 is taken")]


async def test_a_gateway_that_cannot_start_or_is_too_slow_is_named(tmp_path: Path) -> None:
    address = ListenAddress("127.0.0.1", unused_ports()[0])
    missing = Program("gateway", ("/no/such/program",), tmp_path, dict(os.environ), "gateway", opens=address)
    with pytest.raises(ProgramFailed, match=r"^the gateway could not be started: no such file or directory: /no/such"):
        await House(tmp_path).supervisor.serve([missing], [])
    deaf, house = program("gateway", SLEEP, folder=tmp_path, role="gateway", opens=address), House(tmp_path)
    house.supervisor.ready_seconds = 0.3
    with pytest.raises(ProgramFailed, match=r"^the gateway could not be started: did not listen within 0\.3 seconds$"):
        await house.supervisor.serve([deaf], [])
    assert left_behind([house.supervisor.run.pids.gateway or 0], RUN_ID) == []


async def test_cancellation_stops_every_program(tmp_path: Path) -> None:
    house = House(tmp_path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(house.supervisor.serve, [gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)])
        await house.until(house.ready.is_set)
        run = house.run
        assert run.is_alive
        tasks.cancel_scope.cancel()
    assert not run.is_alive
    assert not house.supervisor.run_file.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows another process's environment")
async def test_children_of_an_ended_program_are_stopped(tmp_path: Path) -> None:
    house = House(tmp_path)
    text = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True)"
    async with house.serving([], [program("coder", text, folder=tmp_path)]):
        await house.until(lambda: "coder" in house.run.exits)
        leader = house.run.pids.participants["coder"]
        assert left_behind([leader], RUN_ID) == []


async def test_stopping_one_space_leaves_another_running(tmp_path: Path) -> None:
    first, second = House(tmp_path / "one"), House(tmp_path / "two")
    for house in (first, second):
        house.supervisor.log_folder.parent.mkdir()
    async with second.serving([gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)]):
        async with first.serving([gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)]):
            pass
        run = second.run
        assert run.is_running(run.pids.gateway)
        assert run.is_running(run.pids.participants["coder"])


async def test_force_kills_a_program_that_does_not_end(tmp_path: Path) -> None:
    house = House(tmp_path)
    text = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
    async with house.serving([], [program("coder", text, folder=tmp_path)]):
        await house.until(lambda: ("coder", "here I am") in house.reported)
        run = house.run
        house.supervisor.stop()
        house.supervisor.force()
    assert not run.is_alive


async def test_a_space_without_a_supervisor_can_be_stopped(tmp_path: Path) -> None:
    house = House(tmp_path)
    seen: list[RunFile] = []

    async def stop_when_ready() -> None:
        await house.ready.wait()
        seen.append(house.run)
        # The run file names no supervisor here, as if it had been killed.
        assert await anyio.to_thread.run_sync(stop_space, house.supervisor.run_file, house.run)
        assert not seen[0].is_alive
        house.supervisor.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_when_ready)
        with anyio.fail_after(PATIENCE_SECONDS):
            await house.supervisor.serve([gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)])
    assert not seen[0].is_alive


async def test_stopping_a_space_without_a_supervisor_removes_its_fifos(tmp_path: Path) -> None:
    fifo, path = tmp_path / "ada-in", tmp_path / "run.json"
    os.mkfifo(fifo)
    named = (str(fifo), str(tmp_path / "never-made"))
    run = RunFile(space="s", gateway="http://h", ws="ws://h", started_at="then", fifos=named)
    write_run_file(path, run)
    assert not stop_space(path, run)
    assert not fifo.exists()


async def test_an_error_in_on_output_stops_every_program(tmp_path: Path) -> None:
    house = House(tmp_path)
    seen: list[RunFile] = []

    def break_off(name: str, line: str) -> None:
        if name == "coder":
            seen.append(house.run)
            raise BrokenPipeError(line)

    house.supervisor.on_output = break_off
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(ExceptionGroup) as caught:
        await house.supervisor.serve([gateway(tmp_path)], [program("coder", SLEEP, folder=tmp_path)])
    assert caught.group_contains(BrokenPipeError)
    assert not seen[0].is_alive


def test_a_process_with_a_reused_recorded_id_is_not_signalled(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        path = tmp_path / "run.json"
        run = RunFile.model_validate(
            {
                "space": "s",
                "gateway": "",
                "ws": "",
                "started_at": "now",
                "run_id": "x",
                "pids": {"supervisor": stranger.pid, "gateway": stranger.pid, "participants": {"coder": stranger.pid}},
                "marks": {str(stranger.pid): "another moment"},
            }
        )
        write_run_file(path, run)
        assert not stop_space(path, run)
        assert stranger.poll() is None
        assert not path.exists()
    finally:
        stranger.kill()
        stranger.wait()


async def test_an_added_participant_is_watched_and_replaced_by_a_second(tmp_path: Path) -> None:
    house = House(tmp_path)
    async with house.serving([gateway(tmp_path)], [program("ada", SLEEP, folder=tmp_path)]):
        await house.supervisor.add(program("late", SLEEP, folder=tmp_path))
        await house.until(lambda: ("late", "here I am") in house.reported)
        assert house.run.is_running(house.run.pids.participants["late"])
        await house.supervisor.add(program("short", "raise SystemExit(3)", folder=tmp_path))
        await house.until(lambda: "short" in house.run.exits)
        assert house.run.exits["short"].code == 3
        first = house.run.pids.participants["late"]
        for name in ("late", "short"):
            await house.supervisor.add(program(name, SLEEP, folder=tmp_path))
        assert not left_behind([first], RUN_ID)
        assert house.run.pids.participants["late"] != first
        assert not house.run.exits
    assert not left_behind([house.supervisor.run.pids.participants["late"]], RUN_ID)


async def test_a_log_that_cannot_be_replaced_ends_neither_its_program_nor_the_space(tmp_path: Path) -> None:
    house = House(tmp_path)
    async with house.serving([gateway(tmp_path)], [program("ada", SLEEP, folder=tmp_path)]):
        await house.supervisor.add(program("late", SLEEP, folder=tmp_path))
        (house.supervisor.log_folder / "late.previous.log").mkdir()
        await house.supervisor.add(program("late", SLEEP, folder=tmp_path))
        assert any("cannot write logs" in line for _, line in house.reported)
        assert all(house.run.is_running(pid) for pid in house.run.pids.participants.values())
        assert house.run.starts["late"] == 2


async def test_a_stopped_space_starts_no_added_participant(tmp_path: Path) -> None:
    house = House(tmp_path)
    async with house.serving([gateway(tmp_path)], []):
        pass
    await house.supervisor.add(program("late", SLEEP, folder=tmp_path))
    assert "late" not in house.supervisor.run.pids.participants


MAKE_FIFO = "import os, sys, time; os.mkfifo(sys.argv[1]); print('made', flush=True); time.sleep(60)"


async def test_only_fifos_are_removed_at_the_end(tmp_path: Path) -> None:
    house, fifo, file = House(tmp_path), tmp_path / "ada-in", tmp_path / "ada-out"
    file.write_text("somebody's own")
    script = program("ada", MAKE_FIFO, str(fifo), folder=tmp_path, fifos=(fifo, file, tmp_path / "never-made"))
    async with house.serving([], [script]):
        await house.until(lambda: ("ada", "made") in house.reported)
        assert fifo.is_fifo()
    assert not fifo.exists()
    assert file.read_text() == "somebody's own"


async def test_an_unwritable_run_file_stops_no_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house, state = House(tmp_path), tmp_path / ".mew"
    house.supervisor.first_pause_seconds = 0.01
    text = (
        "import pathlib, sys, time; mark = pathlib.Path('mark'); again = mark.exists(); mark.touch()\n"
        "print('run', flush=True)\ntime.sleep(60) if again else input()"
    )

    def wall_in(name: str, line: str) -> None:
        """From the first word of the program on, neither the run file nor a log can be created again."""
        house.reported.append((name, line))
        if line == "run" and house.reported.count((name, line)) == 1:
            for folder in (state, house.supervisor.log_folder):
                folder.rename(folder.with_name(f"was-{folder.name}"))
                folder.write_text("a file where a folder should be")

    house.supervisor.on_output = wall_in
    async with house.serving([], [program("coder", text, folder=tmp_path, restart="always")]):
        await house.until(lambda: any("could not be started" in line for _, line in house.reported))
        assert "run.json: cannot be written" in caplog.text
        for folder in (state, house.supervisor.log_folder):
            folder.unlink()
        await house.until(lambda: house.reported.count(("coder", "run")) == 2)
        await house.until(lambda: house.supervisor.run_file.exists() and "coder" not in house.run.exits)
        assert house.run.is_running(house.run.pids.participants["coder"])
