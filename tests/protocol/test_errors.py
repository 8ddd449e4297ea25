"""The errors of the wire protocol."""

import pytest
from mew_protocol import errors, kinds
from mew_protocol.envelope import Draft
from mew_protocol.errors import DecodeError, PayloadError, ProtocolError
from mew_protocol.payloads.base import read_payload
from mew_protocol.payloads.participant import Forget


def test_protocol_errors_describe_the_problem() -> None:
    decoding = DecodeError(errors.INVALID_JSON, "no")
    payload = PayloadError("chat", "payload.text", "missing")
    assert isinstance(decoding, ProtocolError)
    assert isinstance(payload, ProtocolError)
    assert str(decoding) == "invalid_json: no"
    assert decoding.code == errors.PROCESSING_ERROR
    assert str(payload) == "chat: payload.text: missing"


def test_close_codes_are_distinct_and_private() -> None:
    codes = [value for name, value in vars(errors).items() if name.startswith("CLOSE_")]
    assert len(set(codes)) == len(codes)
    assert all(4000 <= code < 5000 for code in codes)


def test_a_misspelt_word_of_an_envelope_is_named_with_the_meant_one() -> None:
    with pytest.raises(PayloadError, match=r"must be 'oldest' or 'newest', not 'oldst' \(did you mean 'oldest'\?\)"):
        read_payload(Draft(kind=kinds.PARTICIPANT_FORGET, payload={"direction": "oldst"}), Forget)
