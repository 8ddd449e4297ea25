"""Run a child process that speaks in lines: read and write them, log its standard error, and end it completely.

Owns the process and its process group. Does not interpret the lines: MCP in `bridge`, ACP in `acp`.
"""

import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final

import anyio
import psutil
from anyio.abc import ByteReceiveStream, Process
from mew_listener.log_budget import UNBOUNDED
from mew_settings.line_reader import LineReader

from mew_agent.errors import MewAgentError

logger = logging.getLogger("mew_agent.parts.shared.child_program")

CLOSE_SECONDS: Final = 1.0
"""Grace period after each step of the shutdown: closed input, SIGTERM, SIGKILL."""

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
MAX_STDERR_LINE_BYTES: Final = 64 * 1024
"""A longer line of standard error is logged in parts."""

_TAIL_LINES: Final = 5
_TAIL_CHARS: Final = 400
_EXIT_WAIT_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.01
_END_POLL_SECONDS: Final = 1.0
LAST_OUTPUT_SECONDS: Final = 0.5
"""How long to read on after a program's exit: a program that it left behind may keep the output open."""


@dataclass(eq=False)
class ChildFailed(MewAgentError):
    """An unusable program. `stderr` is the end of its standard error."""

    role: ClassVar[str] = "the program"
    program: str
    problem: str
    stderr: str = ""

    def __str__(self) -> str:
        tail = f"; stderr: {self.stderr}" if self.stderr else ""
        return f"{self.role} '{self.program}' {self.problem}{tail}"


@dataclass(eq=False)
class _Output:
    """One output of a program, read in lines without their line ends."""

    stream: ByteReceiveStream
    max_bytes: int
    _received: int = 0
    _is_waiting: bool = False

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines. A line that exceeds the limit is yielded in parts."""
        reader = LineReader(self.max_bytes)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            while True:
                self._is_waiting = True
                chunk = await self.stream.receive()
                self._is_waiting, self._received = False, self._received + 1
                for line in reader.feed(chunk):
                    yield line
        if rest := reader.take_rest():
            yield rest

    async def end_when_quiet(self) -> None:
        """End the output once everything is read and nothing has arrived for a while."""
        received = -1
        while not self._is_waiting or received != self._received:
            received = self._received
            await anyio.sleep(LAST_OUTPUT_SECONDS)
        await self.stream.aclose()


@dataclass
class ChildProgram:
    """A running child process. `failure` is the class of its errors."""

    name: str
    process: Process
    failure: type[ChildFailed] = ChildFailed
    _stderr_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _stderr_ended: anyio.Event = field(default_factory=anyio.Event)
    _stdout: _Output = field(init=False)
    _stderr: _Output = field(init=False)

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdout = _Output(self.process.stdout, MAX_LINE_BYTES)
        self._stderr = _Output(self.process.stderr, MAX_STDERR_LINE_BYTES)

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error, in one line."""
        return " / ".join(self._stderr_lines)[-_TAIL_CHARS:]

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of its standard output. Raises `ChildFailed` for a line of more than 32 MiB."""
        async for line in self._stdout.lines():
            if len(line) > MAX_LINE_BYTES:
                raise self.failure(self.name, f"wrote a line of more than {MAX_LINE_BYTES:,} bytes")
            yield line

    async def write_line(self, line: str) -> None:
        """Write a line to its standard input. Raises anyio's stream errors."""
        assert self.process.stdin is not None
        await self.process.stdin.send(line.encode() + b"\n")

    async def exit_reason(self) -> str:
        """Return why its output ended, as a predicate. Waits a few seconds for the process and its stderr to end."""
        with anyio.move_on_after(_EXIT_WAIT_SECONDS):
            await self.process.wait()
            await self._stderr_ended.wait()
        code = self.process.returncode
        if code is None:
            return "closed its output"
        return f"was terminated by signal {-code}" if code < 0 else f"exited with code {code}"

    async def read_stderr(self) -> None:
        """Log its standard error and keep the last lines."""
        async for line in self._stderr.lines():
            text = line.decode(errors="replace").rstrip()
            if text:
                self._stderr_lines.append(text[-_TAIL_CHARS:])
                logger.info("%s: %s", self.name, text, extra=UNBOUNDED)
        self._stderr_ended.set()

    async def end_output(self) -> None:
        """End its output once it and its group are gone, even if a program that it left behind keeps the pipes open."""
        while group_exists(self.process):  # noqa: ASYNC110 - `wait` also waits for inherited pipes
            await anyio.sleep(_END_POLL_SECONDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stdout.end_when_quiet)
            tasks.start_soon(self._stderr.end_when_quiet)


@asynccontextmanager
async def running_program(
    command: Sequence[str], environment: Mapping[str, str], cwd: str | None, failure: type[ChildFailed]
) -> AsyncIterator[ChildProgram]:
    """Start a program; leaving the block ends its process group. Raises `failure` if it cannot start."""
    try:
        process = await anyio.open_process(
            list(command),
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(environment),
            # A separate process group: launchers such as npx start the program as a child, and both must end.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise failure(command[0], f"cannot be started: {reason.lower()}") from None
    program = ChildProgram(command[0], process, failure)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program.read_stderr)
            tasks.start_soon(program.end_output)
            try:
                yield program
            finally:
                with anyio.CancelScope(shield=True):
                    await end_process(process)
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def end_process(process: Process) -> None:
    """End a process group: close its input if it has one, then send SIGTERM, then SIGKILL; wait after each.

    Then kills the programs that it had started in groups of their own, and left behind.
    """
    started = _descendants(process)
    try:
        await _end_group(process)
    finally:
        for one in started:
            with suppress(psutil.Error):
                one.kill()


async def _end_group(process: Process) -> None:
    if process.stdin is not None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.aclose()
        if await _is_gone(process):
            return
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        if await _is_gone(process):
            return
    logger.warning("process %d did not exit", process.pid)


def _descendants(process: Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True) if process.returncode is None else []
    return []


def group_exists(process: Process) -> bool:
    """Return True if the process, or a program it started, still runs.

    Ignores zombies, which the first process of a container may never reap.
    """
    if process.returncode is None:
        return True
    return _signal(process, 0) and any(_runs_in_group(pid, process.pid) for pid in psutil.pids())


async def _is_gone(process: Process) -> bool:
    """Return True if the process and its group exit in time. `wait` cannot be used, because it also waits for inherited
    pipes.
    """
    with anyio.move_on_after(CLOSE_SECONDS):
        while group_exists(process):  # noqa: ASYNC110 - a process group has no exit event
            await anyio.sleep(_POLL_SECONDS)
        return True
    return False


def _runs_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):  # it has ended in the meantime
        return False


def _signal(process: Process, number: int) -> bool:
    """Signal the process group; signal 0 only tests it. Returns whether the group exists."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        elif process.returncode is None and number:
            process.terminate()
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return hasattr(os, "killpg")
