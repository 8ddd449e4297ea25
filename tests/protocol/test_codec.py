"""Decoding bytes to envelopes and frames, and encoding them."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol import errors
from mew_protocol.codec import (
    StreamFrame,
    decode,
    decode_complete,
    decode_envelope,
    encode_frame,
    kind_in,
    read_draft,
)
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.errors import DecodeError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
stream_ids = st.text(min_size=1, max_size=12).filter(lambda text: "#" not in text)


@pytest.mark.parametrize("value", ["0", "[]", "{}", '"a"'])
def test_a_message_of_too_many_values_is_refused_unread(value: str) -> None:
    few, many = (f'{{"kind":"chat","payload":{{"a":[{",".join([value] * count)}]}}}}' for count in (1_000, 600_000))
    assert isinstance(decode(few.encode()), Draft)
    for raw in (many, many.encode()):
        assert problem_of(raw).error == errors.TOO_LARGE


def test_commas_within_a_text_are_no_values() -> None:
    text = json.dumps({"kind": "chat", "payload": {"text": 'a, "[{' * 300_000}})
    message = decode(text)
    assert isinstance(message, Draft)
    assert message.payload is not None
    assert len(message.payload["text"]) == 1_800_000


def problem_of(raw: bytes | str, **limits: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(raw, **limits)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "error", "code"),
    [
        ("", errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ("garbage", errors.INVALID_JSON, errors.PROCESSING_ERROR),
        (b"\xff\xfe", errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ('{"a": NaN}', errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ('{"kind": "chat", "payload": {"a": [1e400]}}', errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ('{"kind": "chat", "payload": {"a": -1E+999}}', errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ('{"kind": "chat", "payload": {"a": ' + "9" * 250 + "e99}}", errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ('{"kind": "chat", "payload": {"a": ' + "9" * 400 + ".5}}", errors.INVALID_JSON, errors.PROCESSING_ERROR),
        ("[" * 100_000, errors.TOO_DEEP, errors.VALIDATION_ERROR),
        ('"text"', errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ("null", errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ("[]", errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ('{"kind": 5}', errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ('{"to": [5]}', errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ('{"payload": "text"}', errors.INVALID_ENVELOPE, errors.VALIDATION_ERROR),
        ('{"protocol": "mew/v9"}', errors.UNSUPPORTED_PROTOCOL, errors.VALIDATION_ERROR),
        ("#no-second-mark", errors.INVALID_FRAME, errors.PROCESSING_ERROR),
        (b"#\xff#data", errors.INVALID_FRAME, errors.PROCESSING_ERROR),
    ],
)
def test_each_undecodable_message_has_its_error_code(raw: bytes | str, error: str, code: str) -> None:
    problem = problem_of(raw)
    assert (problem.error, problem.code) == (error, code)
    assert str(problem).startswith(error)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ('{"kind": 5}', "kind: must be a string, not 5"),
        ('{"kind": "chat", "to": 7}', "to: must be a list, not 7"),
        ('{"kind": "chat", "payload": [1]}', "payload: must be an object"),
        ('{"kind": "chat", "context": 5}', "context: must be a string, not 5"),
        ('{"kind": "chat", "to": [null]}', "to.0: must be a string, not null"),
        ("[]", "an envelope must be a JSON object, not an array"),
        ("5", "an envelope must be a JSON object, not a single value"),
    ],
)
def test_an_invalid_header_is_named(raw: str, problem: str) -> None:
    assert problem_of(raw).detail == problem


@pytest.mark.parametrize("raw", ["x" * 11, b"x" * 11, "ö" * 6])
def test_a_message_above_the_limit_is_refused_unparsed(raw: bytes | str) -> None:
    assert problem_of(raw, max_bytes=10).error == errors.TOO_LARGE


def test_the_limit_itself_is_allowed() -> None:
    assert decode("#ö#", max_bytes=4)
    assert decode(b"#xx#", max_bytes=4)


@pytest.mark.parametrize("protocol", [None, "mew/v0.3", "mew/v0.4"])
def test_accepted_versions_and_a_missing_one_are_read(protocol: str | None) -> None:
    assert read_draft({"protocol": protocol, "kind": "chat"}).protocol == protocol


def test_only_an_object_with_every_header_is_an_envelope() -> None:
    whole = {"protocol": "mew/v0.4", "id": "1", "ts": "t", "from": "a", "kind": "chat"}
    assert isinstance(read_draft(whole), Envelope)
    for name in whole:
        assert not isinstance(read_draft({**whole, name: None}), Envelope)
        assert not isinstance(read_draft({key: value for key, value in whole.items() if key != name}), Envelope)


def test_sender_is_an_unknown_key_on_the_wire() -> None:
    assert read_draft({"sender": "mallory", "kind": "chat"}).sender is None


def test_frame_data_may_contain_hashes_and_line_breaks() -> None:
    frame = decode("#s-1#a#b\nc")
    assert isinstance(frame, StreamFrame)
    assert (frame.stream_id, frame.data) == ("s-1", "a#b\nc")


@given(stream_id=stream_ids, data=st.binary(max_size=50) | st.text(max_size=50))
def test_an_encoded_frame_decodes_to_itself(stream_id: str, data: bytes | str) -> None:
    raw = encode_frame(stream_id, data)
    frame = decode(raw)
    assert isinstance(frame, StreamFrame)
    assert (frame.stream_id, frame.data, frame.raw) == (stream_id, data, raw)


@given(raw=st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_decoded_or_refused(raw: bytes | str) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode(raw), Draft | StreamFrame)


@given(value=st.dictionaries(st.text(max_size=8), json_values, max_size=6))
def test_any_json_object_is_decoded_or_refused(value: dict[str, Any]) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode_envelope(json.dumps(value)), Draft)


@given(
    kind=st.text(min_size=1, max_size=20),
    payload=st.dictionaries(st.text(max_size=8), json_values, max_size=4),
    extra=st.dictionaries(st.text(min_size=1, max_size=8).map("x-".__add__), json_values, max_size=3),
    to=st.lists(st.text(max_size=8), max_size=3),
)
def test_a_complete_envelope_encodes_to_the_same_json(
    kind: str, payload: dict[str, Any], extra: dict[str, Any], to: list[str]
) -> None:
    value = {
        "protocol": "mew/v0.3",
        "id": "1",
        "ts": "yesterday",
        "from": "a",
        "to": to,
        "kind": kind,
        "payload": payload,
        **extra,
    }
    draft = decode_envelope(json.dumps(value))
    assert json.loads(Envelope.complete(draft, id="x", ts="y", sender="z").encode()) == value


@given(
    kind=st.sampled_from(["chat", "participant/status"]),
    ids=st.lists(st.sampled_from(['"kind":"chat"', "a", '\\"kind":"']), min_size=1),
    value=json_values,
)
def test_the_kind_is_found_without_parsing(kind: str, ids: list[str], value: object) -> None:
    name = "".join(ids)
    other = {"kind": "mcp/request", "value": value}
    headers = {"from": name, "id": name, "context": name, "correlation_id": ids}
    for form in (json.dumps, lambda one: json.dumps(one, separators=(",", ":"))):
        draft = decode_envelope(form({**other, "payload": other, **headers, "kind": kind}))
        assert kind_in(draft.encode()) == kind.encode()


def nested(levels: int) -> str:
    """An envelope that nests this many levels, its own and its payload's included."""
    return '{"kind": "x", "payload": {"a": ' + "[" * (levels - 2) + "]" * (levels - 2) + "}}"


@pytest.mark.parametrize("form", [str, str.encode])
def test_an_envelope_nests_at_most_to_the_limit(form: Any) -> None:
    assert isinstance(decode(form(nested(100))), Draft)
    assert problem_of(form(nested(101))).error == errors.TOO_DEEP
    assert problem_of(form(nested(150))).error == errors.TOO_DEEP


def test_many_shallow_brackets_are_accepted() -> None:
    decoded = decode('{"kind": "x", "payload": {"a": [' + ",".join(["[]"] * 500) + "]}}")
    assert isinstance(decoded, Draft)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\uDE00b", "\ufffdb"),
        (r"\ud83d\ud83d\ude00\n", "\ufffd😀\n"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\\ud83d \ud83d", r"\ud83d" + " \ufffd"),
        (r"\ud83d" * 20_000, "\ufffd" * 20_000),
    ],
)
def test_half_a_surrogate_pair_is_replaced(escaped: str, text: str) -> None:
    plain = '{"kind":"chat","payload":{"text":"' + escaped + '"}}'
    complete = '{"protocol":"mew/v0.4","id":"1","ts":"t","from":"a",' + plain[1:]
    for raw in (plain, plain.encode(), complete.encode()):
        draft = decode(raw)
        assert isinstance(draft, Draft)
        assert draft.body["text"] == text
        assert decode(draft.encode()) == draft
    with pytest.raises(DecodeError, match="invalid JSON"):
        decode(plain[:-1])


@pytest.mark.parametrize(
    ("written", "sent"),
    [("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "😀"), ("x" * 70_000 + "\ude00", "x" * 70_000 + "\ufffd")],
)
def test_half_a_surrogate_pair_of_a_program_is_replaced(written: str, sent: str) -> None:
    envelope = Envelope.write("chat", id="1", ts="t", sender="ada", payload={"text": [written], "n": 1})
    got = decode(envelope.encode())
    assert isinstance(got, Envelope)
    assert got.body == {"text": [sent], "n": 1}
    with pytest.raises(ValueError, match="serialize"):
        Envelope.write("chat", id="1", ts="t", sender="ada", payload={"text": object()}).encode()


@given(
    headers=st.fixed_dictionaries(
        {"id": st.text() | st.none(), "ts": st.text(min_size=1), "from": st.text() | st.integers(), "kind": st.text()},
        optional={"to": json_values, "correlation_id": json_values, "context": json_values, "payload": json_values},
    ),
    more=st.dictionaries(st.text(), json_values, max_size=3),
    tail=st.sampled_from(["", ',"id":"twice"', ',"protocol":"mew/v0.3"', ',"x":NaN', ',"x":-Infinity', ',"x":1e999']),
    levels=st.sampled_from([0, 50, 200]),
)
def test_the_fast_path_decodes_the_same_as_the_slow_path(
    headers: dict[str, Any], more: dict[str, Any], tail: str, levels: int
) -> None:
    def read(raw: bytes) -> Any:
        try:
            draft = decode(raw)
        except DecodeError as error:
            return error.error, error.code
        assert isinstance(draft, Draft)
        return type(draft), draft, draft.encode()

    deep = json.loads("[" * levels + "]" * levels or "0")
    text = json.dumps(
        {"protocol": "mew/v0.4", **headers, **more, "deep": deep}, separators=(",", ":"), ensure_ascii=False
    )
    raw = f"{text[:-1]}{tail}}}".encode(errors="surrogatepass")
    assert repr(read(raw)) == repr(read(b" " + raw))  # a blank in front is enough not to be taken for the usual form
    complete = decode_complete(raw, 65_536)
    assert complete is None or json.loads(complete[1]) == json.loads(complete[0].encode())


@pytest.mark.parametrize("value", ['"1e400"', "1e308", "1e-400", "1e100", '"' + "9" * 400 + '"'])
def test_a_number_or_text_that_only_looks_too_large_is_accepted(value: str) -> None:
    text = '{"protocol":"mew/v0.4","id":"1","ts":"t","from":"a","kind":"chat","payload":{"text":' + value + "}}"
    assert decode(text.encode()).kind == decode(text).kind == "chat"  # type: ignore[union-attr]
