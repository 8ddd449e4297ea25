"""How a program run by `run` ends."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mew_agent import run
from tests.support.waiting import PATIENCE_SECONDS

HEAD = """
import anyio
from mew_agent import PeerAbsent, run

async def ask() -> None:
    await anyio.to_thread.run_sync(input, "May it? ", abandon_on_cancel=True)
"""

WAITING = """
async def main(name: str) -> None:
    try:
        print("here I am,", name, flush=True)
        await {what}
    finally:
        print("goodbye", flush=True)

run(main, "ada")
"""

STUBBORN = """
async def main() -> None:
    try:
        print("here I am", flush=True)
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            print("goodbye", flush=True)
            await anyio.sleep_forever()

run(main)
"""

TERMINATED = """
import os, signal

async def main() -> None:
    try:
        if {asked}:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(60)
    finally:
        print("goodbye")

run(main)
print("after")
"""

EVERY_STEP = """
import asyncio, signal
from mew_agent.program import run_until_signal

async def main() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 0.002)
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:  # lost, as in code that takes it for its own
            pass
    await anyio.sleep(0)

def step(handle: asyncio.Handle) -> None:
    global left
    left -= 1
    if left == 0:
        signal.raise_signal(signal.SIGINT)
    run_step(handle)

run_step, asyncio.Handle._run = asyncio.Handle._run, step
left = interrupts = 0
while left <= 0:
    left = interrupts + 1
    try:
        run_until_signal(main)
    except KeyboardInterrupt:
        interrupts += 1
    else:
        assert left > 0, f"lost in step {interrupts + 1}"
print("interrupted in more than ten steps" if interrupts > 10 else interrupts)
"""

FAILING_AFTER_A_SECOND_CTRL_C = """
import signal

async def main() -> None:
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)
    raise RuntimeError("mine")

run(main)
"""

FAILING = """
async def main() -> None:
    raise {error}

run(main)
"""


@contextmanager
def started(text: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HEAD + text]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("what", ["anyio.sleep(60)", "ask()"], ids=["waiting", "asking a person"])
@pytest.mark.skipif(sys.platform == "win32", reason="no signal to send to one process there")
def test_ctrl_c_ends_a_program_in_order_and_quietly(what: str) -> None:
    with started(WAITING.format(what=what)) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == "here I am, ada\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_SECONDS) == 130
        assert program.stdout.read().removeprefix("May it? ") == "goodbye\n"
        assert program.stderr.read() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal to send to one process there")
def test_a_second_ctrl_c_ends_a_program_that_does_not_stop() -> None:
    with started(STUBBORN) as program:
        assert program.stdout is not None
        for line in ("here I am\n", "goodbye\n"):
            assert program.stdout.readline() == line
            program.send_signal(signal.SIGINT)
        _, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, reported) == (130, "")


def test_program_that_fails_after_a_second_ctrl_c_shows_its_error() -> None:
    with started(FAILING_AFTER_A_SECOND_CTRL_C) as program:
        _, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == 1
    assert reported.endswith("RuntimeError: mine\n")


def test_ctrl_c_is_lost_in_no_step_of_the_loop() -> None:
    with started(EVERY_STEP) as program:
        shown, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, shown, reported) == (0, "interrupted in more than ten steps\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM ends a process at once there")
@pytest.mark.parametrize("asked", [True, False])
def test_a_program_cleans_up_with_and_without_a_signal(asked: bool) -> None:
    with started(TERMINATED.format(asked=asked)) as program:
        shown, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, shown, reported) == (0, "goodbye\nafter\n", "")


def test_expected_error_is_printed_as_one_line() -> None:
    with started(FAILING.format(error="PeerAbsent('ghost')")) as program:
        shown, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, shown, reported) == (1, "", "'ghost' is not in the space\n")


def test_unexpected_error_shows_its_traceback() -> None:
    with started(FAILING.format(error="RuntimeError('mine')")) as program:
        _, reported = program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == 1
    assert "Traceback" in reported
    assert reported.endswith("RuntimeError: mine\n")


def test_a_program_without_logging_writes_a_bounded_number_of_warnings() -> None:
    warns = """
import logging

async def main() -> None:
    for number in range(10_000):
        logging.getLogger("mew_agent.x").warning("number %d", number)

run(main)
"""
    done = subprocess.run([sys.executable, "-c", HEAD + warns], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"number {number}" for number in range(5)]


def test_a_coroutine_in_place_of_its_function_is_refused() -> None:
    async def main() -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"write run\(main\), not run\(main\(\)\)"):
        run(main())  # type: ignore[arg-type]
