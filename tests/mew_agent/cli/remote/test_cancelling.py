"""`mew cancel`: which chats and turns it cancels."""

import json

import pytest
from mew_protocol import kinds
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.app.exit_codes import ExitCode
from tests.support import command_space
from tests.support.cli import mew, seat
from tests.support.gateway_client import Client, joined

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


async def begin(coder: Client, ada: Client) -> str:
    """Have ada ask the coder, who begins a turn about it. Returns the id of the chat."""
    await ada.send_envelope(kinds.CHAT, {"text": "go"}, to=["coder"], id="question")
    await coder.until(kinds.CHAT)
    return "question"


async def test_cancel_ends_own_question(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder, joined(gateway, "ada") as ada:
        question = await begin(coder, ada)
        outcome = await mew("cancel", "--reason", "enough", *seat(gateway))
        assert (outcome.code, outcome.out) == (0, "coder: cancelled 1 question\n")
        cancelled = await coder.until(kinds.CHAT_CANCEL)
        assert (cancelled["correlation_id"], cancelled["payload"]) == ([question], {"reason": "enough"})
        again = await mew("cancel", "--json", *seat(gateway))
        assert (again.code, json.loads(again.out)) == (ExitCode.SKIPPED, [])


@pytest.mark.parametrize("answer", [{"correlation_id": ["question"]}, {}], ids=["correlated", "plain"])
async def test_answered_question_is_not_cancelled(gateway: RunningGateway, answer: dict[str, list[str]]) -> None:
    async with joined(gateway, "coder") as coder, joined(gateway, "ada") as ada:
        await begin(coder, ada)
        await coder.send_envelope(kinds.CHAT, {"text": "done"}, to=["ada"], **answer)
        await ada.until(kinds.CHAT)
        outcome = await mew("cancel", "coder", *seat(gateway))
        assert (outcome.code, outcome.out) == (ExitCode.SKIPPED, "coder: nothing to cancel\n")


async def test_unknown_agent_is_named(gateway: RunningGateway) -> None:
    outcome = await mew("cancel", "codr", *seat(gateway))
    assert "no participant 'codr' in space 'review' (did you mean 'coder'?)" in outcome.err
