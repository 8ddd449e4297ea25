"""`mew up` restarts a gateway that is killed, and no member loses anything."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from mew_spaces.gateway.auth import read_token

from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant
from tests.support.space_folder import Folder
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

KILLS = 4
SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
"""


class RunningSpace(Folder):
    """A space that `mew up --detach` started in a folder."""

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

    def participant(self, name: str) -> Participant:
        token = read_token(self.path / ".mew", name, environ={})
        assert token is not None
        return Participant(self.run.ws, space="review", id=name, token=token)


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[RunningSpace]:
    running = RunningSpace(tmp_path, SPACE)
    await running.mew("up", "--detach", "--port", "0")
    yield running
    await running.stop()


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
                await until(lambda due=due, kills=kills: sent >= due and ada.session.client.joins > kills)  # type: ignore[misc]
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


async def test_commands_wait_for_a_restarting_gateway_and_watches_survive_it(space: RunningSpace) -> None:
    async with space.running("status", "--watch", "--json", "--participant", "ada") as (watch, watched):
        await until(lambda: '"ada"' in watched())
        with space.restart_delayed():
            space.kill_gateway()
            await until(lambda: "gateway restarting" in watched())
            # The file of its output is named for the command, so that it needs another.
            async with space.running("history", "--participant", "ada") as (process, printed):
                await until(lambda: "gateway restarting" in printed())
                space.resume_restarts()
                with anyio.fail_after(PATIENCE_SECONDS):
                    assert await process.wait() == 0, printed()
        async with space.participant("ada"):
            await until(lambda: '"id":"ada","connected":true' in watched())
        assert watch.returncode is None
