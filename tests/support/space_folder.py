"""A folder with a space, and `mew` typed in it. What `mew up` starts are real processes."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, chdir
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread
from anyio.abc import Process
from mew_spaces.launch.processes import left_behind
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path
from mew_spaces.launch.supervisor import stop_space

from tests.support import cli
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW


class Folder:
    """A space's folder, and commands typed in it. What `up` starts are processes in any case."""

    def __init__(self, path: Path, space: str | None = None) -> None:
        """`space` is the text of its space.yaml; None writes none."""
        self.path = path
        path.mkdir(exist_ok=True)
        if space is not None:
            (path / "space.yaml").write_text(space)

    @property
    def run_path(self) -> Path:
        """Path of the run file."""
        return run_file_path(self.path / ".mew")

    @property
    def run(self) -> RunFile:
        """The run file."""
        found = read_run_file(self.run_path)
        assert found is not None
        return found

    async def programs(self, path: str, body: object = None) -> dict[str, Any]:
        """GET a path below the programs of the space as ada, or POST a body to it."""
        return await self.request(f"/spaces/review/programs{path}", body)

    async def request(self, path: str, body: object = None) -> dict[str, Any]:
        """GET a path of the gateway as ada, or POST a body to it."""
        token = (self.path / ".mew" / "tokens" / "ada.token").read_text().strip()
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.run.gateway}{path}", data, {"authorization": f"Bearer {token}"})
        answer: dict[str, Any] = json.loads(await anyio.to_thread.run_sync(lambda: urlopen(request).read()))
        return answer

    async def mew(self, *arguments: str, code: int = 0) -> str:
        """Run a command inside the test, which saves the start of a Python. Returns both outputs."""
        before = dict(os.environ)
        cli.replace_environment(environment())
        try:
            with chdir(self.path):
                ended = await cli.mew(*arguments, output=cli.Output.merged())
        finally:
            cli.replace_environment(before)
        assert ended.code == code, ended.out
        assert "Traceback" not in ended.out
        return ended.out

    async def mew_process(self, *arguments: str, code: int = 0) -> str:
        """Run a command in a process of its own. Returns both outputs."""
        with anyio.fail_after(PATIENCE_SECONDS):
            ended = await anyio.run_process(
                (*MEW, *arguments), check=False, cwd=self.path, env=environment(), stderr=subprocess.STDOUT
            )
        shown = ended.stdout.decode()
        assert ended.returncode == code, shown
        assert "Traceback" not in shown
        return shown

    async def stop(self) -> None:
        """Stop the space if it runs, as `mew down` does, without another process."""
        if (run := read_run_file(self.run_path)) is not None:
            await anyio.to_thread.run_sync(stop_space, self.run_path, run)

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[tuple[Process, Callable[[], str]]]:
        """A command that goes on, with what it has printed so far."""
        log = self.path / f"{arguments[0]}.out"
        with log.open("wb") as output:
            process = await anyio.open_process(
                (*MEW, *arguments), stdout=output, stderr=output, cwd=self.path, env=environment()
            )
        try:
            yield process, log.read_text
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()


def environment() -> dict[str, str]:
    """Ours, without anything that would speak for the space under test."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}


def nothing_left(run: RunFile) -> bool:
    """Return whether no process of a run is left."""
    return not run.is_alive and not left_behind(run.processes, run.run_id)
