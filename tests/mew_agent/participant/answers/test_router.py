"""Which envelope and which frame belongs to which question, also for agents of other implementations."""

import json
from typing import Any

import anyio
import pytest
from mew_protocol.codec import StreamFrame, encode_frame
from mew_protocol.envelope import Envelope

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.agent_answers import (
    MAX_ABANDONED,
    PIECE_MISSING,
    RETURN_SECONDS,
    AnswerRouter,
    Exchange,
)
from mew_agent.participant.answers.builder import AGENT_RESTARTED, Thinking, Writing
from mew_agent.participant.gaps import StreamGap
from mew_agent.participant.peers import PeerChanges, Peers
from mew_agent.parts.shared.text_answer import TextAnswer

QUESTION = "How high is the tide?"


class Routed:
    """A router for `bob` with one or more questions to `coder`, and shortcuts to route envelopes and frames."""

    def __init__(self, *, tools: bool = False) -> None:
        self.peers = Peers("bob")
        self.unwanted: list[str] = []
        self.router = AnswerRouter("bob", self.peers, lambda _, reasoning: self.unwanted.append(reasoning))
        self.tools = tools
        self.send_envelope("system:gateway", "system/welcome", you={"id": "bob", "capabilities": []}, participants=[])
        for name in ("coder", "writer"):
            member: dict[str, Any] = {"id": name, "capabilities": []}
            self.send_envelope("system:gateway", "system/presence", event="join", participant=member)

    def send_envelope(
        self, sender: str, kind: str, *, about: str = "", context: str | None = None, to: str = "", **payload: Any
    ) -> None:
        envelope = Envelope.write(
            kind,
            id=f"{kind}-of-{sender}",
            ts="2026-01-01T00:00:00Z",
            sender=sender,
            payload=payload,
            to=(to,) if to else (),
            correlation_id=(about,) if about else (),
            context=context,
        )
        changes = self.peers.receive(envelope)
        if envelope.kind in self.router.streams.received_kinds:
            self.router.streams.receive(envelope)
        if self.router.is_in_use:
            self.router.receive(envelope, changes)

    def frame(self, value: Any, *, stream: str = "s-1", context: str = "r-1") -> None:
        data = json.dumps({"context": context, **value}) if isinstance(value, dict) else value
        self.router.receive_frame(StreamFrame(stream, encode_frame(stream, data)))

    def ask(
        self, chat_id: str = "q-1", agent: str = "coder", text: str = QUESTION, inactivity_seconds: float = 60.0
    ) -> Exchange:
        context = self.peers[agent].context
        answer = TextAnswer(may_use_tools=self.tools)
        exchange = Exchange(agent, chat_id, text, answer, inactivity_seconds, context)
        self.router.add(exchange)
        return exchange

    def start(self, about: str = "q-1", reasoning: str = "r-1", **payload: Any) -> bool:
        start = Envelope.write(
            "reasoning/start",
            id=reasoning,
            ts="2026-01-01T00:00:00Z",
            sender="coder",
            payload=payload,
            correlation_id=(about,) if about else (),
        )
        known = len(self.unwanted)
        self.router.receive(start, PeerChanges())
        self.send_envelope("gateway", "stream/open", stream_id="s-1", owner="coder")
        return len(self.unwanted) > known


async def read(exchange: Exchange) -> tuple[str, str]:
    """The answer and the thinking, read to the end."""
    content, thinking = "", ""
    while (event := await exchange.next_event()) is not None:
        content += event.text if isinstance(event, Writing) else ""
        thinking += event.text if isinstance(event, Thinking) else ""
    return content, thinking


async def problem_of(exchange: Exchange) -> NoAnswer:
    with pytest.raises(NoAnswer) as caught:
        await read(exchange)
    return caught.value


async def test_frames_of_the_reasoning_become_the_answer() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.frame({"type": "thinking", "value": "hm"})
    routed.frame({"type": "token", "value": "It is "})
    routed.frame({"type": "token", "value": "high."})
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="It is high.")
    assert await read(exchange) == ("It is high.", "hm")


async def test_agent_that_does_not_correlate_is_followed() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start(about="", input=QUESTION)
    routed.frame({"type": "token", "value": "It is high.", "final": True})
    routed.send_envelope("coder", "chat", to="bob", text="It is high.")
    assert await read(exchange) == ("It is high.", "")


async def test_unrelated_reasonings_and_chats_are_ignored() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start(about="", input="Another question")
    routed.frame({"type": "token", "value": "No."})
    routed.start(about="somebody-elses", reasoning="r-2")
    routed.frame({"type": "token", "value": "Neither."}, context="r-2")
    routed.send_envelope("coder", "chat", about="somebody-elses", to="ada", text="For ada.")
    routed.send_envelope("coder", "chat", text="To everybody.")
    routed.send_envelope("writer", "chat", about="q-1", to="bob", text="Not asked.")
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Yes.")
    assert await read(exchange) == ("Yes.", "")


async def test_only_frames_from_the_streams_owner_count() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.send_envelope("gateway", "stream/open", stream_id="s-2", owner="writer")
    routed.send_envelope("writer", "stream/open", stream_id="s-3", owner="coder")
    for stream in ("s-2", "s-3", "s-unknown"):
        routed.frame({"type": "token", "value": "forged"}, stream=stream)
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Real.")
    assert await read(exchange) == ("Real.", "")


async def test_stream_opened_before_we_joined_is_known() -> None:
    routed = Routed()
    routed.router.receive(
        Envelope.write(
            "system/welcome",
            id="w",
            ts="t",
            sender="system:gateway",
            to=("bob",),
            payload={"active_streams": [{"stream_id": "s-9", "owner": "coder"}, "nonsense", {"owner": "x"}]},
        ),
        PeerChanges(),
    )
    exchange = routed.ask()
    routed.start()
    routed.frame({"type": "token", "value": "Early."}, stream="s-9")
    routed.send_envelope("coder", "stream/close", stream_id="s-9")
    routed.frame({"type": "token", "value": "Late."}, stream="s-9")
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Early.")
    assert await read(exchange) == ("Early.", "")


@pytest.mark.parametrize("data", ["no json", "[1]", b"\xff", '{"context": "r-1", "type": "token", "value": 3}'])
async def test_unreadable_frames_are_ignored(data: Any) -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.frame(data)
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Fine.")
    assert await read(exchange) == ("Fine.", "")


async def test_tool_call_in_a_thought_ends_the_text_before_it() -> None:
    routed = Routed(tools=True)
    exchange = routed.ask()
    routed.start()
    routed.frame({"type": "token", "value": "I look."})
    call = {"tool": "files/read", "arguments": {"path": "a"}, "toolCallId": "c-1"}
    routed.frame({"type": "thought", "value": {"action": "tool", "reasoning": "I look.", "actionInput": call}})
    routed.frame({"type": "thought", "value": {"action": "respond", "reasoning": "I answer."}})
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Found.")
    assert await read(exchange) == ("Found.", 'I look.\n→ files/read {"path": "a"}\n')
    assert routed.router.tool_users == {"coder"}


async def test_restarted_call_is_announced() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.frame({"type": "token", "value": "The ti"})
    routed.frame({"type": "notice", "event": "call_again"})
    routed.frame({"type": "token", "value": "Low."})
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Low.")
    reported = "The ti\n\n> interrupted by a control; the answer begins again\n\nLow."
    assert await read(exchange) == (reported, "")


async def test_refusal_of_the_gateway_ends_the_question() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.send_envelope("writer", "system/error", about="q-1", error="forged")
    routed.send_envelope("system:gateway", "system/error", about="q-1", error="capability_violation")
    problem = await problem_of(exchange)
    assert problem.code == "refused"
    assert "capability_violation" in problem.problem


async def test_refusal_of_a_busy_agent_ends_the_question() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.send_envelope("coder", "chat/acknowledge", about="q-1", status="refused: 100 chats are waiting already")
    problem = await problem_of(exchange)
    assert problem.code == "agent_busy"
    assert "100 chats are waiting already" in problem.problem


async def test_cancelled_reasoning_ends_the_question_with_the_reason() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.send_envelope("coder", "reasoning/conclusion", context="r-2", cancelled=True, reason="another")
    routed.send_envelope("coder", "reasoning/conclusion", context="r-1", cancelled=True, reason="cancelled by ada")
    problem = await problem_of(exchange)
    assert problem.code == "cancelled"
    assert "cancelled by ada" in problem.problem


async def test_an_agent_that_does_not_return_ends_only_its_own_questions() -> None:
    routed = Routed()
    coder, writer = routed.ask(inactivity_seconds=0.05), routed.ask("q-2", "writer")
    routed.send_envelope("system:gateway", "system/presence", event="leave", participant={"id": "coder"})
    assert (await problem_of(coder)).code == "agent_left"
    assert coder.needs_cancel
    routed.send_envelope("writer", "chat", about="q-2", to="bob", text="Here.")
    assert await read(writer) == ("Here.", "")


async def test_an_agent_that_returns_answers_and_its_text_begins_again() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.start()
    routed.frame({"type": "token", "value": "It is "})
    member = {"id": "coder", "capabilities": []}
    routed.send_envelope("system:gateway", "system/presence", event="leave", participant=member)
    assert exchange.deadline <= anyio.current_time() + RETURN_SECONDS
    routed.send_envelope("system:gateway", "system/presence", event="join", participant=member)
    assert not exchange.is_agent_absent
    routed.send_envelope("coder", "participant/status", about="q-other", status="restarted", messages_in_context=1)
    assert exchange.reasoning_id == "r-1"
    routed.send_envelope("coder", "participant/status", about="q-1", status="restarted", messages_in_context=1)
    routed.start(reasoning="r-2")
    routed.frame({"type": "token", "value": "The tide is high."}, context="r-2")
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="The tide is high.")
    left, restarted = "> 'coder' left the space; waiting for its return", f"> {AGENT_RESTARTED}"
    assert await read(exchange) == (f"It is {left}\n\n{restarted}\n\nThe tide is high.".replace("is >", "is \n\n>"), "")


async def test_text_after_a_gap_is_not_joined_to_text_before_it() -> None:
    routed = Routed()
    exchange, other = routed.ask(), routed.ask("q-2", "writer")
    routed.start()
    routed.frame({"type": "token", "value": "It "})
    routed.router.receive_gap(StreamGap("s-2", 1))  # a stream of another participant
    routed.router.receive_gap(StreamGap("s-1", 1))
    routed.router.receive_gap(StreamGap("s-1", 2))
    routed.frame({"type": "token", "value": "high."})
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="It is high.")
    assert await read(exchange) == (f"It \n\n> {PIECE_MISSING}\n\nis high.", "")
    assert not other.answer.notices


async def test_partial_status_for_another_participant_is_ignored() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.send_envelope("coder", "participant/status", to="ada", status="compacting", messages_in_context=1)
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Fine.")
    assert await read(exchange) == ("Fine.", "")


async def test_running_compaction_is_announced_at_once() -> None:
    routed = Routed()
    routed.send_envelope("coder", "participant/status", status="compacting", messages_in_context=9)
    exchange = routed.ask()
    routed.send_envelope("coder", "participant/status", status="compacted", messages_in_context=3)
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Now.")
    assert await read(exchange) == ("> compacting ...\n\n> compacted\n\nNow.", "")


async def test_pause_of_the_agent_is_announced() -> None:
    routed = Routed()
    routed.send_envelope("coder", "participant/status", status="paused", messages_in_context=1)
    exchange = routed.ask()
    routed.send_envelope("coder", "chat", about="q-1", to="bob", text="Back.")
    content, _ = await read(exchange)
    assert content.startswith("> paused; the answer comes after the agent is resumed\n\n")


async def test_reasoning_about_an_abandoned_question_is_unwanted_once() -> None:
    routed = Routed()
    exchange = routed.ask()
    del routed.router.exchanges["q-1"]
    routed.router.abandon(exchange)
    assert routed.start()
    assert not routed.start()


async def test_oldest_abandoned_questions_are_forgotten() -> None:
    routed = Routed()
    for number in range(MAX_ABANDONED + 1):
        exchange = routed.ask(f"q-{number}")
        del routed.router.exchanges[exchange.chat_id]
        routed.router.abandon(exchange)
    assert not routed.start(about="q-0")
    assert routed.start(about=f"q-{MAX_ABANDONED}")


async def test_activity_of_the_agent_extends_the_deadline_of_a_queued_question() -> None:
    routed = Routed()
    exchange = routed.ask()
    routed.send_envelope("coder", "chat/acknowledge", about="q-1", status="queued")
    before = exchange.deadline
    routed.send_envelope("coder", "reasoning/thought", context="of-somebody-else")
    assert exchange.deadline > before
    routed.send_envelope("coder", "chat/acknowledge", about="q-1", status="processing")
    began = exchange.deadline
    routed.send_envelope("coder", "reasoning/thought", context="of-somebody-else")
    assert exchange.deadline == began


async def test_fail_all_ends_every_question() -> None:
    routed = Routed()
    exchanges = [routed.ask("q-1"), routed.ask("q-2")]
    routed.router.fail_all("closing", "closing")
    for exchange in exchanges:
        assert (await problem_of(exchange)).code == "closing"
        assert exchange.needs_cancel
