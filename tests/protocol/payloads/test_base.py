"""What all payloads share."""

import pytest
from mew_protocol.payloads.base import Payload
from pydantic import ValidationError


def test_unknown_keys_are_kept_and_nothing_changes_later() -> None:
    payload = Payload.model_validate({"mood": "fine"})
    assert payload.model_dump() == {"mood": "fine"}
    with pytest.raises(ValidationError):
        payload.mood = "bad"  # type: ignore[attr-defined]
