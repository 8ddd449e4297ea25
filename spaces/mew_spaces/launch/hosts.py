"""Runs several agents per process, each like a separate program.

Decides which agents share a process, and notifies their supervisor when an agent or a whole process ends. The command
line implements such a process; `supervisor` restarts agents.
"""

import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import anyio
from anyio.abc import Process, TaskGroup, TaskStatus
from mew_settings.line_reader import LineReader
from pydantic import ValidationError

from mew_spaces.launch.host_messages import HostNote, HostOrder
from mew_spaces.launch.launch import HOSTS, Program
from mew_spaces.launch.processes import signal_group, started_mark

log = logging.getLogger("mew_spaces")

AGENTS_PER_HOST: Final = 25
"""How many agents share a process: so few that each core gets one, and that a lost process takes few along."""

SETTLED_SECONDS: Final = 600.0
"""A process that ends sooner is suspected: its agents are split between two processes when they restart."""


class RunningProgram(Protocol):
    """A running program: a process, or an agent in a process."""

    @property
    def pid(self) -> int:
        """Id of its process."""

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs."""

    async def wait(self) -> object:
        """Wait until it has ended."""


@dataclass(eq=False)
class HostedProgram:
    """An agent that runs in a process with others."""

    pid: int
    room: int
    """How many agents may share its process."""
    shared_with: int | None = None
    """How many other agents lost their process together with this one; None if the agent itself ended."""
    returncode: int | None = None
    _ended: anyio.Event = field(default_factory=anyio.Event)

    async def wait(self) -> None:
        """Wait until the agent has ended."""
        await self._ended.wait()

    def end(self, code: int) -> None:
        """Record the exit code. Only the first one counts."""
        if self.returncode is None:
            self.returncode = code
            self._ended.set()


@dataclass(eq=False)
class _Host:
    """A process with its agents. Its agents have the same command, working folder and environment."""

    process: Process
    kind: object
    mark: str | None
    agents: dict[str, HostedProgram] = field(default_factory=dict)
    started_at: float = field(default_factory=anyio.current_time)
    _sending: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def room(self) -> int:
        """How many more agents it accepts."""
        return min((AGENTS_PER_HOST, *(one.room for one in self.agents.values())))

    async def send(self, order: HostOrder) -> None:
        """Send an order. If the process has ended, do nothing, because its agents have ended, too."""
        assert self.process.stdin is not None
        try:
            async with self._sending:
                await self.process.stdin.send(order.to_line())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    def kill(self) -> None:
        """Kill the process. Its agents then end as after a crash."""
        signal_group(self.process.pid, self.mark, signal.SIGKILL)

    def lose(self, code: int) -> None:
        """Record that the process ended with all its agents."""
        running = [one for one in self.agents.values() if one.returncode is None]
        is_suspect = anyio.current_time() - self.started_at < SETTLED_SECONDS
        for one in running:
            one.shared_with = len(running) - 1
            one.room = max(1, len(running) // 2) if is_suspect else AGENTS_PER_HOST
            one.end(code)


class HostPool:
    """The processes with several agents of one space.

    `open_process` starts a process and, at the end of its block, ends it with its children. `on_line` gets each line of
    an agent; None: lines only go to its log. An agent that does not stop within `grace_seconds` is killed with its
    process.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        open_process: Callable[[Program], AbstractAsyncContextManager[Process]],
        on_line: Callable[[str, str], None] | None,
        grace_seconds: float,
    ) -> None:
        self._tasks = tasks
        self._open_process = open_process
        self._on_line = on_line
        self._grace_seconds = grace_seconds
        self._hosts: list[_Host] = []
        self._rooms: dict[str, int] = {}
        self._choosing = anyio.Lock()

    def trust(self, name: str) -> None:
        """Forget that an agent's process ended early, so that the agent may share a process with others again."""
        self._rooms.pop(name, None)

    @asynccontextmanager
    async def running(self, program: Program, log_file: Path) -> AsyncIterator[HostedProgram]:
        """Run an agent in a process with room, else in a new one. Stops the agent at the end of the block.

        Raises `OSError` if a process cannot be started.
        """
        async with self._choosing:
            host = await self._host_for(program)
            hosted = HostedProgram(host.process.pid, self._rooms.get(program.name, AGENTS_PER_HOST))
            host.agents[program.name] = hosted
        own = {name: program.environment[name] for name in program.own_variables}
        start = HostOrder(
            name=program.name, action="start", variables=own, log=log_file, is_shown=self._on_line is not None
        )
        try:
            await host.send(start)
            yield hosted
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(host, program.name, hosted)

    async def _end(self, host: _Host, name: str, hosted: HostedProgram) -> None:
        """Stop an agent that still runs, and its process if it was the last agent."""
        if hosted.returncode is None:
            with anyio.move_on_after(self._grace_seconds):
                await host.send(HostOrder(name=name, action="stop"))
                await hosted.wait()
        if hosted.returncode is None:
            log.warning("'%s' did not stop; its process is killed, and the others in it restart", name)
            host.kill()
            await hosted.wait()
        if hosted.shared_with is not None:
            self._rooms[name] = hosted.room
        host.agents.pop(name)
        if not host.agents and host in self._hosts:
            self._hosts.remove(host)
            host.process.terminate()

    async def _host_for(self, program: Program) -> _Host:
        own = program.own_variables
        shared = {name: value for name, value in program.environment.items() if name not in own}
        kind = (program.host, program.folder, shared)
        room = self._rooms.get(program.name, AGENTS_PER_HOST)
        for host in self._hosts:
            if host.kind == kind and len(host.agents) < min(host.room, room):
                return host
        host_program = Program(HOSTS, program.host, program.folder, shared)
        host = await self._tasks.start(self._keep, host_program, kind)
        assert isinstance(host, _Host)
        self._hosts.append(host)
        return host

    async def _keep(self, program: Program, kind: object, *, task_status: TaskStatus[_Host]) -> None:
        """Start a process for agents, and read its reports until it has ended."""
        host: _Host | None = None
        try:
            async with self._open_process(program) as process:
                host = _Host(process, kind, started_mark(process.pid))
                task_status.started(host)
                assert process.stdout is not None
                reader = LineReader()
                async for chunk in process.stdout:
                    for line in reader.feed(chunk):
                        self._note(host, line)
                await process.wait()
        finally:
            if host is not None:
                if host in self._hosts:
                    self._hosts.remove(host)
                code = host.process.returncode
                host.lose(-signal.SIGKILL if code is None else code)

    def _note(self, host: _Host, line: bytes) -> None:
        try:
            note = HostNote.model_validate_json(line)
        except ValidationError:
            log.warning("process %d of agents reported an unreadable line", host.process.pid)
            return
        if note.line is not None and self._on_line is not None:
            self._on_line(note.name, note.line)
        if note.code is not None and (agent := host.agents.get(note.name)) is not None:
            agent.end(note.code)
