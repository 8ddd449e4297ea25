"""Statuses and controls of participants."""

from typing import Any

import pytest
from mew_protocol.envelope import Draft
from mew_protocol.payloads.participant import CompactDone, Forget, Pause, Status, is_whole_status
from pydantic import ValidationError

REPORT = {"basis": "reported", "level": "healthy", "revision": 1, "max_tokens_basis": "configured"}
WHOLE: dict[str, Any] = {"messages_in_context": 4, "tokens": 90, "max_tokens": 100, "context": REPORT}


def test_a_status_needs_a_message_count_only() -> None:
    status = Status.model_validate({"messages_in_context": 0, "mood_score": 3})
    assert status.tokens is None
    assert status.model_dump(exclude_none=True)["mood_score"] == 3
    for wrong in ({}, {"messages_in_context": -1}, {"messages_in_context": 1, "tokens": -5}):
        with pytest.raises(ValidationError):
            Status.model_validate(wrong)


def test_a_limit_of_zero_tokens_is_refused() -> None:
    with pytest.raises(ValidationError):
        Status.model_validate({"messages_in_context": 1, "max_tokens": 0})


def test_controls_are_read_with_their_fields() -> None:
    assert Forget.model_validate({"direction": "oldest"}).entries is None
    assert CompactDone(status="skipped", skipped=True, reason="no_history").freed_tokens is None
    with pytest.raises(ValidationError):
        Forget.model_validate({"direction": "middle"})
    with pytest.raises(ValidationError):
        Pause.model_validate({"timeout_seconds": -1})


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (WHOLE, True),
        ({**WHOLE, "context": {**REPORT, "basis": "unknown"}}, True),
        ({"max_tokens": 1, "context": {**REPORT, "basis": "unknown"}}, True),
        ({"context": {"basis": "unknown", "level": "x", "revision": 0}}, True),
        ({"tokens": 5, "max_tokens": 10}, True),
        ({"tokens": 5, "max_tokens": 10, "context": {"basis": "reported", "measured_at": "t"}}, False),
        ({"tokens": 5, "context": REPORT}, False),
        ({"max_tokens": 5, "context": REPORT}, False),
        ({"tokens": 5}, False),
        ({}, False),
    ],
)
def test_an_addressed_status_is_whole_if_its_report_lacks_nothing(payload: dict[str, Any], *, expected: bool) -> None:
    assert is_whole_status(Draft(kind="participant/status", to=("ada",), payload=payload)) is expected


def test_a_broadcast_status_is_always_whole() -> None:
    assert is_whole_status(Draft(kind="participant/status", payload={}))
