"""The process that forks programs for `tests.support.warm_start`. Imports `mew` once; started as a file, by path.

It has one thread and no event loop, so that a forked program begins like one that Python has just started.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support import warm_start

for name in ("tests.support", "tests"):  # a program may have others
    del sys.modules[name]
del sys.path[0]

IMPORTED = (
    "mew_agent.cli.main",
    "mew_agent.parts.terminal.connect",
    "mew_agent.cli.programs.run_agent",
    "mew_agent.cli.programs.start_gateway",
    "mew_agent.cli.space.up",
    "mew_agent.parts.shared.serve_model",
    "mew_agent.cli.remote.http_api",
    "mew_agent.model.openai_client",
    "mew_agent.parts.policies.presets",
    "mew_agent.parts.rehearsal.builtin_model",
    "mew_agent.parts.rehearsal.model_service",
    "mew_agent.parts.tokenizers.families",
    "mew_agent.parts.mcp.offers_server",  # which imports for half a second, like the next
    "mew_agent.parts.mcp.bridge",
    *("anyio._backends._asyncio", "anyio._core._fileio", "anyio._core._signals", "anyio._core._subprocesses"),
    *("encodings.idna", "httpcore2", "openai.resources.chat.completions", "uvloop"),
)
"""What most programs import; they import the rest as usual."""

COMPLETED = ("mew_", "openai.types.chat.chat_completion", "openai.types.completion_usage")
"""Modules whose pydantic models are completed, which each program would do when it uses them first."""

exit_codes: list[int] = []
"""The exit code of this program, as soon as it is known."""


def complete_models(base: type[BaseModel]) -> None:
    """Complete the models below a base."""
    for model in base.__subclasses__():
        if model.__module__.startswith(COMPLETED):
            model.model_rebuild()
        complete_models(model)


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a program for each request until the test's process ends. Returns in each program, with its request."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1_000_000, 3)
        if not data:
            os._exit(0)
        incoming, outgoing = os.pipe()
        between = os.fork()
        if not between:
            # The program is the child of a process that ends at once: the kernel makes it one of the test's process.
            own = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == own:
                time.sleep(0.0005)
            request: dict[str, Any] = json.loads(data)
            if request["new_session"]:
                os.setsid()
            os.environ.clear()  # it refers to the memory that shows it
            _show(request)
            os.write(outgoing, str(os.getpid()).encode())
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in (*files, incoming, outgoing):
                os.close(file)
            return request
        for file in (*files, outgoing):
            os.close(file)
        os.waitpid(between, 0)
        requests.send(os.read(incoming, 100))
        os.close(incoming)


def serve_programs(requests: socket.socket) -> tuple[dict[str, Any], socket.socket | None]:
    """Serve. Returns in each program, with its request and, if it starts others, a connection to a server for them."""
    while True:
        request = serve(requests)
        words = [word for word in request["command"][1:] if word != "-P"]
        if words[:2] != ["-m", "mew_agent"] or words[2:3] == [] or words[2] not in warm_start.STARTERS:
            return request, None
        own, other = warm_start.connection()
        if os.fork():
            other.close()
            return request, own
        # The program's server: not of its group, and without its streams, whose end others wait for.
        own.close()
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        os.close(nothing)
        requests = other


def _show(request: dict[str, Any]) -> None:
    """Let the system show a program's own arguments and environment: they take the place of the server's in memory."""
    # Addresses of the arguments and of the environment, each with its end: see proc(5).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]
    arguments, arguments_end, environment, environment_end = map(int, fields)
    variables = (f"{name}={text}" for name, text in request["environment"].items())
    for begin, end, words in (
        (arguments, arguments_end, request["command"]),
        (environment, environment_end, variables),
    ):
        ctypes.memmove(begin, warm_start.shown(words).ljust(end - begin, b"\0"), end - begin)


def become(request: dict[str, Any], own_server: socket.socket | None) -> None:
    """Run the program of a request, and those by which it replaces itself."""
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    warm_start.install_in_copy()
    if own_server is not None:
        warm_start.use(own_server)
        warm_start.install()
    path = sys.path.copy()
    is_to_run = True
    while is_to_run:
        is_to_run = False
        try:
            run_as_python(request)
        except warm_start.Replaced as end:
            is_to_run = True
            request = {**request, "command": end.command, "environment": end.environment}
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.clear()
            _show(request)
            os.environ.update(end.environment)
            sys.path[:] = path


def run_as_python(request: dict[str, Any]) -> None:
    """Run a program as Python would run it."""
    sys.orig_argv = request["command"]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", buffering=-1, closefd=False)  # noqa: SIM115
        is_by_line = number == 2 or raw.isatty()
        stream = io.TextIOWrapper(raw, errors=errors, line_buffering=is_by_line, write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    options = [word for word in request["command"][1:3] if word == "-P"]
    added = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
    target, *arguments = request["command"][1 + len(options) :]
    try:
        if target == "-m":
            target, *arguments = arguments
            sys.path[:0] = [*([] if options else [str(Path.cwd())]), *added]
            sys.argv = [target, *arguments]
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path[:0] = [str(Path(target).resolve().parent), *added]
            sys.argv = [target, *arguments]
            runpy.run_path(target, run_name="__main__")
    except warm_start.Replaced:
        raise
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            exit_codes.append((end.code or 0) & 0xFF)
        raise
    exit_codes.append(0)


def end_at_once() -> None:
    """End a program that has nothing more to do, and leave its memory to the system.

    Python would free each object, and so copy the memory that the program shares with the server: seven times the work
    of a program that does nothing. If something cannot be written, or a program ended with an error, Python ends it.
    """
    if exit_codes:
        gc.collect()  # what is not closed or not awaited warns, as at any end of Python
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_codes[0])


if __name__ == "__main__":
    atexit.register(end_at_once)  # what is registered first is called last
    for name in IMPORTED:
        with suppress(ModuleNotFoundError):  # it has moved; a test says so
            __import__(name)
    complete_models(BaseModel)
    gc.collect()
    gc.freeze()  # memory that the collector does not write to is shared with the programs
    # Ctrl-C is for pytest, whose end ends this process; one that a program gets while it is made waits for its start.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    received, own_server = serve_programs(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if received["ignores_hangups"] else signal.SIG_DFL)
    become(received, own_server)
