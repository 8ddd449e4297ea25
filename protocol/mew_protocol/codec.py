"""[pure] Bytes to `Draft` or `StreamFrame`, and back.

Sizes are checked before anything is parsed. Nothing here knows who sent the bytes or whether they may.
"""

from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import from_json

from mew_protocol.envelope import Draft, Envelope, is_complete
from mew_protocol.errors import (
    INVALID_ENVELOPE,
    INVALID_FRAME,
    INVALID_JSON,
    TOO_DEEP,
    TOO_LARGE,
    UNSUPPORTED_PROTOCOL,
    VALIDATION_ERROR,
    DecodeError,
)
from mew_protocol.version import ACCEPTED_PROTOCOLS, PROTOCOL

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
DEFAULT_MAX_DEPTH = 100

_MARK = 0x23  # '#'

_WHOLE = b'{"protocol":"%s","' % PROTOCOL.encode()
"""How envelopes begin as the usual clients write them: compact, headers first, nothing left out."""

_validate_whole = Envelope.__pydantic_validator__.validate_json


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """`#<stream_id>#<data>`. `raw` is the message as it arrived, so that it can be forwarded untouched."""

    stream_id: str
    raw: bytes | str

    @property
    def data(self) -> bytes | str:
        """What follows the second mark; it may hold marks and newlines of its own."""
        start = len(self.stream_id.encode()) + 2 if isinstance(self.raw, bytes) else len(self.stream_id) + 2
        return self.raw[start:]


def encode_frame(stream_id: str, data: bytes | str) -> bytes | str:
    """A stream frame as text for text data, as bytes for bytes."""
    if isinstance(data, str):
        return f"#{stream_id}#{data}"
    return b"#" + stream_id.encode() + b"#" + data


def decode(
    raw: bytes | str, *, max_bytes: int = DEFAULT_MAX_BYTES, max_depth: int = DEFAULT_MAX_DEPTH
) -> Draft | StreamFrame:
    """Read one WebSocket message, text or binary alike.

    Raises `DecodeError` for anything that is neither a stream frame nor a JSON object of an envelope's shape.
    """
    if isinstance(raw, bytes) and len(raw) <= max_bytes:
        if raw.startswith(_WHOLE):
            envelope = _whole_envelope(raw, max_depth)
            if envelope is not None:
                return envelope
    else:
        check_size(raw, max_bytes)
    if raw[:1] in (b"#", "#"):
        return _decode_frame(raw)
    return _decode_json(raw, max_depth)


def decode_envelope(
    raw: bytes | str, *, max_bytes: int = DEFAULT_MAX_BYTES, max_depth: int = DEFAULT_MAX_DEPTH
) -> Draft:
    """Read one envelope from JSON. Raises `DecodeError`."""
    check_size(raw, max_bytes)
    return _decode_json(raw, max_depth)


def _whole_envelope(raw: bytes, max_depth: int) -> Envelope | None:
    """An envelope that needs no second look, parsed and checked in one go; None for whatever might need one.

    What it returns is what `_decode_json` returns, and where that would raise, it is None.
    """
    # One byte is found, or not, several times as fast as a word is, or as bytes are counted.
    if b"null" in raw or (b"N" in raw and b"NaN" in raw) or (b"I" in raw and b"Infinity" in raw):
        return None
    if raw.count(b"{") + (raw.count(b"[") if b"[" in raw else 0) > max_depth:
        return None
    try:
        envelope: Envelope = _validate_whole(raw, by_alias=True, by_name=False)
    except ValidationError:
        return None
    headers = envelope.__dict__
    is_whole = headers["protocol"] == PROTOCOL and headers["id"] and headers["ts"] and headers["sender"]
    return envelope if is_whole and headers["kind"] else None


def _decode_json(raw: bytes | str, max_depth: int) -> Draft:
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise _too_deep(max_depth) from None
        raise DecodeError(INVALID_JSON, f"not a JSON text: {error}") from None
    # Counting brackets is far cheaper than walking, and few messages have as many as the limit.
    brackets = (raw.count(b"[") + raw.count(b"{")) if isinstance(raw, bytes) else raw.count("[") + raw.count("{")
    if brackets > max_depth and _is_deeper_than(value, max_depth):
        raise _too_deep(max_depth)
    return draft_of(value)


def draft_of(value: object) -> Draft:
    """Read one envelope from a parsed JSON value; it is an `Envelope` already when nothing is missing.

    Raises `DecodeError`.
    """
    if not isinstance(value, dict):
        found = type(value).__name__ if value is not None else "null"
        raise DecodeError(INVALID_ENVELOPE, f"an envelope is a JSON object, not {found}", VALIDATION_ERROR)
    try:
        # The validator itself: `model_validate` is a Python function that does nothing but call it.
        model = Envelope if is_complete(value) else Draft
        draft: Draft = model.__pydantic_validator__.validate_python(value, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part != "dict[str,any]")
        raise DecodeError(INVALID_ENVELOPE, f"{where}: {first['msg']}", VALIDATION_ERROR) from None
    protocol = draft.protocol
    if protocol != PROTOCOL and protocol and protocol not in ACCEPTED_PROTOCOLS:
        raise DecodeError(
            UNSUPPORTED_PROTOCOL,
            f"protocol '{protocol}' is not spoken here, use '{PROTOCOL}'",
            VALIDATION_ERROR,
        )
    return draft


def check_size(raw: bytes | str, max_bytes: int) -> None:
    """Refuse a message above the limit without reading it. Raises `DecodeError`."""
    # A character takes at least one byte, so long texts are refused before they are encoded for counting.
    size = len(raw) if isinstance(raw, bytes) or len(raw) > max_bytes else len(raw.encode(errors="replace"))
    if size > max_bytes:
        raise DecodeError(TOO_LARGE, f"a message holds at most {max_bytes:,} bytes, this one {size:,} or more")


def _too_deep(max_depth: int) -> DecodeError:
    return DecodeError(TOO_DEEP, f"an envelope nests at most {max_depth} levels", VALIDATION_ERROR)


def _is_deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects are nested deeper than this, level by level."""
    level: list[object] = [value]
    for _ in range(levels):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _decode_frame(raw: bytes | str) -> StreamFrame:
    if isinstance(raw, str):
        end = raw.find("#", 1)
        if end > 0:
            return StreamFrame(raw[1:end], raw)
    else:
        end = raw.find(_MARK, 1)
        if end > 0:
            try:
                return StreamFrame(raw[1:end].decode(), raw)
            except UnicodeDecodeError:
                raise DecodeError(INVALID_FRAME, "a stream id must be UTF-8 text") from None
    raise DecodeError(INVALID_FRAME, "a stream frame is '#<stream id>#<data>'; the second '#' is missing")
