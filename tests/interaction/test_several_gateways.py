"""Gateways as processes on a real NATS server, and members that know them all."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from mew_spaces.parts.jetstream.nats_server import NatsServer

from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.participant import Participant
from tests.support.cli import Outcome, mew
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS, until, until_in_thread
from tests.support.warm_start import MEW

SPACE = """
space: {id: wide}
participants:
  ada: {capabilities: [{kind: chat}], tokens: [a]}
  bob: {capabilities: [{kind: chat}], tokens: [b]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
"""


class Gateways:
    """`mew gateway start` twice in one folder, with the output of each in a file."""

    def __init__(self, folder: Path, nats: str) -> None:
        self.folder = folder
        self._nats = nats
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> str:
        return ",".join(f"ws://127.0.0.1:{port}" for port in self.processes)

    async def drain(self, port: int) -> Outcome:
        return await mew("down", "--drain", "--port", str(port), "--space-dir", str(self.folder))

    def start(self, port: int) -> None:
        """Start a gateway, and wait until it listens."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MEW_")}
        program = [*MEW, "gateway", "start"]
        output = self.folder / f"{port}.out"
        with output.open("wb") as out:
            process = self.processes[port] = subprocess.Popen(
                [*program, "--port", str(port), "--backplane", self._nats],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                env=environment,
            )

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return "listens at" in output.read_text()

        until_in_thread(is_ready)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[Gateways]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    (tmp_path / "space.yaml").write_text(SPACE)
    found = Gateways(tmp_path, nats.address)
    try:
        for port in unused_ports(2):
            found.start(port)
        yield found
    finally:
        found.kill()
        nats.stop()


async def test_rolling_restart_moves_members_and_loses_nothing(gateways: Gateways) -> None:
    heard: list[str] = []
    ada = Participant(gateways.addresses, space="wide", id="ada", token="a")
    bob = Participant(gateways.addresses, space="wide", id="bob", token="b")
    is_over = False
    sent: list[str] = []

    @bob.on_chat
    async def note(chat: ChatReceived) -> None:
        heard.append(chat.text)

    async def talk() -> None:
        while not is_over:
            sent.append(str(len(sent)))
            await ada.chat(sent[-1])
            await anyio.sleep(0.02)  # a pace, which leaves the processors to those that start

    async with ada, bob:
        with anyio.fail_after(2 * PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                await until(lambda: len(heard) > 20)
                for port, process in tuple(gateways.processes.items()):
                    done = await gateways.drain(port)
                    assert (done.code, done.out) == (0, f"the gateway at port {port} has stopped\n"), done
                    assert process.wait(PATIENCE_SECONDS) == 0
                    await to_thread.run_sync(gateways.start, port)
                is_over = True
        await until(lambda: len(heard) >= len(sent))
    assert heard == sent
    nowhere = await gateways.drain(1)
    assert nowhere.code == 2
    assert all(str(port) in nowhere.err for port in gateways.processes)
