"""A process that runs several agents of a space for `mew up`, each as if it had a process of its own.

Separates the output of the agents; when one ends, the others continue. Reads orders from standard input and writes
notes to standard output, in the form of `mew_spaces.launch.shared_process_messages`. `mew up` decides which agents
share a process, and restarts them.
"""

import io
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from typing import IO, Final, TextIO

import anyio
from anyio.abc import TaskGroup
from mew_listener import descriptors
from mew_settings.line_reader import LineReader
from mew_spaces.launch.program_logs import open_log
from mew_spaces.launch.shared_process_messages import AgentNote, AgentOrder

from mew_agent.agent.agent import run_agent
from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.reported_errors import report_error
from mew_agent.config.agent_config import AgentConfig, check_model_source, load_agent_config
from mew_agent.errors import ConfigError
from mew_agent.model.builtin import is_builtin
from mew_agent.program import run_until_signal
from mew_agent.tracing import enable_by_environment

_READ_BYTES: Final = 64 * 1024
_LINE_BYTES: Final = 64 * 1024

_output: ContextVar["AgentOutput | None"] = ContextVar("output", default=None)
"""The output of the agent of the running task or thread."""


def serve_agents() -> None:
    """Run agents as standard input orders, until a signal arrives.

    If standard input ends, `mew up` was killed: the process then waits for its agents to end.
    """
    notes = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other prints must not mix with the notes
    descriptors.raise_limit()
    with _output_by_agent():
        enable_by_environment()
        run_until_signal(_Agents(notes).serve)


def check_settings(settings: AgentConfig, notices: tuple[str, ...]) -> None:
    """Print notices about an agent's settings. Raises `ConfigError` if they name no model server to call."""
    for notice in notices:
        terminal.warn(notice)
    check_model_source(settings, where="mew agent run")
    if is_builtin(settings.base_url):
        raise ConfigError("base_url", "only `mew up` starts a model server; give the URL of `mew serve model`")


class _Agents:
    """The agents of this process. `notes` is the pipe to `mew up`."""

    def __init__(self, notes: IO[bytes]) -> None:
        self._notes = notes
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def serve(self) -> None:
        """Carry out orders until standard input ends, then wait for the agents."""
        orders, reader = sys.stdin.fileno(), LineReader()
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(orders)
                if not (piece := os.read(orders, _READ_BYTES)):
                    return
                for line in reader.feed(piece):
                    self._obey(AgentOrder.model_validate_json(line), tasks)

    def _obey(self, order: AgentOrder, tasks: TaskGroup) -> None:
        if order.action == "stop":
            if (scope := self._scopes.get(order.name)) is not None:
                scope.cancel()
            return
        self._scopes[order.name] = anyio.CancelScope()
        tasks.start_soon(self._run, order, self._scopes[order.name])

    async def _run(self, order: AgentOrder, scope: anyio.CancelScope) -> None:
        """Run one agent until it ends, and report its exit code. Its failure ends no other agent."""
        code = int(ExitCode.FAILED)
        try:
            with _agent_output(order, self._send if order.is_shown else None) as output:
                try:
                    with scope:
                        settings, notices = load_agent_config(flags={}, environ={**os.environ, **order.variables})
                        output.log_from(settings.log_level)
                        check_settings(settings, notices)
                        await run_agent(settings)
                    code = ExitCode.DONE
                except Exception as error:
                    if os.environ.get("MEW_DEBUG"):
                        traceback.print_exception(error)
                    code = report_error(error)
        except OSError as error:
            terminal.warn(f"'{order.name}': its log cannot be written: {error}")
        finally:
            del self._scopes[order.name]
            if anyio.current_effective_deadline() > -math.inf:  # otherwise the whole process ends, not only this agent
                self._send(AgentNote(name=order.name, code=code))

    def _send(self, note: AgentNote) -> None:
        with suppress(BrokenPipeError):  # `mew up` was killed
            self._notes.write(note.to_line())
            self._notes.flush()


class AgentOutput(io.TextIOBase):
    """The output of one agent: appended to its log, and sent line by line to `mew up` if `mew up` shows it."""

    def __init__(self, file: IO[bytes], on_line: Callable[[str], None] | None) -> None:
        self._file = file
        self._on_line = on_line
        self._lines = LineReader(_LINE_BYTES)
        self.handler = terminal.log_handler(self, "info")

    def log_from(self, level: str) -> None:
        """Accept log records from this level on."""
        self.handler = terminal.log_handler(self, level)
        root = logging.getLogger()
        root.setLevel(min(root.level, self.handler.level))

    def write(self, text: str) -> int:
        """Write a text. It is lost if the log cannot be written."""
        data = text.encode(errors="replace")
        with suppress(OSError):
            self._file.write(data)
        if self._on_line is not None:
            for line in self._lines.feed(data):
                self._on_line(line.decode(errors="replace"))
        return len(text)


class _OutputOfContext(io.TextIOBase):
    """A stream that writes to the output of the running agent, else to the stream of the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return (_output.get() or self._stream).write(text)

    def flush(self) -> None:
        self._stream.flush()


class _HandlerOfContext(logging.Handler):
    """Passes each record to the handler of the running agent, else to the process's handler."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._handler = terminal.log_handler(stream, "info")

    def emit(self, record: logging.LogRecord) -> None:
        output = _output.get()
        handler = self._handler if output is None else output.handler
        if record.levelno >= handler.level:
            handler.handle(record)


@contextmanager
def _output_by_agent() -> Iterator[None]:
    """Route all logs and printed text of the block to its agent."""
    stream = sys.stderr
    logging.basicConfig(level=logging.INFO, handlers=[_HandlerOfContext(stream)])
    with redirect_stdout(_OutputOfContext(stream)), redirect_stderr(_OutputOfContext(stream)):
        yield


@contextmanager
def _agent_output(order: AgentOrder, send: Callable[[AgentNote], None] | None) -> Iterator[AgentOutput]:
    """Write the output of this task and its children to an agent's log. Raises `OSError` if the log cannot be
    opened.
    """
    on_line = None if send is None else (lambda line: send(AgentNote(name=order.name, line=line)))
    with open_log(order.log) as file:
        output = AgentOutput(file, on_line)
        token = _output.set(output)
        try:
            yield output
        finally:
            _output.reset(token)
