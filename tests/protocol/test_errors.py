"""The errors of the wire protocol."""

from mew_protocol import errors
from mew_protocol.errors import DecodeError, PayloadError, ProtocolError


def test_protocol_errors_say_what_is_wrong() -> None:
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
