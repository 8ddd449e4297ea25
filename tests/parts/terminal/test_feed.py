"""The entries of the conversation, without a terminal."""

import json

from mew_protocol import kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.ids import STREAM_GATEWAY

from mew_agent.parts.terminal.feed import MAX_WORK_CHARS, ConversationFeed


def envelope(kind: str, sender: str, payload: dict[str, object], *, name: str = "e") -> Envelope:
    return Envelope.write(kind, id=name, ts="2026-01-01T00:00:00Z", sender=sender, payload=payload)


def frame(stream: str, text: str) -> StreamFrame:
    data = json.dumps({"context": "work-1", "type": "token", "value": text})
    return StreamFrame(stream, f"#{stream}#{data}")


def test_only_the_stream_of_an_agent_adds_to_its_work() -> None:
    feed = ConversationFeed()
    for stream, owner in (("stream-1", "coder"), ("stream-2", "eve")):
        opened: dict[str, object] = {"stream_id": stream, "owner": owner}
        feed.receive(envelope(kinds.STREAM_OPEN, STREAM_GATEWAY, opened, name=stream))
    work = feed.receive(envelope(kinds.REASONING_START, "coder", {}, name="work-1"))
    assert work is not None
    feed.receive_frame(frame("stream-1", "true"))
    assert feed.receive_frame(frame("stream-2", "forged")) is None
    assert feed.receive_frame(frame("stream-3", "forged")) is None
    feed.receive(envelope(kinds.STREAM_CLOSE, "eve", {"stream_id": "stream-1"}))
    feed.receive_frame(frame("stream-1", " story"))
    assert work.text == "true story"


def test_work_of_an_agent_that_left_is_not_running() -> None:
    feed = ConversationFeed()
    work = feed.receive(envelope(kinds.REASONING_START, "coder", {}, name="work-1"))
    other = feed.receive(envelope(kinds.REASONING_START, "writer", {}, name="work-2"))
    assert work is not None
    assert other is not None
    assert feed.lose_work(lambda name: name == "coder") == [work]
    assert work.summary == "coder: connection lost; the answer may still come"
    assert other.summary == "writer is working"
    for kind, summary in (
        (kinds.REASONING_THOUGHT, "coder is working"),
        (kinds.REASONING_CONCLUSION, "coder worked on it"),
    ):
        sign = envelope(kind, "coder", {}).model_copy(update={"context": "work-1"})
        assert feed.receive(sign) is work
        assert work.summary == summary


def test_work_keeps_the_end_of_a_long_text() -> None:
    feed = ConversationFeed()
    opened: dict[str, object] = {"stream_id": "stream-1", "owner": "coder"}
    feed.receive(envelope(kinds.STREAM_OPEN, STREAM_GATEWAY, opened))
    work = feed.receive(envelope(kinds.REASONING_START, "coder", {}, name="work-1"))
    assert work is not None
    for text in ("x" * MAX_WORK_CHARS, "the end"):
        feed.receive_frame(frame("stream-1", text))
    assert len(work.text) == MAX_WORK_CHARS
    assert work.text.endswith("xthe end")


def test_only_the_receiver_of_a_chat_ticks_it() -> None:
    feed = ConversationFeed()
    chat = feed.receive(envelope(kinds.CHAT, "ada", {"text": "The code of door 4 is K-47."}, name="m1"))
    assert chat is not None
    call = {"number": 4, "id": "c4", "at": "2026-01-01T00:00:00Z"}
    about = {"id": "m1", "sender": "ada", "state": "in_prompt", "basis": "prompt", "call": call}
    receipt = {**about, "participant": "coder", "in_context": "whole"}
    assert feed.receive(envelope(kinds.CHAT_ACKNOWLEDGE, "eve", {"status": "read", "receipt": receipt})) is None
    assert feed.receive(envelope(kinds.CHAT_ACKNOWLEDGE, "coder", {"status": "read", "receipt": receipt})) is chat
    assert chat.marks == {"coder": "✓ read by coder in call 4"}
    gone = {**receipt, "in_context": "summary"}
    feed.receive(envelope(kinds.CHAT_ACKNOWLEDGE, "coder", {"status": "summary", "receipt": gone}))
    assert chat.marks == {"coder": "✓ read by coder in call 4, now in its summary"}
