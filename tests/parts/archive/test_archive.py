"""`mew context history`, `show`, `undo` and `recall`, with an agent that answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from mew_protocol.envelope import wire_timestamp
from mew_protocol.payloads.participant import Compact, Forget
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent.agent.agent import Agent
from mew_agent.config.agent_config import AgentConfig
from mew_agent.participant.compaction_driver import Requester
from tests.support.cli import REPORT, answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import until

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  guest: {capabilities: [{kind: chat}]}
  coder: {role: agent}
"""


@asynccontextmanager
async def agent_with_compactions() -> AsyncIterator[RunningGateway]:
    """A space with an agent whose context was compacted by ada and whose oldest message she then dropped."""
    async with serve_gateway(parse_space(SPACE)) as gateway:
        values = {"gateway": gateway.ws_url, "space": "review", "id": "coder", "token": gateway.token_of("coder")}
        config = AgentConfig.model_validate({**values, "base_url": "rehearsal", "context_token_limit": 8_192})
        async with Agent.from_config(config) as agent:
            conversation = agent.conversation
            for number in range(5):
                conversation.history.begin_turn()
                text = f"The code of door {number} is K-{number}7. " + f"Report {number} is about water. " * 20
                await conversation.state.add_user_message(text, sender="ada", envelope_id=f"e{number}")
                conversation.end_turn()
            await conversation.compact(Compact(reason="long review ahead"), Requester("ada"))
            await conversation.forget(Forget(direction="oldest", entries=1), "ada")
            yield gateway


async def test_compactions_are_listed_shown_recalled_and_undone() -> None:
    async with agent_with_compactions() as gateway:
        listed = await mew("context", "history", "coder", *seat(gateway))
        assert (listed.code, listed.err) == (0, "")
        first, asked, _cost, second = listed.out.splitlines()[:4]
        assert first.split()[0] == "1"
        assert "requested" in first
        assert asked == "     asked by ada: long review ahead"
        assert "forget" in second

        shown = await mew("context", "show", "coder", "1", *seat(gateway))
        assert "Summary" in shown.out
        assert "Replaced, 3 items" in shown.out
        assert "The code of door 0 is K-07." in shown.out
        as_json = json.loads((await mew("context", "show", "coder", "1", "--json", *seat(gateway))).out)
        assert [item["id"] for item in as_json["items"]] == ["e0", "e1", "e2"]

        found = await mew("recall", "coder", "door", "K-07", *seat(gateway))
        assert "e0" in found.out.splitlines()[0]
        nothing = await mew("recall", "coder", "submarine", *seat(gateway))
        assert (nothing.code, nothing.out) == (3, "coder: no match among the messages that left the context\n")

        refused = await mew("undo", "coder", "1", *seat(gateway))
        assert (refused.code, refused.out) == (3, "coder: not undone: 2 came after it; undo 2 first\n")
        undone = await mew("undo", "coder", *seat(gateway))
        assert undone.code == 0
        assert undone.out.startswith("coder: undid 2; 1 message and ")
        assert (await mew("undo", "coder", "1", *seat(gateway))).code == 0
        marked = await mew("context", "history", "coder", *seat(gateway))
        assert "undone by 4" in marked.out
        assert "undo of 1" in marked.out
        composed = await mew("context", "show", "coder", *seat(gateway))
        assert (composed.code, composed.err) == (0, "")
        names = [line.split("  ")[0] or line.split("  ")[1] for line in composed.out.splitlines()[1:]]
        assert names[:3] == ["system prompt, tools", "system prompt", "recall"]
        now = json.loads((await mew("context", "show", "coder", "--json", *seat(gateway))).out)
        assert [(part["part"], part["basis"]) for part in now["prefix"]] == [
            ("system_prompt", "projected"),
            ("tool", "projected"),
        ]
        wrong = await mew("context", "show", "coder", "9", *seat(gateway))
        assert (wrong.code, wrong.out) == (1, "")
        assert wrong.err == "mew: coder: there is no entry 9; the newest is 4\n"
        empty = await mew("recall", "coder", "", *seat(gateway))
        assert (empty.code, empty.err) == (2, "mew: WORDS: must not be empty\n")


async def test_a_missing_capability_is_named() -> None:
    async with agent_with_compactions() as gateway:
        outcome = await mew("context", "history", "coder", *seat(gateway, "guest"))
        assert outcome.code != 0
        assert "participant/request-history" in outcome.err


async def test_an_agent_that_may_not_answer_is_reported(gateway: RunningGateway) -> None:
    async def refuses(client: Client, request: Message) -> None:
        await status(client, "refused:'coder' lacks the capability participant/history", to=request)

    async with answering(gateway, "coder", refuses):
        outcome = await mew("context", "history", "coder", *seat(gateway))
    assert outcome.out == ""
    assert "'coder' lacks the capability participant/history" in outcome.err


async def test_the_gateways_records_are_exported_without_the_agent() -> None:
    compaction: Message = {"at": wire_timestamp(datetime.now(UTC)), "trigger": "threshold", "basis": "projected"}
    compaction |= {"tokens_before": 900, "tokens_after": 300, "freed_tokens": 600}
    async with serve_gateway(parse_space(SPACE)) as gateway:
        async with joined(gateway, "coder") as coder:
            figures: Message = {
                "tokens": 300,
                "max_tokens": 1_000,
                "context": {**REPORT, "last_compaction": compaction},
            }
            await status(coder, "compacted", **figures)
            shown = {"entries": [{**compaction, "number": 1}], "summary": "We chose a lexer."}
            await coder.send_envelope("participant/history", shown, to=["ada"])

            async def recorded() -> bool:
                found = (await gateway.service.figures_of(3_600, 100, "coder")).participants
                return bool(found) and any(one.summary for one in found[0].compactions)

            await until(recorded)
        await board_shows(gateway, lambda board: not board["coder"].connected)
        as_csv = await mew("context", "history", "coder", "--csv", *seat(gateway))
        unknown = await mew("context", "history", "ghost", "--csv", *seat(gateway))
        away = await mew("context", "history", "coder", *seat(gateway))
    header, *rows = as_csv.out.splitlines()
    assert header.startswith("at,participant,event,tokens,")
    assert sum(",report,300,1000,reported," in row for row in rows) == 1
    assert sum(",compaction," in row and row.endswith("threshold,900,300,600,,,,") for row in rows) == 1
    assert (unknown.code, away.code) == (2, 0)
    assert "not connected" in away.err
    assert "compaction, threshold, 900 -> ~300, freed ~600 (projected)" in away.out
    assert "We chose a lexer." in away.out
