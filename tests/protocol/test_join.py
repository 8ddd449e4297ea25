"""The forms of a join request."""

from typing import Any

import pytest
from mew_protocol.codec import read_draft
from mew_protocol.errors import DecodeError
from mew_protocol.join import JoinRequest, join_frame, join_request


@pytest.mark.parametrize(
    "value",
    [
        join_frame(space="demo", participant="ada", token="t"),
        {"type": "join", "space": "demo", "participant_id": "ada", "token": "t"},
        {"type": "join", "payload": {"space": "demo", "participantId": "ada", "token": "t"}},
        {"kind": "system/join", "payload": {"space": "demo", "participant": "ada", "token": "t", "capabilities": []}},
        {"kind": "system/join", "from": "ada", "space": "demo", "token": "t"},
    ],
)
def test_every_form_of_a_join_is_read(value: dict[str, Any]) -> None:
    assert join_request(read_draft(value)) == JoinRequest(participant="ada", space="demo", token="t")


def test_missing_or_invalid_parts_of_a_join_are_none() -> None:
    value = {"type": "join", "space": 5, "token": "", "participantId": None}
    assert join_request(read_draft(value)) == JoinRequest()


@pytest.mark.parametrize(
    "value", [{"kind": "chat", "type": "join"}, {"type": "leave"}, {"kind": "system/heartbeat"}, {}]
)
def test_other_messages_are_not_joins(value: dict[str, Any]) -> None:
    assert join_request(read_draft(value)) is None


@pytest.mark.parametrize(
    ("delivery", "problem"),
    [
        (True, "delivery: must be an object"),
        ({"since": 5}, "delivery.since: must be a string, not 5"),
        ({"last": "five"}, "delivery.last: must be a whole number, not 'five'"),
        ({"last": -1}, "delivery.last: must be at least 0, not -1"),
    ],
)
@pytest.mark.parametrize("form", [{"type": "join"}, {"kind": "system/join"}])
def test_a_join_with_an_invalid_delivery_is_refused(form: dict[str, Any], delivery: object, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem) as refused:
        join_request(read_draft({**form, "payload": {"token": "t", "delivery": delivery}}))
    assert refused.value.error == "invalid_frame"


def test_a_join_without_delivery_or_with_null_asks_for_none() -> None:
    assert join_request(read_draft({"type": "join", "delivery": None})) == JoinRequest()
