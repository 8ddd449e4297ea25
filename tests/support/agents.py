"""Fixtures for agents: a real gateway, the rehearsal model over HTTP, an agent, and a person who records everything."""

import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.context.sqlite_store import SqliteStore, Store
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RecordedRequest, RehearsalServer, serve_rehearsal
from tests.support.conversation_driver import StartConversation
from tests.support.conversation_driver import start_conversation as new_conversation
from tests.support.rehearsal_model import rehearsal_model, rehearsal_options
from tests.support.waiting import PATIENCE_SECONDS

SPACE = """
space: {id: demo, name: Demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: "stream/*"},
                   {kind: participant/status}, {kind: participant/compact-done}, {kind: participant/resume},
                   {kind: participant/history}, {kind: participant/undo-done}, {kind: participant/recall-done},
                   {kind: participant/receipts}]
  writer:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: "stream/*"},
                   {kind: participant/status}, {kind: participant/compact-done}]
  mute:
    command: mew
    capabilities: [{kind: chat}]
"""


class EnvelopeRecorder:
    """Records every envelope that a participant receives, and waits for envelopes."""

    def __init__(self, participant: Participant) -> None:
        self.received: list[Envelope] = []
        self._changed = anyio.Event()
        participant.on(None)(self._receive)

    async def _receive(self, envelope: Envelope) -> None:
        self.received.append(envelope)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def sent_by(self, sender: str, *kinds: str, about: Envelope | None = None) -> list[Envelope]:
        """The envelopes of a sender: of these kinds (default: all), and only those that refer to `about`."""
        return [
            e
            for e in self.received
            if e.sender == sender
            and (not kinds or e.kind in kinds)
            and (about is None or about.id in (e.correlation_id or ()))
        ]

    def words(self, sender: str, about: Envelope | None = None) -> list[str]:
        """The status words of a sender, in order."""
        return [str(e.body["status"]) for e in self.sent_by(sender, "participant/status", about=about)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, checked after each envelope, and between them if it is on something else."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():
                with anyio.move_on_after(0.05):
                    await self._changed.wait()

    async def first(self, sender: str, kind: str, about: Envelope | None = None, nth: int = 0, **body: Any) -> Envelope:
        """Wait for an envelope (the nth) of a sender whose payload holds these values."""

        def found() -> list[Envelope]:
            return [e for e in self.sent_by(sender, kind, about=about) if body.items() <= dict(e.body).items()]

        await self.until(lambda: len(found()) > nth)
        return found()[nth]


@dataclass
class AgentDriver:
    """An agent `coder` on a rehearsal model, in a space with `ada`, whose envelopes `recorder` records."""

    gateway: RunningGateway
    server: RehearsalServer
    agent: Agent
    ada: Participant
    recorder: EnvelopeRecorder
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def send_chat(self, text: str) -> Envelope:
        """Send a chat from ada to the agent, without waiting for the answer."""
        return await self.ada.chat(text, to="coder")

    async def ask(self, text: str) -> str:
        """Send a chat from ada to the agent and return the answer."""
        answer = await self.ada.ask("chat", {"text": text}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
        return str(answer.body["text"])

    async def control(self, kind: str, payload: dict[str, Any] | None = None) -> Envelope:
        """Send the agent a control from ada."""
        return await self.ada.send(f"participant/{kind}", payload or {}, to="coder")

    async def status(self) -> dict[str, Any]:
        """The agent's answer to a status request, unchanged."""
        answer = await self.ada.ask("participant/request-status", {}, to="coder", answer="participant/status")
        return dict(answer.body)

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Payloads of all statuses the agent broadcast."""
        return [dict(e.body) for e in self.recorder.sent_by("coder", "participant/status") if not e.to]

    @property
    def reported(self) -> list[dict[str, Any]]:
        """The first status after each reported call: one per call id."""
        first: dict[str, dict[str, Any]] = {}
        for status in self.statuses:
            if status["context"]["basis"] == "reported":
                first.setdefault(status["context"]["call_id"], status)
        return list(first.values())

    @property
    def main_requests(self) -> list[RecordedRequest]:
        """The requests to the model, without those for summaries."""
        return [request for request in self.server.requests if not request.is_summary]

    @property
    def summary_requests(self) -> list[RecordedRequest]:
        return [request for request in self.server.requests if request.is_summary]


class StartAgent(Protocol):
    """`start_agent(agent={...}, store=..., call_bound_seconds=..., **rehearsal options)`."""

    def __call__(
        self,
        *,
        agent: dict[str, Any] | None = None,
        store: Store | None = None,
        call_bound_seconds: float = 30.0,
        name: str = "coder",
        tools: Sequence[Callable[..., Any]] = (),
        **options: Any,
    ) -> AbstractAsyncContextManager[AgentDriver]: ...


@pytest.fixture(scope="session")
def space() -> SpaceConfig:
    """One for all tests: it cannot change, and reading YAML takes 10 ms."""
    return parse_space(SPACE)


@pytest.fixture
def tokens(space: SpaceConfig) -> TokenBook:
    return TokenBook.generate(space)


@pytest.fixture
async def gateway(space: SpaceConfig, tokens: TokenBook) -> AsyncIterator[RunningGateway]:
    async with serve_gateway(space, tokens=tokens) as running:
        yield running


@pytest.fixture
def joined(gateway: RunningGateway) -> Callable[..., Participant]:
    """A participant of the running gateway, to be entered: `async with joined("ada") as ada`."""

    def make(name: str, **options: Any) -> Participant:
        return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name), **options)

    return make


@pytest.fixture
def start_agent(gateway: RunningGateway) -> StartAgent:
    """Makes a stage; see `StartAgent`."""

    @asynccontextmanager
    async def build(
        *,
        agent: dict[str, Any] | None = None,
        store: Store | None = None,
        call_bound_seconds: float = 30.0,
        name: str = "coder",
        tools: Sequence[Callable[..., Any]] = (),
        **options: Any,
    ) -> AsyncIterator[AgentDriver]:
        async with (
            serve_rehearsal(rehearsal_options(**options)) as server,
            running_agent(gateway, server, agent, store, call_bound_seconds, name, tools) as (actor, ended),
            Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada,
        ):
            yield AgentDriver(gateway, server, actor, ada, EnvelopeRecorder(ada), ended)

    return build


@asynccontextmanager
async def running_agent(
    gateway: RunningGateway,
    server: RehearsalServer,
    overrides: dict[str, Any] | None,
    store: Store | None,
    call_bound_seconds: float,
    name: str,
    tools: Sequence[Callable[..., Any]],
) -> AsyncIterator[tuple[Agent, anyio.Event]]:
    values: dict[str, Any] = {
        "gateway": gateway.ws_url,
        "space": "demo",
        "id": name,
        "token": gateway.token_of(name),
        "model": "rehearsal",
        "base_url": server.base_url,
        "context_token_limit": server.options.window_tokens,
        **(overrides or {}),
    }
    model = rehearsal_model(values["base_url"])
    config = AgentConfig.model_validate(values)
    store = SqliteStore(config.store) if store is None and config.store is not None else store
    actor = Agent(config, model, store, call_bound_seconds=call_bound_seconds)
    ended = anyio.Event()

    async def act() -> None:
        try:
            await actor.run()
        finally:
            ended.set()

    for tool in tools:
        actor.tool(tool)
    try:
        await actor.conversation.load()
        async with actor, anyio.create_task_group() as tasks:
            tasks.start_soon(act)
            yield actor, ended
            tasks.cancel_scope.cancel()
    finally:
        await model.aclose()
        if store is not None:
            await store.aclose()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@pytest.fixture
def text() -> Callable[[int], str]:
    """A text of about so many tokens that is like no other: `text(200)`."""
    counter = iter(range(1_000_000))

    def make(tokens: int) -> str:
        number = next(counter)
        sentences = math.ceil(tokens / 14)
        return " ".join(
            f"Report {number} says that station {number}{place} measured {place * 7 + number} units of water today."
            for place in range(sentences)
        )

    return make


@pytest.fixture
def start_conversation() -> StartConversation:
    """Builds conversations with a rehearsal model, without a gateway."""
    return new_conversation
