"""What the guard against loops decides, from envelopes alone."""

import tracemalloc
from typing import Any

import pytest
from mew_protocol.envelope import Envelope

from mew_agent.agent.loop_guard import LoopGuard, asks_something
from mew_agent.settings import LoopLimits

REPORT = {"messages_in_context": 0, "context": {"basis": "unknown", "reason": "no_call_yet"}}


def envelope(sender: str, kind: str, payload: dict[str, Any], name: str = "e", **headers: Any) -> Envelope:
    return Envelope.write(kind, id=name, ts="t", sender=sender, payload=payload, **headers)


class Room:
    """A guard of the agent `one`, and chats that it observes under counted ids."""

    def __init__(self, *agents: str, **limits: int) -> None:
        self.guard = LoopGuard("one", LoopLimits(**limits))
        self.count = 0
        for agent in agents:
            self.guard.observe(envelope(agent, "participant/status", REPORT))

    def chat(self, sender: str, to: str = "", about: str = "", text: str = "Noted.", **payload: Any) -> Envelope:
        self.count += 1
        headers = {"to": (to,) if to else (), "correlation_id": (about,) if about else ()}
        chat = envelope(sender, "chat", {"text": text, **payload}, f"c{self.count}", **headers)
        self.guard.observe(chat)
        return chat

    def decide(self, chat: Envelope, at: float = 0.0) -> str:
        return self.guard.decide(chat, at_seconds=at)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Is it done?", True),
        ("Done. Shall I go on? Yes or no.", True),
        ("Done (really?)", True),
        ("終わりましたか？", True),
        ("Thanks, that is all.", False),
        ('You asked "is it done?" and it is.', False),
        ("You asked “is it done?” and it is.", False),
        ("““Is it done?” is answered.", False),
        ("“ Is it done?", True),
        ("> is it done?\nYes.", False),
        ("See https://x.test/find?q=1 for more.", False),
        ("`a ? b : c` picks one.", False),
        ("```\nx = y?\n```", False),
    ],
)
def test_a_chat_asks_something_if_a_sentence_is_a_question(text: str, asks: bool) -> None:
    assert asks_something(envelope("two", "chat", {"text": text})) is asks
    assert asks_something(envelope("two", "chat", {"text": text, "needs_reply": not asks})) is not asks


def test_an_answer_to_our_chat_is_context_unless_it_asks() -> None:
    room = Room("two")
    ours = room.chat("one", "two")
    assert room.decide(room.chat("two", "one", ours.id)) == "context"
    assert room.decide(room.chat("two", "one", ours.id, "Which one?")) == "answer"
    assert room.decide(room.chat("two", "one", ours.id, needs_reply=True)) == "answer"
    assert room.decide(room.chat("two", "one", "an-id-from-before-a-restart")) == "context"
    assert room.decide(room.chat("two", "one")) == "answer"


@pytest.mark.parametrize("sender", ["ada", "two"])
def test_a_chat_that_needs_no_reply_is_context_from_any_sender(sender: str) -> None:
    assert Room("two").decide(Room("two").chat(sender, "one", text="Is it so?", needs_reply=False)) == "context"


def test_a_person_is_answered_with_any_reference() -> None:
    room = Room()
    ours = room.chat("one", "ada")
    assert room.decide(room.chat("ada", "one", ours.id, "Do it then.")) == "answer"
    assert {room.decide(room.chat("ada", "one"), at=0.0) for _ in range(200)} == {"answer"}


def test_a_program_that_reacts_to_every_answer_is_limited_in_rate() -> None:
    room = Room(exchanges_per_minute=3)
    verdicts = [room.decide(room.chat("bot", "one", room.chat("one", "bot").id), at=1.0) for _ in range(5)]
    assert verdicts == ["answer"] * 3 + ["loop_stopped"] * 2
    late = room.chat("bot", "one", room.chat("one", "bot").id)
    assert room.guard.release(late, at_seconds=2.0) == ()
    assert room.guard.release(late, at_seconds=62.0) == ("bot",)
    assert room.decide(late, at=62.0) == "answer"


def exchange(room: Room, times: int, peer: str = "two", at: float = 0.0) -> list[str]:
    """A peer that answers without correlation; each of its chats we answer is answered again."""
    verdicts = []
    for _ in range(times):
        theirs = room.chat(peer, "one")
        verdicts.append(room.decide(theirs, at))
        if verdicts[-1] != "answer":
            break
        room.chat("one", peer, theirs.id)
    return verdicts


def test_agents_stop_after_so_many_messages_until_a_person_speaks() -> None:
    room = Room("two", hops=8)
    room.chat("one", "two", room.chat("ada", "one").id)
    assert exchange(room, 20) == ["answer"] * 3 + ["loop_stopped"]
    stopped = room.guard.stopped["two"]
    assert (stopped.origin, stopped.reason) == ("ada", "8 messages between agents since a person spoke")
    assert room.decide(room.chat("two", "one", text="Hello?")) == "loop_stopped"
    assert room.guard.release(room.chat("two", "one"), at_seconds=0) == ()
    assert room.guard.release(room.chat("ada", "carl"), at_seconds=0) == ()
    assert room.guard.release(room.chat("ada", "two"), at_seconds=0) == ("two",)
    assert exchange(room, 20)[-2:] == ["answer", "loop_stopped"]
    assert room.guard.release(room.chat("ada"), at_seconds=0) == ("two",)


def test_exchanges_within_a_minute_are_limited_for_any_sender() -> None:
    room = Room("two", hops=1000, exchanges_per_minute=5)
    assert exchange(room, 20) == ["answer"] * 5 + ["loop_stopped"]
    assert room.guard.release(room.chat("monitor"), at_seconds=1) == ("two",)
    assert exchange(room, 20, at=1) == ["loop_stopped"]
    assert room.guard.release(room.chat("ada", "one"), at_seconds=1) == ("two",)
    assert exchange(room, 20, at=1) == ["answer"] * 5 + ["loop_stopped"]


def test_a_ring_of_agents_is_counted_through_all_of_them() -> None:
    room = Room("two", "three", hops=8)
    last = room.chat("ada", "one")
    answered = 0
    for _ in range(20):
        last = room.chat("one", "two", last.id)
        room.chat("two", "three", last.id)
        last = room.chat("three", "one")
        if room.decide(last) != "answer":
            break
        answered += 1
    assert answered == 2


def test_questions_within_one_answer_count_from_the_person_it_is_for() -> None:
    room = Room("two", hops=3)
    person = room.chat("ada", "two", text="Find it out.")
    room.guard.observe(envelope("two", "reasoning/start", {"input": "Find it out."}, "r1"))
    for number in range(20):
        question = room.chat("two", "one", text=f"Question {number}?")
        assert room.decide(question) == "answer"
        room.chat("one", "two", question.id)
    room.guard.observe(envelope("two", "reasoning/conclusion", {}, "r2", context="r1"))
    room.chat("two", "ada", person.id)
    assert exchange(room, 20)[-1] == "loop_stopped"


def test_interleaved_reasonings_count_each_answer_from_its_own_chat() -> None:
    """The frames are a recording of the TypeScript agent 0.11.0, which never correlates its chats."""
    room = Room("ref", hops=8)

    def begin(name: str, chat: Envelope) -> None:
        room.guard.observe(envelope("ref", "chat/acknowledge", {"status": "processing"}, correlation_id=(chat.id,)))
        room.guard.observe(envelope("ref", "reasoning/start", {"input": chat.body["text"]}, name))

    def conclude(**context: str) -> None:
        room.guard.observe(envelope("ref", "reasoning/conclusion", {}, **context))

    asked = room.chat("ada", text="Who is here, and what can you do?")
    ours = room.chat("one", "ada", asked.id, 'Noted: "Who is here, and what can you do?".')
    begin("reason-1", asked)
    begin("reason-2", ours)
    room.chat("ref", "ada", text='Noted: "Who is here, and what can you do?".')
    conclude(context="reason-2")  # but reason-1 ended
    theirs = room.chat("ref", "one", text='Noted: "Noted: "Who is here, and what can you do?"".')
    conclude()
    answers = 0
    while answers < 20 and room.decide(theirs) == "answer":
        answers += 1
        ours = room.chat("one", "ref", theirs.id, f"You write {answers}.")
        begin(f"reason-{answers}-of-loop", ours)
        theirs = room.chat("ref", "one", text=f"Noted {answers}.")
        conclude(context=f"reason-{answers}-of-loop")
    assert answers == 3
    assert room.guard.stopped["ref"].reason == "8 messages between agents since a person spoke"
    assert room.guard.release(room.chat("ada", "one"), at_seconds=0) == ("ref",)
    assert room.guard.release(room.chat("ada", "one"), at_seconds=0) == ()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("participant/status", REPORT),
        ("reasoning/start", {"input": "Hi."}),
        ("chat/acknowledge", {"status": "processing"}),
        ("system/welcome", {"board": [{"id": "two", "connected": True, "status": REPORT}]}),
    ],
)
def test_agents_are_recognised_by_what_they_send(kind: str, payload: dict[str, Any]) -> None:
    room = Room(hops=2)
    room.guard.observe(envelope("two", kind, payload))
    assert exchange(room, 20)[-1] == "loop_stopped"


def test_a_participant_that_only_chats_is_no_agent() -> None:
    room = Room(hops=2)
    room.guard.observe(envelope("ada", "participant/status", {"messages_in_context": 0, "tokens": 0}))
    for status in ("read", ["processing"], {"processing": 1}):
        room.guard.observe(envelope("ada", "chat/acknowledge", {"status": status}))
    assert exchange(room, 20, "ada") == ["answer"] * 20


def test_stopped_conversations_are_stopped_after_a_restart() -> None:
    room = Room("two")
    room.guard.restore([envelope("two", "chat", {"text": "Hello?"})])
    assert room.decide(room.chat("two", "one")) == "loop_stopped"
    assert room.guard.waits[0].peer == "two"
    assert room.guard.release(room.chat("ada", "one"), at_seconds=0) == ("two",)
    assert room.decide(room.chat("two", "one")) == "answer"


def test_a_guard_does_not_keep_the_texts_of_chats() -> None:
    room = Room("two")
    tracemalloc.start()
    try:
        for number in range(100):
            room.chat("two", text=f"{number}" * 50_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_of_many_peers_those_heard_from_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mew_agent.agent.loop_guard.MAX_PEERS", 3)
    room, names = Room(), [f"peer{number}" for number in range(9)]
    for name in names:
        asked = room.chat(name, "one", text="Is it so?")
        assert room.decide(asked) == "answer"
        room.guard.observe(envelope(name, "reasoning/start", {}, f"r-{name}", correlation_id=(asked.id,)))
        room.guard.observe(envelope("peer0", "participant/status", REPORT))
        assert room.decide(room.chat("peer0", "one", about=room.chat("one").id, text="And now?")) == "answer"
    assert [name for name in ("one", *names) if room.guard.is_agent(name)] == ["one", "peer0", "peer7", "peer8"]
    for known in (room.guard._agents, room.guard._reasonings, room.guard._answered_at):
        assert len(known) <= 3
