"""Real processes of `mew` that need not import it first.

A Python that becomes `mew` imports for half a second of processor time, and the tests start five hundred. Where a test
names `PYTHON` as the program, and where the product starts its own command, `subprocess` and `anyio` ask a server
process for a copy of it (`warm_server`). The copy is a child of the process that asked, with a process id, session,
signals, exit code, standard streams, folder, arguments and environment of its own. A copy that starts programs has a
server of its own for them, for files of Python too. What a copy cannot give is started as usual.
"""

import atexit
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

SERVER: Final = Path(__file__).with_name("warm_server.py")


class _Warm(str):
    """The path of Python, marked."""

    __slots__ = ()


PYTHON: Final = _Warm(sys.executable)
"""The path of Python, for `PYTHON -m mew_agent ...` and `PYTHON FILE`."""

MEW: Final = (PYTHON, "-P", "-m", "mew_agent")
"""The command `mew`."""

REAL_MEW: Final = (str(sys.executable), "-m", "mew_agent")
"""`mew` in a Python of its own, which knows of no copies: so does all that it starts."""

STARTERS: Final = frozenset({"demo", "gateway", "up"})
"""Commands of `mew` that start others."""

SHOWN_BYTES: Final = 100_000
"""The room in a copy for the arguments that the system shows of it, and as much again for its environment."""

_FREE: Final = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED"}
"""Variables of Python that a copy follows. If another one differs from the server's, Python has to start."""

_SUBREAPER: Final = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux: a process whose parent ends becomes a child of this one."""

_SENT: Final = ("close_fds", "cwd", "env", "start_new_session", "p2cread", "c2pwrite", "errwrite")
_ORDER: Final = (
    *("args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags"),
    *("shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals"),
    *("gid", "gids", "uid", "umask", "start_new_session", "process_group"),
)
"""The arguments of `Popen._execute_child` in Python 3.11 and later."""


class WarmPopen(subprocess.Popen[Any]):
    """A `Popen` that takes a copy of the server where the program is `PYTHON`."""

    def _execute_child(self, *arguments: Any) -> None:
        given = dict(zip(_ORDER, arguments, strict=False))
        pid = None
        if len(arguments) == len(_ORDER) and _can_be_copied(given):
            pid = _server().start(given)
        if pid is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        files = (given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        self._close_pipe_fds(*files)  # type: ignore[attr-defined]


def install() -> None:
    """Let `subprocess`, and what uses it, make copies; where they work as started processes do."""
    # Coverage measures a process from its start, and says so in a variable of this name.
    is_measured = any(name.startswith("COVERAGE_PROCESS_") for name in os.environ)
    if sys.platform == "linux" and not is_measured:
        subprocess.Popen = WarmPopen  # type: ignore[misc]


def _can_be_copied(given: dict[str, Any]) -> bool:
    command = given["args"]
    environment = os.environ if given["env"] is None else given["env"]
    if isinstance(command, str | bytes | os.PathLike) or not _names_warm_program(command, environment):
        return False
    usual: dict[str, Any] = {"executable": None, "preexec_fn": None, "pass_fds": (), "shell": False}
    usual |= {
        "restore_signals": True,
        "close_fds": True,
        "gid": None,
        "gids": None,
        "uid": None,
        "umask": -1,
        "process_group": -1,
    }
    words = [str(word) for word in command[1:] if word != "-P"]
    return (
        all(given[name] == value for name, value in usual.items())
        and (given["cwd"] is None or Path(given["cwd"]).is_dir())
        and (words[:2] == ["-m", "mew_agent"] or words[0].endswith(".py"))
        and _python_variables(environment) == _server().variables
        and len(shown(command)) < SHOWN_BYTES
        and len(shown(f"{name}={text}" for name, text in environment.items())) < SHOWN_BYTES
    )


def _names_warm_program(command: Any, environment: Any) -> bool:
    """Return whether a test asked for a copy, or the product starts its own command, or a copy a file of Python."""
    own = (str(sys.executable), "-P", "-m", "mew_agent")
    return isinstance(command[0], _Warm) or tuple(command[: len(own)]) == own or _names_file(command, environment)


def _names_file(command: Any, environment: Any) -> bool:
    """Return whether this process is a copy, and a command runs a file with its Python."""
    if not _execute or len(command) < 2 or not str(command[1]).endswith(".py"):
        return False
    found: str | None = shutil.which(command[0], path=environment.get("PATH"))
    return found == sys.executable


class Replaced(SystemExit):
    """A program ends, and its process is to run another one, as by `os.execvpe`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        super().__init__()
        self.command = command
        self.environment = environment


_execute: list[Any] = []
"""The function that replaces a program; in a copy only."""


def install_in_copy() -> None:
    """Let this copy, and what it starts, run files of Python without a new start of Python."""
    _execute.append(os.execvpe)

    def replace(file: str, command: list[str], environment: dict[str, str]) -> None:
        has_same_variables = _python_variables(environment) == _python_variables(os.environ)
        if has_same_variables and _names_file(command, environment):
            raise Replaced(command, environment)
        _execute[0](file, command, environment)

    os.execvpe = replace  # type: ignore[assignment]


def shown(words: Iterable[Any]) -> bytes:
    """Return words as the system shows arguments and variables of a process."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _python_variables(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON") and name not in _FREE}


class _Server:
    """The server process of this process."""

    def __init__(self, requests: socket.socket) -> None:
        self.variables = _python_variables(os.environ)
        self._lock = threading.Lock()
        self._process_control = ctypes.CDLL(None).prctl
        self._requests = requests

    def close(self) -> None:
        """Let the server end, which reads no request after this."""
        self._requests.close()

    def start(self, given: dict[str, Any]) -> int:
        """Start a program and return its process id."""
        environment = os.environ if given["env"] is None else given["env"]
        request = {
            "command": [os.fspath(word) for word in given["args"]],
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "environment": dict(environment),
            "new_session": given["start_new_session"],
            "ignores_hangups": signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
        }
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        files = [own if file == -1 else file for own, file in enumerate(streams)]
        with self._lock:
            self._process_control(_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._requests, [json.dumps(request).encode()], files)
                return int(self._requests.recv(100))
            finally:
                self._process_control(_SUBREAPER, 0, 0, 0, 0)


_running: list[_Server] = []
_starting = threading.Lock()


def connection() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection to a server: for requests, and the server's own."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
    return ends


def use(requests: socket.socket) -> None:
    """Use the server at the other end from now on."""
    _running[:] = [_Server(requests)]


def _server() -> _Server:
    with _starting:
        if not _running:
            _start_server()
        return _running[0]


def _start_server() -> None:
    requests, other = connection()
    room = "x" * SHOWN_BYTES
    with other:
        process = subprocess.Popen(
            [sys.executable, "-P", SERVER, str(other.fileno()), room],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={**os.environ, "ROOM": room},
        )
    use(requests)
    # The server's own exit is awaited, so that none of its output comes after the test's process has ended.
    atexit.register(process.wait)
    atexit.register(_running[0].close)
