"""Replies assembled from the chunks of many providers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mew_agent.model.event_stream import Event
from mew_agent.model.interface import ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.reply_events import ReplyAssembly
from mew_agent.model.usage import Usage


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call_piece(index: int | None, arguments: object = "", *, id: str | None = None, name: str | None = None) -> Any:  # noqa: A002
    piece: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id}
    return piece if index is None else {**piece, "index": index}


def assembled(*chunks: Any) -> ModelReply:
    assembly = ReplyAssembly("asked-for")
    for each in chunks:
        assembly.feed(Event(each))
    return assembly.reply(request_id=None, is_streamed=True)


def calls(*pieces: Any) -> tuple[ToolCall, ...]:
    return assembled(*(chunk(tool_calls=[piece]) for piece in pieces)).tool_calls


def test_text_arrives_as_deltas_and_complete() -> None:
    assembly = ReplyAssembly("m")
    seen = [
        assembly.feed(Event(each))
        for each in (chunk(role="assistant", content=""), chunk(content="Hel"), chunk(content="lo"))
    ]
    assert seen == [[], [TextDelta("Hel")], [TextDelta("lo")]]
    assert assembly.events.finish_reason is None
    assembly.feed(Event(chunk("stop")))
    reply = assembly.reply(request_id="r", is_streamed=True)
    assert reply == ModelReply("Hello", (), "stop", None, "m", request_id="r")
    assert assembly.events.chunks == 4


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hmm"},
        {"reasoning": "hmm"},
        {"reasoning": "hmm", "reasoning_content": "hmm"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}]},
    ],
)
def test_reasoning_is_separate_from_text_and_counted_once(delta: dict[str, Any]) -> None:
    assembly = ReplyAssembly("m")
    assert assembly.feed(Event(chunk(**delta))) == [ReasoningDelta("hmm")]
    reply = assembly.reply(request_id=None, is_streamed=True)
    assert (reply.text, reply.reasoning_text) == ("", "hmm")


def test_a_refusal_is_the_text_of_the_reply() -> None:
    assert assembled(chunk(content=None, refusal="I will not."), chunk("stop")).text == "I will not."


def test_content_in_parts_is_joined() -> None:
    assert assembled(chunk(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])).text == "ab"


@pytest.mark.parametrize("chunks", [[{"choices": None}], [{"choices": []}], [{}], [{"choices": [None, "x", {}]}]])
def test_chunks_without_choices_are_accepted(chunks: list[dict[str, Any]]) -> None:
    assert assembled(*chunks, chunk("stop", content="x")).text == "x"


def test_only_the_first_choice_is_read() -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}
    reply = assembled(chunk(content="yes"), second, chunk("stop"))
    assert (reply.text, reply.finish_reason) == ("yes", "stop")


def test_usage_and_served_model_are_read_from_any_chunk() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
    reply = assembled(chunk("stop", content="x"), {"choices": [], "usage": usage}, {"choices": None, "usage": None})
    assert reply.usage == Usage(4, 1, 5)
    assert reply.served_model == "m"


def test_arguments_are_joined_by_index_when_calls_interleave() -> None:
    assert calls(
        call_piece(0, "", id="a", name="f"),
        call_piece(1, '{"y"', id="b", name="g"),
        call_piece(0, '{"x":'),
        call_piece(1, ":2}"),
        call_piece(0, "1}"),
    ) == (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", '{"y":2}'))


def test_ids_and_names_may_be_repeated_on_every_piece() -> None:
    pieces = [call_piece(0, part, id="a", name="f") for part in ('{"x"', ":1", "}")]
    assert calls(*pieces) == (ToolCall("a", "f", '{"x":1}'),)


def test_whole_calls_with_the_same_index_stay_separate() -> None:
    found = calls(call_piece(0, "{}", id="a", name="f"), call_piece(0, '{"z":1}', id="b", name="f"))
    assert found == (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"z":1}'))


@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("a", "a")])
@pytest.mark.parametrize("index", [0, None])
def test_whole_calls_without_ids_of_their_own_stay_separate(
    ids: tuple[str | None, str | None], index: int | None
) -> None:
    found = calls(*(call_piece(index, f'{{"x":{n}}}', id=one, name="f") for n, one in enumerate(ids)))
    assert [(call.name, call.arguments) for call in found] == [("f", '{"x":0}'), ("f", '{"x":1}')]


def test_a_repeated_call_is_one_call() -> None:
    assert calls(*[call_piece(0, "{}", id="a", name="f")] * 2) == (ToolCall("a", "f", "{}"),)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_call_that_was_cut_before_its_arguments_is_invalid(reason: str) -> None:
    pieces = call_piece(0, "", id="a", name="f"), call_piece(1, "", id="b", name="g")
    found = assembled(*(chunk(tool_calls=[piece]) for piece in pieces), chunk(reason)).tool_calls
    assert [call.arguments for call in found] == ["{}", "{"]


def test_what_a_server_wants_back_stays_with_its_call() -> None:
    """Gemini signs the thoughts before a call, and rejects the call without its signature."""
    signed = {**call_piece(0, "{}", name="f"), "extra_content": {"google": {"thought_signature": "c2ln"}}}
    first, second = calls(signed, call_piece(0, "{}", name="g"))
    assert (first.extra, second.extra) == ('{"google": {"thought_signature": "c2ln"}}', "")


def test_signatures_of_thoughts_stay_with_the_reply() -> None:
    """OpenRouter rejects a call of Gemini without them."""
    signed = {"type": "reasoning.encrypted", "data": "c2ln", "id": "a", "format": "google-gemini-v1", "index": 0}
    details = [{"type": "reasoning.text", "text": "I add.", "index": 0}, signed]
    reply = assembled(chunk(reasoning_details=details), chunk("tool_calls", tool_calls=[call_piece(0, "{}", name="f")]))
    assert json.loads(reply.extra) == {"reasoning_details": [signed]}
    assert assembled(chunk("stop", content="x")).extra == ""


@pytest.mark.parametrize(
    ("reason", "read"), [("MAX_TOKENS", "length"), ("PROHIBITED_CONTENT", "content_filter"), ("stop", "stop")]
)
def test_finish_reasons_of_gemini_are_read_as_those_of_openai(reason: str, read: str) -> None:
    assert assembled(chunk(reason, content="x")).finish_reason == read


def test_calls_without_index_are_separated_by_name_and_id() -> None:
    found = calls(call_piece(None, "{", name="f"), call_piece(None, "}"), call_piece(None, "{}", name="g"))
    assert [(call.name, call.arguments) for call in found] == [("f", "{}"), ("g", "{}")]


def test_a_generated_call_id_is_deterministic_and_unique() -> None:
    pieces = (call_piece(0, "{}", name="f"), call_piece(1, "{}", name="f"))
    first, second = calls(*pieces)
    assert first.id
    assert first.id != second.id
    assert calls(*pieces) == (first, second)


def test_generated_call_ids_differ_between_replies() -> None:
    one = assembled(chunk(tool_calls=[call_piece(0, "{}", name="f")]))
    other = assembled({**chunk(tool_calls=[call_piece(0, "{}", name="f")]), "id": "c2"})
    assert one.tool_calls[0].id != other.tool_calls[0].id


@pytest.mark.parametrize(("arguments", "text"), [({"a": 1}, '{"a": 1}'), (None, "{}"), ("", "{}")])
def test_arguments_become_json_text(arguments: object, text: str) -> None:
    assert calls(call_piece(0, arguments, id="a", name="f")) == (ToolCall("a", "f", text),)


def test_a_whole_body_is_read_like_a_chunk() -> None:
    body = {
        "id": "x",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
    }
    reply = assembled(body)
    assert reply.tool_calls == (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
    assert reply.usage == Usage(4, 1, 5)


def test_an_error_inside_a_choice_is_kept() -> None:
    assembly = ReplyAssembly("m")
    assembly.feed(Event({"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "gone"}}]}))
    assert assembly.events.error == {"message": "gone"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "message", "content", "tool_calls", "function", "arguments", "name", "id", "index",
             "finish_reason", "usage", "text", "thinking", "reasoning", "error"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "model", "id"]), JSON_VALUES, max_size=4), max_size=4)
)
def test_any_json_can_be_assembled(chunks: list[dict[str, Any]]) -> None:
    reply = assembled(*chunks)
    assert all(call.id and isinstance(call.arguments, str) for call in reply.tool_calls)


@given(st.text(max_size=60), st.data())
def test_text_in_any_chunks_is_reassembled(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(min_value=0, max_value=len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reply = assembled(
        *(chunk(content=piece) for piece in pieces),
        *(chunk(tool_calls=[call_piece(0, piece, id="a", name="f")]) for piece in pieces),
    )
    assert reply.text == text
    assert reply.tool_calls == (ToolCall("a", "f", text or "{}"),)


@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        ({"system_fingerprint": "fp_1"}, "fp_1"),
        ({"provider": "Acme", "system_fingerprint": "fp_1"}, "Acme fp_1"),
        ({"provider": "Acme", "system_fingerprint": None}, "Acme"),
        ({"provider": {"name": "Acme"}, "system_fingerprint": ""}, None),
    ],
)
def test_a_reply_names_the_machine_that_answered(fields: dict[str, Any], backend: str | None) -> None:
    assert assembled({**chunk("stop", content="x"), **fields}, {"choices": []}).backend == backend
