"""The terminals of an ACP agent: commands that we run for it in its working folder, if its settings allow it.

Limits the start folders, the environment, and the kept output of commands. No command outlives the agent. Commands are
not confined: they have the permissions of the agent's own program. Does not know the protocol.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process, TaskGroup
from mew_protocol.json_values import objects_at
from mew_settings.environment import inherited

from mew_agent.parts.acp.working_folder import SPACE_FOLDER
from mew_agent.parts.shared.child_program import CLOSE_SECONDS, LAST_OUTPUT_SECONDS, end_process, group_exists

PREFIX: Final = "terminal/"
MAX_TERMINALS: Final = 16
"""How many terminals an agent may have at once, including ended ones that it has not released."""

MAX_OUTPUT_BYTES: Final = 1_000_000
"""Maximum size of a kept output; longer outputs lose their start."""

SLACK_BYTES: Final = 1 << 20
"""Excess that may collect before it is cut off: moving the rest after each piece would cost too much."""

EXIT_POLL_SECONDS: Final = 0.02


@dataclass(eq=False)
class _Terminal:
    """One command. `exited` is set when it has ended and its output is read."""

    process: Process
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    is_truncated: bool = False
    exited: anyio.Event = field(default_factory=anyio.Event)
    is_gone: bool = False
    """Whether it ended and left no program behind: another program may have its id now."""

    async def run(self) -> None:
        """Keep the last part of the output until the command ends."""
        async with anyio.create_task_group() as tasks:
            read = anyio.Event()
            tasks.start_soon(self._read, read)
            while self.process.returncode is None:  # noqa: ASYNC110 - `wait` also waits for inherited pipes
                await anyio.sleep(EXIT_POLL_SECONDS)
            self.is_gone = not group_exists(self.process)
            with anyio.move_on_after(LAST_OUTPUT_SECONDS):
                await read.wait()
            self.exited.set()

    async def _read(self, done: anyio.Event) -> None:
        assert self.process.stdout is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for chunk in self.process.stdout:
                self.kept += chunk
                if len(self.kept) > self.limit + SLACK_BYTES:
                    self._truncate()
        done.set()

    async def end(self) -> None:
        """End the command and the programs that it started."""
        with anyio.CancelScope(shield=True):
            if not self.is_gone:
                await end_process(self.process)

    def _truncate(self) -> None:
        if (excess := len(self.kept) - self.limit) > 0:
            while excess < len(self.kept) and self.kept[excess] & 0xC0 == 0x80:  # inside a character
                excess += 1
            del self.kept[:excess]
            self.is_truncated = True

    async def aclose(self) -> None:
        """End the command, and close its output."""
        await self.end()
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self.process.aclose()

    @property
    def exit_status(self) -> dict[str, Any]:
        """The exit code, or the signal's name such as `SIGTERM`, in the protocol's form."""
        code = self.process.returncode
        if code is not None and code < 0:
            name = next((one.name for one in signal.Signals if one == -code), str(-code))
            return {"exitCode": None, "signal": name}
        return {"exitCode": code, "signal": None}

    def output(self) -> dict[str, Any]:
        """Return the end of the output, and the exit status once there is one."""
        self._truncate()
        ended = {"exitStatus": self.exit_status} if self.exited.is_set() else {}
        return {"output": self.kept.decode(errors="replace"), "truncated": self.is_truncated, **ended}


class Terminals:
    """The terminals of one agent below one folder."""

    def __init__(self, folder: str, tasks: TaskGroup, is_on: bool) -> None:
        self._root = Path(folder).resolve()
        self._tasks, self._is_on = tasks, is_on
        self._terminals: dict[str, _Terminal] = {}
        self._numbers = count(1)
        self._creating = anyio.Lock()

    def allows(self, method: str) -> bool:
        """Return True if the agent may make requests of this method."""
        return self._is_on and method.startswith(PREFIX)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request that is allowed. Raises `ValueError` and `OSError` with the reason."""
        if method == "terminal/create":
            async with self._creating:  # or requests at the same time would all find room
                return {"terminalId": await self._create(params)}
        name = str(params.get("terminalId") or "")
        terminal = self._terminals.get(name)
        if terminal is None:
            raise ValueError(f"no terminal '{name[:80]}'")
        match method:
            case "terminal/output":
                return terminal.output()
            case "terminal/wait_for_exit":
                await terminal.exited.wait()
                return terminal.exit_status
            case "terminal/kill":
                await terminal.end()
                return {}
            case "terminal/release":
                del self._terminals[name]
                await terminal.aclose()
                return {}
            case _:
                raise ValueError(f"unknown method {method}")

    async def _create(self, params: Mapping[str, Any]) -> str:
        if len(self._terminals) >= MAX_TERMINALS:
            raise ValueError(f"there are {MAX_TERMINALS} terminals already; release one")
        folder = self._folder(str(params.get("cwd") or ""))
        environment = inherited(os.environ)
        for one in objects_at(params, "env"):
            environment[str(one.get("name"))] = str(one.get("value"))
        asked = params.get("outputByteLimit")
        limit = min(asked, MAX_OUTPUT_BYTES) if isinstance(asked, int) and asked >= 0 else MAX_OUTPUT_BYTES
        process = await anyio.open_process(
            _command(params, environment),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        name = f"terminal-{next(self._numbers)}"
        terminal = self._terminals[name] = _Terminal(process, limit)
        self._tasks.start_soon(terminal.run)
        return name

    def _folder(self, path: str) -> Path:
        folder = Path(os.path.realpath(self._root / path))
        if not folder.is_relative_to(self._root) or SPACE_FOLDER in folder.relative_to(self._root).parts:
            raise ValueError(f"'{path}' is not a folder in {self._root} that the agent may use")
        return folder

    async def end_all(self) -> None:
        """End every command, with the programs that it started."""
        async with anyio.create_task_group() as tasks:
            for terminal in self._terminals.values():
                tasks.start_soon(terminal.aclose)
        self._terminals.clear()


def _command(params: Mapping[str, Any], environment: Mapping[str, str]) -> Sequence[str]:
    """Return the command to start. Some agents send a whole shell command and no arguments."""
    command, arguments = str(params.get("command") or ""), params.get("args")
    given = [str(one) for one in arguments] if isinstance(arguments, list) else []
    if not command.strip():
        raise ValueError("no command")
    if given or shutil.which(command, path=environment.get("PATH")):
        return [command, *given]
    return ["cmd", "/c", command] if os.name == "nt" else ["/bin/sh", "-c", command]


@asynccontextmanager
async def terminals_below(folder: str, is_on: bool) -> AsyncIterator[Terminals]:
    """Yield the terminals of one agent; leaving the block ends their commands. `is_on` False allows no request."""
    async with anyio.create_task_group() as tasks:
        terminals = Terminals(folder, tasks, is_on)
        try:
            yield terminals
        finally:
            with anyio.CancelScope(shield=True):
                await terminals.end_all()
            tasks.cancel_scope.cancel()
