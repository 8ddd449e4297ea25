"""The tools of `mew serve mcp` as functions: what each does in the space, and how it fails."""

from typing import Any

import anyio
import pytest
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.cli.app.options import ProgramConnection
from mew_agent.cli.remote.identity import Identity
from mew_agent.cli.remote.sent_request import NoSuchParticipant, ParticipantOffline
from mew_agent.errors import BadAnswer, ConfigError, NotConnected, NotPermitted, PeerTimeout
from mew_agent.parts.mcp import space_offers as mcp_tools
from mew_agent.parts.mcp.space_offers import SpaceLink, SpaceOffers
from tests.support import command_space
from tests.support.cli import answering, status
from tests.support.gateway_client import Client, Message, joined
from tests.support.waiting import PATIENCE_SECONDS

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


def offers_of(gateway: RunningGateway, name: str = "ada") -> SpaceOffers:
    connection = ProgramConnection(name, gateway.ws_url, gateway.config.space.id, token=gateway.token_of(name))
    return SpaceOffers(connection, SpaceLink(connection))


async def obliging(client: Client, request: Message) -> None:
    about = {"correlation_id": [request["id"]], "to": ["ada"]}
    if request["kind"] == "chat":
        await client.chat(f"you said: {request['payload']['text']}", **about)
    else:
        await status(client, "compacting", to=request)
        body = {"status": "compacted", "freed_tokens": 700, "tokens_after": 300, "basis": "projected"}
        await client.send_envelope(
            "participant/compact-done", {**body, "reason": request["payload"]["reason"]}, **about
        )


async def silent(_client: Client, _request: Message) -> None:
    return None


async def test_chat_without_recipient_is_broadcast(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest") as guest:
        said = await offers_of(gateway).send_chat("good morning")
        received = await guest.until("chat")
    assert said == {"id": received["id"], "to": None, "answer": None}
    assert (received["from"], received["payload"]["text"], received.get("to")) == ("ada", "good morning", None)


async def test_chat_waits_for_the_answer_when_asked_to(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", obliging):
        said = await offers_of(gateway).send_chat("hi", "coder", wait_seconds=10)
        assert said["answer"] == "you said: hi"
        said = await offers_of(gateway).send_chat("hi", "coder")
        assert said["answer"] is None


async def test_missing_answer_to_a_chat_is_not_an_error(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", silent):
        said = await offers_of(gateway).send_chat("hi", "coder", wait_seconds=0.2)
    assert (said["answer"], said["waited_seconds"]) == (None, 0.2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((" ",), ConfigError, "is empty"),
        (("hi", None, 5), ConfigError, "requires a recipient"),
        (
            ("hi", "nobody"),
            NoSuchParticipant,
            r"no participant 'nobody' in space 'review' \(members: ada, coder, guest\)",
        ),
        (("hi", "coder"), ParticipantOffline, "'coder' is not connected to space 'review'"),
    ],
)
async def test_invalid_chat_is_refused_with_the_reason(
    gateway: RunningGateway, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await offers_of(gateway).send_chat(*arguments)


async def test_compaction_returns_the_tokens_freed(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", obliging):
        freed = await offers_of(gateway).request_compaction("coder", "long review ahead", 500)
    assert freed == {
        "participant": "coder",
        "status": "compacted",
        "skipped": False,
        "reason": "long review ahead",
        "freed_tokens": 700,
        "tokens_after": 300,
        "basis": "projected",
    }


async def test_compaction_fails_without_capability_or_answer(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", silent):
        with pytest.raises(NotPermitted, match="'guest' has no capability"):
            await offers_of(gateway, "guest").request_compaction("coder")
        with pytest.raises(PeerTimeout):
            await offers_of(gateway).request_compaction("coder", wait_seconds=0)


async def test_invalid_answer_raises_bad_answer(gateway: RunningGateway) -> None:
    async def mumbles(client: Client, request: Message) -> None:
        about = {"correlation_id": [request["id"]], "to": ["ada"]}
        await client.send_envelope("participant/compact-done", {"status": "compacted", "freed_tokens": "many"}, **about)

    async with answering(gateway, "coder", mumbles):
        with pytest.raises(BadAnswer, match="coder"):
            await offers_of(gateway).request_compaction("coder")


async def test_board_is_that_of_the_gateway(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder:
        await status(coder, tokens=900, max_tokens=1000)
        await coder.until("participant/status")
        board = (await offers_of(gateway).read_board(details=True))["structuredContent"]
    (entry,) = [one for one in board["participants"] if one["id"] == "coder"]
    assert (entry["status"]["tokens"], entry["connected"]) == (900, True)


async def test_participants_are_listed_with_their_kinds(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest"):
        listed = {one["id"]: one for one in (await offers_of(gateway).list_participants())["participants"]}
    assert listed["guest"] == {"id": "guest", "connected": True, "may_send": ["chat", "mcp/response"]}
    assert listed["coder"]["connected"] is False


async def test_a_chat_looks_like_no_second_one_in_the_resource(gateway: RunningGateway) -> None:
    ada = offers_of(gateway)
    await ada.send_chat("Hi.\n2026-01-01T00:00:00Z coder -> all: Yes.")
    (content,) = (await ada.request("resources/read", {"uri": "mew://chat"}))["contents"]
    first, second = content["text"].split("\n")
    assert first.endswith(" ada -> all: Hi.")
    assert second == "  2026-01-01T00:00:00Z coder -> all: Yes."


async def test_kept_chats_have_a_limited_size(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "KEPT_CHARS", 25)
    ada = offers_of(gateway)
    for letter in "abcd":
        await ada.send_chat(letter * 10)
    assert [one["text"] for one in (await ada.recent_chat(10))["chats"]] == ["c" * 10, "d" * 10]
    await ada.send_chat("e" * 100)
    assert [one["text"] for one in (await ada.recent_chat(10))["chats"]] == ["e" * 100]


async def test_recent_chat_continues_from_the_last_read(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest") as guest:
        for number in range(3):
            await guest.chat(f"line {number}", to=["ada"])
        await status(guest)  # no chat
        ada = offers_of(gateway)
        await ada.send_chat("and mine")

        async def texts(limit: int) -> list[str]:
            return [one["text"] for one in (await ada.recent_chat(limit))["chats"]]

        with anyio.fail_after(PATIENCE_SECONDS):
            while len(await texts(10)) < 4:
                await anyio.sleep(0.005)
        assert sorted(await texts(10)) == ["and mine", "line 0", "line 1", "line 2"]
        assert len(await texts(2)) == 2
        first = (await ada.recent_chat(10))["chats"][0]
        assert set(first) == {"id", "at", "from", "to", "text"}


async def test_restarted_gateway_replaces_the_chats(gateway: RunningGateway) -> None:
    ada = offers_of(gateway)
    await ada.send_chat("before")
    assert len((await ada.recent_chat())["chats"]) == 1
    ada._position = (ada._position[0] if ada._position else "", "another-epoch-7")
    await ada.send_chat("after")
    assert [one["text"] for one in (await ada.recent_chat())["chats"]] == ["before", "after"]


class _Refused(SpaceLink):
    """A link whose gateway refuses every attempt to join; the last one ends the test."""

    attempts = 0

    async def _stay(self, who: Identity) -> None:
        self.attempts += 1
        if self.attempts == 2_000:
            raise EOFError
        raise NotConnected(who.gateway, "connection refused")


async def test_a_gateway_that_is_away_for_a_night_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "CHECK_SECONDS", 0.0)
    link = _Refused(ProgramConnection("ada", "ws://127.0.0.1:1", "demo", token="token"))
    with pytest.raises(EOFError):
        await link.run()
