"""`mew up` restarts a gateway that is killed, and nobody loses anything by it."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from mew_spaces.gateway.auth import read_token
from mew_spaces.launch.run_file import RunFile, read_run_file, run_file_path

from mew_agent.participant.events import ChatReceived
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

MEW = (sys.executable, "-P", "-m", "mew_agent")
KILLS = 4
SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
"""


class RunningSpace:
    """A space that `mew up --detach` started in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def run(self) -> RunFile:
        found = read_run_file(run_file_path(self.folder / ".mew"))
        assert found is not None
        return found

    def kill_gateway(self) -> None:
        os.kill(self.run.pids.gateway or 0, signal.SIGKILL)

    @contextmanager
    def restart_delayed(self) -> Iterator[None]:
        """The supervisor starts no gateway while the block runs, so that a test sees the space without one."""
        os.kill(self.run.pids.supervisor or 0, signal.SIGSTOP)
        try:
            yield
        finally:
            self.resume_restarts()

    def resume_restarts(self) -> None:
        os.kill(self.run.pids.supervisor or 0, signal.SIGCONT)

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[tuple[Process, Callable[[], str]]]:
        """A command as ada that goes on, with what it has printed so far."""
        log = self.folder / f"{arguments[0]}.out"
        with log.open("wb") as output:
            process = await anyio.open_process(
                (*MEW, *arguments, "--participant", "ada"),
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment(),
            )
        try:
            yield process, log.read_text
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()

    def participant(self, name: str) -> Participant:
        token = read_token(self.folder / ".mew", name, environ={})
        assert token is not None
        return Participant(self.run.ws, space="review", id=name, token=token)

    async def mew(self, *arguments: str, code: int = 0) -> str:
        with anyio.fail_after(PATIENCE_SECONDS):
            ended = await anyio.run_process(
                (*MEW, *arguments), check=False, cwd=self.folder, env=environment(), stderr=subprocess.STDOUT
            )
        shown = ended.stdout.decode()
        assert ended.returncode == code, shown
        return shown


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[RunningSpace]:
    (tmp_path / "space.yaml").write_text(SPACE)
    running = RunningSpace(tmp_path)
    await running.mew("up", "--detach", "--port", "0")
    yield running
    await running.mew("down")


async def test_rolling_restart_under_load_loses_nothing(space: RunningSpace) -> None:
    texts: list[str] = []
    gaps: list[HistoryGap] = []
    address = space.run.ws
    sent = 0
    async with space.participant("ada") as ada, space.participant("bob") as bob:

        @ada.on_chat
        async def note(chat: ChatReceived) -> None:
            texts.append(chat.text)

        @ada.on(HistoryGap)
        async def note_gap(gap: HistoryGap) -> None:
            gaps.append(gap)

        async with anyio.create_task_group() as tasks:

            async def send_on() -> None:
                nonlocal sent
                while True:
                    await bob.chat(str(sent))
                    sent += 1

            tasks.start_soon(send_on)
            for kills in range(KILLS):
                due = sent + 50
                await until(lambda due=due, kills=kills: sent >= due and ada.session.connections > kills)  # type: ignore[misc]
                space.kill_gateway()
                await until(lambda: space.run.is_gateway_restarting)
                await until(lambda: not space.run.is_gateway_restarting)
            due = sent + 50
            await until(lambda: sent >= due)
            tasks.cancel_scope.cancel()
        await until(lambda: len(texts) >= sent)
        assert texts[:sent] == [str(number) for number in range(sent)]
        assert len(texts) - sent <= 1  # one more may have been accepted when its send was cancelled
        assert not gaps
    assert space.run.ws == address


async def test_one_shot_commands_wait_for_a_restarting_gateway(space: RunningSpace) -> None:
    with space.restart_delayed():
        space.kill_gateway()
        async with space.running("status") as (process, printed):
            await until(lambda: "gateway restarting" in printed())
            space.resume_restarts()
            with anyio.fail_after(PATIENCE_SECONDS):
                assert await process.wait() == 0
            assert "review" in printed()


async def test_status_watch_survives_a_restart(space: RunningSpace) -> None:
    async with space.running("status", "--watch", "--json") as (process, printed):
        await until(lambda: '"ada"' in printed())
        with space.restart_delayed():
            space.kill_gateway()
            await until(lambda: "gateway restarting" in printed())
        async with space.participant("ada"):
            await until(lambda: '"id":"ada","connected":true' in printed())
        assert process.returncode is None
