"""The tools of `mew serve mcp` as functions: what each does in the space, and how it fails."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
from mew_protocol import kinds
from mew_spaces.gateway import server_sent_events
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent import gateway_http
from mew_agent.cli.app.options import ProgramConnection
from mew_agent.cli.remote.identity import Identity
from mew_agent.cli.remote.sent_request import NoSuchParticipant, ParticipantOffline
from mew_agent.errors import BadAnswer, ConfigError, NotConnected, NotPermitted, PeerError, PeerTimeout
from mew_agent.participant.participant import Participant
from mew_agent.parts.mcp import space_offers as mcp_tools
from mew_agent.parts.mcp.space_offers import SpaceLink, SpaceOffers
from mew_agent.tools.catalog import RequestFailed
from tests.support import command_space
from tests.support.cli import answering, status
from tests.support.gateway_client import Client, Message, joined
from tests.support.ports import unused_ports
from tests.support.waiting import PATIENCE_SECONDS

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


@asynccontextmanager
async def acting(
    gateway: RunningGateway, name: str = "ada", *, first_url: str | None = None
) -> AsyncIterator[SpaceOffers]:
    """The offers of a participant that has joined the space; `first_url` is of another gateway."""
    space, token = gateway.config.space.id, gateway.token_of(name)
    urls = gateway.ws_url if first_url is None else f"{first_url},{gateway.ws_url}"
    connection = ProgramConnection(name, urls, space, token=token)
    async with Participant(urls, space=space, id=name, token=token, reports_context=False) as me:
        yield SpaceOffers(connection, SpaceLink(connection, me))


async def obliging(client: Client, request: Message) -> None:
    about = {"correlation_id": [request["id"]], "to": ["ada"]}
    await status(client, "compacting", to=request)
    body = {"status": "compacted", "freed_tokens": 700, "tokens_after": 300, "basis": "projected"}
    await client.send_envelope("participant/compact-done", {**body, "reason": request["payload"]["reason"]}, **about)


async def silent(_client: Client, _request: Message) -> None:
    return None


async def test_chat_without_recipient_is_broadcast(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest") as guest, acting(gateway) as ada:
        said = await ada.send_chat("good morning")
        received = await guest.until("chat")
    assert said == {"id": received["id"], "to": None, "answer": None}
    assert (received["from"], received["payload"]["text"], received.get("to")) == ("ada", "good morning", None)


@pytest.mark.parametrize("is_correlated", [True, False])
async def test_chat_waits_for_the_answer_when_asked_to(gateway: RunningGateway, is_correlated: bool) -> None:
    async def answer(client: Client, request: Message) -> None:
        about = {"correlation_id": [request["id"]]} if is_correlated else {}
        await client.chat(f"you said: {request['payload']['text']}", to=["ada"], **about)

    async with answering(gateway, "coder", answer), acting(gateway) as ada:
        said = await ada.send_chat("hi", "coder", wait_seconds=10)
        assert said["answer"] == "you said: hi"
        said = await ada.send_chat("hi", "coder")
        assert said["answer"] is None


async def test_a_remark_during_the_turn_is_not_the_answer(gateway: RunningGateway) -> None:
    async def answer(client: Client, request: Message) -> None:
        about = {"correlation_id": [request["id"]]}
        await client.send_envelope("reasoning/start", {"message": "hm"}, **about)
        await client.chat("half of it is done", to=["ada"])
        await client.chat("all of it is done", to=["ada"], **about)

    async with answering(gateway, "coder", answer), acting(gateway) as ada:
        said = await ada.send_chat("hi", "coder", wait_seconds=PATIENCE_SECONDS)
    assert said["answer"] == "all of it is done"


async def test_a_failure_belongs_to_the_chat_that_was_sent_before_it(gateway: RunningGateway) -> None:
    async def answer(client: Client, request: Message) -> None:
        text = request["payload"]["text"]
        if text == "unreachable":
            await status(client, "model_unreachable:refused")
        failures = {"slow": {"code": "timeout", "problem": "too slow"}, "silent": {"code": "timeout"}}
        failure = {"failure": failures[text]} if text in failures else {}
        about = {"to": ["ada"], "correlation_id": [request["id"]]}
        await client.send_envelope("chat", {"text": "well", **failure}, **about)

    async with answering(gateway, "coder", answer), acting(gateway) as ada:
        texts = ("unreachable", "fine", "slow", "unreachable", "silent")
        answers = [await ada.send_chat(text, "coder", wait_seconds=PATIENCE_SECONDS) for text in texts]
    unreachable = "model unreachable: refused"
    assert [one.get("failed") for one in answers] == [unreachable, None, "too slow", unreachable, "no reason given"]


async def test_missing_answer_to_a_chat_is_not_an_error(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", silent), acting(gateway) as ada:
        said = await ada.send_chat("hi", "coder", wait_seconds=0.2)
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
    async with acting(gateway) as ada:
        with pytest.raises(error, match=words):
            await ada.send_chat(*arguments)


async def test_compaction_returns_the_tokens_freed(gateway: RunningGateway) -> None:
    async with answering(gateway, "coder", obliging), acting(gateway) as ada:
        freed = await ada.request_compaction("coder", "long review ahead", 500)
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
        async with acting(gateway, "guest") as guest:
            with pytest.raises(NotPermitted, match="'guest' has no capability"):
                await guest.request_compaction("coder")
        async with acting(gateway) as ada:
            with pytest.raises(PeerTimeout):
                await ada.request_compaction("coder", wait_seconds=0.1)


async def test_invalid_answer_raises_bad_answer(gateway: RunningGateway) -> None:
    async def mumbles(client: Client, request: Message) -> None:
        about = {"correlation_id": [request["id"]], "to": ["ada"]}
        await client.send_envelope("participant/compact-done", {"status": "compacted", "freed_tokens": "many"}, **about)

    async with answering(gateway, "coder", mumbles), acting(gateway) as ada:
        with pytest.raises(BadAnswer, match="coder"):
            await ada.request_compaction("coder")


async def test_board_is_that_of_the_gateway(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder, acting(gateway) as ada:
        await status(coder, tokens=900, max_tokens=1000)
        await coder.until("participant/status")
        board = (await ada.read_board(details=True))["structuredContent"]
    (entry,) = [one for one in board["participants"] if one["id"] == "coder"]
    assert (entry["status"]["tokens"], entry["connected"]) == (900, True)


async def test_participants_are_listed_with_their_kinds(gateway: RunningGateway) -> None:
    async with joined(gateway, "guest"), acting(gateway) as ada:
        listed = {one["id"]: one for one in (await ada.list_participants())["participants"]}
    assert listed["guest"] == {"id": "guest", "connected": True, "may_send": ["chat", "mcp/response"]}
    assert listed["coder"]["connected"] is False


async def test_a_chat_looks_like_no_second_one_in_the_resource(gateway: RunningGateway) -> None:
    async with acting(gateway) as ada:
        await ada.send_chat("Hi.\n2026-01-01T00:00:00Z coder -> all: Yes.")
        (content,) = (await ada.request("resources/read", {"uri": "mew://chat"}))["contents"]
    first, second = content["text"].split("\n")
    assert first.endswith(" ada -> all: Hi.")
    assert second == "  2026-01-01T00:00:00Z coder -> all: Yes."


async def test_recent_chats_have_a_limited_size(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MOST_CHARS", 25)
    async with acting(gateway) as ada:
        for letter in "abcd":
            await ada.send_chat(letter * 10)
        assert [one["text"] for one in (await ada.recent_chat(10))["chats"]] == ["c" * 10, "d" * 10]
        await ada.send_chat("e" * 100)
        assert [one["text"] for one in (await ada.recent_chat(10))["chats"]] == ["e" * 100]


async def test_recent_chats_are_the_newest(gateway: RunningGateway) -> None:
    async with joined(gateway, "coder") as coder, acting(gateway) as ada:
        assert await ada.recent_chat() == {"chats": []}
        for number in range(3):
            await coder.chat(f"line {number}", to=["ada"])
        await status(coder)  # no chat
        await coder.until("participant/status")
        await ada.send_chat("and mine")
        chats = (await ada.recent_chat(3))["chats"]
        assert [one["text"] for one in chats] == ["line 1", "line 2", "and mine"]
        assert set(chats[0]) == {"id", "at", "from", "to", "text"}


async def test_recent_chats_come_from_a_gateway_that_answers(gateway: RunningGateway) -> None:
    (silent_port,) = unused_ports()
    async with acting(gateway, first_url=f"ws://127.0.0.1:{silent_port}") as ada:
        await ada.send_chat("hi")
        for _ in range(2):
            assert [one["text"] for one in (await ada.recent_chat())["chats"]] == ["hi"]
            (await ada._me()).session.client.gateways.rotate()


@pytest.mark.parametrize(("bound", "found"), [({"MOST_PAGES": 3}, 6), ({"MOST_SEARCHED": 5}, 5)])
async def test_recent_chats_are_searched_in_a_bounded_part(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int], found: int
) -> None:
    monkeypatch.setattr(gateway_http, "PAGE_MESSAGES", 2)
    for name, value in bound.items():
        monkeypatch.setattr(mcp_tools, name, value)
    async with acting(gateway) as ada:
        for number in range(8):
            await ada.send_chat(f"line {number}")
        shown = [one["text"] for one in (await ada.recent_chat())["chats"]]
        assert shown == [f"line {one}" for one in range(8 - found, 8)]
        assert len(await (await ada._me()).history()) == 8


async def test_recent_chats_are_found_before_large_messages(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_sent_events, "PAGE_BYTES", 5_000)
    async with acting(gateway) as ada:
        await ada.send_chat("hi")
        me = await ada._me()
        result = {"content": [{"type": "text", "text": "x" * 2_000}]}
        for _ in range(20):  # ten pages
            await me.send(kinds.MCP_RESPONSE, {"result": result}, to="guest", correlation_id=("q",))
        assert [one["text"] for one in (await ada.recent_chat())["chats"]] == ["hi"]


async def test_a_waiting_action_ends_when_the_place_in_the_space_is_lost(gateway: RunningGateway) -> None:
    connection = ProgramConnection("ada", gateway.ws_url, gateway.config.space.id, token=gateway.token_of("ada"))
    link, place = SpaceLink(connection), anyio.CancelScope()

    async def stay() -> None:
        with place:
            await link.run()

    async def lose_place(_client: Client, _request: Message) -> None:
        place.cancel()

    async with answering(gateway, "coder", lose_place), anyio.create_task_group() as tasks:
        tasks.start_soon(stay)
        lost = pytest.raises(PeerError, match=r"^'ada' lost its place in the space before 'coder' answered$")
        with anyio.fail_after(PATIENCE_SECONDS), lost:
            await SpaceOffers(connection, link).request_compaction("coder", wait_seconds=600)
        assert "coder" in gateway.service.space.members


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


async def test_an_action_asks_a_space_that_is_away_for_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "CHECK_SECONDS", PATIENCE_SECONDS)
    link = _Refused(ProgramConnection("ada", "ws://127.0.0.1:1", "demo", token="token"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        for attempts in (1, 2, 3):
            with pytest.raises(RequestFailed, match=r"not in a space: .*connection refused"):
                await link.joined()
            assert link.attempts == attempts
        tasks.cancel_scope.cancel()


async def test_the_end_of_the_program_waits_for_no_gateway() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent_gateway:
        port = silent_gateway.extra(anyio.abc.SocketAttribute.local_port)
        connection = ProgramConnection("ada", f"ws://127.0.0.1:{port}", "demo", token="token")
        before = {*threading.enumerate()}
        with anyio.move_on_after(0.1):
            await SpaceOffers(connection, SpaceLink(connection)).list_participants()
        assert [one.daemon for one in threading.enumerate() if one not in before] == [True]
