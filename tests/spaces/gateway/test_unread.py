"""The board counts the messages that wait at the gateway for a participant that is not joined."""

from datetime import UTC, datetime

from mew_board import words
from mew_protocol.payloads.participant import BoardEntry, StoredMessages
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from tests.support.gateway_client import joined
from tests.support.waiting import until

SPACE = """
space: {id: review}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder: {role: agent}
"""
REPORT = {"tokens": 900, "max_tokens": 8192, "messages_in_context": 2, "status": "idle"}


def coder_of(gateway: RunningGateway) -> BoardEntry:
    return next(one for one in gateway.service.board().participants if one.id == "coder")


async def test_messages_for_an_agent_that_left_are_counted_until_it_joins() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, joined(gateway, "ada") as ada:
        async with joined(gateway, "coder") as coder:
            await coder.send_envelope("participant/status", REPORT)
            await ada.chat("While you are here.", to=["coder"])
            await ada.seen_so_far()
            assert coder_of(gateway).stored is None
        await until(lambda: not coder_of(gateway).connected)
        await ada.chat("To everyone.")
        for text in ("One?", "Two?"):
            await ada.chat(text, to=["coder", "nobody", "coder"])
        await ada.seen_so_far()
        stored = coder_of(gateway).stored
        assert stored is not None
        assert (stored.messages, stored.is_complete) == (2, True)
        assert set(gateway.service.space.board.stored) == {"coder"}
        async with joined(gateway, "coder"):
            assert coder_of(gateway).stored is None


async def test_a_count_that_may_miss_earlier_messages_says_so() -> None:
    async with serve_gateway(parse_space(SPACE)) as gateway, joined(gateway, "ada") as ada:
        await ada.chat("Are you there?", to=["coder"])
        await ada.seen_so_far()
        entry = coder_of(gateway)
        assert entry.stored is not None
        assert entry.stored.is_complete is False
        assert words.unread(entry, None).startswith("1+")


def test_chats_at_the_gateway_count_only_while_the_agent_is_away() -> None:
    now = datetime(2026, 1, 1, 12, 9, tzinfo=UTC)
    stored = StoredMessages(messages=3, oldest_at="2026-01-01T12:00:00Z", is_complete=True)
    assert words.unread(BoardEntry(id="coder", connected=False, stored=stored), now) == "3, 9 min ago"
    assert words.unread(BoardEntry(id="coder", connected=True, stored=stored), now) == ""
