"""Turns that answer several chats: those that arrive between two steps, and those that wait together."""

import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mew_protocol.envelope import Envelope
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.agent.inbox import QUEUED
from mew_agent.agent.shared_turn import answered_together, divided, entering, ranks_of, replies
from mew_agent.context.store import StoredChat
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import RehearsalOptions, serve_rehearsal
from tests.support.agents import AgentDriver, EnvelopeRecorder, running_agent
from tests.support.waiting import PATIENCE_SECONDS, until

StartAgent = Callable[..., Any]


def stored(number: int, sender: str = "ada", joined: int | None = None, section: str = "", **body: Any) -> StoredChat:
    envelope = Envelope.write("chat", id=f"q{number}", ts="t", sender=sender, payload={"text": "Hi?", **body})
    return StoredChat(number, envelope, joined=joined, section=section)


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"), [("never", []), ("asker", [1, 4]), ("urgent", [1, 3, 4]), ("all", [1, 2, 3, 4])]
)
def test_a_setting_selects_the_chats_that_enter_a_turn(mode: Any, expected: list[int]) -> None:
    waiting = [stored(1), stored(2, "bob"), stored(3, "cleo", urgent=True), stored(4), stored(5, session="x:1")]
    assert [one.number for one in entering(waiting, stored(0), mode)] == expected


def test_a_chat_of_a_session_enters_only_a_turn_of_that_session() -> None:
    waiting = [stored(1), stored(2, session="x:1"), stored(3, session="x:2"), stored(4, "bob", session="x:1")]
    assert [one.number for one in entering(waiting, stored(0, session="x:1"), "all")] == [2]


def test_no_chat_overtakes_one_of_its_sender_that_needs_its_own_turn() -> None:
    waiting = [stored(1, response_format={"type": "json_object"}), stored(2), stored(3, "bob")]
    assert [one.number for one in entering(waiting, stored(0), "all")] == [3]


def test_people_are_answered_before_agents_and_senders_in_turn() -> None:
    waiting = [stored(1, "bot"), stored(2), stored(3), stored(4, "bob"), stored(5, "bob"), stored(6, "bot")]
    question = stored(0)
    ranks = ranks_of([question, *waiting], lambda sender: sender == "bot")
    found = answered_together(waiting, question, ranks, {"bob": 3})
    assert [one.number for one in found] == [4, 2, 5, 3, 1, 6]


def test_the_single_question_of_a_person_is_answered_alone() -> None:
    waiting = [stored(1, "bob"), stored(2, "bob")]
    ranks = ranks_of([stored(0), *waiting], lambda _: False)
    assert answered_together(waiting, stored(0), ranks, {}) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("### ab12-1\nYes.\n\n### ab12-2\nNo.\n", {"ab12-1": "Yes.", "ab12-2": "No."}),
        ("### ab12-1\nYes.\n### 2\n### ab12-2  \nNo.", {"ab12-1": "Yes.\n### 2", "ab12-2": "No."}),
        ("Here you are:\n### ab12-1\nYes.\n### ab12-2\nNo.", None),
        ("### ab12-2\nNo.\n### ab12-1\nYes.", None),
        ("### ab12-1\nYes.\n### ab12-1\nYes.\n### ab12-2\nNo.", None),
        ("### ab12-1\nYes.\n### ab12-2\n", None),
        ("### ab12-1\nYes.", None),
        ("### ab12-1 and ab12-2\nYes.", None),
        ("", None),
    ],
)
def test_only_complete_and_ordered_sections_divide_an_answer(text: str, expected: dict[str, str] | None) -> None:
    assert divided(text, ["ab12-1", "ab12-2"]) == expected


def test_a_cancelled_section_stays_out_of_the_answers() -> None:
    question = StoredChat(0, stored(0).envelope, answer="### a-1\nOne.\n### a-2\nTwo.\n### a-3\nThree.", section="a-1")
    found = replies(question, [stored(2, joined=0, section="a-3")])
    assert [(reply.text, [one.number for one in reply.chats]) for reply in found] == [("Three.", [2]), ("One.", [0])]


def test_an_answer_without_sections_is_for_everyone() -> None:
    question = StoredChat(0, stored(0).envelope, answer="I cannot say.", section="a-1")
    (reply,) = replies(question, [stored(1, "bob", joined=0, section="a-2")])
    assert [one.number for one in reply.chats] == [0, 1]


# -- between two steps -------------------------------------------------------------------------------------------------


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.entered, self.opened = anyio.Event(), anyio.Event()

    async def look(self) -> str:
        """Look something up."""
        self.entered.set()
        await self.opened.wait()
        return "Door 4 is closed."


TWO_STEPS = [*({"tool_calls": [{"name": name}]} for name in ("look", "check")), {"text": "Done."}]


async def begin(s: AgentDriver, gate: Gate) -> Envelope:
    """Send a question whose turn waits in its tool."""
    question = await s.ada.send("chat", {"text": "call look with {}"}, to="coder")
    with anyio.fail_after(PATIENCE_SECONDS):
        await gate.entered.wait()
    return question


async def queued(s: AgentDriver, text: str, sender: Participant | None = None, **more: Any) -> Envelope:
    """Send a chat that has to wait."""
    chat = await (sender or s.ada).chat(text, to="coder", **more)
    await s.recorder.first("coder", "chat/acknowledge", about=chat, status="queued")
    return chat


async def test_a_chat_of_the_asker_enters_between_two_steps(start_agent: StartAgent) -> None:
    gate = Gate()
    async with start_agent(tools=[gate.look]) as s:
        question = await begin(s, gate)
        more = await queued(s, "And say who sits at door 4.")
        gate.opened.set()
        answer = await s.recorder.first("coder", "chat", about=more)
        assert answer.correlation_ids == (question.id, more.id)
        assert answer.addressees == ("ada",)
        messages = s.main_requests[1].body["messages"]
        assert [one["role"] for one in messages] == ["system", "user", "assistant", "tool", "user"]
        assert messages[-1]["content"] == "And say who sits at door 4."
        assert messages[:3] == [*s.main_requests[0].body["messages"], messages[2]]
        await s.ask("Is that all?")
        await s.recorder.until(lambda: len(s.recorder.sent_by("coder", "chat")) == 2)
        assert len(s.main_requests) == 3
        (receipt,) = await s.ada.receipts("coder", more.id)
        assert (receipt.state, receipt.in_context, receipt.answer) == ("answered", "whole", answer.id)
        assert receipt.call is not None
        assert receipt.call.number == 2


async def test_an_urgent_chat_of_another_sender_enters_and_others_wait(start_agent: StartAgent, joined: Any) -> None:
    gate = Gate()
    async with start_agent(agent={"between_steps": "urgent"}, tools=[gate.look]) as s, joined("bob") as bob:
        question = await begin(s, gate)
        plain = await queued(s, "Good morning?", bob)
        urgent = await queued(s, "Stop: door 4 is on fire.", bob, urgent=True)
        gate.opened.set()
        answer = await s.recorder.first("coder", "chat", about=urgent)
        assert answer.correlation_ids == (question.id, urgent.id)
        assert answer.addressees == ("ada", "bob")
        assert (await s.recorder.first("coder", "chat", about=plain)).correlation_ids == (plain.id,)


async def test_the_receipt_says_why_an_urgent_chat_waits(start_agent: StartAgent, joined: Any) -> None:
    gate = Gate()
    async with start_agent(tools=[gate.look]) as s, joined("bob") as bob:
        await begin(s, gate)
        urgent = await queued(s, "Stop: door 4 is on fire.", bob, urgent=True)
        plain = await queued(s, "Good morning?", bob)
        waits, others = await bob.receipts("coder", urgent.id, plain.id)
        assert (waits.state, waits.reason) == ("queued", "it is read after the running turn (between_steps: asker)")
        assert (others.state, others.reason) == ("queued", None)
        gate.opened.set()
        await s.recorder.first("coder", "chat", about=urgent)
        (read,) = await bob.receipts("coder", urgent.id)
        assert (read.state, read.reason) == ("answered", None)


async def test_a_cancelled_chat_leaves_the_turn_that_it_entered(start_agent: StartAgent) -> None:
    first, second = Gate(), Gate()

    async def check() -> str:
        """Check it."""
        return await second.look()

    async with start_agent(tools=[first.look, check], script=TWO_STEPS) as s:
        question = await begin(s, first)
        more = await queued(s, "And then?")
        first.opened.set()
        with anyio.fail_after(PATIENCE_SECONDS):
            await second.entered.wait()
        await s.ada.send("chat/cancel", {}, to="coder", correlation_id=(more.id,))
        (receipt,) = await s.ada.receipts("coder", more.id)
        assert (receipt.state, receipt.in_context) == ("cancelled", "whole")
        second.opened.set()
        answer = await s.recorder.first("coder", "chat", about=question)
        assert answer.correlation_ids == (question.id,)


async def test_a_chat_in_a_running_turn_survives_the_cancelled_question(start_agent: StartAgent, joined: Any) -> None:
    first, second = Gate(), Gate()

    async def check() -> str:
        """Check it."""
        return await second.look()

    options: dict[str, Any] = {"agent": {"between_steps": "all"}, "script": TWO_STEPS}
    async with start_agent(tools=[first.look, check], **options) as s, joined("bob") as bob:
        question = await begin(s, first)
        more = await queued(s, "Is door 5 open?", bob)
        first.opened.set()
        with anyio.fail_after(PATIENCE_SECONDS):
            await second.entered.wait()
        start = await s.recorder.first("coder", "reasoning/start", about=question)
        await s.ada.send("reasoning/cancel", {}, to="coder", context=start.id)
        answer = await s.recorder.first("coder", "chat", about=more)
        assert answer.correlation_ids == (more.id,)
        assert s.recorder.sent_by("coder", "chat", about=question) == []
        prompt = s.main_requests[-1].body["messages"]
        assert [one["content"] for one in prompt if one["role"] == "user"][-1] == "Is door 5 open?"
        assert str(prompt).count("Is door 5 open?") == 1


async def test_a_cleared_context_gets_all_chats_of_the_turn_again(start_agent: StartAgent) -> None:
    first, second = Gate(), Gate()

    async def check() -> str:
        """Check it."""
        return await second.look()

    async with start_agent(tools=[first.look, check], script=TWO_STEPS) as s:
        await begin(s, first)
        more = await queued(s, "And then?")
        first.opened.set()
        with anyio.fail_after(PATIENCE_SECONDS):
            await second.entered.wait()
        await s.control("clear")
        await s.recorder.first("coder", "participant/status", status="cleared")
        second.opened.set()
        await s.recorder.first("coder", "chat", about=more)
        users = [one["content"] for one in s.main_requests[-1].body["messages"] if one["role"] == "user"]
        assert users == ["call look with {}", "And then?"]


# -- together ----------------------------------------------------------------------------------------------------------


async def test_waiting_chats_are_answered_together_each_for_its_sender(start_agent: StartAgent, joined: Any) -> None:
    gate = Gate()
    options: dict[str, Any] = {"agent": {"together": 3, "between_steps": "never"}, "tools": [gate.look]}
    async with start_agent(**options) as s, joined("bob") as bob:
        await begin(s, gate)
        chats = [
            await queued(s, f"Where is box {number} of {who.id}?", who) for number in (1, 2) for who in (s.ada, bob)
        ]
        gate.opened.set()
        answers = [await s.recorder.first("coder", "chat", about=chat) for chat in chats]
        assert [answer.correlation_ids for answer in answers] == [(chat.id,) for chat in chats]
        assert [answer.addressees for answer in answers] == [(chat.sender,) for chat in chats]
        assert len(s.main_requests) == 4  # two for the first question, one for three chats, one for the last
        own = {item.envelope_id: item.own_text for item in s.agent.conversation.history.items}
        assert [own[chat.id] for chat in chats] == [chat.body["text"] for chat in chats]
        for chat, answer in zip(chats[:3], answers, strict=False):
            assert answer.body["text"].startswith(f'Noted: "{str(chat.body["text"])[:-1]}')
            (receipt,) = await s.ada.receipts("coder", chat.id, sender=chat.sender)
            assert (receipt.answer, receipt.in_context) == (answer.id, "whole")
            assert receipt.call is not None
            assert receipt.call.number == 3


SENDERS = 20
CHATS = int(os.environ.get("MEW_CHATS", "300"))
MANY = f"""
space: {{id: demo}}
participants:
  ada: {{capabilities: [{{kind: "*"}}]}}
  coder:
    command: mew
    capabilities: [{{kind: chat}}, {{kind: "chat/*"}}, {{kind: participant/status}}]
{"".join(f"  p{number}: {{capabilities: [chat]}}" + chr(10) for number in range(SENDERS))}
limits: {{envelopes_per_second: 100000, envelope_burst: 100000, history_envelopes: 100000}}
"""


async def test_many_waiting_chats_cost_a_quarter_of_the_calls() -> None:
    async with (
        serve_gateway(parse_space(MANY)) as gateway,
        serve_rehearsal(RehearsalOptions(window_tokens=1_000_000, reply_tokens=40)) as server,
        running_agent(gateway, server, {"together": 8, "between_steps": "never"}, None, 30.0, "coder", ()) as (
            actor,
            _,
        ),
        Participant(gateway.ws_url, space="demo", id="ada", token=gateway.token_of("ada")) as ada,
    ):
        recorder, sent = EnvelopeRecorder(ada), list[Envelope]()

        async def send(name: str) -> None:
            async with Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name)) as sender:
                for number in range(CHATS // SENDERS):
                    sent.append(await sender.send("chat", {"text": f"{name} asks: is {number} even?"}, to="coder"))

        await ada.pause("coder")  # so that the number of turns does not depend on how fast chats arrive
        async with anyio.create_task_group() as tasks:
            for number in range(SENDERS):
                tasks.start_soon(send, f"p{number}")
        await until(lambda: len(actor._runtime.inbox.in_state(*QUEUED)) == CHATS)
        await ada.resume("coder")

        def ends() -> Counter[str]:
            refused = [
                one for one in recorder.sent_by("coder", "chat/acknowledge") if "refused" in str(one.body["status"])
            ]
            return Counter(
                name for one in (*recorder.sent_by("coder", "chat"), *refused) for name in one.correlation_ids
            )

        with anyio.fail_after(900):
            while len(ends()) < len(sent):
                await anyio.sleep(0.2)
        assert set(ends().values()) == {1}
        assert actor.conversation.state.prompts_made * 4 <= CHATS
        asked = {chat.id: chat for chat in sent}
        order: dict[str, list[int]] = {}
        for answer in recorder.sent_by("coder", "chat"):
            for name in answer.correlation_ids:
                numbers = re.findall(r"is (\d+)", str(asked[name].body["text"]))
                order.setdefault(asked[name].sender, []).append(int(numbers[0]))
        assert all(numbers == sorted(numbers) for numbers in order.values())
