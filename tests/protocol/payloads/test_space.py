"""Invitations and removals."""

import pytest
from mew_protocol.payloads.space import Invite, InviteAck, Kick
from pydantic import ValidationError


@pytest.mark.parametrize("model", [Invite, Kick])
def test_invitations_and_removals_name_a_participant(model: type[Invite] | type[Kick]) -> None:
    assert model.model_validate({"participant_id": "eve"}).participant_id == "eve"
    with pytest.raises(ValidationError):
        model.model_validate({"participant_id": ""})


def test_an_invite_ack_has_a_token_or_an_error() -> None:
    assert InviteAck(status="created", participant_id="eve", token="t").error is None
