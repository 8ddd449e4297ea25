"""Grants and revocations."""

import pytest
from mew_protocol.payloads.capability import Grant, Revoke
from pydantic import ValidationError


def test_a_grant_names_who_gets_what() -> None:
    assert Grant(recipient="bob", capabilities=({"kind": "chat"},)).grant_id is None
    for wrong in ({"recipient": "bob", "capabilities": []}, {"capabilities": [{"kind": "chat"}]}, {"recipient": ""}):
        with pytest.raises(ValidationError):
            Grant.model_validate(wrong)


def test_a_revocation_goes_by_grant_or_by_pattern() -> None:
    assert Revoke.model_validate({"recipient": "bob", "grant_id": "g"}).capabilities is None
    assert Revoke.model_validate({"recipient": "bob", "capabilities": [{"kind": "chat"}]}).grant_id is None
