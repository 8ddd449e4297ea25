"""Agents that ask before they compact, over real sockets: approve, change, reject, wait, overflow, restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.mcp import UndecidedProposal
from mew_spaces.config.loading import SpaceConfig, parse_space
from mew_spaces.gateway.auth import TokenBook
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent import ProposalMade
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.context.policy import CompactAction
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.participant.participant import Participant
from mew_agent.parts.compaction_approval.asking import MAX_PROPOSALS
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.agents import SPACE, AgentDriver, EnvelopeRecorder, StartAgent, running_agent
from tests.support.cli import Outcome, mew, seat
from tests.support.waiting import PATIENCE_SECONDS, until

Text = Callable[[int], str]

FULL = ((3000, 60, 3060), (5000, 60, 5060), (7400, 60, 7460))
"""Usage of calls, the last of which crosses nine tenths of the window and leaves room for another question."""


@pytest.fixture
def space() -> SpaceConfig:
    written = yaml.safe_load(SPACE)
    may_propose = ("mcp/proposal", "mcp/withdraw", "mcp/response")
    written["participants"]["coder"]["capabilities"] += [
        {"kind": "mcp/request", "payload": {"method": "*/list"}},
        *({"kind": kind} for kind in may_propose),
    ]
    return parse_space(yaml.safe_dump(written))


def asking(wait_seconds: float = 300.0) -> dict[str, Any]:
    """The settings of an agent that asks ada."""
    return {"compaction": {"approve": "ada", "wait_seconds": wait_seconds}}


async def proposal(s: AgentDriver, nth: int = 0) -> Envelope:
    return await s.recorder.first("coder", "mcp/proposal", nth=nth)


async def filled(s: AgentDriver, text: Text) -> Envelope:
    """Fill the window beyond the mark; returns the proposal of the compaction."""
    for _ in FULL:
        await s.ask(text(100))
    return await proposal(s)


async def decide(s: AgentDriver, about: Envelope, by: Participant | None = None, **arguments: Any) -> Envelope:
    params = {"name": "compact_context", "arguments": arguments}
    payload = {"method": "tools/call", "params": params}
    return await (by or s.ada).send("mcp/request", payload, to="coder", correlation_id=(about.id,))


async def status_word(s: AgentDriver, word: str, nth: int = 0) -> Envelope:
    """Wait for the nth status with this word, or with one that begins so."""

    def found() -> list[Envelope]:
        all_of = s.recorder.sent_by("coder", "participant/status")
        return [e for e in all_of if str(e.body["status"]).partition(":")[0] == word]

    await s.recorder.until(lambda: len(found()) > nth)
    return found()[nth]


async def test_an_approved_compaction_follows_its_plan(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        assert asked.to == ("coder",)
        arguments = asked.body["params"]["arguments"]
        assert (arguments["trigger"], arguments["approvers"], arguments["basis"]) == ("threshold", ["ada"], "projected")
        assert arguments["leaves"]["messages"] >= 2
        waiting = await status_word(s, "waiting_for_approval")
        (wait,) = waiting.body["context"]["waiting"]
        assert (wait["kind"], wait["proposal"], wait["who_may_answer"]) == ("approval", asked.id, ["ada"])
        assert s.summary_requests == []
        assert await s.ask("A chat does not wait.")
        sent = await decide(s, asked)
        answer = await s.recorder.first("coder", "mcp/response", about=sent)
        assert answer.body["result"]["content"][0]["text"].startswith("Received")
        compacted = await status_word(s, "compacted")
        last = compacted.body["context"]["last_compaction"]
        assert (last["approval"], last["freed_messages"]) == ("approved by ada", arguments["leaves"]["messages"])
        assert [one.approval for one in (await s.ada.compaction_history("coder")).entries] == ["approved by ada"]
        assert "waiting" not in compacted.body["context"]
        assert (await status_word(s, "compaction_approved")).body["status"] == "compaction_approved:ada"


async def test_a_session_asks_before_it_compacts_and_counts_as_its_agent(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        for _ in FULL:
            await s.ada.ask("chat", {"text": text(100), "session": "one"}, to="coder", answer="chat")
        asked = await proposal(s)
        assert asked.body["params"]["arguments"]["session"] == "one"
        assert "compacting" not in s.recorder.words("coder")
        await decide(s, asked)
        await status_word(s, "compacting")

        def compactions() -> list[int]:
            return [
                one["context"]["compactions"] for status in s.statuses for one in status["context"].get("sessions", ())
            ]

        await s.recorder.until(lambda: 1 in compactions())
        assert s.agent.conversation.tracker.compactions == 0
        assert s.statuses[-1]["context"]["sessions"][0]["context"]["last_compaction"]["approval"] == "approved by ada"


async def test_an_approver_pins_lines_and_changes_the_target(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        refused = await decide(s, asked, target_tokens="small")
        answer = await s.recorder.first("coder", "mcp/response", about=refused)
        assert "arguments.target_tokens" in answer.body["error"]["message"]
        again = await proposal(s, nth=1)  # the gateway closed the first one
        await decide(s, again, target_tokens=1_000_000)
        problem = await status_word(s, "compaction_not_approved", nth=1)
        assert "1,000,000 cannot be reached (already_below_target)" in problem.body["status"]
        third = await proposal(s, nth=2)
        await decide(s, third, target_tokens=100, pins=["the tide gauge is at pier 4"])
        await status_word(s, "compacted")
        (pin,) = await s.ada.pins("coder")
        assert (pin.text, pin.origin) == ("the tide gauge is at pier 4", "ada")
        assert len(s.agent.conversation.history.items) == 0


async def test_a_rejection_holds_until_the_window_would_overflow(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=(*FULL, (7500, 60, 7560))) as s:
        asked = await filled(s, text)
        await s.ada.send("mcp/reject", {"reason": "keep the log"}, to="coder", correlation_id=(asked.id,))
        assert (await status_word(s, "compaction_rejected")).body["status"] == "compaction_rejected:ada: keep the log"
        await s.ask("Short.")  # above the mark again, by less than a step
        assert len(s.recorder.sent_by("coder", "mcp/proposal")) == 1
        assert s.agent.conversation.tracker.compactions == 0
        await s.ask(text(500))
        urgent = await status_word(s, "compaction_urgent")
        expected = "the window would overflow (rejected by ada: keep the log)"
        assert urgent.body["status"] == f"compaction_urgent:{expected}"
        compacted = await status_word(s, "compacted")
        assert compacted.body["context"]["last_compaction"]["approval"] == expected


async def test_an_open_proposal_ends_when_the_window_would_overflow(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        await s.ask(text(500))
        urgent = await status_word(s, "compaction_urgent")
        assert urgent.body["status"] == "compaction_urgent:the window would overflow (no decision yet)"
        await s.recorder.first("coder", "mcp/withdraw", about=asked)
        assert s.agent.conversation.tracker.compactions == 1


async def test_without_a_decision_the_compaction_goes_on_at_the_deadline(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent={"compaction": {"approve": ["eve"], "wait_seconds": 0.2}}, fixed_usage=FULL) as s:
        asked = await filled(s, text)
        await s.recorder.first("coder", "mcp/withdraw", about=asked, reason="timeout")
        compacted = await status_word(s, "compacted")
        last = compacted.body["context"]["last_compaction"]
        assert last["approval"] == "eve did not decide within 0.2 seconds (not in the space)"


async def test_a_decision_of_another_participant_does_not_count(
    start_agent: StartAgent, joined: Callable[..., Participant], text: Text
) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s, joined("bob") as bob:
        asked = await filled(s, text)
        sent = await decide(s, asked, by=bob)
        answer = await s.recorder.first("coder", "mcp/response", about=sent)
        assert answer.body["error"]["message"] == "only ada may approve a compaction of 'coder'"
        again = await proposal(s, nth=1)
        rejected = await bob.send("mcp/reject", {"reason": "no"}, to="coder", correlation_id=(again.id,))
        await s.recorder.first("bob", "mcp/reject")
        await s.status()  # the agent has read the rejection
        assert rejected.id not in str(s.recorder.sent_by("coder", "mcp/withdraw"))
        await decide(s, again)
        await status_word(s, "compacted")


async def test_others_that_close_every_proposal_do_not_shorten_the_wait(
    start_agent: StartAgent, joined: Callable[..., Participant], text: Text
) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s, joined("bob") as bob:
        await filled(s, text)
        for nth in range(MAX_PROPOSALS):
            await decide(s, await proposal(s, nth), by=bob)
        await s.recorder.until(lambda: len(s.recorder.sent_by("coder", "mcp/response")) == MAX_PROPOSALS)
        assert await s.ask("Did you compact?")
        assert s.agent.conversation.tracker.compactions == 0
        assert "compaction_unanswered" not in str(s.recorder.words("coder"))


async def test_an_urgent_compaction_does_not_approve_a_requested_one(
    start_agent: StartAgent, joined: Callable[..., Participant], text: Text
) -> None:
    async with start_agent(agent=asking()) as s, joined("bob") as bob:
        for _ in range(4):
            await s.ask(text(100))
        sent = await bob.send("participant/compact", {}, to="coder")
        await proposal(s)
        gate = s.agent.conversation.gate
        assert gate is not None
        assert gate.admit(CompactAction("would_overflow", 500), is_urgent=True) is not None
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert (done.body["skipped"], done.body["reason"]) == (True, "the window would overflow (no decision yet)")
        assert s.agent.conversation.tracker.compactions == 0


async def test_a_request_of_another_participant_needs_approval(
    start_agent: StartAgent, joined: Callable[..., Participant], text: Text
) -> None:
    async with start_agent(agent=asking()) as s, joined("bob") as bob:
        for _ in range(4):
            await s.ask(text(100))
        sent = await bob.send("participant/compact", {}, to="coder")
        first = await proposal(s)
        assert first.body["params"]["arguments"]["requested_by"] == "bob"
        await s.ada.send("mcp/reject", {"reason": "later"}, to="coder", correlation_id=(first.id,))
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert (done.body["skipped"], done.body["reason"]) == (True, "rejected by ada: later")
        sent = await bob.send("participant/compact", {}, to="coder")
        await decide(s, await proposal(s, nth=1))
        done = await s.recorder.first("coder", "participant/compact-done", about=sent)
        assert (done.body["skipped"], done.body["approval"]) == (False, "approved by ada")
        for _ in range(3):
            await s.ask(text(100))
        own = await s.ada.compact("coder")  # the approver asks, so no approval is needed
        assert not own.skipped
        assert len(s.recorder.sent_by("coder", "mcp/proposal")) == 2


async def test_a_clear_ends_an_open_proposal(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        await s.control("clear")
        await s.recorder.first("coder", "mcp/withdraw", about=asked)
        assert (await status_word(s, "compaction_dropped")).body["status"].endswith("cleared or compacted meanwhile")
        assert s.agent.conversation.tracker.compactions == 0


async def test_a_restart_leaves_no_open_proposal(
    start_agent: StartAgent, gateway: RunningGateway, text: Text, tmp_path: Path
) -> None:
    path = tmp_path / "session.sqlite"
    async with start_agent(agent=asking(), store=SqliteStore(path), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        await s.ada.pin("coder", "never push to main")
        assert asked.id[:8] in (await mew("proposals", *seat(gateway))).out
    async with start_agent(agent=asking(), store=SqliteStore(path), fixed_usage=((7400, 60, 7460),)) as s:
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await mew("proposals", *seat(gateway))).out != "no proposal is open\n":
                continue
        await s.ask("Where were we?")
        await decide(s, await proposal(s))
        await status_word(s, "compacted")
        assert [pin.text for pin in await s.ada.pins("coder")] == ["never push to main"]


async def test_a_proposal_lost_with_the_gateway_is_made_again(
    space: SpaceConfig, tokens: TokenBook, text: Text
) -> None:
    async def host(port: int, stop: anyio.Event, *, task_status: Any) -> None:
        async with serve_gateway(space, tokens=tokens, port=port) as gateway:
            task_status.started(gateway)
            await stop.wait()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with serve_rehearsal(RehearsalOptions(fixed_usage=FULL)) as server, anyio.create_task_group() as gateways:
            stop, end = anyio.Event(), anyio.Event()
            first: RunningGateway = await gateways.start(host, 0, stop)
            async with (
                running_agent(first, server, asking(), None, 30.0, "coder", ()) as (actor, ended),
                Participant(first.ws_url, space="demo", id="ada", token=first.token_of("ada")) as ada,
            ):
                made: list[ProposalMade] = []
                ada.on(ProposalMade)(made.append)
                s = AgentDriver(first, server, actor, ada, EnvelopeRecorder(ada), ended)
                await filled(s, text)
                stop.set()
                await until(lambda: not actor.is_joined and not ada.is_joined)
                await gateways.start(host, first.port, end)
                await until(lambda: len(made) == 2)  # its envelope arrived, or the welcome listed it
                await decide(s, made[1].envelope)
                await status_word(s, "compacted")
                last = actor.conversation.tracker.last_compaction
                assert last is not None
                assert last.approval == "approved by ada"
            end.set()


async def test_an_agent_that_may_not_propose_compacts_and_says_so(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(name="writer", agent=asking(), fixed_usage=FULL) as s:
        for _ in FULL:
            await s.ada.ask("chat", {"text": text(100)}, to="writer", answer="chat", timeout_seconds=30)
        await until(lambda: s.agent.conversation.tracker.last_compaction is not None)
        last = s.agent.conversation.tracker.last_compaction
        assert last is not None
        assert last.approval == (
            "it could not be proposed: 'writer' has no capability that covers 'mcp/proposal'; add one in space.yaml"
        )


async def test_commands_show_approve_and_reject_a_compaction(
    start_agent: StartAgent, gateway: RunningGateway, text: Text
) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:
        asked = await filled(s, text)
        listed = (await mew("proposals", *seat(gateway))).out.splitlines()
        assert listed[0].endswith("; ada may approve")
        assert listed[1].startswith("  context of ~")
        assert "trigger threshold" in listed[1]
        assert listed[2].startswith("  leaves ")
        assert listed[3].startswith("  stays ")
        assert listed[4].endswith("unless rejected")
        other = await mew("approve", asked.id[:8], *seat(gateway, "bob"))
        assert other.err == "mew: --participant: 'bob' may not decide about this compaction; ada may approve\n"
        empty = await mew("approve", asked.id[:8], "--pin", "", *seat(gateway))
        assert (empty.code, empty.err) == (2, "mew: --pin: each line must have 1 to 4,000 characters\n")
        outcome = await mew("approve", asked.id[:8], "--target-tokens", "200", "--pin", "pier 4", *seat(gateway))
        assert outcome.out == "approved: coder compacts\n"
        await status_word(s, "compacted")
        assert [pin.text for pin in await s.ada.pins("coder")] == ["pier 4"]


async def test_mew_compact_names_the_approver_it_waits_for(
    start_agent: StartAgent, gateway: RunningGateway, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, proposals = list[int](), GatewayApi.proposals

    def counted(api: GatewayApi) -> tuple[UndecidedProposal, ...]:
        found = proposals(api)
        read.append(len(found))
        return found

    monkeypatch.setattr(GatewayApi, "proposals", counted)
    async with start_agent(agent=asking()) as s, anyio.create_task_group() as tasks:
        for _ in range(4):
            await s.ask(text(100))
        outcomes: list[Outcome] = []

        async def compact() -> None:
            outcomes.append(await mew("compact", "coder", *seat(gateway, "bob")))

        tasks.start_soon(compact)
        asked = await proposal(s)
        await until(lambda: bool(read))  # else the command may find the proposal decided
        await decide(s, asked, target_tokens=0)
        await until(lambda: bool(outcomes))
        assert outcomes[0].code == 0, outcomes
        assert "coder: freed " in outcomes[0].out
        commands = f"`mew approve {asked.id[:8]}` or `mew reject {asked.id[:8]}`"
        assert f"; ada may approve: {commands}" in outcomes[0].err


async def test_a_program_approves_with_other_arguments(start_agent: StartAgent, text: Text) -> None:
    async with start_agent(agent=asking(), fixed_usage=FULL) as s:

        @s.ada.on_proposal
        async def approve(made: ProposalMade) -> None:
            await made.fulfil({"target_tokens": 0, "pins": ["pier 4"]})

        await filled(s, text)
        await status_word(s, "compacted")
        assert [pin.text for pin in await s.ada.pins("coder")] == ["pier 4"]


@pytest.mark.part("policies")
async def test_other_policies_ask_too(start_agent: StartAgent, text: Text) -> None:
    nearly_full = {"figure": "next_prompt_and_reserve", "op": "gt", "fraction": "4/5"}
    rule = {"action": "compact", "phase": "pre_request", "trigger": "full", "target": "1/2", "when": [nearly_full]}
    agent = {**asking(), "policy": {"name": "team", "based_on": "mew", "rules": [rule]}}
    async with start_agent(agent=agent, window_tokens=3_000) as s:
        for _ in range(20):
            await s.ask(text(150))
        ends = [word for word in s.recorder.words("coder") if word.startswith("compaction_")]
        assert s.agent.conversation.tracker.compactions > 0
        assert all(word.startswith("compaction_urgent:the window would overflow") for word in ends)
        assert len(ends) >= s.agent.conversation.tracker.compactions
