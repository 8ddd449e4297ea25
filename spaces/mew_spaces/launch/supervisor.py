"""Starts, watches and stops the programs of a space, with their child processes.

Owns the order (gateway first, participants last, and the reverse at the end), restarts, and the run file of a running
space. `launch` lists the programs; `program_logs` stores their output.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Final

import anyio
import anyio.to_thread
from anyio.abc import Process, TaskGroup
from mew_settings.backoff import Backoff

from mew_spaces.errors import SpacesError
from mew_spaces.launch import program_logs
from mew_spaces.launch.launch import SHARED_PROCESSES, Program
from mew_spaces.launch.processes import left_behind, signal_group, started_mark, stop_groups
from mew_spaces.launch.program_logs import last_write, log_path, open_log, prepare_log_folder
from mew_spaces.launch.run_file import Exit, RunFile, end_run, read_run_file, write_run_file
from mew_spaces.launch.shared_processes import RunningAgent, RunningProgram, SharedProcesses

log = logging.getLogger("mew_spaces")

OnOutput = Callable[[str, str], None]
"""Receives the output of programs: a program's name and one line."""

SELF: Final = "mew"
"""The program name for messages of the supervisor itself."""

READY_SECONDS: Final = 20.0
"""Time in which the gateway and the model must listen."""

GRACE_SECONDS: Final = 4.0
"""Time in which programs must end after they were asked to."""

_LAST_OUTPUT_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.02


class ProgramFailed(SpacesError):
    """A program that the whole space needs could not be started."""


@dataclass
class Supervisor:
    """Runs the programs of one space until `stop`.

    With `on_output`, each line of output is passed on and logged. Without it, output goes directly to the log files, so
    that programs survive a killed supervisor. `first_pause_seconds` is the delay before a participant's program
    restarts; it doubles with each restart. A service that does not listen within `ready_seconds` has failed.
    `is_refused` reports, in a thread, whether the gateway refuses a program's token, so that a restart would fail.
    """

    run_file: Path
    run: RunFile
    log_folder: Path
    on_output: OnOutput | None = None
    on_ready: Callable[[], None] = lambda: None
    is_refused: Callable[[Program], bool] = lambda _program: False
    log_links: Path | None = None
    """A folder for links to the logs; the TypeScript CLI keeps its logs there."""
    first_pause_seconds: float = 1.0
    ready_seconds: float = READY_SECONDS
    _stop: anyio.Event = field(default_factory=anyio.Event, init=False)
    _failure: ProgramFailed | None = field(default=None, init=False)
    _how: str = field(default="was stopped", init=False)
    _tasks: TaskGroup | None = field(default=None, init=False)
    _shared_processes: SharedProcesses | None = field(default=None, init=False)
    _kept: dict[str, tuple[anyio.CancelScope, anyio.Event]] = field(default_factory=dict, init=False)
    """For each participant's program, the scope of its watch, and the event of its end."""

    def stop(self, how: str = "was stopped") -> None:
        """Stop the space in order; `serve` returns when every program has ended. The first `how` is recorded."""
        if not self._stop.is_set():
            self._how = how
        self._stop.set()

    def force(self) -> None:
        """Kill all programs at once."""
        for pid, mark in self.run.processes.items():
            signal_group(pid, mark, signal.SIGKILL)

    async def serve(self, services: Sequence[Program], participants: Sequence[Program]) -> None:
        """Start services one after the other, then all participants, and watch them until `stop`.

        A service that ends later restarts at the same address. Raises `ProgramFailed` if a service ends before it
        listens, or does not listen in time. Always stops all programs and removes the run file before it returns.
        """
        names = [program.name for program in (*services, *participants)]
        names += [SHARED_PROCESSES] if any(program.host for program in participants) else []
        prepare_log_folder(self.log_folder, names, self.log_links)
        self._save(self.run)
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._shared_processes = SharedProcesses(
                    tasks, self._open_shared_process, self.on_output, GRACE_SECONDS
                )
                tasks.start_soon(program_logs.keep_logs_bounded, self.log_folder)
                tasks.start_soon(self._start_all, tasks, services, participants)
                await self._stop.wait()
                self._save(self.run.model_copy(update={"ready": False}))
                await self._end_all()
                tasks.cancel_scope.cancel()
        finally:
            # Stop again: during the first stop, a task may have started a program.
            with anyio.CancelScope(shield=True):
                await self._end_all()
            _remove_fifos(self.run.fifos)
            end_run(self.run_file, self.run, self._how)
        if self._failure is not None:
            raise self._failure

    async def add(self, participant: Program) -> None:
        """Start and watch a participant while `serve` runs. Ends its earlier program first, if any."""
        if participant.name in self._kept:
            scope, ended = self._kept[participant.name]
            scope.cancel()
            await ended.wait()
        if self._tasks is not None and self._shared_processes is not None and not self._stop.is_set():
            self._shared_processes.trust(participant.name)
            try:
                prepare_log_folder(self.log_folder, [participant.name], self.log_links)
            except SpacesError as error:  # the other programs of the space must not end with this one's log
                self._report(str(error))
            await self._begin(self._tasks, participant)

    def forget(self, participant: str) -> None:
        """Neither restart nor list an ended program, because its participant is no longer in space.yaml."""
        if participant in self._kept:
            self._kept[participant][0].cancel()
        self._save(self.run.without(participant))

    async def _start_all(self, tasks: TaskGroup, services: Sequence[Program], participants: Sequence[Program]) -> None:
        for program in (*services, *participants):
            await self._begin(tasks, program)
            if self._stop.is_set():
                return
        self._save(self.run.model_copy(update={"ready": True}))
        self.on_ready()

    async def _begin(self, tasks: TaskGroup, program: Program) -> None:
        """Start a program, and wait until it runs or has failed; a service runs when it listens."""
        begun = anyio.Event()
        tasks.start_soon(self._keep, program, begun)
        await begun.wait()

    async def _keep(self, program: Program, begun: anyio.Event) -> None:
        """Run a program until it ends for good, or `add` replaces it."""
        ended = anyio.Event()
        with anyio.CancelScope() as scope:
            if program.role == "participant":
                self._kept[program.name] = (scope, ended)
            await self._keep_restarting(program, begun)
        begun.set()
        ended.set()

    def _exit_of(self, program: Program, code: int | None, others: int) -> Exit:
        """Describe the end of a program that shared its process with this many others."""
        # Quote the last output of a program that failed.
        detail = program_logs.last_line(self._log_path(program)) if code is None or code > 0 else ""
        if others:
            detail = f"its process had {others} other agent{'s' if others > 1 else ''}"
        return Exit(code=code, at=datetime.now(UTC).isoformat(), detail=detail)

    async def _lost_its_token(self, program: Program) -> bool:
        """Return whether the gateway refuses the token of a participant's program."""
        if program.role != "participant":
            return False
        return await anyio.to_thread.run_sync(self.is_refused, program, abandon_on_cancel=True)

    async def _keep_restarting(self, program: Program, begun: anyio.Event) -> None:
        """Run a program, and restart it when it ends: a service always, a participant's program by its
        `restart_policy`.
        """
        is_participant = program.role == "participant"
        backoff = Backoff(self.first_pause_seconds) if is_participant else Backoff(0.1, 5.0, 10.0)
        while not self._stop.is_set():
            since = anyio.current_time()
            code, others = await self._run(program, begun)
            if self._stop.is_set():
                return
            ended = self._exit_of(program, code, others)
            pause_seconds = backoff.failed(anyio.current_time() - since)
            # It is unknown which agent ended a shared process, and the others did not fail: all continue.
            is_restarted = self._record_end(program, ended, has_begun=begun.is_set()) or others > 0
            next_start = f"; it restarts in {pause_seconds:g} s" if is_restarted else ""
            if is_restarted and await self._lost_its_token(program):
                is_restarted, next_start = False, "; it does not restart, because the gateway refuses its token"
            if self._failure is None:
                name = program.label if is_participant else f"the {program.label}"
                self._report(f"{name} {ended.words}{next_start}")
            begun.set()
            if not is_restarted:
                return
            await anyio.sleep(pause_seconds)

    def _record_end(self, program: Program, ended: Exit, *, has_begun: bool) -> bool:
        """Record how a program ended, and return whether it is restarted. The space ends if a service never listened.

        The likely cause is its settings, which a restart would only hide.
        """
        if program.role == "participant":
            self._save(self.run.with_ended(program.name, ended))
            return program.restart == "always" or (program.restart == "on-failure" and ended.code != 0)
        if not has_begun:
            self._failure = ProgramFailed(f"the {program.label} {ended.words}")
            self.stop(f"did not start, because {self._failure}")
        elif program.role == "gateway":
            self._save(self.run.model_copy(update={"gateway_exit": ended}))
        return has_begun

    async def _run(self, program: Program, begun: anyio.Event) -> tuple[int | None, int]:
        """Run a program until it ends. Returns its exit code, and the number of other agents that lost their process.

        The exit code is None if the program could not be started or does not listen.
        """
        others = 0
        try:
            async with self._running(program) as running:
                if await _listens(running, program, within_seconds=self.ready_seconds):
                    begun.set()
                    if self.run.gateway_exit is not None and program.role == "gateway":
                        self._save(self.run.model_copy(update={"gateway_exit": None}))
                        self._report("the gateway is back")
                    await running.wait()
                code = running.returncode
                if isinstance(running, RunningAgent):
                    others = running.shared_with or 0
                if code is None:
                    self._log_failure(program, f"did not listen within {self.ready_seconds:g} seconds")
        except OSError as error:
            code = None
            named = f": {error.filename}" if error.filename else ""
            self._log_failure(program, f"{error.strerror or error}{named}".lower())
        return code, others

    @asynccontextmanager
    async def _running(self, program: Program) -> AsyncIterator[RunningProgram]:
        """Run a program, alone or in a process with others, and record it in the run file."""
        async with AsyncExitStack() as stack:
            running: RunningProgram
            if program.host and self._shared_processes is not None:
                running = await stack.enter_async_context(
                    self._shared_processes.running(program, self._log_path(program))
                )
            else:
                running = await stack.enter_async_context(self._own_process(program))
            mark = started_mark(running.pid) or ""
            self._save(self.run.with_started(program.role, program.name, running.pid, mark, program.fifos))
            yield running

    @asynccontextmanager
    async def _own_process(self, program: Program) -> AsyncIterator[Process]:
        """Run a program in a process of its own, with its output in its log."""
        with open_log(self._log_path(program)) as file:
            output = subprocess.PIPE if self.on_output else file
            async with (
                self._open_process(program, stdout=output, stderr=subprocess.STDOUT) as process,
                anyio.create_task_group() as tasks,
            ):
                if self.on_output is not None and process.stdout is not None:
                    copy = program_logs.copy_output
                    tasks.start_soon(copy, process.stdout, file, partial(self.on_output, program.name))
                yield process
                await self._stop_left_behind(process)
                # A process that left the group may keep the pipe open forever.
                tasks.cancel_scope.deadline = anyio.current_time() + _LAST_OUTPUT_SECONDS

    @asynccontextmanager
    async def _open_shared_process(self, program: Program) -> AsyncIterator[Process]:
        """Start a process for several agents, which reads orders from one pipe and reports through another."""
        with open_log(self._log_path(program)) as file:
            pipe = subprocess.PIPE
            async with self._open_process(program, stdin=pipe, stdout=pipe, stderr=file) as process:
                yield process
                await self._stop_left_behind(process)

    @asynccontextmanager
    async def _open_process(
        self, program: Program, *, stdout: int | IO[bytes], stderr: int | IO[bytes], stdin: int = subprocess.DEVNULL
    ) -> AsyncIterator[Process]:
        """Start the process of a program. At the end of the block, stop it and its group if it still runs."""
        process = await anyio.open_process(
            program.command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=program.folder,
            env=program.environment,
            # A group of its own can be signalled separately, and Ctrl-C in our terminal does not reach it: `_end_all`
            # stops programs in order.
            start_new_session=True,
        )
        mark = started_mark(process.pid)
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    await self._stop_groups({process.pid: mark})
                await process.aclose()

    async def _stop_left_behind(self, process: Process) -> None:
        """Stop the remaining processes in an ended process's group."""
        if left_behind([process.pid], self.run.run_id):
            await self._stop_groups({process.pid: None})

    async def _end_all(self) -> None:
        """Stop participants before services, so that they can still leave the space."""
        services = (self.run.pids.gateway, self.run.pids.model)
        for is_service in (False, True):
            marks = {pid: mark for pid, mark in self.run.processes.items() if (pid in services) == is_service}
            await self._stop_groups(marks)

    async def _stop_groups(self, marks: dict[int, str | None]) -> None:
        if marks:
            await anyio.to_thread.run_sync(partial(stop_groups, marks, self.run.run_id, grace_seconds=GRACE_SECONDS))

    def _save(self, run: RunFile) -> None:
        """Write the run file. A failure is logged, and the next change tries again."""
        self.run = run
        try:
            write_run_file(self.run_file, run)
        except SpacesError as error:
            log.warning("%s; `mew status` shows an old state until the next change", error)

    def _report(self, text: str) -> None:
        if self.on_output is not None:
            self.on_output(SELF, text)
        else:
            log.warning("%s", text)

    def _log_failure(self, program: Program, text: str) -> None:
        """Write the reason of a failed start as the last line of the program's log."""
        with suppress(OSError), open_log(self._log_path(program)) as file:
            file.write(f"{text}\n".encode())

    def _log_path(self, program: Program) -> Path:
        return log_path(self.log_folder, program.name)


def stop_space(path: Path, run: RunFile) -> bool:
    """Stop a running space from outside, even without a supervisor. Blocks until every program has ended.

    Signals only processes in the run file with the same start time. Returns whether any was running.
    """
    was_alive = run.is_alive
    supervisor = run.pids.supervisor
    if supervisor is not None and run.is_running(supervisor):
        os.kill(supervisor, signal.SIGTERM)
        until = time.monotonic() + 2 * GRACE_SECONDS + 4
        while run.is_running(supervisor) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        if run.is_running(supervisor):
            os.kill(supervisor, signal.SIGKILL)
    # The programs of a killed supervisor keep running, and the run file may have newer ids than `run`.
    newest = read_run_file(path) or run
    left = {**run.processes, **newest.processes}
    stopped = stop_groups(left, run.run_id, grace_seconds=GRACE_SECONDS)
    _remove_fifos(newest.fifos)
    if path.exists():  # a supervisor that ended normally has removed it
        end_run(path, newest, "was killed", at=last_write(program_logs.log_folder(path.parent)))
    return was_alive or bool(stopped)


async def _listens(process: RunningProgram, program: Program, *, within_seconds: float) -> bool:
    """Wait until a program accepts connections. False if it ends first or takes too long."""
    if program.opens is None:
        return True
    with anyio.move_on_after(within_seconds):
        while process.returncode is None:
            try:
                stream = await anyio.connect_tcp(program.opens.connect_host, program.opens.port)
            except OSError:
                await anyio.sleep(_POLL_SECONDS)
            else:
                await stream.aclose()
                return True
    return False


def _remove_fifos(paths: Iterable[str]) -> None:
    """Remove FIFOs without a reader: which would block writers. Other files stay."""
    for path in map(Path, paths):
        try:
            if path.is_fifo():
                path.unlink()
        except OSError as error:
            log.warning("%s: not removed: %s", path, error)
