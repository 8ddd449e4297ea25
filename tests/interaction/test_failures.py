"""What goes wrong while an agent answers: each row ends in an answer, a word in the status, and a line in the log.

The table in docs/troubleshooting.md lists the same rows. Only the model is made up: gateway, agent and peers are real.
"""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.agents import EnvelopeRecorder, running_agent
from tests.support.peers import QUICK
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = parse_space("""
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  odd: {command: mew, capabilities: [{kind: mcp/response}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: participant/status},
                   {kind: mcp/request, payload: {method: tools/list}}, {kind: mcp/request, to: [odd]},
                   {kind: mcp/proposal, payload: {params: {name: where}}}, {kind: mcp/withdraw}]
""")


@dataclass
class Place:
    """A gateway that can go and come back, at one port, under the same tokens."""

    tokens: TokenBook = field(default_factory=lambda: TokenBook.generate(SPACE))
    running: RunningGateway | None = None
    _stop: anyio.Event = field(default_factory=anyio.Event)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def serve(self) -> None:
        """Serve, again after each `restart`."""
        port = 0
        while True:
            async with serve_gateway(SPACE, tokens=self.tokens, port=port) as gateway:
                port, self.running, self._stop = gateway.port, gateway, anyio.Event()
                self._tell()
                await self._stop.wait()
                self.running = None

    async def restart(self) -> None:
        """Let it go, and wait until there is another."""
        before = self.running
        self._stop.set()
        while self.running is None or self.running is before:
            await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def up(self) -> RunningGateway:
        while self.running is None:
            await self._changed.wait()
        return self.running


@dataclass
class Scene:
    place: Place
    server: RehearsalServer
    agent: Agent
    ada: Participant
    tools: Participant
    recorder: EnvelopeRecorder
    begun: anyio.Event
    """Set when somebody calls the tool `hang`."""
    go_on: anyio.Event
    """Lets that tool finish."""
    words: list[str] = field(default_factory=list)
    """What the agent's statuses said."""

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(lambda: condition())

    async def everybody(self) -> None:
        """Wait until all see all."""
        members = {"ada", "tools", "coder", "odd"}
        for one in (self.ada, self.tools, self.agent):
            await self.until(lambda one=one: one.is_joined and members <= {*one.peers, one.id})  # type: ignore[misc]

    async def permit(self, kind: str) -> None:
        """Let the agent do what its own capabilities do not cover."""
        await self.ada.send("capability/grant", {"recipient": "coder", "capabilities": [{"kind": kind}]}, to="coder")
        await self.until(lambda: self.agent.may_send(kind, {"method": "tools/call"}, ("tools",)))

    async def forbid(self, kind: str) -> None:
        """Take that back."""
        await self.ada.send("capability/revoke", {"recipient": "coder", "capabilities": [{"kind": kind}]}, to="coder")
        await self.until(lambda: not self.agent.may_send(kind, {"method": "tools/call"}, ("tools",)))


# -- what goes wrong ---------------------------------------------------------------------------------------


async def nothing(s: Scene) -> None:
    """All goes as it should, as far as the space is concerned."""


async def may_call(s: Scene) -> None:
    await s.permit("mcp/request")


async def the_peer_leaves(s: Scene) -> None:
    await s.begun.wait()
    await s.tools.aclose()


async def the_gateway_restarts_in_a_call(s: Scene) -> None:
    await s.begun.wait()
    await s.place.restart()
    await s.everybody()
    s.go_on.set()


async def the_gateway_restarts_in_a_thought(s: Scene) -> None:
    await s.server.wait_until(lambda: bool(s.server.requests) and s.server.requests[0].chunks_sent > 1)
    await s.place.restart()


async def the_capability_is_revoked(s: Scene) -> None:
    await s.begun.wait()
    await s.forbid("mcp/request")
    s.go_on.set()


async def the_peer_is_paused(s: Scene) -> None:
    await s.permit("mcp/request")
    await s.ada.send("participant/pause", {}, to="tools")
    await s.until(lambda: s.tools.messenger.is_paused)


async def somebody_rejects(s: Scene) -> None:
    proposal = await s.recorder.first("coder", "mcp/proposal", method="tools/call")
    await s.ada.send("mcp/reject", {"reason": "unsafe"}, to="coder", correlation_id=(proposal.id,))


# -- the table ---------------------------------------------------------------------------------------------

Act = Callable[[Scene], Coroutine[Any, Any, None]]


def call(
    *requested: str, arguments: str = "{}", then: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any], ...]:
    """The model calls these tools one after the other, and then says something."""
    steps = [{"tool_calls": [{"name": name, "arguments": arguments}]} for name in requested]
    return (*steps, then or {"text": "I see."})


@dataclass(frozen=True)
class Row:
    """One failure. Texts are compared in part; None: not compared."""

    name: str
    script: tuple[Mapping[str, Any], ...] = ()
    before: Act = nothing
    meanwhile: Act = nothing
    answer: str = "I see."
    result: str | None = None
    status: str | None = None
    log: str | None = None
    agent: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    is_model_down: bool = False


TABLE = (
    Row(
        "the model's server is down",
        is_model_down=True,
        answer="I could not reach my model",
        status="model_unreachable",
        log="connection refused",
    ),
    Row(
        "the model fails in the middle of a turn",
        call("weigh", then={"status": 500}),
        answer="My model call failed",
        status="model_error",
        log="HTTP 500",
    ),
    Row(
        "the model's reply is cut off",
        ({"text": "and so on " * 2000},),
        options={"window_tokens": 2048},
        answer="[My answer ends here: my context window is full.]",
        status="reply_cut:context_full",
        log="incomplete: context_full",
    ),
    Row(
        "the model's reply never ends",
        agent={"max_turn_seconds": 0.3},
        options={"chunk_delay_seconds": 5.0},
        answer="I stopped after 0.3 seconds",
        status="turn_stopped:after 0.3 seconds",
        log="turn stopped",
    ),
    Row(
        "the model calls tools endlessly",
        call(*["weigh"] * 9),
        agent={"max_iterations": 3},
        answer="I stopped after 3 steps",
        status="turn_stopped:after 3 steps",
        log="turn stopped after 3 model calls",
    ),
    Row(
        "the model does not support tools",
        options={"refuse_tools": True},
        answer="",
        status="model_tools_unsupported",
        log="continuing without tools",
    ),
    Row(
        "the model calls a tool that does not exist",
        call("ghost"),
        result="Error: no tool 'ghost' (known: weigh, stall, odd__",
        status="tool_failed:ghost: no tool 'ghost'",
        log="no tool 'ghost'",
    ),
    Row(
        "the arguments are not valid JSON",
        call("odd__strange", arguments="{not json"),
        result="Error: bad arguments for 'odd__strange': invalid JSON",
        status="tool_failed:odd__strange: bad arguments",
        log="invalid JSON",
    ),
    Row(
        "the arguments do not match the schema",
        call("weigh", arguments='{"grams": "many"}'),
        result="Error: bad arguments for 'weigh': grams",
        status="tool_failed:weigh: bad arguments",
        log="bad arguments for 'weigh'",
    ),
    Row(
        "the agent's own tool hangs",
        call("stall"),
        agent={"tool_timeout_seconds": 0.1},
        result="Error: 'stall' did not finish within 0.1 seconds",
        status="tool_failed:stall: 'stall' did not finish",
        log="did not finish within 0.1 seconds",
    ),
    Row(
        "a peer's tool hangs",
        call("tools__hang"),
        before=may_call,
        agent={"peer_timeout_seconds": 0.3},
        result="Error: 'tools' did not answer 'mcp/request' within 0.3 seconds",
        status="tool_failed:tools__hang: 'tools' did not answer",
        log="did not answer 'mcp/request'",
    ),
    Row(
        "a peer leaves in the middle of a call",
        call("tools__hang"),
        before=may_call,
        meanwhile=the_peer_leaves,
        result="Error: 'tools' left before it answered",
        status="tool_failed:tools__hang: 'tools' left",
        log="left before it answered",
    ),
    Row(
        "a peer is paused",
        call("tools__where"),
        before=the_peer_is_paused,
        result="Error: 'tools' answered: paused",
        status="tool_failed:tools__where: 'tools' answered: paused",
        log="answered: paused",
    ),
    Row(
        "a peer's tool fails",
        call("tools__fail"),
        before=may_call,
        result="Error: RuntimeError: out of order",
        status="tool_failed:tools__fail: RuntimeError: out of order",
        log="out of order",
    ),
    Row(
        "a peer's reply is unreadable",
        call("odd__strange"),
        result="Error: 'odd' answered: 42",
        status="tool_failed:odd__strange: 'odd' answered: 42",
        log="'odd' answered: 42",
    ),
    Row(
        "no participant fulfils a proposal",
        call("tools__where"),
        agent={"proposal_timeout_seconds": 0.2},
        result="Error: 'tools' did not answer 'mcp/proposal' within 0.2 seconds",
        status="tool_failed:tools__where: 'tools' did not answer 'mcp/proposal'",
        log="no participant fulfilled the proposal",
    ),
    Row(
        "a participant rejects a proposal",
        call("tools__where"),
        meanwhile=somebody_rejects,
        result="Error: 'ada' rejected the proposal of 'tools/call' to 'tools': unsafe",
        status="tool_failed:tools__where: 'ada' rejected",
        log="'ada' rejected the proposal",
    ),
    Row(
        "a capability is revoked while a call runs",
        call("tools__hang", "tools__add", arguments='{"a": 1, "b": 2}'),
        before=may_call,
        meanwhile=the_capability_is_revoked,
        result="Error: 'coder' has no capability that covers 'mcp/request'; add one in space.yaml",
        status="tool_failed:tools__add: 'coder' has no capability",
        log="has no capability",
    ),
    Row(
        "the gateway restarts while the model thinks",
        ({"text": "word " * 200},),
        meanwhile=the_gateway_restarts_in_a_thought,
        options={"chunk_delay_seconds": 0.02},
        answer="word word",
        status="rejoined",
        log="connecting to ws://",
    ),
    Row(
        "the gateway restarts in the middle of a call",
        call("tools__hang"),
        before=may_call,
        meanwhile=the_gateway_restarts_in_a_call,
        result="at last",
        status="rejoined",
        log="connecting to ws://",
    ),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_failure_has_an_answer_a_word_and_a_line(
    row: Row, caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    caplog.set_level(logging.INFO, "mew_agent.participant.client")
    async with scene(row, unused_port) as s:
        await row.before(s)
        answers: list[str] = []

        async def ask() -> None:
            question = {"text": "Please go on."}
            answer = await s.ada.ask("chat", question, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
            answers.append(str(answer.body["text"]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(row.meanwhile, s)
        assert row.answer in answers[0]
        results = [item.content for item in s.agent.conversation.history.items if item.role == "tool"]
        assert row.result is None or any(result.startswith(row.result) for result in results), results
        await s.until(lambda: row.status is None or any(word.startswith(row.status) for word in s.words))
        assert row.log is None or row.log in caplog.text
        assert not s.agent.conversation.history.open_calls()
        await goes_on(s, row)


async def goes_on(s: Scene, row: Row) -> None:
    """Whatever happened, the next question is answered, unless there is still no model to answer it."""
    s.server.change(script=(), chunk_delay_seconds=0.0)
    answer = await s.ada.ask("chat", {"text": "And now?"}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
    assert str(answer.body["text"]).startswith("I could not reach my model") == row.is_model_down


@asynccontextmanager
async def scene(row: Row, unused_port: int) -> AsyncIterator[Scene]:
    options = RehearsalOptions.model_validate({"script": row.script, **row.options})
    place = Place()
    begun, go_on = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks, serve_rehearsal(options) as server:
        tasks.start_soon(place.serve)
        gateway = await place.up()
        values = {"discover_tools": True, **row.agent}
        if row.is_model_down:
            values["base_url"] = f"http://127.0.0.1:{unused_port}/v1"

        def member(name: str, **given: Any) -> Participant:
            return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name), **given)

        odd = member("odd", offers=Odd())
        answer_strangely(odd)
        async with (
            running_agent(gateway, server, values, None, 30.0, "coder", (weigh, stall)) as (agent, _),
            member("ada") as ada,
            offering(member("tools"), begun, go_on) as tools,
            odd,
        ):
            agent.discovery.pace = QUICK
            s = Scene(place, server, agent, ada, tools, EnvelopeRecorder(ada), begun, go_on)

            @agent.on("participant/status")
            async def note(status: Envelope) -> None:  # on its own: others may join again later than the agent
                if status.sender == agent.id:
                    s.words.append(str(status.body.get("status")))

            await s.everybody()
            await s.until(lambda: bool(agent.peers["tools"].tools) and bool(agent.peers["odd"].tools))
            yield s
        tasks.cancel_scope.cancel()


def weigh(grams: int = 1) -> str:
    """Weigh something."""
    return f"{grams} grams"


async def stall() -> None:
    """Never comes back."""
    await anyio.sleep_forever()


def offering(me: Participant, begun: anyio.Event, go_on: anyio.Event) -> Participant:
    @me.tool
    async def hang() -> str:
        """Comes back when it is let."""
        begun.set()
        await go_on.wait()
        return "at last"

    @me.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @me.tool
    def fail() -> str:
        """Never works."""
        raise RuntimeError("out of order")

    @me.tool
    def where() -> str:
        """Say where this is."""
        return me.id

    return me


class Odd:
    """Lists a tool, and leaves its calls to `answer_strangely`."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method != "tools/list":
            await anyio.sleep_forever()
        return {"tools": [{"name": "strange"}]}


def answer_strangely(me: Participant) -> None:
    @me.on("mcp/request")
    async def answer(request: Any) -> None:
        if request.body["method"] == "tools/call" and request.names(me.id):
            await me.send("mcp/response", {"error": 42}, to=request.sender, correlation_id=(request.id,))
