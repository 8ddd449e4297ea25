"""A fulfiller in a space: it fulfils, rejects and asks, and decides each proposal once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent.errors import MewAgentError, NotAccepted, PeerTimeout, Rejected
from mew_agent.participant.event_handlers import ProposalMade
from mew_agent.participant.mcp_client import Timeouts
from mew_agent.participant.participant import Participant
from mew_agent.parts.simple_agents.fulfiller import Fulfiller
from mew_agent.parts.simple_agents.fulfiller_policy import FulfillerPolicy
from tests.support.agents import EnvelopeRecorder
from tests.support.peers import Join, space_of_peers, with_tools

SPACE = """
space: {id: demo}
participants:
  ada: {capabilities: [{kind: chat}, {kind: mcp/request}, {kind: mcp/reject}, {kind: mcp/withdraw}]}
  proposer: {command: mew, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}]}
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  keeper:
    command: mew
    capabilities: [{kind: chat}, {kind: mcp/reject}, {kind: mcp/request, to: [tools]}]
"""


@asynccontextmanager
async def scene(
    policy: dict[str, Any], **options: Any
) -> AsyncIterator[tuple[Participant, Participant, EnvelopeRecorder, Join]]:
    """The proposer, `ada` who may be asked, and what she receives. The fulfiller is `keeper`."""
    async with space_of_peers(SPACE) as (_, join):
        keeper = join("keeper")
        Fulfiller(keeper, FulfillerPolicy.model_validate(policy), **options)
        async with join("ada") as ada, with_tools(join("tools")), keeper, join("proposer") as me:
            yield me, ada, EnvelopeRecorder(ada), join


async def outcome(me: Participant, name: str = "where", **options: Any) -> str:
    try:
        return (await me.call_tool("tools", name, timeouts=Timeouts(5.0, 5.0), **options)).text
    except MewAgentError as error:
        return str(error)


async def test_allowed_proposals_are_fulfilled_and_others_rejected_with_the_reason() -> None:
    async with scene({"allow": ["tools/where"], "otherwise": "reject", "reason": "house rules"}) as (me, *_):
        assert await outcome(me) == "tools"
        assert "'keeper' rejected the proposal of 'tools/call' to 'tools': house rules" in await outcome(me, "fail")


async def test_proposal_beyond_its_capabilities_is_rejected_as_incapable() -> None:
    async with scene({}) as (me, *_):
        with pytest.raises(Rejected, match="incapable"):
            await me.request("ada", "tools/list")


async def test_proposal_is_rejected_if_the_gateway_refuses_its_request() -> None:
    """A gateway may revoke a capability without announcing it."""
    async with scene({}) as (me, _, recorder, join):
        async with join("keeper") as other:
            other.messenger.capabilities = type(other.capabilities)([{"kind": "*"}])
            Fulfiller(other)
            with pytest.raises(Rejected, match="incapable"):
                await me.request("ada", "tools/list")
        assert recorder.sent_by("keeper", "mcp/reject")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("yes", "tools"), ("no, not on a Friday", "not on a Friday"), ("no", "disagree")],
)
async def test_person_is_asked_by_chat(answer: str, expected: str) -> None:
    async with scene({"ask": "ada"}) as (me, ada, _, _join):

        @ada.on("chat")
        async def reply(question: Envelope) -> None:
            if question.sender == "keeper":
                assert question.body["text"].startswith("'proposer' proposes to call 'where' on 'tools'")
                await ada.chat(answer, to="keeper", correlation_id=(question.id,))

        assert expected in await outcome(me)


async def test_unclear_answer_is_asked_again_and_other_chats_do_not_count() -> None:
    async with scene({"ask": "ada"}) as (me, ada, recorder, _join):
        async with anyio.create_task_group() as tasks:
            said: list[str] = []

            async def propose() -> None:
                said.append(await outcome(me))

            tasks.start_soon(propose)
            await recorder.first("keeper", "chat")
            await ada.chat("yes")  # a broadcast, not addressed to the keeper
            await ada.chat("What for?", to="keeper")
            again = await recorder.first("keeper", "chat", nth=1)
            assert again.body["text"] == "Please answer yes, or no and a reason."
            await ada.chat("yes", to="keeper")
        assert said == ["tools"]


async def test_missing_answer_counts_as_no() -> None:
    async with scene({"ask": "ada", "ask_seconds": 0.05}) as (me, _, recorder, _join):
        assert "timeout" in await outcome(me)
        assert (await recorder.first("keeper", "chat", nth=1)).body["text"] == "This needs no answer any more."


async def test_absent_person_counts_as_no() -> None:
    async with scene({"ask": "ghost"}) as (me, *_):
        assert "'ghost' is not here to decide" in await outcome(me)


async def test_person_is_asked_about_one_proposal_at_a_time() -> None:
    async with scene({"ask": "ada"}) as (me, ada, recorder, _):
        said: list[str] = []

        async def propose() -> None:
            said.append(await outcome(me))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(propose)
            tasks.start_soon(propose)
            await recorder.first("keeper", "chat")
            await ada.chat("no, later", to="keeper")
            await recorder.first("keeper", "chat", nth=1)
            await ada.chat("yes", to="keeper")
        assert sorted(said)[1] == "tools"
        assert "later" in min(said)


@pytest.mark.parametrize("how", ["withdrawn", "fulfilled", "rejected"])
async def test_proposal_decided_elsewhere_is_not_asked_about(how: str) -> None:
    async with scene({"ask": "ada"}) as (me, ada, recorder, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, me)
            proposal = await recorder.first("proposer", "mcp/proposal")
            await recorder.first("keeper", "chat")
            match how:
                case "withdrawn":
                    tasks.cancel_scope.cancel()
                case "fulfilled":
                    await ada.send("mcp/request", proposal.payload, to="tools", correlation_id=(proposal.id,))
                case _:
                    await ada.send("mcp/reject", {"reason": "busy"}, to="proposer", correlation_id=(proposal.id,))
        reported = await recorder.first("keeper", "chat", nth=1)
        assert reported.body["text"] == "This needs no answer any more."
        assert not recorder.sent_by("keeper", "mcp/request", "mcp/reject")


async def test_withdrawal_by_another_participant_changes_nothing() -> None:
    async with scene({"ask": "ada"}) as (me, ada, recorder, _join):
        async with anyio.create_task_group() as tasks:
            said: list[str] = []

            async def propose() -> None:
                said.append(await outcome(me))

            tasks.start_soon(propose)
            proposal = await recorder.first("proposer", "mcp/proposal")
            await recorder.first("keeper", "chat")
            with pytest.raises(NotAccepted):
                await ada.send("mcp/withdraw", {"reason": "mine"}, correlation_id=(proposal.id,))
            await ada.chat("yes", to="keeper")
        assert said == ["tools"]


async def test_program_can_decide_with_its_own_function() -> None:
    seen: list[str] = []

    async def decide(proposal: ProposalMade) -> str | None:
        seen.append(f"{proposal.tool}: {proposal.arguments}")
        return None if proposal.tool == "where" else "not that"

    async with scene({"ask": "me"}, decide=decide) as (me, *_):
        assert await outcome(me) == "tools"
        assert "not that" in await outcome(me, "fail")
    assert seen == ["where: {}", "fail: {}"]


async def test_proposals_of_other_proposers_are_ignored() -> None:
    async with scene({"proposers": ["somebody-else"]}) as (me, *_):
        with pytest.raises(PeerTimeout):
            await me.call_tool("tools", "where", timeouts=Timeouts(0.1, 0.1))
