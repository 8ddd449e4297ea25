"""Invitations and removals."""

import pytest
from mew_protocol.payloads.space import Invite, InviteAck, Kick
from pydantic import ValidationError


@pytest.mark.parametrize("model", [Invite, Kick])
def test_somebody_is_named(model: type[Invite] | type[Kick]) -> None:
    assert model.model_validate({"participant_id": "eve"}).participant_id == "eve"
    with pytest.raises(ValidationError):
        model.model_validate({"participant_id": ""})


def test_an_answer_to_an_invitation_may_carry_a_token_or_an_error() -> None:
    assert InviteAck(status="created", participant_id="eve", token="t").error is None
