"""Stream payloads."""

import pytest
from mew_protocol.payloads.stream import Close, StreamRequest, TransferOwnership, WriteGrant
from pydantic import ValidationError


def test_a_request_may_be_empty_and_keeps_its_metadata() -> None:
    assert StreamRequest.model_validate({}).target is None
    request = StreamRequest.model_validate({"direction": "upload", "target": "bob", "sample_rate": 8000})
    assert request.target == ("bob",)
    assert request.model_dump()["sample_rate"] == 8000


def test_a_close_may_name_its_stream_by_correlation() -> None:
    assert Close.model_validate({"reason": "done"}).stream_id is None


@pytest.mark.parametrize("model", [WriteGrant, TransferOwnership])
def test_a_change_of_rights_names_stream_and_participant(model: type[WriteGrant] | type[TransferOwnership]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate({"stream_id": "s"})
