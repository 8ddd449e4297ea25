"""The process that forks programs for `tests.support.warm_start`. Imports `mew` once; started as a file, by path.

It has one thread and no event loop, so that a forked program begins like one that Python has just started.
"""

import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

IMPORTED = (
    "mew_agent.cli.main",
    "mew_agent.parts.terminal.command",
    "mew_agent.cli.programs.agent",
    "mew_agent.cli.programs.gateway",
    "mew_agent.cli.space.up",
    "mew_agent.parts.rehearsal.service",
)
"""What most programs import; they import the rest as usual."""


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


def become(request: dict[str, Any]) -> None:
    """Run the program of a request, as Python would run it."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.orig_argv = request["command"]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
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
    if target == "-m":
        target, *arguments = arguments
        sys.path[:0] = [*([] if options else [str(Path.cwd())]), *added]
        sys.argv = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(target).resolve().parent), *added]
        sys.argv = [target, *arguments]
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    for name in IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()  # memory that the collector does not write to is shared with the programs
    # Ctrl-C is for pytest, whose end ends this process; one that a program gets while it is made waits for its start.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    received = serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if received["ignores_hangups"] else signal.SIG_DFL)
    gc.unfreeze()
    become(received)
