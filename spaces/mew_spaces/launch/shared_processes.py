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

from mew_spaces.launch.launch import SHARED_PROCESSES, Program
from mew_spaces.launch.processes import signal_group, started_mark
from mew_spaces.launch.shared_process_messages import AgentNote, AgentOrder

log = logging.getLogger("mew_spaces")

AGENTS_PER_PROCESS: Final = 25
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
class RunningAgent:
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
class SharedProcess:
    """A process with its agents. Its agents have the same command, working folder and environment."""

    process: Process
    kind: object
    mark: str | None
    agents: dict[str, RunningAgent] = field(default_factory=dict)
    started_at: float = field(default_factory=anyio.current_time)
    _sending: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def room(self) -> int:
        """How many more agents it accepts."""
        return min((AGENTS_PER_PROCESS, *(one.room for one in self.agents.values())))

    async def send(self, order: AgentOrder) -> None:
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
            one.room = max(1, len(running) // 2) if is_suspect else AGENTS_PER_PROCESS
            one.end(code)


class SharedProcesses:
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
        self._processes: list[SharedProcess] = []
        self._rooms: dict[str, int] = {}
        self._choosing = anyio.Lock()

    def trust(self, name: str) -> None:
        """Forget that an agent's process ended early, so that the agent may share a process with others again."""
        self._rooms.pop(name, None)

    @asynccontextmanager
    async def running(self, program: Program, log_file: Path) -> AsyncIterator[RunningAgent]:
        """Run an agent in a process with room, else in a new one. Stops the agent at the end of the block.

        Raises `OSError` if a process cannot be started.
        """
        async with self._choosing:
            shared = await self._process_for(program)
            agent = RunningAgent(shared.process.pid, self._rooms.get(program.name, AGENTS_PER_PROCESS))
            shared.agents[program.name] = agent
        own = {name: program.environment[name] for name in program.own_variables}
        start = AgentOrder(
            name=program.name, action="start", variables=own, log=log_file, is_shown=self._on_line is not None
        )
        try:
            await shared.send(start)
            yield agent
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(shared, program.name, agent)

    async def _end(self, shared: SharedProcess, name: str, agent: RunningAgent) -> None:
        """Stop an agent that still runs, and its process if it was the last agent."""
        if agent.returncode is None:
            with anyio.move_on_after(self._grace_seconds):
                await shared.send(AgentOrder(name=name, action="stop"))
                await agent.wait()
        if agent.returncode is None:
            log.warning("'%s' did not stop; its process is killed, and the others in it restart", name)
            shared.kill()
            await agent.wait()
        if agent.shared_with is not None:
            self._rooms[name] = agent.room
        shared.agents.pop(name)
        if not shared.agents and shared in self._processes:
            self._processes.remove(shared)
            shared.process.terminate()

    async def _process_for(self, program: Program) -> SharedProcess:
        own = program.own_variables
        environment = {name: value for name, value in program.environment.items() if name not in own}
        kind = (program.host, program.folder, environment)
        room = self._rooms.get(program.name, AGENTS_PER_PROCESS)
        for shared in self._processes:
            if shared.kind == kind and len(shared.agents) < min(shared.room, room):
                return shared
        agent_program = Program(SHARED_PROCESSES, program.host, program.folder, environment)
        shared = await self._tasks.start(self._keep, agent_program, kind)
        assert isinstance(shared, SharedProcess)
        self._processes.append(shared)
        return shared

    async def _keep(self, program: Program, kind: object, *, task_status: TaskStatus[SharedProcess]) -> None:
        """Start a process for agents, and read its reports until it has ended."""
        shared: SharedProcess | None = None
        try:
            async with self._open_process(program) as process:
                shared = SharedProcess(process, kind, started_mark(process.pid))
                task_status.started(shared)
                assert process.stdout is not None
                reader = LineReader()
                async for chunk in process.stdout:
                    for line in reader.feed(chunk):
                        self._note(shared, line)
                await process.wait()
        finally:
            if shared is not None:
                if shared in self._processes:
                    self._processes.remove(shared)
                code = shared.process.returncode
                shared.lose(-signal.SIGKILL if code is None else code)

    def _note(self, shared: SharedProcess, line: bytes) -> None:
        try:
            note = AgentNote.model_validate_json(line)
        except ValidationError:
            log.warning("process %d of agents reported an unreadable line", shared.process.pid)
            return
        if note.line is not None and self._on_line is not None:
            self._on_line(note.name, note.line)
        if note.code is not None and (agent := shared.agents.get(note.name)) is not None:
            agent.end(note.code)
