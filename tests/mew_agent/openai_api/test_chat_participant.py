"""A person who asks for chat clients, in a real space."""

from collections.abc import Callable

import anyio
import pytest
from anyio.abc import TaskStatus
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.openai_api.chat_participant import MAX_EXCHANGES, Door, DoorOptions
from mew_agent.openai_api.problems import Problem
from mew_agent.participant.answers.builder import Writing
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.participant import Participant
from tests.mew_agent.conftest import PATIENCE_SECONDS, Ear, Staged
from tests.mew_agent.openai_api.conftest import knows

Joined = Callable[..., Participant]
Opened = Callable[..., Door]


async def answer_of(exchange: Exchange) -> str:
    """Content until the end."""
    text = ""
    with anyio.fail_after(PATIENCE_SECONDS):
        while (piece := await exchange.next_event()) is not None:
            text += piece.text if isinstance(piece, Writing) else ""
    return text


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not condition():
            await anyio.sleep(0.005)


async def test_agents_are_reporting_or_configured_participants(stage: Staged, opened: Opened, joined: Joined) -> None:
    async with stage(), opened(configured=frozenset({"writer"})) as door, joined("mute"):
        await knows(door, "coder")
        agents = {agent.name: agent for agent in door.agents()}
    assert set(agents) == {"coder", "writer"}
    assert agents["coder"].is_here
    assert agents["coder"].context.max_tokens == 8192
    assert not agents["writer"].is_here


async def test_a_foreign_agent_that_reports_tokens_is_an_agent(opened: Opened, joined: Joined) -> None:
    async with opened() as door, joined("coder") as coder:
        await coder.send("participant/status", {"messages_in_context": 1, "tokens": 5, "max_tokens": 20_000})
        await until(lambda: bool(door.agents()))
        assert door.agent("coder").context.max_tokens == 20_000


async def test_an_agent_that_reports_only_when_asked_is_asked(opened: Opened, joined: Joined) -> None:
    def reporting(agent: Participant) -> Participant:
        @agent.on("participant/request-status")
        async def report(envelope: Envelope) -> None:
            status = {"messages_in_context": 0, "tokens": 0, "max_tokens": 20_000, "status": "active"}
            await agent.send("participant/status", status, to=envelope.sender, correlation_id=(envelope.id,))

        return agent

    async with reporting(joined("coder")), opened() as door, reporting(joined("writer")):
        await until(lambda: [agent.name for agent in door.agents()] == ["coder", "writer"])


async def test_a_request_reaches_the_agent_and_returns_its_chat(opened: Opened, joined: Joined) -> None:
    async with opened(configured=frozenset({"coder"})) as door, joined("coder") as coder:
        await until(lambda: "coder" in door.peers)
        ear = Ear(coder)
        async with door.exchange_with("coder", "Hello?") as exchange:
            chat = await ear.first("bob", "chat")
            assert chat.to == ("coder",)
            await coder.chat("Hello.", to="bob", correlation_id=(chat.id,))
            assert await answer_of(exchange) == "Hello."
        await coder.chat("And more.", to="bob", correlation_id=(chat.id,))
        assert not ear.of("bob", "chat/cancel")


async def test_leaving_before_the_turn_starts_still_cancels_it(opened: Opened, joined: Joined) -> None:
    async with opened(configured=frozenset({"coder"})) as door, joined("coder") as coder:
        await until(lambda: "coder" in door.peers)
        ear = Ear(coder)
        async with door.exchange_with("coder", "Hello?"):
            chat = await ear.first("bob", "chat")
        await ear.first("bob", "chat/cancel", about=chat)
        start = await coder.send("reasoning/start", {"input": "Hello?"}, correlation_id=(chat.id,))
        cancel = await ear.first("bob", "reasoning/cancel")
    assert cancel.context == start.id


async def test_nothing_is_sent_to_an_absent_agent(opened: Opened) -> None:
    async with opened(configured=frozenset({"coder"})) as door:
        with pytest.raises(Problem, match="'coder' is not in the space now") as caught:
            async with door.exchange_with("coder", "Hello?"):
                pass
        assert caught.value.is_repeatable
        with pytest.raises(Problem, match="there is no agent 'ghost'"):
            async with door.exchange_with("ghost", "Hello?"):
                pass


async def test_a_person_without_the_chat_capability_cannot_ask(opened: Opened, joined: Joined) -> None:
    async with opened("shy", configured=frozenset({"coder"})) as door, joined("coder"):
        await until(lambda: "coder" in door.peers)
        with pytest.raises(Problem, match="'shy' may not chat with 'coder'"):
            async with door.exchange_with("coder", "Hello?"):
                pass


async def test_a_paused_person_cannot_ask(opened: Opened, joined: Joined) -> None:
    async with opened(configured=frozenset({"coder"})) as door, joined("coder"), joined("ada") as ada:
        await until(lambda: "coder" in door.peers)
        await ada.send("participant/pause", {}, to="bob")
        await until(lambda: door.control.is_paused)
        with pytest.raises(Problem, match="'bob', who asks for chat clients, is paused"):
            async with door.exchange_with("coder", "Hello?"):
                pass


async def test_the_number_of_open_requests_is_bounded(opened: Opened, joined: Joined) -> None:
    async with opened(configured=frozenset({"coder"})) as door, joined("coder"), anyio.create_task_group() as tasks:
        await until(lambda: "coder" in door.peers)
        opened_questions = 0

        async def ask() -> None:
            nonlocal opened_questions
            async with door.exchange_with("coder", "Hello?"):
                opened_questions += 1
                await anyio.sleep_forever()

        for _ in range(MAX_EXCHANGES):
            tasks.start_soon(ask)
        await until(lambda: opened_questions == MAX_EXCHANGES)
        with pytest.raises(Problem, match=f"{MAX_EXCHANGES} questions are being answered") as caught:
            async with door.exchange_with("coder", "One more"):
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
        options = DoorOptions(configured=frozenset({"coder"}))
        door = Door(first.ws_url, space="demo", person="bob", token=first.token_of("bob"), options=options)
        ear = Ear(coder)
        async with coder, door:
            await until(lambda: "coder" in door.peers)

            async def ask_while_it_restarts() -> None:
                async with door.exchange_with("coder", "Before?") as exchange:
                    await ear.first("bob", "chat", text="Before?")
                    stop.set()
                    await until(lambda: not door.is_joined and not coder.is_joined)
                    await gateways.start(host, first.port, again)
                    await answer_of(exchange)

            with pytest.raises(Problem, match=r"connection to the space was lost|left the space"):
                await ask_while_it_restarts()
            await until(lambda: door.is_joined and "coder" in door.peers)
            async with door.exchange_with("coder", "After?") as second:
                chat = await ear.first("bob", "chat", text="After?")
                await coder.chat("Yes.", to="bob", correlation_id=(chat.id,))
                assert await answer_of(second) == "Yes."
        again.set()


async def test_without_a_gateway_requests_fail(opened: Opened, gateway: RunningGateway) -> None:
    async with opened(configured=frozenset({"coder"})) as door:
        await door.aclose()
        with anyio.fail_after(PATIENCE_SECONDS):
            await door.until_ended()
        with pytest.raises(Problem, match="no connection to the space"):
            async with door.exchange_with("coder", "Hello?"):
                pass
