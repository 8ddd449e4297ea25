"""An event handler that fails: the sender of a chat learns it at once, and people see it until the handler works."""

import logging
from collections.abc import Callable
from functools import partial

import anyio
import pytest
from mew_protocol.envelope import Envelope

from mew_agent import Participant, PeerJoined
from mew_agent.errors import ChatRefused, ControlRefused, NoAnswer
from mew_agent.participant.event_handlers import ChatReceived, ContextReported
from tests.support.agents import EnvelopeRecorder, StartAgent
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]
GONE = "RuntimeError: the engine is gone"


class Fragile:
    """A chat handler that fails while `is_broken`. Its instances cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *, replies_first: bool = False) -> None:
        self.is_broken = True
        self.replies_first = replies_first
        self.calls = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    async def __call__(self, chat: ChatReceived) -> None:
        """Reply, unless broken."""
        self.calls += 1
        if self.replies_first or not self.is_broken:
            await chat.reply("here")
        if self.is_broken:
            raise RuntimeError("the engine is gone")


async def ask(ada: Participant, text: str = "hi") -> Envelope:
    return await ada.ask("chat", {"text": text}, to="bob", answer="chat", timeout_seconds=PATIENCE_SECONDS)


async def test_a_chat_is_refused_with_the_reason_if_its_handler_fails(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        bob.on_chat(Fragile())
        with pytest.raises(ChatRefused, match=GONE):
            await ask(ada)
        with pytest.raises(NoAnswer, match=f"'bob' refused the question: its program failed: {GONE}") as caught:
            await ada.ask_agent("bob", "hi", inactivity_seconds=PATIENCE_SECONDS)
        assert caught.value.code == "program_failed"


async def test_people_see_a_failure_until_the_handler_succeeds(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        handler = bob.on_chat(Fragile())
        with pytest.raises(ChatRefused):
            await ask(ada)
        await until(lambda: ada.peers["bob"].context.status == f"handler_failed:Fragile: {GONE}")
        asked = await ada.request_status("bob", timeout_seconds=PATIENCE_SECONDS)
        assert asked.status == f"handler_failed:Fragile: {GONE}"
        handler.is_broken = False
        assert (await ask(ada)).body["text"] == "here"
        await until(lambda: ada.peers["bob"].context.status == "active")


async def test_a_handler_that_failed_after_its_reply_refuses_nothing(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        recorder = EnvelopeRecorder(ada)
        bob.on_chat(Fragile(replies_first=True))
        assert (await ask(ada)).body["text"] == "here"
        await recorder.until(lambda: any("handler_failed" in word for word in recorder.words("bob")))
        assert "chat/acknowledge" not in [one.kind for one in recorder.sent_by("bob")]


async def test_another_handler_may_answer_after_one_failed(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        working = Fragile()
        working.is_broken = False
        bob.on_chat(Fragile())
        bob.on_chat(working)
        assert (await ask(ada)).body["text"] == "here"


@pytest.mark.parametrize("payload", [{"text": "to all"}, {"text": "no need", "needs_reply": False}])
async def test_a_chat_that_expects_no_answer_is_not_refused(joined: Joined, payload: dict[str, object]) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        recorder = EnvelopeRecorder(ada)
        bob.on_chat(Fragile())
        await ada.send("chat", payload, to=() if payload["text"] == "to all" else "bob")
        await recorder.until(lambda: any("handler_failed" in word for word in recorder.words("bob")))
        assert "chat/acknowledge" not in [one.kind for one in recorder.sent_by("bob")]


async def test_an_agent_answers_although_its_own_handler_fails(start_agent: StartAgent) -> None:
    async with start_agent() as s:
        s.agent.on_chat(Fragile())
        assert await s.ask("What is a token?")
        await s.recorder.until(lambda: any("handler_failed" in word for word in s.recorder.words("coder")))
        assert not [one for one in s.recorder.sent_by("coder", "chat/acknowledge") if "refused" in str(one.body)]


async def test_the_reason_is_that_of_the_only_error_of_a_group(joined: Joined) -> None:
    async with joined("ada") as ada, joined("bob") as bob:

        @bob.on_chat
        async def answer(chat: ChatReceived) -> None:
            async with anyio.create_task_group():
                raise RuntimeError("the engine is gone")

        with pytest.raises(ChatRefused, match=f"its program failed: {GONE}$"):
            await ask(ada)


async def test_two_failing_programs_do_not_answer_each_other_for_ever(joined: Joined) -> None:
    calls: list[str] = []

    def fail(me: str, happened: object) -> None:
        calls.append(me)
        raise RuntimeError(f"failure {len(calls)}")

    async with joined("ada") as ada, joined("bob") as bob:
        for me in (ada, bob):
            me.on("participant/status")(partial(fail, me.id))
            me.on(ContextReported)(partial(fail, me.id))
            me.on_chat(partial(fail, me.id))
        await ada.chat("hi", to="bob")
        await until(lambda: ada.external_context.failing is not None and bob.external_context.failing is not None)
        recorder = EnvelopeRecorder(ada)
        last = await ada.send("test/last", {}, to="bob")
        await recorder.until(lambda: any(one.id == last.id for one in recorder.received))
        assert len(calls) < 30


async def test_a_failed_join_handler_is_shown_without_an_asker(joined: Joined) -> None:
    async with joined("bob") as bob:

        @bob.on(PeerJoined)
        def greet(event: PeerJoined) -> None:
            raise KeyError("greeting")

        async with joined("ada") as ada:
            await until(lambda: ada.peers["bob"].context.status == "handler_failed:greet: KeyError: 'greeting'")


async def test_the_log_has_the_traceback(joined: Joined, caplog: pytest.LogCaptureFixture) -> None:
    async with joined("ada") as ada, joined("bob") as bob:
        bob.on_chat(Fragile())
        with caplog.at_level(logging.ERROR), pytest.raises(ChatRefused):
            await ask(ada)
    (record,) = [one for one in caplog.records if "event handler failed" in one.message]
    assert record.exc_info is not None


class Wordless(Exception):
    """An error of a program that fails to write its message."""

    def __str__(self) -> str:
        raise AttributeError("response")


async def test_an_error_without_a_message_ends_nothing_and_everyone_gets_an_answer(joined: Joined) -> None:
    bob = joined("bob")

    @bob.on_chat
    @bob.on_compact
    @bob.on_forget
    async def fail(_: object) -> None:
        raise Wordless

    @bob.tool(name="look")
    async def look() -> str:
        raise Wordless

    async with joined("ada") as ada, bob:
        await until(lambda: "bob" in ada.peers)
        with anyio.fail_after(PATIENCE_SECONDS):
            assert (await ada.compact("bob")).reason == "Wordless"
            with pytest.raises(ControlRefused, match="Wordless"):
                await ada.forget("bob")
            assert (await ada.call_tool("bob", "look")).text == "Wordless"
            with pytest.raises(NoAnswer, match="Wordless"):
                await ada.ask_agent("bob", "hello")
        assert bob.is_joined
