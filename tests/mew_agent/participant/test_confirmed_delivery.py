"""Sends are confirmed and missed envelopes arrive late, over connections that break at any byte."""

import logging
from pathlib import Path
from random import Random

import anyio
import anyio.abc
import pytest
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.errors import NotAccepted, NotConfirmed
from mew_agent.participant.event_handlers import ChatReceived, ProposalClosed
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant
from tests.support.faulty_link import FaultyLink, faulty_link
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}], tokens: [a]}
  bob: {command: x, capabilities: [{kind: chat}, {kind: "mcp/*"}, {kind: participant/status}], tokens: [b]}
limits: {envelopes_per_second: 100000, envelope_burst: 100000, HISTORY}
"""


def config(history: str = "history_envelopes: 10000") -> SpaceConfig:
    return parse_space(SPACE.replace("HISTORY", history))


def participant(link: FaultyLink, name: str) -> Participant:
    return Participant(link.url, space="demo", id=name, token=name[0])


class ChatRecorder:
    """Collects the chats that one participant receives."""

    def __init__(self, me: Participant) -> None:
        self.texts: list[str] = []
        self.gaps: list[HistoryGap] = []
        me.on_chat(self._hear)
        me.on(HistoryGap)(self._miss)

    async def _hear(self, chat: ChatReceived) -> None:
        self.texts.append(chat.text)

    async def _miss(self, gap: HistoryGap) -> None:
        self.gaps.append(gap)

    async def until(self, count: int) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while len(self.texts) < count:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("seed", range(4))
async def test_confirmed_chats_survive_broken_connections_once_and_in_order(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    async with (
        serve_gateway(config(), state=tmp_path) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        participant(link, "bob") as bob,
    ):
        recorder = ChatRecorder(ada)
        async with anyio.create_task_group() as tasks:

            async def break_connections() -> None:
                while True:
                    link.cut_after_bytes = random.randrange(200, 6_000)
                    await anyio.sleep(random.uniform(0.02, 0.2))
                    if random.random() < 0.3:
                        await link.cut("close")

            tasks.start_soon(break_connections)
            with anyio.fail_after(PATIENCE_SECONDS):
                for number in range(150):
                    await bob.chat(str(number))
            tasks.cancel_scope.cancel()
        link.cut_after_bytes = None
        await recorder.until(150)
    assert recorder.texts == [str(number) for number in range(150)]
    assert not recorder.gaps


async def test_a_send_waits_for_the_connection_and_is_delivered_once() -> None:
    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        participant(link, "bob") as bob,
    ):
        recorder = ChatRecorder(ada)
        link.stall()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bob.chat, "stalled")
            await anyio.wait_all_tasks_blocked()
            await link.cut("reset")
            link.release()
        await bob.chat("after")
        await recorder.until(2)
        assert recorder.texts == ["stalled", "after"]


async def test_an_unconfirmed_send_raises_not_confirmed() -> None:
    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "bob") as bob,
    ):
        link.stall()
        with pytest.raises(NotConfirmed, match="the gateway did not confirm this chat") as caught:
            await bob.send("chat", {"text": "?"}, wait_seconds=0.2)
        assert caught.value.envelope.body == {"text": "?"}
        await bob.send("chat", {"text": "written and not waited for"}, confirm=False)
        link.release()


async def test_unconfirmed_envelopes_at_the_end_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "mew_agent")

    def unconfirmed() -> list[logging.LogRecord]:
        return [one for one in caplog.records if "the gateway did not confirm this" in one.getMessage()]

    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        Participant(gateway.ws_url, space="demo", id="ada", token="a") as ada,
    ):
        asked, stalled = anyio.Event(), anyio.Event()
        bob = participant(link, "bob")

        @bob.on_chat
        async def answer(_: ChatReceived) -> None:
            asked.set()
            await stalled.wait()
            await bob.chat("from a handler")

        async def chat_in_background() -> None:
            await bob.chat("from the background")

        async def cut_when_leaving() -> None:
            await until(lambda: bob.session.client.is_ending)
            await link.cut()

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks, bob:
                await ada.chat("?", to="bob")
                await asked.wait()
                link.stall()
                stalled.set()
                bob.start_soon(chat_in_background)
                bob.start_soon(bob.control.announce)
                await until(lambda: len(bob.session.client.delivery.undecided()) == 3)
                tasks.start_soon(cut_when_leaving)
                await bob.aclose()
                await until(lambda: len(unconfirmed()) == 3)
        link.release()
    assert {record.levelno for record in unconfirmed()} == {logging.DEBUG}


async def test_a_refused_send_raises_the_error_of_the_gateway() -> None:
    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        participant(link, "bob") as bob,
    ):
        proposal = await ada.send("mcp/proposal", {"method": "tools/list"}, to="bob")
        with pytest.raises(NotAccepted) as caught:
            await bob.send("mcp/withdraw", {"reason": "none of mine"}, correlation_id=(proposal.id,))
        assert caught.value.error
        await bob.chat("goes on")


async def test_a_handler_can_await_the_confirmation_of_its_send() -> None:
    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        participant(link, "bob") as bob,
    ):
        recorder = ChatRecorder(bob)

        @ada.on_chat
        async def answer(chat: ChatReceived) -> None:
            await ada.chat("answer")

        await bob.chat("question")
        await recorder.until(1)


async def test_missing_more_than_the_gateway_keeps_emits_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        serve_gateway(config("history_envelopes: 5")) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        faulty_link(gateway.port) as other,
    ):
        recorder = ChatRecorder(ada)
        async with participant(other, "bob") as bob:
            link.stall()
            await link.cut("reset")
            for number in range(20):
                await bob.chat(str(number))
            link.release()
            await recorder.until(3)
            await until(lambda: recorder.gaps)
            await until(lambda: "missed envelopes" in caplog.text)
            assert ada.messenger.session.client.catching_up is None
    assert recorder.gaps[0].reason == "history_gone"
    assert recorder.texts[-1] == "19"
    assert recorder.texts == [str(number) for number in range(20 - len(recorder.texts), 20)]


async def test_a_proposal_with_a_decision_in_a_gap_is_closed() -> None:
    closed = list[ProposalClosed]()
    async with (
        serve_gateway(config("history_envelopes: 5")) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        faulty_link(gateway.port) as other,
        participant(other, "bob") as bob,
    ):
        ada.on_proposal_closed(closed.append)
        for name in ("open", "withdrawn"):
            await bob.send("mcp/proposal", {"method": name}, to="ada")
        await until(lambda: len(ada.proposals) == 2)
        still_open, withdrawn = ada.proposals
        link.stall()
        await link.cut("reset")
        await bob.send("mcp/withdraw", {"reason": "x"}, correlation_id=(withdrawn.envelope.id,))
        for number in range(20):
            await bob.chat(str(number))
        link.release()
        await until(lambda: closed)
        assert ada.proposals == (still_open,)
    assert closed == [ProposalClosed(withdrawn, "unknown", "")]


async def test_a_gateway_that_lost_its_history_causes_a_gap() -> None:
    async with anyio.create_task_group() as tasks:
        stop, stopped = anyio.Event(), anyio.Event()

        async def first_life(*, task_status: anyio.abc.TaskStatus[int]) -> None:
            async with serve_gateway(config()) as gateway:
                task_status.started(gateway.port)
                await stop.wait()
            stopped.set()

        port = await tasks.start(first_life)
        me = Participant(f"ws://127.0.0.1:{port}", space="demo", id="ada", token="a")
        recorder = ChatRecorder(me)
        async with me:
            stop.set()
            await stopped.wait()
            async with serve_gateway(config(), port=port):
                await until(lambda: recorder.gaps)
    assert recorder.gaps[0].reason == "other_epoch"


async def test_a_slow_connection_gets_numbers_from_its_first_envelope() -> None:
    async with (
        serve_gateway(config()) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
    ):
        recorder = ChatRecorder(ada)
        link.latency_seconds = 0.3  # longer than a gateway waits for the join frame of a client with a bearer header
        await link.cut("reset")
        with anyio.fail_after(PATIENCE_SECONDS):
            while ada.session.client.joins < 2:
                await anyio.sleep(0.01)
            link.latency_seconds = 0
            await ada.chat("confirmed")
        assert ada.session.client.delivery.position is not None
    assert not recorder.gaps


async def test_tasks_that_send_one_envelope_at_once_are_both_answered(tmp_path: Path) -> None:
    async with (
        serve_gateway(config(), state=tmp_path) as gateway,
        faulty_link(gateway.port) as link,
        participant(link, "ada") as ada,
        participant(link, "bob") as bob,
    ):
        recorder, positions = ChatRecorder(bob), list[object]()
        envelope = ada.messenger.draft("chat", {"text": "Once."})

        async def send() -> None:
            positions.append(await ada.messenger.send_envelope(envelope))

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                tasks.start_soon(send)
        assert len(positions) == 2
        await recorder.until(1)
        await ada.chat("Twice.", to="bob")
        await recorder.until(2)
        assert recorder.texts == ["Once.", "Twice."]
