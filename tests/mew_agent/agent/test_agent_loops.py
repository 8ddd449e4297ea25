"""Agents that talk to each other stop, say so, and continue when a person speaks. Gateway and models are real."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig, load_space
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.sqlite_store import SqliteStore, Store
from mew_agent.participant.event_handlers import ChatReceived
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.agents import EnvelopeRecorder
from tests.support.rehearsal_model import rehearsal_model
from tests.support.waiting import PATIENCE_SECONDS

AGENTS = ("one", "two", "three", "four", "five", "plain")
CAPABILITIES = '[{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: participant/status}]'


@pytest.fixture
def space(tmp_path: Path) -> SpaceConfig:
    agents = "\n".join(f"  {name}: {{command: mew, capabilities: {CAPABILITIES}}}" for name in AGENTS)
    path = tmp_path / "space.yaml"
    path.write_text(f'space: {{id: demo}}\nparticipants:\n  ada: {{capabilities: [{{kind: "*"}}]}}\n{agents}\n')
    return load_space(path)


class Crowd:
    """Agents in one space, and ada, who records everything."""

    def __init__(self, gateway: RunningGateway, server: RehearsalServer, stack: AsyncExitStack) -> None:
        self._gateway, self._server, self._stack = gateway, server, stack
        self.ada = self.participant("ada")
        self.recorder = EnvelopeRecorder(self.ada)

    def participant(self, name: str) -> Participant:
        return Participant(self._gateway.ws_url, space="demo", id=name, token=self._gateway.token_of(name))

    def agent(self, name: str, store: Store | None = None, **settings: Any) -> Agent:
        values = {"id": name, "token": self._gateway.token_of(name), "context_token_limit": 100_000, **settings}
        config = AgentConfig(space="demo", gateway=self._gateway.ws_url, **values)
        return Agent(config, rehearsal_model(self._server.base_url), store)

    async def join(self, *names: str, **settings: Any) -> list[Agent]:
        return [await self._stack.enter_async_context(self.agent(name, **settings)) for name in names]

    async def ask(self, *names: str) -> None:
        """Ask agents something each; everything that they had queued before is done then."""
        for name in names:
            await self.ada.ask("chat", {"text": "And you?"}, to=name, answer="chat", timeout_seconds=60)

    def between_agents(self) -> Counter[str]:
        """How many chats each agent sent to other agents."""
        chats = (one for one in self.recorder.received if one.kind == "chat" and one.sender in AGENTS)
        return Counter(one.sender for one in chats if set(one.addressees) & set(AGENTS))

    def newest_report(self, sender: str) -> dict[str, Any]:
        return dict(self.recorder.sent_by(sender, "participant/status")[-1].body["context"])

    async def status(self, sender: str, word: str) -> Envelope:
        return await self.recorder.first(sender, "participant/status", status=word)


@pytest.fixture
async def crowd(gateway: RunningGateway) -> AsyncIterator[Crowd]:
    async with serve_rehearsal(RehearsalOptions(window_tokens=100_000)) as server, AsyncExitStack() as stack:
        made = Crowd(gateway, server, stack)
        await stack.enter_async_context(made.ada)
        yield made


@asynccontextmanager
async def plain_agent(me: Participant) -> AsyncIterator[Participant]:
    """Answers every chat of others as the TypeScript agent does: without correlation, after announcing its work."""

    @me.on_chat
    async def answer(chat: ChatReceived) -> None:
        await me.send("chat/acknowledge", {"status": "processing"}, to=chat.sender, correlation_id=(chat.envelope.id,))
        start = await me.send("reasoning/start", {"input": chat.text})
        await me.chat(f"I have read this: {chat.text[:40]}", to=chat.sender)
        await me.send("reasoning/conclusion", {}, context=start.id)

    async with me:
        yield me


async def test_thanks_between_two_agents_is_answered_once(crowd: Crowd) -> None:
    one, _ = await crowd.join("one", "two")
    thanks = await one.chat("Thanks, that is all.", to="two")
    await crowd.recorder.first("two", "chat", about=thanks)
    await crowd.ask("one", "two", "one")
    assert crowd.between_agents() == {"one": 1, "two": 1}
    assert "Noted" in str(one.conversation.history.items), "the answer is context"


async def test_a_broadcast_into_five_agents_gets_five_answers(crowd: Crowd) -> None:
    agents = await crowd.join("one", "two", "three", "four", "five")
    asked = await crowd.ada.chat("Who is here?")
    for agent in agents:
        await crowd.recorder.first(agent.id, "chat", about=asked)
    told = await agents[0].chat("Who of you is ready?")
    for agent in agents[1:]:
        await crowd.recorder.first(agent.id, "chat", about=told)
    await crowd.ask(*(agent.id for agent in agents))
    assert crowd.between_agents() == {agent.id: 1 for agent in agents[1:]}


async def test_a_plain_agent_that_answers_everything_is_answered_until_the_limit(crowd: Crowd) -> None:
    (one,) = await crowd.join("one")
    async with plain_agent(crowd.participant("plain")) as plain:
        await crowd.ada.chat("one, greet plain.", to="one")
        await plain.chat("Hello.", to="one")
        status = await crowd.status("one", "paused:loop with plain")
        (wait,) = status.body["context"]["waiting"]
        assert (wait["kind"], wait["peer"]) == ("loop", "plain")
        assert (await crowd.ada.request_status("one")).status == "paused:loop with plain"
        notice = await crowd.recorder.first("one", "chat", needs_reply=False)
        assert "I stopped answering 'plain'" in notice.body["text"]
        assert not one.context.is_paused
        before = crowd.between_agents()["one"]
        assert before <= 16, "two threads, of at most 8 messages each"
        await crowd.ask("one")
        await crowd.recorder.first("one", "chat", nth=1, needs_reply=False)
        assert before < crowd.between_agents()["one"] <= before + 16, "released by ada, and stopped once more"
        await crowd.ada.send("participant/resume", {}, to="one")
        await crowd.recorder.until(lambda: "waiting" not in crowd.newest_report("one"))


async def test_three_agents_in_a_ring_stop_and_say_so_once(crowd: Crowd) -> None:
    await crowd.join("one")

    async def pass_on(me: Participant, onwards: dict[str, str]) -> Participant:
        @me.on_chat
        async def answer(chat: ChatReceived) -> None:
            if chat.is_to_me and chat.sender in onwards:
                await me.send("reasoning/start", {"input": chat.text})
                await me.chat(f"{me.id} passes on: {chat.text[:40]}", to=onwards[chat.sender])

        return me

    two = await pass_on(crowd.participant("two"), {"one": "three", "three": "one", "ada": "three"})
    three = await pass_on(crowd.participant("three"), {"one": "two", "two": "one"})
    async with two, three:
        await crowd.ada.chat("Begin.", to="two")
        await crowd.recorder.until(lambda: any("paused:loop" in word for word in crowd.recorder.words("one")))
        stopped = crowd.between_agents()
        await crowd.recorder.first("one", "chat", needs_reply=False)
        assert stopped["one"] <= 8
        assert sum(crowd.between_agents().values()) <= 12


async def test_a_long_collaboration_works_under_a_raised_limit(crowd: Crowd) -> None:
    limits = {"hops": 60, "exchanges_per_minute": 60}
    one, _ = await crowd.join("one", "two", loop_limits=limits)
    done = anyio.Event()
    steps: list[str] = []

    @one.on_chat
    async def next_step(chat: ChatReceived) -> None:
        if chat.sender == "two":
            steps.append(chat.text)
            if len(steps) == 20:
                done.set()
            else:
                await one.chat(f"Step {len(steps) + 1}: what comes next?", to="two")

    await crowd.ada.chat("Work it out with two.", to="one")
    await one.chat("Step 1: what comes first?", to="two")
    with anyio.fail_after(PATIENCE_SECONDS):
        await done.wait()
    assert not [word for name in ("one", "two") for word in crowd.recorder.words(name) if "loop" in word]


async def test_a_stopped_conversation_and_its_questions_survive_a_restart(crowd: Crowd, tmp_path: Path) -> None:
    async def once(then: Callable[[Agent], Awaitable[None]]) -> None:
        agent = crowd.agent("one", SqliteStore(tmp_path / "one.sqlite3"), loop_limits={"hops": 2})
        await agent.conversation.load()
        async with agent:
            await then(agent)
        await agent.conversation.state.store.aclose()

    async with crowd.participant("plain") as plain:

        async def stop(_agent: Agent) -> None:
            await plain.send("reasoning/start", {"input": "-"})
            await plain.chat("Which colour is it?", to="one")
            await crowd.recorder.first("one", "chat")
            await plain.chat("And which shape is it?", to="one")
            await crowd.status("one", "paused:loop with plain")

        await once(stop)
        heard = len(crowd.recorder.received)

        async def release(_agent: Agent) -> None:
            await crowd.recorder.until(lambda: len(crowd.recorder.received) > heard)
            assert crowd.recorder.words("one")[-1] == "paused:loop with plain"
            await crowd.ada.chat("Go on.", to="plain")
            await crowd.recorder.until(lambda: crowd.between_agents()["one"] == 2)

        await once(release)
    answers = [one.body["text"] for one in crowd.recorder.sent_by("one", "chat") if one.names("plain")]
    assert "shape" in answers[-1]
