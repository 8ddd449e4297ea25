"""An agent with peer tools, the board, time limits, and models without tool support."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.parts.rehearsal import RecordedRequest, RehearsalOptions, RehearsalServer, serve_rehearsal
from tests.support.agents import EnvelopeRecorder, StartAgent, running_agent
from tests.support.peers import QUICK, with_tools
from tests.support.waiting import PATIENCE_SECONDS, until

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: "*"}]}
  bob: {capabilities: [{kind: "*"}]}
  calculator: {command: mew, capabilities: [{kind: mcp/response}]}
  scales: {command: mew, capabilities: [{kind: mcp/response}]}
  coder:
    command: mew
    capabilities: [{kind: chat}, {kind: "chat/*"}, {kind: "reasoning/*"}, {kind: participant/status},
                   {kind: mcp/request, to: [calculator]}, {kind: mcp/proposal}, {kind: mcp/withdraw},
                   {kind: participant/compact}]
"""


class Scene:
    def __init__(self, gateway: RunningGateway, server: RehearsalServer, agent: Agent, ada: Participant) -> None:
        self.gateway, self.server, self.agent, self.ada = gateway, server, agent, ada
        self.recorder = EnvelopeRecorder(ada)

    async def ask(self, text: str) -> str:
        answer = await self.ada.ask("chat", {"text": text}, to="coder", answer="chat", timeout_seconds=PATIENCE_SECONDS)
        return str(answer.body["text"])

    def offered(self, nth: int = -1) -> list[str]:
        body: dict[str, Any] = dict(self.server.requests[nth].body)
        return [tool["function"]["name"] for tool in body.get("tools", ())]

    def results(self, nth: int = -1) -> list[str]:
        body: dict[str, Any] = dict(self.server.requests[nth].body)
        return [message["content"] for message in body["messages"] if message["role"] == "tool"]


@asynccontextmanager
async def at_work(agent: dict[str, Any] | None = None, *, fulfils: bool = True, **options: Any) -> AsyncIterator[Scene]:
    """Ada, a calculator that the agent may call, and scales that it may only propose to call.

    Ada fulfils what is proposed to the scales, or only proposals of lists.
    """
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        serve_rehearsal(RehearsalOptions(**options)) as server,
        running_agent(gateway, server, agent, None, 30.0, "coder", ()) as (actor, _),
    ):
        actor.discovery.pace = QUICK

        def person(name: str) -> Participant:
            return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name))

        ada = person("ada")

        @ada.on("mcp/proposal")
        async def decide(proposal: Any) -> None:
            about = (proposal.id,)
            if proposal.addressees != ("scales",):
                await ada.send("mcp/reject", {"reason": "disagree"}, to="coder", correlation_id=about)
            elif fulfils or proposal.body["method"] == "tools/list":
                await ada.send("mcp/request", proposal.payload, to=proposal.addressees, correlation_id=about)

        async with ada, with_tools(person("calculator")), with_tools(person("scales")):
            scene = Scene(gateway, server, actor, ada)
            await until(lambda: {"calculator", "scales"} <= set(actor.peers))
            yield scene


def tokens_of(request: RecordedRequest) -> int:
    assert request.prompt_tokens is not None
    assert request.completion_tokens is not None
    return request.prompt_tokens + request.completion_tokens


def script(*calls: tuple[str, str]) -> list[dict[str, Any]]:
    requested = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return [{"tool_calls": requested}, {"text": "I see."}]


async def test_tools_are_called_by_request_or_proposal_as_capabilities_allow() -> None:
    add = '{"a": 1, "b": 2}'
    async with at_work(script=script(("scales__add", add), ("calculator__add", add), ("calculator__fail", ""))) as s:
        assert await s.ask("Add.") == "I see."
        assert s.results() == ["3", "3", "Error: RuntimeError: out of order"]
        start = (await s.recorder.first("coder", "reasoning/start")).id
        request = next(e for e in s.recorder.sent_by("coder", "mcp/request") if e.body["method"] == "tools/call")
        proposal = next(e for e in s.recorder.sent_by("coder", "mcp/proposal") if e.body["method"] == "tools/call")
        assert (request.to, request.context) == (("calculator",), start)
        assert (proposal.to, proposal.context) == (("scales",), start)
        assert "tool_failed:calculator__fail: RuntimeError: out of order" in s.recorder.words("coder")


@pytest.mark.part("space_tools")
async def test_peer_tools_are_offered_with_the_first_question() -> None:
    async with at_work() as s:
        await s.ask("Who is here?")
        board = ["context_board", "request_compaction", "wait_for_headroom"]
        tools = [f"{peer}__{tool}" for peer in ("calculator", "scales") for tool in ("add", "fail", "where")]
        assert s.offered(0) == board + tools


async def test_discovery_and_board_can_be_switched_off() -> None:
    async with at_work(agent={"discover_tools": False, "board_tools": False}) as s:
        await s.ask("Who is here?")
        assert s.offered(0) == []
        assert not s.recorder.sent_by("coder", "mcp/request", "mcp/proposal")


@pytest.mark.part("space_tools")
async def test_a_model_reads_the_board() -> None:
    async with at_work(script=script(("context_board", "{}"))) as s:
        assert await s.ask("How full are we?") == "I see."
        tokens = tokens_of(s.server.requests[0])
        assert s.results()[0].startswith(f"coder (you): {tokens:,} of 8,192 tokens (reported), healthy")


async def test_a_model_without_tool_support_continues_without_tools(caplog: pytest.LogCaptureFixture) -> None:
    async with at_work(refuse_tools=True) as s:
        assert await s.ask("Hello?")
        assert await s.ask("And again?")
        assert [request.status for request in s.server.requests] == [400, 200, 200]
        assert s.offered(1) == s.offered(2) == []
        assert "model_tools_unsupported" in s.recorder.words("coder")
        assert "does not support tools" in caplog.text
        assert s.agent.conversation.status().status == "active"


async def test_a_turn_past_its_time_limit_is_stopped_and_reported() -> None:
    async with at_work(agent={"max_turn_seconds": 1.5}, chunk_delay_seconds=60.0) as s:
        assert "stopped after 1.5 seconds" in await s.ask("Think for a long time.")
        assert "turn_stopped:after 1.5 seconds" in s.recorder.words("coder")
        conclusions = s.recorder.sent_by("coder", "reasoning/conclusion")
        assert len(conclusions) == 1
        assert "cancelled" not in conclusions[0].body
        with anyio.fail_after(PATIENCE_SECONDS):
            await s.server.wait_until(lambda: s.server.requests[0].is_disconnected)


async def test_cancelling_a_turn_withdraws_its_proposals() -> None:
    async with at_work(fulfils=False, script=script(("scales__add", '{"a": 1, "b": 2}'))) as s:
        await s.ada.chat("Add.", to="coder")
        proposal = await s.recorder.first("coder", "mcp/proposal", method="tools/call")
        await s.ada.send("reasoning/cancel", {"reason": "no"}, context=str(proposal.context))
        withdrawn = await s.recorder.first("coder", "mcp/withdraw", about=proposal)
        assert withdrawn.body["reason"] == "no_longer_needed"
        await s.recorder.first("coder", "reasoning/conclusion", cancelled=True)


async def test_a_started_agent_withdraws_what_an_earlier_process_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The gateway closes the proposals of who stays away; starting an agent takes longer on a busy machine.
    monkeypatch.setattr("mew_spaces.core.connections.OWNER_GRACE", timedelta(minutes=5))
    async with serve_gateway(parse_space(SPACE)) as gateway, serve_rehearsal() as server:

        def participant(name: str) -> Participant:
            return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name))

        async with participant("ada") as ada, participant("scales"):
            recorder = EnvelopeRecorder(ada)
            async with participant("coder") as earlier:
                proposed = await earlier.send("mcp/proposal", {"method": "tools/list"}, to="scales")
            kept = await ada.send("mcp/proposal", {"method": "tools/list"}, to="scales")
            async with running_agent(gateway, server, None, None, 30.0, "coder", ()):
                await recorder.first("coder", "mcp/withdraw", about=proposed)
            # The new agent may have made proposals of its own since.
            open_ids = gateway.service.space.membership.proposals.undecided.keys()
            assert kept.id in open_ids
            assert proposed.id not in open_ids


# -- its context line and levels ---------------------------------------------------------------------------


async def test_the_context_line_precedes_each_question_and_prices_stay_exact(start_agent: StartAgent) -> None:
    async with start_agent(agent={"context_line": True}) as s:
        for number in range(6):
            await s.ask(f"Question {number} about rivers?")
        body: dict[str, Any] = dict(s.main_requests[-1].body)
        questions = [message["content"] for message in body["messages"] if message["role"] == "user"]
        lines = [text.partition("\n\n")[0] for text in questions]
        assert lines[0].startswith("[Your context: ? of 8,192 tokens (unknown: no call yet)")
        for line, request in zip(lines[1:], s.main_requests, strict=False):
            said = re.match(r"\[Your context: ([\d,]+) of 8,192 tokens \(reported\), healthy", line)
            assert said is not None
            assert int(said[1].replace(",", "")) == tokens_of(request)
        assert s.agent.conversation.tracker.ledger.price(1, 6).basis == "exact"


async def test_peers_and_the_agent_itself_receive_level_changes(start_agent: StartAgent) -> None:
    usage = ((1000, 60, 1060), (2500, 60, 2560), (3000, 60, 3060), (7600, 60, 7660))
    async with start_agent(fixed_usage=usage) as s:
        received: list[str] = []

        @s.ada.on_context_level
        async def level(peer: Peer, context: PeerContext, before: PeerContext) -> None:
            received.append(f"ada: {peer.id} {before.level} > {context.level}")

        @s.ada.on_context_low
        async def low(peer: Peer, context: PeerContext) -> None:
            received.append(f"ada: {peer.id} low at {context.tokens}")

        @s.agent.on_context_low
        async def own(peer: Peer, context: PeerContext) -> None:
            received.append(f"coder: {peer.id} low at {context.tokens}")

        for text in ("One.", "Two.", "Three.", "Four."):
            await s.ask(text)
        await s.recorder.first("coder", "participant/status", status="compacted")
        assert "ada: coder unknown > healthy" in received
        assert "ada: coder healthy > near_limit" in received
        assert received.count("ada: coder low at 7660") == 1
        assert received.count("coder: coder low at 7660") == 1
