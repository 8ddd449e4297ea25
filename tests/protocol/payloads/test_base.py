"""What all payloads share."""

import pytest
from pydantic import ValidationError

from protocol.payloads.base import Payload


def test_unknown_keys_are_kept_and_nothing_changes_later() -> None:
    payload = Payload.model_validate({"mood": "fine"})
    assert payload.model_dump() == {"mood": "fine"}
    with pytest.raises(ValidationError):
        payload.mood = "bad"  # type: ignore[attr-defined]
