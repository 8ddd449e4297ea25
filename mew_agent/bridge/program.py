"""An MCP server as a process: lines in, lines out, what it says on standard error, and an end that leaves nothing.

Owns the process and its group. What the lines mean is `session`'s matter.
"""

import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from mew_agent.bridge.settings import StdioServer
from mew_agent.errors import MewAgentError

logger = logging.getLogger("mew_agent.bridge")

CLOSE_SECONDS: Final = 1.0
"""How long a server may take to end once its input was closed, and again once it was asked to terminate."""

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
_TAIL_LINES: Final = 5
_SHOWN_CHARS: Final = 400
_LAST_WORDS_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.01


@dataclass(eq=False)
class ServerFailed(MewAgentError):
    """An MCP server that cannot be used. `said` is the end of what it wrote to standard error."""

    server: str
    problem: str
    said: str = ""

    def __str__(self) -> str:
        tail = f"; it said: {self.said}" if self.said else ""
        return f"the MCP server '{self.server}' {self.problem}{tail}"


@dataclass
class ServerProgram:
    """A running server."""

    name: str
    process: Process
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    _has_said_all: anyio.Event = field(default_factory=anyio.Event)

    @property
    def said(self) -> str:
        """The end of what it wrote to standard error, on one line."""
        return " / ".join(self._said)[-_SHOWN_CHARS:]

    async def lines(self) -> AsyncIterator[bytes]:
        """What it writes to standard output, line by line. Raises `ServerFailed` for a line without end."""
        assert self.process.stdout is not None
        async for line in _lines(self.process.stdout):
            if len(line) > MAX_LINE_BYTES:
                raise ServerFailed(self.name, f"wrote a line of more than {MAX_LINE_BYTES:,} bytes")
            yield line

    async def write_line(self, line: str) -> None:
        """Write a line to its standard input. Raises anyio's errors of a broken stream."""
        assert self.process.stdin is not None
        await self.process.stdin.send(line.encode() + b"\n")

    async def how_it_ended(self) -> str:
        """Why its output ended, in words. Timeouts a moment for the process to end too, and for what it said last."""
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await self.process.wait()
            await self._has_said_all.wait()
        match self.process.returncode:
            case None:
                return "closed its output"
            case code if code < 0:
                return f"was ended by signal {-code}"
            case code:
                return f"ended with exit code {code}"

    async def keep_words(self) -> None:
        """Log what it writes to standard error, and keep the end of it."""
        assert self.process.stderr is not None
        async for line in _lines(self.process.stderr):
            text = line.decode(errors="replace").rstrip()
            if text:
                self._said.append(text)
                logger.info("server: %s", text)
        self._has_said_all.set()


@asynccontextmanager
async def running_program(server: StdioServer, environ: Mapping[str, str]) -> AsyncIterator[ServerProgram]:
    """A started server; when the block is left it has ended, with everything it started in its process group.

    Raises `ServerFailed` when it cannot be started.
    """
    try:
        process = await anyio.open_process(
            [server.command, *server.args],
            stderr=subprocess.PIPE,
            cwd=server.cwd,
            env=server.environment(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServerFailed(server.command, f"cannot be started: {reason.lower()}") from None
    program = ServerProgram(server.command, process)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program.keep_words)
            try:
                yield program
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()


async def _end(process: Process) -> None:
    """Close its input, then terminate its group, then kill it; each with its bound."""
    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    if await _is_gone(process):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        if await _is_gone(process):
            return
    logger.warning("the MCP server's process %d does not end", process.pid)


async def _is_gone(process: Process) -> bool:
    """Whether the process and its group end within the bound. Not `wait`, which also waits for inherited pipes."""
    with anyio.move_on_after(CLOSE_SECONDS):
        while process.returncode is None or _signal(process, 0):  # noqa: ASYNC110 - a group has no event of its end
            await anyio.sleep(_POLL_SECONDS)
        return True
    return False


def _signal(process: Process, number: int) -> bool:
    """Signal the server's process group (0: only ask). Returns whether there is one."""
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


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Lines without their ends; one that grows past the bound is given as it is then."""
    rest = bytearray()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        async for chunk in stream:
            *lines, last = chunk.split(b"\n")
            if not lines:
                rest += last
            for line in lines:
                yield bytes(rest + line)
                rest.clear()
            if lines:
                rest += last
            if len(rest) > MAX_LINE_BYTES:
                yield bytes(rest)
                rest.clear()
    if rest:
        yield bytes(rest)
