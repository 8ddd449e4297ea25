"""A participant whose chats another library answers: figures, history, and controls between and during turns."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from mew_agent import Participant
from mew_agent.errors import ChatRefused, NoAnswer
from mew_agent.model.usage import usage_from
from mew_agent.participant.answers.builder import AnswerBuilder
from mew_agent.parts.integrations import LibraryReply, answer_chats
from mew_agent.settings import LoopLimits
from tests.support.agents import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS, until

Joined = Callable[..., Participant]


class CountingEngine:
    """An agent of a made-up library: it counts ten tokens for each message, and can be held in a turn."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.usage: object = "counted"
        self.failure: Exception | None = None
        self.free = anyio.Event()
        self.free.set()

    async def ask(self, text: str, history: Sequence[Any]) -> list[str]:
        """Answer with the whole history."""
        self.seen.append(len(history))
        await self.free.wait()
        if self.failure is not None:
            raise self.failure
        return [*history, text, f"you said {text}"]

    def read(self, messages: list[str]) -> LibraryReply:
        """Read what `ask` returned."""
        counted = {"prompt_tokens": 10 * (len(messages) - 1), "completion_tokens": 10}
        usage = counted if self.usage == "counted" else self.usage
        return LibraryReply(messages[-1], usage_from(usage), messages)


async def said(ada: Participant, text: str) -> str:
    answer = await ada.ask("chat", {"text": text}, to="bob", answer="chat", timeout_seconds=PATIENCE_SECONDS)
    return str(answer.body["text"])


async def figure(ada: Participant) -> tuple[int | None, str | None, int | None]:
    status = await ada.request_status("bob", timeout_seconds=PATIENCE_SECONDS)
    assert status.context is not None
    return status.tokens, status.context.reason or status.context.basis, status.messages_in_context


async def test_each_turn_continues_the_history_and_reports_its_call(joined: Joined) -> None:
    engine, bob = CountingEngine(), joined("bob")
    history = answer_chats(bob, engine.ask, engine.read, window=1000)
    async with joined("ada") as ada, bob:
        assert await said(ada, "one") == "you said one"
        assert await figure(ada) == (20, "reported", 2)
        await said(ada, "two")
        assert (await figure(ada), engine.seen) == ((40, "reported", 4), [0, 2])
        done = await ada.compact("bob", timeout_seconds=PATIENCE_SECONDS)
        assert (done.skipped, done.freed_messages) == (False, 2)
        assert history == ["two", "you said two"]
        again = await ada.compact("bob", timeout_seconds=PATIENCE_SECONDS)
        assert (again.skipped, again.reason) == (True, "no_history")
        await said(ada, "three")
        assert await figure(ada) == (40, "reported", 4)
        await ada.send("participant/clear", {}, to="bob")
        await until(lambda: not history)
        await said(ada, "four")
        assert await figure(ada) == (20, "reported", 2)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, "usage_unavailable"),
        ({"prompt_tokens": 10**9, "completion_tokens": 1}, "usage_implausible"),
    ],
)
async def test_an_answer_arrives_without_a_usable_figure(joined: Joined, usage: object, expected: str) -> None:
    engine, bob = CountingEngine(), joined("bob")
    answer_chats(bob, engine.ask, engine.read, window=1000)
    async with joined("ada") as ada, bob:
        await said(ada, "one")
        engine.usage = usage
        assert await said(ada, "two") == "you said two"
        assert (await figure(ada))[:2] == (None, expected)


async def test_a_compaction_waits_for_the_turn_that_runs(joined: Joined) -> None:
    engine, bob = CountingEngine(), joined("bob")
    history = answer_chats(bob, engine.ask, engine.read)
    async with joined("ada") as ada, bob, anyio.create_task_group() as tasks:
        await said(ada, "one")
        engine.free = anyio.Event()
        tasks.start_soon(said, ada, "two")
        await until(lambda: len(engine.seen) == 2)
        tasks.start_soon(ada.compact, "bob")
        await until(lambda: bob.external_context.compacting.is_running)
        assert len(history) == 2
        engine.free.set()
        await until(lambda: history == ["two", "you said two"])


async def test_a_failed_turn_is_answered_and_changes_nothing(joined: Joined) -> None:
    engine, bob = CountingEngine(), joined("bob")
    history = answer_chats(bob, engine.ask, engine.read)
    async with joined("ada") as ada, bob:
        await said(ada, "one")
        engine.failure = RuntimeError("the engine is gone")
        with pytest.raises(ChatRefused, match="RuntimeError: the engine is gone"):
            await said(ada, "two")
        assert len(history) == 2
        engine.failure = None
        await said(ada, "three")
        assert len(history) == 4


@pytest.mark.parametrize("key", ["session", "response_format"])
async def test_a_library_refuses_sessions_and_response_formats(joined: Joined, key: str) -> None:
    engine, bob = CountingEngine(), joined("bob")
    answer_chats(bob, engine.ask, engine.read)
    async with joined("ada") as ada, bob:
        recorder = EnvelopeRecorder(ada)
        asked = await ada.send(
            "chat", {"text": "Hello?", key: "s1" if key == "session" else {"type": "text"}}, to="bob"
        )
        refused = await recorder.first("bob", "chat/acknowledge", about=asked)
        assert refused.body["code"] == f"{key.replace('session', 'sessions')}_unsupported"
        assert "the agent's own program" in refused.body["status"]
        assert not engine.seen
        assert await said(ada, "one") == "you said one"


async def test_a_session_refused_in_a_chat_is_asked_again_without(joined: Joined) -> None:
    engine, mute = CountingEngine(), joined("mute")
    answer_chats(mute, engine.ask, engine.read)
    async with joined("ada") as ada, mute:
        await until(lambda: "mute" in ada.peers)
        async with ada.answers.open("mute", "one", AnswerBuilder(), session="s1") as exchange:
            with anyio.fail_after(PATIENCE_SECONDS):
                while await exchange.next_event() is not None:
                    pass
            assert exchange.answer.text == "you said one"
            assert (exchange.session, exchange.failure, engine.seen) == (None, None, [0])
            assert len(exchange.answer_ids) == 2
        assert not ada.answers.router.answer_ids


async def test_a_format_refused_in_a_chat_ends_the_question(joined: Joined) -> None:
    engine, mute = CountingEngine(), joined("mute")
    answer_chats(mute, engine.ask, engine.read)
    async with joined("ada") as ada, mute:
        await until(lambda: "mute" in ada.peers)
        async with ada.answers.open("mute", "one", AnswerBuilder(), response_format={"type": "x"}) as exchange:
            with (
                anyio.fail_after(PATIENCE_SECONDS),
                pytest.raises(NoAnswer, match="takes no response_format") as refused,
            ):
                await exchange.next_event()
        assert (refused.value.code, engine.seen) == ("response_format_unsupported", [])


async def test_a_library_keeps_to_limits_and_answers_after_a_restart(joined: Joined, tmp_path: Path) -> None:
    engine, bob = CountingEngine(), joined("bob")
    store, limits = tmp_path / "bob.db", LoopLimits(tokens_per_hour=15)
    answer_chats(bob, engine.ask, engine.read, limits=limits, store=store)
    async with joined("ada") as ada:
        recorder = EnvelopeRecorder(ada)
        async with bob:
            bob.messenger.pause()
            waiting = await ada.send("chat", {"text": "one"}, to="bob")
            await recorder.first("bob", "chat/acknowledge", about=waiting, status="queued")
        answer_chats(bob := joined("bob"), engine.ask, engine.read, limits=limits, store=store)
        async with bob:
            assert (await recorder.first("bob", "chat", about=waiting)).body["text"] == "you said one"
            asked = await ada.send("chat", {"text": "two"}, to="bob")
            await recorder.first("bob", "chat/acknowledge", about=asked, code="budget_spent")


async def test_a_chat_that_waits_is_acknowledged_and_can_be_cancelled(joined: Joined) -> None:
    engine, bob = CountingEngine(), joined("bob")
    answer_chats(bob, engine.ask, engine.read)
    async with joined("ada") as ada, bob:
        recorder = EnvelopeRecorder(ada)
        engine.free = anyio.Event()
        first = await ada.chat("one", to="bob")
        await until(lambda: engine.seen == [0])
        second = await ada.chat("two", to="bob")
        waiting = await recorder.first("bob", "chat/acknowledge", about=second)
        assert waiting.body["status"] == "queued"
        await ada.send("chat/cancel", {}, to="bob", correlation_id=(second.id,))
        engine.free.set()
        await recorder.first("bob", "chat", about=first)
        assert await said(ada, "three") == "you said three"
        assert recorder.sent_by("bob", "chat", about=second) == []


async def test_the_receipt_names_the_turn_that_read_a_chat(joined: Joined) -> None:
    engine, bob = CountingEngine(), joined("bob")
    answer_chats(bob, engine.ask, engine.read, window=1000)
    async with joined("ada") as ada, bob:
        await said(ada, "one")
        sent = await ada.chat("two", to="bob")
        with anyio.fail_after(PATIENCE_SECONDS):
            await sent.read()
        assert sent.receipt is not None
        assert (str(sent.receipt), sent.receipt.basis) == ("read by bob in call 2", "agent_prompt")
        await ada.compact("bob")
        await until(lambda: sent.receipt is not None and sent.receipt.in_context == "unknown")
        assert sent.receipt.reason == "the agent compacted its context itself"
