"""The envelope: filling in headers, keeping unknown keys, encoding."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from mew_protocol.codec import read_draft
from mew_protocol.envelope import (
    ACCEPTED_PROTOCOLS,
    PROTOCOL,
    Draft,
    Envelope,
    parse_time,
    unix_seconds,
    wire_timestamp,
)
from mew_protocol.payloads.chat import Chat


def complete(**headers: object) -> Envelope:
    return Envelope.complete(Draft.model_validate(headers), id="new-id", ts="new-ts", sender="sender")


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_every_reader_takes_a_time_without_a_zone_for_utc() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for written in ("2026-01-01T12:00:00", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00+01:00"):
        assert parse_time(written) == noon
        assert unix_seconds(written) == noon.timestamp()


@pytest.mark.parametrize("written", [None, "", "soon", "0001-01-01T00:00:00", "9999-12-31T23:59:59Z"])
def test_a_time_that_some_zone_cannot_show_is_unreadable(written: str | None) -> None:
    assert parse_time(written) is None
    assert unix_seconds(written) is None


def test_only_missing_headers_are_filled_in() -> None:
    filled = complete(kind="chat")
    assert (filled.protocol, filled.id, filled.ts, filled.sender) == ("mew/v0.4", "new-id", "new-ts", "sender")
    given = complete(kind="chat", id="7", ts="yesterday", protocol="mew/v0.3")
    assert (given.protocol, given.id, given.ts) == ("mew/v0.3", "7", "yesterday")


def test_a_null_header_counts_as_missing() -> None:
    written = json.loads(complete(kind="chat", id=None, ts=None, to=None, correlation_id=None, payload=None).encode())
    assert written == {"protocol": "mew/v0.4", "id": "new-id", "ts": "new-ts", "from": "sender", "kind": "chat"}


def test_scalars_become_lists() -> None:
    written = json.loads(complete(kind="chat", to="bob", correlation_id="7").encode())
    assert (written["to"], written["correlation_id"]) == (["bob"], ["7"])


def test_unknown_keys_are_kept_even_when_null() -> None:
    written = json.loads(complete(kind="chat", mood="fine", odd=None).encode())
    assert (written["mood"], written["odd"]) == ("fine", None)


@pytest.mark.parametrize("key", ["cls", "_fields_set", "self", "sender", "__class__", "model_extra", ""])
def test_an_unknown_key_may_have_any_name(key: str) -> None:
    read = read_draft({"kind": "chat", "payload": {"text": "hi"}, key: "mine"})
    filled = Envelope.complete(read, id="new-id", ts="new-ts", sender="sender")
    assert (filled.sender, filled.id) == ("sender", "new-id")
    assert json.loads(filled.encode())[key] == "mine"


def test_an_envelope_is_encoded_compactly_with_headers_first() -> None:
    text = complete(zeta=1, payload={"text": "Grüße"}, kind="chat").encode().decode()
    assert text == (
        '{"protocol":"mew/v0.4","id":"new-id","ts":"new-ts","from":"sender","kind":"chat",'
        '"payload":{"text":"Grüße"},"zeta":1}'
    )


def test_a_new_envelope_leaves_out_empty_headers() -> None:
    envelope = Envelope.write("chat", id="1", ts="t", sender="a", payload=Chat(text="hi"))
    assert envelope.as_dict() == {
        "protocol": "mew/v0.4",
        "id": "1",
        "ts": "t",
        "from": "a",
        "kind": "chat",
        "payload": {"text": "hi"},
    }
    addressed = Envelope.write("chat", id="1", ts="t", sender="a", to=["b"], correlation_id=["9"], context="c/d")
    assert (addressed.to, addressed.correlation_id, addressed.context, addressed.payload) == (
        ("b",),
        ("9",),
        "c/d",
        None,
    )


def test_an_envelope_is_for_its_addressees_or_all() -> None:
    everybody, bob = complete(kind="chat"), complete(kind="chat", to=["bob"])
    assert everybody.is_for("eve")
    assert not everybody.names("eve")
    assert bob.is_for("bob")
    assert bob.names("bob")
    assert not bob.is_for("eve")
    assert complete(kind="chat", to=[]).is_for("eve")


def test_body_addressees_and_correlation_ids_are_never_none() -> None:
    assert dict(complete(kind="chat").body) == {}
    assert complete(kind="chat").addressees == ()
    assert complete(kind="chat").correlation_ids == ()


def test_an_answer_refers_to_each_envelope_it_correlates_with() -> None:
    answer = complete(kind="chat", correlation_id=["1", "2"])
    assert answer.refers_to("1")
    assert answer.refers_to("2")
    assert not answer.refers_to("3")
    assert not complete(kind="chat").refers_to("1")


def test_a_timestamp_is_in_utc_with_milliseconds() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone(timedelta(hours=2)))
    assert wire_timestamp(moment) == "2026-01-02T01:04:05.678Z"
    assert datetime.fromisoformat(wire_timestamp(datetime(2026, 1, 1, tzinfo=UTC))) == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_written_protocol_is_also_accepted() -> None:
    assert PROTOCOL == "mew/v0.4"
    assert PROTOCOL in ACCEPTED_PROTOCOLS
