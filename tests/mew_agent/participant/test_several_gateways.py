"""Several gateways hold one space: whatever happens on one happens on all, in one order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mew_spaces.backplane.memory import MemoryBackplane, MemoryHub
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway
from mew_spaces.gateway.replica import ReplicaOptions

from mew_agent.participant.events import ChatReceived
from mew_agent.participant.participant import Participant
from tests.support.waiting import until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {command: x, capabilities: [{kind: chat}, {kind: "mcp/*"}, {kind: "stream/*"}, {kind: participant/status}],
    tokens: [b]}
  cleo: {command: x, capabilities: [{kind: chat}], tokens: [c]}
  near: {command: x, capabilities: [{kind: chat}], tokens: [n]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000}
"""
QUICK = ReplicaOptions(renew_seconds=0.1, wait_seconds=0.3, stop_seconds=0.5)


@asynccontextmanager
async def gateway(hub: MemoryHub) -> AsyncIterator[tuple[RunningGateway, MemoryBackplane]]:
    link = hub.connect()
    async with serve_gateway(parse_space(SPACE), backplane=link, replica=QUICK) as running:
        yield running, link


def participant(running: RunningGateway, name: str) -> Participant:
    return Participant(running.ws_url, space="demo", id=name, token=name[0])


class Recorder:
    def __init__(self, me: Participant) -> None:
        self.texts: list[str] = []
        me.on_chat(self._record)

    async def _record(self, chat: ChatReceived) -> None:
        self.texts.append(chat.text)


def history(running: RunningGateway) -> list[tuple[int, bytes]]:
    return [(entry.sequence, entry.data) for entry in running.service.log.last(10_000)]


async def test_members_of_two_gateways_receive_all_chats_in_one_order() -> None:
    hub = MemoryHub()
    async with gateway(hub) as (first, _), gateway(hub) as (second, _):
        ada, bob, cleo = participant(first, "ada"), participant(second, "bob"), participant(second, "cleo")
        near, far = participant(first, "near"), Recorder(cleo)
        near_texts = Recorder(near)
        async with ada, bob, cleo, near:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ada.chat, f"a{number}")
                    tasks.start_soon(bob.chat, f"b{number}")
            await until(lambda: len(far.texts) == len(near_texts.texts) == 40)
            assert far.texts == near_texts.texts
            assert [text for text in far.texts if text[0] == "a"] == [f"a{number}" for number in range(20)]
            await until(lambda: history(first) == history(second))
