"""Grants and revocations."""

import pytest
from mew_protocol.payloads.capability import Grant, Revoke
from pydantic import ValidationError


def test_a_grant_needs_a_recipient_and_capabilities() -> None:
    assert Grant(recipient="bob", capabilities=({"kind": "chat"},)).grant_id is None
    for wrong in ({"recipient": "bob", "capabilities": []}, {"capabilities": [{"kind": "chat"}]}, {"recipient": ""}):
        with pytest.raises(ValidationError):
            Grant.model_validate(wrong)


def test_a_revocation_names_a_grant_or_patterns() -> None:
    assert Revoke.model_validate({"recipient": "bob", "grant_id": "g"}).capabilities is None
    assert Revoke.model_validate({"recipient": "bob", "capabilities": [{"kind": "chat"}]}).grant_id is None
