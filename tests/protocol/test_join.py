"""The forms of a join request."""

from typing import Any

import pytest
from mew_protocol.codec import read_draft
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
