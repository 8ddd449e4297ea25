"""The inbox of an agent: queued, remembered and cancelled chats."""

from dataclasses import replace
from typing import Any

import anyio
import pytest
from mew_listener.bounded_dict import WEIGHT_BYTES
from mew_protocol.envelope import Envelope
from mew_protocol.ids import Position

from mew_agent.agent.address_filter import AddressFilter, AnswerBroadcasts
from mew_agent.agent.inbox import (
    MAX_OVERHEARD_CHATS,
    MAX_QUEUED_CHATS,
    MAX_STOPPED_CHATS,
    QUEUED,
    Admission,
    Inbox,
    Outcome,
    is_about,
)
from mew_agent.agent.loop_guard import Verdict
from mew_agent.context.sqlite_store import MemoryStore
from mew_agent.context.store import ChatRefusal
from tests.support.conversation_driver import ConversationDriver, StartConversation
from tests.support.waiting import PATIENCE_SECONDS


def chat(text: Any, *, to: tuple[str, ...] = ("coder",), name: str = "q", sender: str = "ada") -> Envelope:
    return Envelope.write("chat", id=name, ts="t", sender=sender, payload={"text": text}, to=to)


def cancel(*names: str, sender: str = "ada") -> Envelope:
    return Envelope.write("chat/cancel", id="c", ts="t", sender=sender, correlation_id=names)


async def add(box: Inbox, said: Envelope, *, verdict: Verdict = "answer", **options: Any) -> Outcome:
    """Decide about a chat by the rules and the limits of the inbox, and add it."""
    decision = box.decide(said, box.address_filter.check_rules(said), lambda: verdict)
    return await box.add(said, decision, **options)


def inbox(driver: ConversationDriver, how: AnswerBroadcasts = "rules", *, answers: bool = True) -> Inbox:
    rules = AddressFilter(("coder",), how, driver.conversation.calls, tuple, answers=answers)
    return Inbox("coder", rules, MemoryStore())


async def no_pause() -> None:
    return None


async def test_chats_keep_their_order_and_waiting_ones_are_acknowledged(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        assert await add(box, chat("One."), is_busy=False) == "next"
        assert await add(box, chat("Two.", name="q2"), is_busy=False) == "queued"
        assert len(box.in_state(*QUEUED)) == 2
        assert [(await box.next(no_pause)).envelope.body["text"] for _ in range(2)] == ["One.", "Two."]
        assert await add(box, chat("Three."), is_busy=True) == "queued"


async def test_a_full_inbox_refuses_chats(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver, "model")
        for number in range(MAX_QUEUED_CHATS):
            await add(box, chat(f"{number}?", name=str(number)), is_busy=False)
        assert box.decide(chat("More?"), is_for_us=True).refusal == ChatRefusal(
            f"{MAX_QUEUED_CHATS} of your chats are waiting already", "queue_full"
        )
        assert await add(box, chat("More?"), is_busy=False) == "refused"
        assert await add(box, chat("Somebody?", to=()), is_busy=False) == "kept"
        assert [remark.envelope.body["text"] for remark in box.take_overheard()] == ["Somebody?"]
        assert len(box.in_state(*QUEUED)) == MAX_QUEUED_CHATS


@pytest.mark.parametrize("to", [(), ("bob",)])
async def test_a_chat_that_needs_no_reply_leaves_nothing_to_decide(to: tuple[str, ...]) -> None:
    """It is context if it is for the agent, too; one to others is ignored, although it mentions the agent."""
    box = Inbox("coder", AddressFilter(("coder",), "model"), MemoryStore())
    said = chat("Thanks @coder" if to else "Done.", to=to)
    assert box.decide(said, None if not to else True, lambda: "context") == Admission("ignored" if to else "context")


async def test_the_inbox_forgets_which_chats_it_had_to_decide_about() -> None:
    box = Inbox("coder", AddressFilter(("coder",), "model"), MemoryStore())
    verdicts: tuple[Verdict, ...] = ("context", "loop_stopped", "answer")
    for number in range(10 * len(verdicts)):
        said = chat("Somebody?", to=(), name=str(number), sender="bob" if number % 2 else "ada")
        await add(box, said, verdict=verdicts[number % len(verdicts)], is_busy=True)
    assert len(box._undecided) == 20
    await box.cancel(cancel(*(str(number) for number in range(30))))
    await box.cancel(cancel(*(str(number) for number in range(30)), sender="bob"))
    assert not box._undecided


async def test_a_long_chat_counts_as_several_short_ones(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box, long = inbox(driver), "x" * (10 * WEIGHT_BYTES)
        outcome: Outcome = "ignored"
        for number in range(MAX_QUEUED_CHATS):
            outcome = await add(box, chat(f"{long}?", name=str(number)), is_busy=True)
            await add(box, chat(long, name=f"o{number}", to=()), is_busy=True)
        assert outcome == "refused"
        assert len(box.in_state(*QUEUED)) == MAX_QUEUED_CHATS // 10
        assert len(tuple(box.take_overheard())) == MAX_OVERHEARD_CHATS // 11


@pytest.mark.parametrize(("verdict", "limit"), [("answer", MAX_QUEUED_CHATS), ("no_room", MAX_STOPPED_CHATS)])
async def test_a_sender_that_fills_the_inbox_takes_no_place_of_others(verdict: Verdict, limit: int) -> None:
    box = Inbox("coder", AddressFilter(("coder",), "rules"), MemoryStore())
    for number in range(limit + 5):
        await add(box, chat(f"{number}?", name=str(number), sender="bob"), is_busy=True, verdict=verdict)
    outcome = await add(box, chat("Mine?"), is_busy=True, verdict=verdict)
    assert outcome == ("queued" if verdict == "answer" else "no_room")


async def test_senders_take_turns_in_the_queue() -> None:
    box = Inbox("coder", AddressFilter(("coder",), "rules"), MemoryStore())
    for name, sender in (("1", "bob"), ("2", "bob"), ("3", "bob"), ("4", "ada"), ("5", "cleo"), ("6", "ada")):
        await add(box, chat("Well?", name=name, sender=sender), is_busy=True)
    assert [(await box.next(no_pause)).envelope.id for _ in range(6)] == ["1", "4", "5", "2", "6", "3"]


async def test_the_clients_of_a_sender_take_turns() -> None:
    box = Inbox("coder", AddressFilter(("coder",), "rules"), MemoryStore())
    for name, session in (("1", "key1:a"), ("2", "key1:b"), ("3", "key1:c"), ("4", "key2:a")):
        asked = Envelope.write(
            "chat", id=name, ts="t", sender="ada", payload={"text": "Well?", "session": session}, to=("coder",)
        )
        await add(box, asked, is_busy=True)
    assert [(await box.next(no_pause)).envelope.id for _ in range(4)] == ["1", "4", "2", "3"]


async def test_many_senders_share_the_whole_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.agent.inbox.MAX_ALL_CHATS", 12)
    box = Inbox("coder", AddressFilter(("coder",), "rules"), MemoryStore())
    for number in range(40):
        for sender in ("ada", "bob", "cleo"):
            await add(box, chat("Well?", name=str(number), sender=sender), is_busy=True)
    assert len(box.in_state(*QUEUED)) == 12


async def test_chatter_of_one_sender_does_not_push_out_what_others_said() -> None:
    box = Inbox("coder", AddressFilter(("coder",), "rules"), MemoryStore())
    await add(box, chat("The valve is blue."), is_busy=True, verdict="context")
    for number in range(MAX_OVERHEARD_CHATS + 5):
        await add(box, chat("Noise.", name=str(number), sender="bob"), is_busy=True, verdict="context")
    kept = [remark.envelope.body["text"] for remark in box.take_overheard()]
    assert (len(kept), kept[0]) == (MAX_OVERHEARD_CHATS, "The valve is blue.")


@pytest.mark.parametrize(("verdict", "limit"), [("answer", MAX_QUEUED_CHATS), ("no_room", MAX_STOPPED_CHATS)])
async def test_a_restart_does_not_repeat_a_refused_chat(verdict: Verdict, limit: int) -> None:
    store, rules = MemoryStore(), AddressFilter(("coder",), "rules")
    box = Inbox("coder", rules, store)
    outcome: Outcome = "ignored"
    for number in range(limit + 1):
        place = Position("e", number)
        outcome = await add(box, chat("Go.", name=str(number)), is_busy=False, verdict=verdict, position=place)
    assert outcome == "refused"
    assert await Inbox("coder", rules, store).load() == f"e-{limit}"


async def test_a_refused_chat_is_followed_from_the_moment_of_its_refusal() -> None:
    store = MemoryStore()
    box = Inbox("coder", AddressFilter(("coder",), "rules"), store)
    asks = Envelope.write(
        "chat", id="q", ts="t", sender="ada", payload={"text": "Go.", "receipts": True}, to=("coder",)
    )
    await box.add(asks, Admission("refused", ChatRefusal("too large")), is_busy=False)
    assert [(one.key.id, one.participant, one.told) for one in await store.followers()] == [("q", "ada", "")]


async def test_only_the_sender_can_cancel_a_chat(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        for name in ("q1", "q2"):
            await add(box, chat("Go.", name=name), is_busy=False)
        await box.cancel(cancel("q1", sender="bob"))
        assert len(box.in_state(*QUEUED)) == 2
        await box.cancel(cancel("q1"))
        assert (await box.next(no_pause)).envelope.id == "q2"
        assert not is_about(cancel("q2", sender="bob"), chat("Go.", name="q2"))


async def test_a_known_answer_is_sent_although_it_is_cancelled_later(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        for name in ("q1", "q2"):
            await add(box, chat("Go.", name=name), is_busy=False)
        question = await box.next(no_pause)
        await box.join(box.to_join("all"))
        answered = await box.update(replace(question, state="answered", answer="Gone."))
        assert await box.cancel(cancel("q1", "q2")) == ()
        await box.mark_cancelled(by="ada")
        assert (box.current, [one.envelope.id for one in box.joined]) == (answered, ["q2"])
        assert [one.id for one in await box.finish()] == ["q1", "q2"]
        assert box.is_idle


async def test_chats_that_joined_a_requeued_cancelled_question_wait_alone(
    start_conversation: StartConversation,
) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        for name in ("q1", "q2"):
            await add(box, chat("Go.", name=name), is_busy=False)
        question = await box.next(no_pause)
        await box.join(box.to_join("all"))
        box.put_back(question)
        await box.cancel(cancel("q1"))
        with anyio.fail_after(PATIENCE_SECONDS):
            assert (await box.next(no_pause)).envelope.id == "q2"


async def test_a_chat_cancelled_during_a_pause_is_not_returned(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box, active, given = inbox(driver), anyio.Event(), list[str]()

        async def give() -> None:
            given.append((await box.next(active.wait)).envelope.id)

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(give)
                await anyio.wait_all_tasks_blocked()
                await add(box, chat("Go.", name="q1"), is_busy=True)
                await anyio.wait_all_tasks_blocked()
                await box.cancel(cancel("q1"))
                active.set()
                await anyio.wait_all_tasks_blocked()
                assert given == []
                await add(box, chat("Go on.", name="q2"), is_busy=True)
        assert given == ["q2"]


async def test_overheard_chats_are_returned_once_and_bounded(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        for number in range(MAX_OVERHEARD_CHATS + 1):
            await add(box, chat(f"Remark {number}.", to=()), is_busy=False)
        await add(box, chat("Not for you?", to=("bob",)), is_busy=False)
        remarks = [remark.envelope.body["text"] for remark in box.take_overheard()]
        assert (remarks[0], len(remarks)) == ("Remark 1.", MAX_OVERHEARD_CHATS)
        assert list(box.take_overheard()) == []
        assert len(box.in_state(*QUEUED)) == 0


@pytest.mark.parametrize("text", [None, 5, ""])
async def test_a_chat_without_text_is_ignored(start_conversation: StartConversation, text: object) -> None:
    async with start_conversation() as driver:
        box = inbox(driver)
        assert await add(box, chat(text), is_busy=True) == "ignored"
        assert len(box.in_state(*QUEUED)) == 0
        assert list(box.take_overheard()) == []


async def test_an_inbox_without_answers_only_remembers(start_conversation: StartConversation) -> None:
    async with start_conversation() as driver:
        box = inbox(driver, answers=False)
        assert await add(box, chat("Coder?"), is_busy=True) == "kept"
        assert [remark.envelope.body["text"] for remark in box.take_overheard()] == ["Coder?"]
