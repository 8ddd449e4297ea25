"""How errors of the wire speak."""

from mew_protocol import errors
from mew_protocol.errors import DecodeError, PayloadError, ProtocolError


def test_both_are_protocol_errors_and_say_what_is_wrong() -> None:
    decoding = DecodeError(errors.INVALID_JSON, "no")
    payload = PayloadError("chat", "payload.text", "missing")
    assert isinstance(decoding, ProtocolError)
    assert isinstance(payload, ProtocolError)
    assert str(decoding) == "invalid_json: no"
    assert decoding.code == errors.PROCESSING_ERROR
    assert str(payload) == "chat: payload.text: missing"


def test_close_codes_are_different_and_in_the_private_range() -> None:
    codes = [value for name, value in vars(errors).items() if name.startswith("CLOSE_")]
    assert len(set(codes)) == len(codes)
    assert all(4000 <= code < 5000 for code in codes)
