"""The base of all payload models."""

import pytest
from mew_protocol.payloads.base import Payload
from pydantic import ValidationError


def test_payloads_keep_unknown_keys_and_are_immutable() -> None:
    payload = Payload.model_validate({"mood": "fine"})
    assert payload.model_dump() == {"mood": "fine"}
    with pytest.raises(ValidationError):
        payload.mood = "bad"  # type: ignore[attr-defined]
