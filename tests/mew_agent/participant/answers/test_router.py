"""Which envelope and which frame belongs to which question, also of agents that are not ours."""

import json
from typing import Any

import pytest
from mew_protocol.codec import StreamFrame, encode_frame
from mew_protocol.envelope import Envelope

from mew_agent.errors import NoAnswer
from mew_agent.participant.answers.builder import AnswerBuilder, Thinking, Writing
from mew_agent.participant.answers.context_notes import CallUsage
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.answers.router import MAX_ABANDONED, AnswerRouter
from mew_agent.participant.peers import Peers

QUESTION = "How high is the tide?"


class Heard:
    """A listening of `bob` with one or more questions to `coder`, and short ways to let it hear things."""

    def __init__(self, *, tools: bool = False) -> None:
        self.peers = Peers("bob")
        self.router = AnswerRouter("bob", self.peers)
        self.tools = tools
        self.say("system:gateway", "system/welcome", you={"id": "bob", "capabilities": []}, participants=[])
        for name in ("coder", "writer"):
            member: dict[str, Any] = {"id": name, "capabilities": []}
            self.say("system:gateway", "system/presence", event="join", participant=member)

    def say(
        self, sender: str, kind: str, *, about: str = "", context: str | None = None, to: str = "", **payload: Any
    ) -> bool:
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
        for peer in self.peers.receive(envelope).left:
            self.router.peer_left(peer.id)
        return self.router.receive(envelope)

    def frame(self, value: Any, *, stream: str = "s-1", context: str = "r-1") -> None:
        data = json.dumps({"context": context, **value}) if isinstance(value, dict) else value
        self.router.receive_frame(StreamFrame(stream, encode_frame(stream, data)))

    def ask(self, chat_id: str = "q-1", agent: str = "coder", text: str = QUESTION) -> Exchange:
        context = self.peers[agent].context
        answer = AnswerBuilder(notices="content", may_use_tools=self.tools)
        exchange = Exchange(agent, chat_id, text, answer, CallUsage(context), 60.0, context)
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
        unwanted = self.router.receive(start)
        self.say("gateway", "stream/open", stream_id="s-1", owner="coder")
        return unwanted


async def read(exchange: Exchange) -> tuple[str, str]:
    """Content and thinking until the end."""
    content, thinking = "", ""
    while (event := await exchange.next_event()) is not None:
        content += event.text if isinstance(event, Writing) else ""
        thinking += event.text if isinstance(event, Thinking) else ""
    return content, thinking


async def problem_of(exchange: Exchange) -> NoAnswer:
    with pytest.raises(NoAnswer) as caught:
        await read(exchange)
    return caught.value


async def test_frames_of_the_reasoning_are_the_answer() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start()
    heard.frame({"type": "thinking", "value": "hm"})
    heard.frame({"type": "token", "value": "It is "})
    heard.frame({"type": "token", "value": "high."})
    heard.say("coder", "chat", about="q-1", to="bob", text="It is high.")
    assert await read(exchange) == ("It is high.", "hm")


async def test_an_agent_that_correlates_nothing_is_understood() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start(about="", input=QUESTION)
    heard.frame({"type": "token", "value": "It is high.", "final": True})
    heard.say("coder", "chat", to="bob", text="It is high.")
    assert await read(exchange) == ("It is high.", "")


async def test_a_reasoning_about_something_else_is_nobodys() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start(about="", input="Another question")
    heard.frame({"type": "token", "value": "No."})
    heard.start(about="somebody-elses", reasoning="r-2")
    heard.frame({"type": "token", "value": "Neither."}, context="r-2")
    heard.say("coder", "chat", about="somebody-elses", to="ada", text="For ada.")
    heard.say("coder", "chat", text="To everybody.")
    heard.say("writer", "chat", about="q-1", to="bob", text="Not asked.")
    heard.say("coder", "chat", about="q-1", to="bob", text="Yes.")
    assert await read(exchange) == ("Yes.", "")


async def test_only_the_owner_of_a_stream_speaks_in_it() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start()
    heard.say("gateway", "stream/open", stream_id="s-2", owner="writer")
    heard.say("writer", "stream/open", stream_id="s-3", owner="coder")
    for stream in ("s-2", "s-3", "s-unknown"):
        heard.frame({"type": "token", "value": "forged"}, stream=stream)
    heard.say("coder", "chat", about="q-1", to="bob", text="Real.")
    assert await read(exchange) == ("Real.", "")


async def test_a_stream_that_was_open_before_we_joined_is_known() -> None:
    heard = Heard()
    heard.router.receive(
        Envelope.write(
            "system/welcome",
            id="w",
            ts="t",
            sender="system:gateway",
            to=("bob",),
            payload={"active_streams": [{"stream_id": "s-9", "owner": "coder"}, "nonsense", {"owner": "x"}]},
        )
    )
    exchange = heard.ask()
    heard.start()
    heard.frame({"type": "token", "value": "Early."}, stream="s-9")
    heard.say("coder", "stream/close", stream_id="s-9")
    heard.frame({"type": "token", "value": "Late."}, stream="s-9")
    heard.say("coder", "chat", about="q-1", to="bob", text="Early.")
    assert await read(exchange) == ("Early.", "")


@pytest.mark.parametrize("data", ["no json", "[1]", b"\xff", '{"context": "r-1", "type": "token", "value": 3}'])
async def test_frames_that_cannot_be_read_are_passed_over(data: Any) -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start()
    heard.frame(data)
    heard.say("coder", "chat", about="q-1", to="bob", text="Fine.")
    assert await read(exchange) == ("Fine.", "")


async def test_a_thought_with_a_tool_call_ends_the_text_before_it() -> None:
    heard = Heard(tools=True)
    exchange = heard.ask()
    heard.start()
    heard.frame({"type": "token", "value": "I look."})
    call = {"tool": "files/read", "arguments": {"path": "a"}, "toolCallId": "c-1"}
    heard.frame({"type": "thought", "value": {"action": "tool", "reasoning": "I look.", "actionInput": call}})
    heard.frame({"type": "thought", "value": {"action": "respond", "reasoning": "I answer."}})
    heard.say("coder", "chat", about="q-1", to="bob", text="Found.")
    assert await read(exchange) == ("Found.", 'I look.\n→ files/read {"path": "a"}\n')
    assert heard.router.tool_users == {"coder"}


async def test_a_call_that_an_agent_makes_again_is_told() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start()
    heard.frame({"type": "token", "value": "The ti"})
    heard.frame({"type": "notice", "event": "call_again"})
    heard.frame({"type": "token", "value": "Low."})
    heard.say("coder", "chat", about="q-1", to="bob", text="Low.")
    told = "The ti\n\n> stopped there by a control; the answer begins again\n\nLow."
    assert await read(exchange) == (told, "")


async def test_a_refusal_of_the_gateway_ends_the_question() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.say("writer", "system/error", about="q-1", error="forged")
    heard.say("system:gateway", "system/error", about="q-1", error="capability_violation")
    problem = await problem_of(exchange)
    assert problem.code == "refused"
    assert "capability_violation" in problem.problem


async def test_an_agent_with_too_much_to_do_is_told_as_busy() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.say("coder", "chat/acknowledge", about="q-1", status="refused: 100 chats are waiting already")
    problem = await problem_of(exchange)
    assert problem.code == "agent_busy"
    assert "100 chats are waiting already" in problem.problem


async def test_a_reasoning_that_somebody_cancelled_ends_the_question_with_the_reason() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.start()
    heard.say("coder", "reasoning/conclusion", context="r-2", cancelled=True, reason="another")
    heard.say("coder", "reasoning/conclusion", context="r-1", cancelled=True, reason="cancelled by ada")
    problem = await problem_of(exchange)
    assert problem.code == "cancelled"
    assert "cancelled by ada" in problem.problem


async def test_only_the_agent_that_left_ends_its_questions() -> None:
    heard = Heard()
    coder, writer = heard.ask(), heard.ask("q-2", "writer")
    heard.say("system:gateway", "system/presence", event="leave", participant={"id": "coder"})
    assert (await problem_of(coder)).code == "agent_left"
    heard.say("writer", "chat", about="q-2", to="bob", text="Here.")
    assert await read(writer) == ("Here.", "")


async def test_a_status_for_one_asker_alone_is_no_news() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.say("coder", "participant/status", to="ada", status="compacting", messages_in_context=1)
    heard.say("coder", "chat", about="q-1", to="bob", text="Fine.")
    assert await read(exchange) == ("Fine.", "")


async def test_an_agent_that_compacts_when_it_is_asked_is_told_at_once() -> None:
    heard = Heard()
    heard.say("coder", "participant/status", status="compacting", messages_in_context=9)
    exchange = heard.ask()
    heard.say("coder", "participant/status", status="compacted", messages_in_context=3)
    heard.say("coder", "chat", about="q-1", to="bob", text="Now.")
    assert await read(exchange) == ("> compacting ...\n\n> compacted\n\nNow.", "")


async def test_a_paused_agent_is_told_of() -> None:
    heard = Heard()
    heard.say("coder", "participant/status", status="paused", messages_in_context=1)
    exchange = heard.ask()
    heard.say("coder", "chat", about="q-1", to="bob", text="Back.")
    content, _ = await read(exchange)
    assert content.startswith("> paused; the answer comes after the agent is resumed\n\n")


async def test_a_reasoning_that_begins_after_its_asker_left_is_unwanted_once() -> None:
    heard = Heard()
    exchange = heard.ask()
    del heard.router.exchanges["q-1"]
    heard.router.abandon(exchange)
    assert heard.start()
    assert not heard.start()


async def test_what_was_abandoned_long_ago_is_forgotten() -> None:
    heard = Heard()
    for number in range(MAX_ABANDONED + 1):
        exchange = heard.ask(f"q-{number}")
        del heard.router.exchanges[exchange.chat_id]
        heard.router.abandon(exchange)
    assert not heard.start(about="q-0")
    assert heard.start(about=f"q-{MAX_ABANDONED}")


async def test_what_a_queued_question_waits_for_counts_as_a_sign_of_life() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.say("coder", "chat/acknowledge", about="q-1", status="queued")
    before = exchange.deadline
    heard.say("coder", "reasoning/thought", context="of-somebody-else")
    assert exchange.deadline > before
    heard.say("coder", "chat/acknowledge", about="q-1", status="processing")
    began = exchange.deadline
    heard.say("coder", "reasoning/thought", context="of-somebody-else")
    assert exchange.deadline == began


async def test_own_echoes_are_not_heard() -> None:
    heard = Heard()
    exchange = heard.ask()
    heard.say("bob", "chat", about="q-1", to="bob", text="Echo.")
    assert not exchange.is_over


async def test_closing_ends_every_question() -> None:
    heard = Heard()
    exchanges = [heard.ask("q-1"), heard.ask("q-2")]
    heard.router.fail_all("closing", "closing")
    for exchange in exchanges:
        assert (await problem_of(exchange)).code == "closing"
        assert exchange.needs_cancel
