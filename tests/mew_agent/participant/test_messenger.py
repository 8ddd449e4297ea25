"""Sending and asking: permissions, answers, missing answers, and what waits during a pause."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.errors import BadAnswer, NotPermitted, PeerAbsent, PeerTimeout, Refused
from mew_agent.participant.client import Client, Credentials
from mew_agent.participant.confirmed_delivery import Message
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.participant import Participant
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


async def until_here(me: Participant, peer: str) -> None:
    await until(lambda: peer in me.peers)


async def test_ask_returns_the_answer_of_the_peer_that_was_asked(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob, joined("writer") as writer:

        @writer.on("chat")
        async def forge(question: Envelope) -> None:
            if question.sender == "ada":
                await writer.chat("I am bob, believe me", to="ada", correlation_id=(question.id,))
                await ada.chat("go on, bob", to="bob")

        @bob.on("chat")
        async def reply(received: Envelope) -> None:
            if received.body["text"] == "go on, bob":
                await bob.chat("the true answer", to="ada", correlation_id=questions)

        questions: tuple[str, ...] = ()

        @bob.on("chat")
        async def remember(received: Envelope) -> None:
            nonlocal questions
            if received.body["text"] == "what is true?":
                questions = (received.id,)

        answer = await ada.ask("chat", {"text": "what is true?"}, to="bob", answer="chat", timeout_seconds=60)
        assert answer.body["text"] == "the true answer"


async def test_ask_times_out_without_an_answer(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob"):
        await until_here(ada, "bob")
        with pytest.raises(PeerTimeout, match=r"'bob' did not answer 'chat' within 0\.05 seconds"):
            await ada.ask("chat", {"text": "hello?"}, to="bob", answer="chat", timeout_seconds=0.05)


Question = Callable[[Participant], Awaitable[object]]


@pytest.mark.parametrize(
    "question",
    [
        lambda me: me.ask("chat", {"text": "hello?"}, to="ghost", answer="chat"),
        lambda me: me.compact("ghost"),
        lambda me: me.request_status("ghost"),
        lambda me: me.request("ghost", "tools/list"),
        lambda me: me.propose("ghost", "tools/list"),
        lambda me: me.call_tool("ghost", "add"),
        lambda me: me.discover("ghost"),
        lambda me: me.ask_agent("ghost", "hello?"),
    ],
    ids=["ask", "compact", "request_status", "request", "propose", "call_tool", "discover", "asking"],
)
async def test_ask_fails_at_once_for_an_absent_peer(joined: Joined, question: Question) -> None:
    async with joined("ada") as ada:
        with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(PeerAbsent, match="'ghost' is not in the space"):
            await question(ada)


async def test_participant_may_ask_itself(joined: Joined) -> None:
    async with joined("ada") as ada:
        assert (await ada.compact(ada.id, timeout_seconds=60)).reason == "not_supported"


async def test_refusal_of_the_gateway_ends_ask_at_once(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob"):
        await until_here(ada, "bob")
        with (
            anyio.fail_after(PATIENCE_SECONDS),
            pytest.raises(Refused, match=r"refused 'chat' to 'bob' \(invalid_payload\)"),
        ):
            await ada.ask("chat", {"text": ""}, to="bob", answer="chat", timeout_seconds=600)


async def test_unreadable_answer_raises_bad_answer(gateway: RunningGateway, joined: Joined) -> None:
    client = Client(Credentials(gateway.ws_url, "demo", "writer", gateway.token_of("writer")))

    async def answer(message: Message) -> None:
        if isinstance(message, Envelope) and message.kind == "participant/compact":
            await client.send(
                Envelope.write(
                    "participant/compact-done",
                    id="broken",
                    ts=timestamp(),
                    sender="writer",
                    payload={"status": 5},
                    correlation_id=(message.id,),
                )
            )

    async with joined("ada") as ada, anyio.create_task_group() as tasks:
        tasks.start_soon(client.run, answer)
        await until(lambda: "writer" in ada.peers)
        with pytest.raises(BadAnswer, match=r"cannot read the answer of 'writer': .*payload\.status"):
            await ada.compact("writer", timeout_seconds=60)
        await client.aclose()


async def test_envelope_without_a_capability_is_not_sent(joined: Joined) -> None:
    async with joined("mute") as mute:
        assert not mute.may_send("participant/status")
        with pytest.raises(NotPermitted, match="'mute' has no capability that covers 'participant/compact'"):
            await mute.compact("ada")
        with pytest.raises(NotPermitted):
            await mute.send("mcp/request", {"method": "tools/list"}, to="ada")


async def test_envelopes_wait_during_a_pause(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        received: list[str] = []

        @ada.on("chat")
        async def listen(chat: Envelope) -> None:
            received.append(str(chat.body["text"]))

        await ada.ask("participant/pause", {}, to="bob", answer="participant/status", timeout_seconds=60)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bob.chat, "said while paused")
            with pytest.raises(PeerTimeout):
                await bob.ask("chat", {"text": "asked while paused"}, to="ada", answer="chat", timeout_seconds=0.05)
            assert (await ada.request_status("bob", timeout_seconds=60)).status == "paused"
            assert received == []
            await ada.send("participant/resume", to="bob")
        await until(lambda: received)
        assert received == ["said while paused"]


async def test_pause_right_after_a_resume_still_holds_envelopes(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        await ada.ask("participant/pause", {}, to="bob", answer="participant/status", timeout_seconds=60)
        received: list[str] = []

        @ada.on(None)
        async def listen(envelope: Envelope) -> None:
            if envelope.sender == "bob":
                received.append(str(envelope.body.get("text") or envelope.body.get("status")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bob.chat, "later")
            await anyio.wait_all_tasks_blocked()
            bob.messenger.resume()
            bob.messenger.pause()
            assert (await ada.request_status("bob", timeout_seconds=60)).status == "paused"
            assert "later" not in received
            await ada.send("participant/resume", to="bob")


def test_timestamp_is_rfc_3339_with_milliseconds_in_utc() -> None:
    import re

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timestamp())
