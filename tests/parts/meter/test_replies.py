"""Reading requests and replies: however bytes are cut, and whatever they hold."""

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.parts.meter.replies import Reply, ReplyReader
from mew_agent.parts.meter.request_facts import api_of, digest_of, read_facts


def lines(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)


CALL = {"id": "c1", "function": {"name": "read", "arguments": "{}"}}
STREAMS: dict[Any, bytes] = {
    "chat": lines(
        {"model": "m", "choices": [{"delta": {"tool_calls": [CALL]}}], "usage": None},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}},
    )
    + b"data: [DONE]\n\n",
    "responses": lines(
        {"type": "response.output_item.done", "item": {"type": "function_call", "call_id": "c1"}},
        {
            "type": "response.completed",
            "response": {"id": "r", "model": "m", "output": [], "usage": {"input_tokens": 90, "output_tokens": 10}},
        },
    ),
    "messages": lines(
        {
            "type": "message_start",
            "message": {"model": "m", "content": [], "usage": {"input_tokens": 20, "cache_read_input_tokens": 70}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c1"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"input_tokens": 0, "output_tokens": 10},
        },
        {"type": "message_stop"},
    ),
}


@pytest.mark.parametrize("api", STREAMS)
@given(data=st.data())
def test_reply_is_the_same_however_its_bytes_are_cut(api: Any, data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(["identity", "gzip", "deflate"]))
    body = STREAMS[api]
    if encoding != "identity":
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=9)))
    reader = ReplyReader(api, encoding)
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        reader.feed(body[start:end])
    reply = reader.end()
    assert reader.has_ended
    assert reply is not None
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens, reply.model) == (90, 100, "m")
    assert reply.tool_calls == {digest_of("c1")}


@pytest.mark.parametrize("api", STREAMS)
@given(
    body=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "usage", "choices", "response", "message", "delta", "item", "output", "content"]
                ),
                x,
            )
        ),
    ).map(lines)
)
def test_reader_never_raises(api: Any, body: bytes) -> None:
    for encoding in ("identity", "gzip", "br"):
        reader = ReplyReader(api, encoding)
        reader.feed(body)
        reply = reader.end()
        assert reply is None or isinstance(reply, Reply)


@pytest.mark.parametrize("kind", [[], {}, 7, None])
def test_reader_ignores_types_that_are_no_text(kind: object) -> None:
    events: dict[Any, Any] = {
        "responses": {"type": "response.output_item.done", "item": {"type": kind}},
        "messages": {"type": "content_block_start", "content_block": {"type": kind}},
    }
    for api, event in events.items():
        reader = ReplyReader(api)
        reader.feed(lines({"type": kind}, event) + STREAMS[api])
        reply = reader.end()
        assert reply is not None
        assert reply.tool_calls == {digest_of("c1")}


def test_compression_that_cannot_be_read_leaves_the_usage_unknown() -> None:
    reader = ReplyReader("chat", encoding="br")
    reader.feed(b"\x0b\x02\x80")
    assert reader.end() == Reply()
    assert reader.end(was_cut=True) is None


def test_changes_that_agents_make_to_old_messages_do_not_matter() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    before = [
        {"role": "system", "content": "Now it is 10:01."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi.", "reasoning_content": "They greet."},
        {"role": "user", "content": [{"type": "text", "text": "More.", **mark}]},
    ]
    after = [
        {"role": "system", "content": "Now it is 10:02."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi."}], "tool_calls": []},
        {"role": "user", "content": "More."},
    ]
    facts = [read_facts("chat", {}, {"messages": messages}) for messages in (before, after)]
    assert facts[0] == facts[1]
    assert facts[0] is not None
    assert len(facts[0].prefix) == 3
    other = read_facts("chat", {}, {"messages": [*after[:3], {"role": "user", "content": "Less."}]})
    assert other is not None
    assert other.prefix[:2] == facts[0].prefix[:2]
    assert other.prefix[2] != facts[0].prefix[2]


def test_paths_of_the_three_apis_are_known() -> None:
    paths = ("/v1/chat/completions", "/api/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models")
    assert [api_of(path) for path in paths] == ["chat", "responses", "messages", None, None]
