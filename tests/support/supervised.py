"""A supervisor under test, and programs for it to run."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mew_spaces.launch.launch import Program
from mew_spaces.launch.processes import RUN_VARIABLE
from mew_spaces.launch.run_file import RunFile, read_run_file
from mew_spaces.launch.supervisor import Supervisor

from tests.support.waiting import PATIENCE_SECONDS, until

RUN_ID = "supervisor-test"


def program(name: str, text: str, *arguments: str, folder: Path, **more: Any) -> Program:
    """A Python program."""
    command = (sys.executable, "-c", text, *arguments)
    return Program(name, command, folder, {**os.environ, RUN_VARIABLE: RUN_ID}, **more)


class House:
    """A supervisor under test, with its reports and a way to wait for its actions."""

    def __init__(self, folder: Path, *, tells: bool = True) -> None:
        self.reported: list[tuple[str, str]] = []
        self.ready = anyio.Event()
        run = RunFile(space="s", gateway="http://x", ws="ws://x", started_at="now", run_id=RUN_ID)
        self.supervisor = Supervisor(
            run_file=folder / ".mew" / "run.json",
            run=run,
            log_folder=folder / "logs",
            on_output=(lambda name, line: self.reported.append((name, line))) if tells else None,
            on_ready=self.ready.set,
        )

    @property
    def run(self) -> RunFile:
        """The run file."""
        found = read_run_file(self.supervisor.run_file)
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        await until(lambda: condition())

    @asynccontextmanager
    async def serving(self, services: list[Program], participants: list[Program]) -> AsyncIterator[None]:
        """Run programs until the block ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.supervisor.serve, services, participants)
            with anyio.fail_after(PATIENCE_SECONDS):
                await self.ready.wait()
            yield
            self.supervisor.stop()
