"""The ways in which a client asks to join."""

from typing import Any

import pytest
from mew_protocol.codec import draft_of
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
def test_every_spelling_of_a_join_is_read(value: dict[str, Any]) -> None:
    assert join_request(draft_of(value)) == JoinRequest(participant="ada", space="demo", token="t")


def test_what_is_left_out_or_no_text_is_none() -> None:
    value = {"type": "join", "space": 5, "token": "", "participantId": None}
    assert join_request(draft_of(value)) == JoinRequest()


@pytest.mark.parametrize(
    "value", [{"kind": "chat", "type": "join"}, {"type": "leave"}, {"kind": "system/heartbeat"}, {}]
)
def test_anything_else_is_no_join(value: dict[str, Any]) -> None:
    assert join_request(draft_of(value)) is None
