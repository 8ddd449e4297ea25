"""The participant behind a server of an API, in a real space."""

from collections.abc import Callable

import anyio
import pytest
from anyio.abc import TaskStatus
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.participant.answers.agent_answers import Exchange
from mew_agent.participant.answers.builder import Writing
from mew_agent.participant.participant import Participant
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.chat_participant import MAX_OPEN_REQUESTS, AgentQuestion, ChatOptions, ChatParticipant
from tests.support.agents import EnvelopeRecorder, StartAgent
from tests.support.api_participants import knows
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]
Connected = Callable[..., ChatParticipant]


async def answer_of(exchange: Exchange) -> str:
    """The content of the whole answer."""
    text = ""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (piece := await exchange.next_event()) is not None:
            text += piece.text if isinstance(piece, Writing) else ""
    return text


async def test_agents_are_reporting_or_configured_participants(
    start_agent: StartAgent, connected: Connected, joined: Joined
) -> None:
    async with start_agent(), connected(configured=frozenset({"writer"})) as bob, joined("mute"):
        await knows(bob, "coder")
        agents = {agent.name: agent for agent in bob.agents()}
    assert set(agents) == {"coder", "writer"}
    assert agents["coder"].is_present
    assert agents["coder"].context.max_tokens == 8192
    assert not agents["writer"].is_present


async def test_a_foreign_agent_that_reports_tokens_is_an_agent(connected: Connected, joined: Joined) -> None:
    async with connected() as bob, joined("coder") as coder:
        await coder.send("participant/status", {"messages_in_context": 1, "tokens": 5, "max_tokens": 20_000})
        await until(lambda: bool(bob.agents()))
        assert bob.agents()[0].context.max_tokens == 20_000


async def test_an_agent_that_reports_only_when_asked_is_asked(connected: Connected, joined: Joined) -> None:
    def reporting(agent: Participant) -> Participant:
        @agent.on("participant/request-status")
        async def report(envelope: Envelope) -> None:
            status = {"messages_in_context": 0, "tokens": 0, "max_tokens": 20_000, "status": "active"}
            await agent.send("participant/status", status, to=envelope.sender, correlation_id=(envelope.id,))

        return agent

    async with reporting(joined("coder")), connected() as bob, reporting(joined("writer")):
        await until(lambda: [agent.name for agent in bob.agents()] == ["coder", "writer"])


async def test_a_request_reaches_the_agent_and_returns_its_chat(connected: Connected, joined: Joined) -> None:
    async with connected(configured=frozenset({"coder"})) as bob, joined("coder") as coder:
        await until(lambda: "coder" in bob.peers)
        recorder = EnvelopeRecorder(coder)
        async with bob.open_exchange("coder", "Hello?") as exchange:
            chat = await recorder.first("bob", "chat")
            assert chat.to == ("coder",)
            await coder.chat("Hello.", to="bob", correlation_id=(chat.id,))
            assert await answer_of(exchange) == "Hello."
        await coder.chat("And more.", to="bob", correlation_id=(chat.id,))
        assert not recorder.sent_by("bob", "chat/cancel")


@pytest.mark.parametrize("does_correlate", [True, False])
async def test_a_remark_of_an_agent_that_correlates_is_not_its_answer(
    connected: Connected, joined: Joined, does_correlate: bool
) -> None:
    async with connected(configured=frozenset({"coder"})) as bob, joined("coder") as coder:
        await until(lambda: "coder" in bob.peers)
        recorder = EnvelopeRecorder(coder)
        async with bob.open_exchange("coder", "Hello?") as exchange:
            chat = await recorder.first("bob", "chat")
            about = (chat.id,) if does_correlate else ()
            await coder.send("reasoning/start", {"input": "Hello?"}, correlation_id=about)
            await coder.chat("I am at it.", to="bob")
            await coder.chat("Hello.", to="bob", correlation_id=(chat.id,))
            assert await answer_of(exchange) == ("Hello." if does_correlate else "I am at it.")


async def test_leaving_before_the_turn_starts_still_cancels_it(connected: Connected, joined: Joined) -> None:
    async with connected(configured=frozenset({"coder"})) as bob, joined("coder") as coder:
        await until(lambda: "coder" in bob.peers)
        recorder = EnvelopeRecorder(coder)
        async with bob.open_exchange("coder", "Hello?"):
            chat = await recorder.first("bob", "chat")
        await recorder.first("bob", "chat/cancel", about=chat)
        start = await coder.send("reasoning/start", {"input": "Hello?"}, correlation_id=(chat.id,))
        cancel = await recorder.first("bob", "reasoning/cancel")
    assert cancel.context == start.id


async def test_nothing_is_sent_to_an_absent_agent(connected: Connected) -> None:
    async with connected(configured=frozenset({"coder"})) as bob:
        with pytest.raises(AnswerFailed, match="'coder' is not in the space") as caught:
            async with bob.open_exchange("coder", "Hello?"):
                pass
        assert caught.value.is_retryable


async def test_a_person_without_the_chat_capability_cannot_ask(connected: Connected, joined: Joined) -> None:
    async with connected("shy", configured=frozenset({"coder"})) as shy, joined("coder"):
        await until(lambda: "coder" in shy.peers)
        with pytest.raises(AnswerFailed, match="'shy' may not chat with 'coder'"):
            async with shy.open_exchange("coder", "Hello?"):
                pass


async def test_a_paused_person_cannot_ask(connected: Connected, joined: Joined) -> None:
    async with connected(configured=frozenset({"coder"})) as bob, joined("coder"), joined("ada") as ada:
        await until(lambda: "coder" in bob.peers)
        await ada.send("participant/pause", {}, to="bob")
        await until(lambda: bob.messenger.is_paused)
        with pytest.raises(AnswerFailed, match="'bob', the participant of this server, is paused"):
            async with bob.open_exchange("coder", "Hello?"):
                pass


async def test_one_api_key_leaves_open_requests_for_the_others(connected: Connected, joined: Joined) -> None:
    async with (
        connected(configured=frozenset({"coder"}), clients=50) as bob,
        joined("coder"),
        anyio.create_task_group() as tasks,
    ):
        await until(lambda: "coder" in bob.peers)

        async def ask() -> None:
            async with bob.open_exchange("coder", AgentQuestion("Hello?", client="key1")):
                await anyio.sleep_forever()

        for _ in range(2):
            tasks.start_soon(ask)
        await until(lambda: len(bob.answers) == 2)
        with pytest.raises(AnswerFailed, match="2 open requests of this API key already"):
            async with bob.open_exchange("coder", AgentQuestion("One more", client="key1")):
                pass
        async with bob.open_exchange("coder", AgentQuestion("Mine", client="key2")):
            tasks.cancel_scope.cancel()


async def test_the_number_of_open_requests_is_bounded(connected: Connected, joined: Joined) -> None:
    async with (
        connected(configured=frozenset({"coder"})) as bob,
        joined("coder"),
        anyio.create_task_group() as tasks,
    ):
        await until(lambda: "coder" in bob.peers)
        open_requests = 0

        async def ask() -> None:
            nonlocal open_requests
            async with bob.open_exchange("coder", "Hello?"):
                open_requests += 1
                await anyio.sleep_forever()

        for _ in range(MAX_OPEN_REQUESTS):
            tasks.start_soon(ask)
        await until(lambda: open_requests == MAX_OPEN_REQUESTS)
        with pytest.raises(AnswerFailed, match=f"{MAX_OPEN_REQUESTS} open requests already") as caught:
            async with bob.open_exchange("coder", "One more"):
                pass
        tasks.cancel_scope.cancel()
    assert caught.value.status == 429


async def test_a_gateway_restart_ends_open_requests_only(space: SpaceConfig, tokens: TokenBook) -> None:
    async def host(port: int, stop: anyio.Event, *, task_status: TaskStatus[RunningGateway]) -> None:
        async with serve_gateway(space, tokens=tokens, port=port) as gateway:
            task_status.started(gateway)
            await stop.wait()

    async with anyio.create_task_group() as gateways:
        stop, again = anyio.Event(), anyio.Event()
        first: RunningGateway = await gateways.start(host, 0, stop)
        coder = Participant(first.ws_url, space="demo", id="coder", token=first.token_of("coder"))
        options = ChatOptions(configured=frozenset({"coder"}))
        bob = ChatParticipant(first.ws_url, space="demo", person="bob", token=first.token_of("bob"), options=options)
        recorder = EnvelopeRecorder(coder)
        async with coder, bob:
            await until(lambda: "coder" in bob.peers)

            async def ask_while_it_restarts() -> None:
                async with bob.open_exchange("coder", "Before?") as exchange:
                    await recorder.first("bob", "chat", text="Before?")
                    stop.set()
                    await until(lambda: not bob.is_joined and not coder.is_joined)
                    await gateways.start(host, first.port, again)
                    await answer_of(exchange)

            with pytest.raises(AnswerFailed, match=r"connection to the space was lost|left the space"):
                await ask_while_it_restarts()
            await until(lambda: bob.is_joined and "coder" in bob.peers)
            async with bob.open_exchange("coder", "After?") as second:
                chat = await recorder.first("bob", "chat", text="After?")
                await coder.chat("Yes.", to="bob", correlation_id=(chat.id,))
                assert await answer_of(second) == "Yes."
        again.set()


async def test_without_a_gateway_requests_fail(connected: Connected, gateway: RunningGateway) -> None:
    async with connected(configured=frozenset({"coder"})) as bob:
        await bob.aclose()
        with anyio.fail_after(PATIENCE_SECONDS):
            await bob.until_ended()
        with pytest.raises(AnswerFailed, match="no connection to the space"):
            async with bob.open_exchange("coder", "Hello?"):
                pass
