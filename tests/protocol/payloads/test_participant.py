"""The state of a participant and the controls over it."""

import pytest
from mew_protocol.payloads.participant import CompactDone, Forget, Pause, Status
from pydantic import ValidationError


def test_a_status_always_counts_messages_and_may_leave_tokens_out() -> None:
    status = Status.model_validate({"messages_in_context": 0, "mood_score": 3})
    assert status.tokens is None
    assert status.model_dump(exclude_none=True)["mood_score"] == 3
    for wrong in ({}, {"messages_in_context": -1}, {"messages_in_context": 1, "tokens": -5}):
        with pytest.raises(ValidationError):
            Status.model_validate(wrong)


def test_a_limit_of_zero_tokens_is_no_limit_anybody_has() -> None:
    with pytest.raises(ValidationError):
        Status.model_validate({"messages_in_context": 1, "max_tokens": 0})


def test_controls_read_their_parts() -> None:
    assert Forget.model_validate({"direction": "oldest"}).entries is None
    assert CompactDone(status="skipped", skipped=True, reason="no_history").freed_tokens is None
    with pytest.raises(ValidationError):
        Forget.model_validate({"direction": "middle"})
    with pytest.raises(ValidationError):
        Pause.model_validate({"timeout_seconds": -1})
