"""What no capability could make sendable."""

from typing import Any

import pytest
from mew_protocol import errors
from mew_protocol.envelope import Draft
from mew_spaces.core.validity import invalid, problem_of


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({}, errors.INVALID_ENVELOPE),
        ({"kind": " "}, errors.INVALID_ENVELOPE),
        ({"kind": "k" * 33}, errors.INVALID_ENVELOPE),
        ({"kind": "k", "id": "i" * 129}, errors.INVALID_ENVELOPE),
        ({"kind": "k", "from": "other"}, errors.IDENTITY_MISMATCH),
        ({"kind": "system/register"}, errors.INVALID_REQUEST),
        ({"kind": "system/error"}, errors.RESERVED_KIND),
        ({"kind": "space/invite-ack"}, errors.RESERVED_KIND),
        ({"kind": "chat", "payload": {"text": 5}}, errors.INVALID_PAYLOAD),
        ({"kind": "mcp/request"}, errors.INVALID_PAYLOAD),
    ],
)
def test_a_problem_is_found(message: dict[str, Any], error: str) -> None:
    problem = problem_of(Draft.model_validate(message), "me", name_chars=32)
    assert problem is not None
    assert problem.error == error
    assert problem.message


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "k" * 32, "id": "i" * 128, "from": "me"},
        {"kind": "system/heartbeat"},
        {"kind": "chat", "payload": {"text": "x"}},
        {"kind": "mcp/request", "payload": {"method": "x"}},
        {"kind": "anything/else"},
    ],
)
def test_nothing_is_wrong(message: dict[str, Any]) -> None:
    assert problem_of(Draft.model_validate(message), "me", name_chars=32) is None


def test_a_refusal_of_something_malformed_says_so_in_the_older_word_too() -> None:
    assert invalid(errors.INVALID_ENVELOPE, "no").code == errors.VALIDATION_ERROR
