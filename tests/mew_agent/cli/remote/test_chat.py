"""Talking to a participant from the command line."""

import io

import pytest
from mew_spaces.gateway.gateway import RunningGateway

from tests.support.cli import answering, board_shows, mew, seat, status
from tests.support.gateway_client import Client, Message


async def repeats(client: Client, request: Message) -> None:
    await client.chat(f"you said: {request['payload']['text']}", to=["ada"], correlation_id=[request["id"]])


async def does_not_correlate(client: Client, _request: Message) -> None:
    await client.chat("to somebody else", to=["guest"])
    await client.chat("hello", to=["ada"])


async def tries_to_drive_the_terminal(client: Client, request: Message) -> None:
    await client.chat("red \x1b[31m line\nsecond", to=["ada"], correlation_id=[request["id"]])


async def test_the_answer_is_printed(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "are you there?", *seat(gateway))
    assert (outcome.code, outcome.out, outcome.err) == (0, "you said: are you there?\n", "")


async def test_words_without_quotes_are_one_text(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "are", "you", "there?", *seat(gateway))
    assert outcome.out == "you said: are you there?\n"


async def test_a_paused_participant_is_told_at_once_and_when_it_did_not_answer(gateway: RunningGateway) -> None:
    async def stays_silent(_client: Client, _request: Message) -> None:
        return None

    async with answering(gateway, "coder", stays_silent) as client:
        await status(client, "paused")
        await board_shows(gateway, lambda board: board["coder"].status is not None)
        outcome = await mew("chat", "coder", "hi", "--timeout", "0.2", *seat(gateway))
    assert outcome.code == 4
    assert outcome.err.splitlines() == [
        "mew: 'coder' is paused and answers later; `mew resume coder` resumes it",
        "mew: 'coder' did not answer 'chat' within 0.2 seconds (it is paused; `mew resume coder` resumes it)",
    ]


async def test_an_agent_that_does_not_correlate_is_understood(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", does_not_correlate):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "hello\n"


async def test_an_answer_cannot_drive_the_terminal(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", tries_to_drive_the_terminal):
        outcome = await mew("chat", "coder", "hi", *seat(gateway))
    assert outcome.out == "red [31m line\nsecond\n"


async def test_a_dash_says_what_stands_on_standard_input(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a whole\nfile"))
    async with answering(gateway, "coder", repeats):
        outcome = await mew("chat", "coder", "-", *seat(gateway))
    assert outcome.out == "you said: a whole\nfile\n"


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_nothing_to_say_is_bad_input(gateway: RunningGateway, text: str) -> None:
    outcome = await mew("chat", "coder", text, *seat(gateway))
    assert outcome.code == 2
    assert "is empty" in outcome.err


async def test_somebody_who_is_not_there_is_named_with_the_members(gateway: RunningGateway) -> None:
    outcome = await mew("chat", "ghost", "boo", *seat(gateway))
    assert outcome.code == 2
    assert "no participant 'ghost' in space 'review' (members: ada, coder, guest)" in outcome.err
