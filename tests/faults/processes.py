"""Real processes of a space: the gateway, agents and members, and what can be done to them.

Owns each process and its files. Does not know what is sent.
"""

import mmap
import os
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import psutil

from tests.support.ports import unused_ports
from tests.support.warm_start import PYTHON

START_SECONDS = 240.0
STOP_SECONDS = 120.0
"""Bounds for busy machines: with twenty processes to a core, a gateway takes more than a minute to start."""

UNLIMITED = -1

PROGRAMS = Path(__file__).with_name("programs.py")


class ProgramProcess:
    """A program that can be killed, frozen and started again; all its runs write one log."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self._command = tuple(command)
        self._environment = dict(environment)
        self._output = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def output(self) -> str:
        """Everything that all runs wrote."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    @property
    def rss_bytes(self) -> int:
        """Memory of the running process."""
        return int(self._running.memory_info().rss)

    @property
    def open_files(self) -> int:
        """Open file descriptors of the running process, sockets included."""
        return int(self._running.num_fds())

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the running process."""
        times = self._running.cpu_times()
        return float(times.user + times.system)

    @property
    def has_ended(self) -> bool:
        """Whether the process ended on its own."""
        return self._process is not None and self._process.poll() is not None

    def launch(self, *arguments: str) -> None:
        """Start the process, with more arguments."""
        self.starts += 1
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, **self._environment},
            )

    def kill(self) -> None:
        """End the process at once, as `kill -9` does."""
        self._signal(signal.SIGKILL)
        self._wait()

    async def terminate(self) -> None:
        """Ask the process to stop, and wait until it has."""
        self._signal(signal.SIGTERM)
        await anyio.to_thread.run_sync(self._wait)

    def freeze(self) -> None:
        """Stop the process from running; its sockets stay open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process run again."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def _running(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _wait(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self.name} did not stop within {STOP_SECONDS:.0f} s of SIGTERM") from None


class GatewayProcess(ProgramProcess):
    """`mew gateway start` on a fixed port of the loopback interface, with a wall clock that `set_clock` moves."""

    def __init__(
        self,
        folder: Path,
        space_yaml: str,
        *,
        port: int | None = None,
        name: str = "gateway",
        options: Sequence[str] = (),
    ) -> None:
        self.port = port or unused_ports()[0]
        config, offset = folder / "space.yaml", folder / f"{name}.clock"
        config.write_text(space_yaml)
        offset.write_bytes(struct.pack("d", 0.0))
        with offset.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        start = ["gateway", "start", "-s", str(config), "--port", str(self.port), "--log-level", "warning"]
        super().__init__(name, folder, [PYTHON, str(PROGRAMS), "mew", str(offset), *start, *options], {})

    @property
    def url(self) -> str:
        """The HTTP address."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the process and wait until it accepts connections."""
        self.launch()
        with anyio.fail_after(START_SECONDS):
            while not await self._accepts():
                if self.has_ended:
                    raise AssertionError(f"the gateway ended:\n{self.output}")
                await anyio.sleep(0.02)

    def set_clock(self, offset_seconds: float) -> None:
        """Let the process's wall clock be off by this much from now on."""
        self._offset[:8] = struct.pack("d", offset_seconds)

    def fill_disk(self) -> None:
        """Let every write to a file fail, as a full disk does."""
        self._limit_files(0)

    def free_disk(self) -> None:
        """Let files be written again."""
        self._limit_files(UNLIMITED)

    def _limit_files(self, size: int) -> None:
        hard = self._running.rlimit(psutil.RLIMIT_FSIZE)[1]
        self._running.rlimit(psutil.RLIMIT_FSIZE, (size, hard))

    def close(self) -> None:
        """End the process, whatever state it is in."""
        super().close()
        self._offset.close()

    async def _accepts(self) -> bool:
        try:
            stream = await anyio.connect_tcp("127.0.0.1", self.port)
        except OSError:
            return False
        await stream.aclose()
        return True
