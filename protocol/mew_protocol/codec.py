"""[pure] Decodes bytes to a `Draft` or a `StreamFrame`, and encodes stream frames.

Checks sizes before parsing. Does not know the sender or its capabilities.
"""

import re
from math import isinf
from operator import itemgetter
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from mew_protocol import errors
from mew_protocol.envelope import ACCEPTED_PROTOCOLS, PROTOCOL, Draft, Envelope, compiled, is_complete
from mew_protocol.errors import DecodeError, first_mistake

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
"""How many levels deep the JSON of a message may nest."""

MAX_VALUES = 200_000
"""How many values the JSON of a message may hold: 16 MiB of empty lists would take seconds to read."""

_MAX_REPAIRED_BYTES = 4 * 1024 * 1024
"""Larger messages with half of a surrogate pair are refused: each escape takes as long as 100 bytes without one."""

_MAX_KNOWN_ID = 512
"""Length up to which the id of a refused message is repeated in the refusal."""

_COMPLETE_PREFIX = b'{"protocol":"%s","' % PROTOCOL.encode()
"""The start of an envelope as the usual clients write it: compact, headers first, all headers present."""

_headers_of = itemgetter("protocol", "id", "ts", "sender", "kind")

# Numbers that may exceed a double, which the parser reads as infinity: JSON has no infinity. These are two expressions
# that each begin with one class, because `re` skips ahead to a class several times as fast as to an alternative.
_large_exponent = re.compile(rb"[0-9][eE]\+?[0-9]{3}").search
_many_digits = re.compile(rb"[0-9](?<![0-9][0-9])[0-9]{199}").search


_escapes = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
"""Each escape of a JSON text, pairs of surrogates first. Node escapes half of a pair when it cuts an emoji in two."""


_string = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def kind_in(encoded: bytes) -> bytes:
    """Return the kind of an envelope written by `Draft.encode`, without parsing it.

    The first `"kind":"` is the header: earlier headers have no keys of their own, and quotes in their values are
    escaped.
    """
    return encoded.partition(b'"kind":"')[2].partition(b'"')[0]


class StreamFrame(NamedTuple):
    """`#<stream_id>#<data>`. `raw` is the unchanged message, for forwarding."""

    stream_id: str
    raw: bytes | str

    @property
    def data(self) -> bytes | str:
        """The text or bytes after the second `#`; it may contain `#` and line breaks."""
        start = len(self.stream_id.encode()) + 2 if isinstance(self.raw, bytes) else len(self.stream_id) + 2
        return self.raw[start:]


def encode_frame(stream_id: str, data: bytes | str) -> bytes | str:
    """Return a stream frame: a string for a string, bytes for bytes."""
    if isinstance(data, str):
        return f"#{stream_id}#{data}"
    return b"#" + stream_id.encode() + b"#" + data


def decode(
    raw: bytes | str,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    is_text: bool = False,
) -> Draft | StreamFrame:
    """Decode one WebSocket message, text or binary. `is_text`: `raw` contains text.

    Raises `DecodeError` for anything except stream frames and JSON objects in the form of an envelope.
    """
    text = _utf8(raw, max_bytes)
    if text[:1] == b"#":
        return _decode_frame(raw, is_text)
    complete = decode_complete(text, max_bytes)
    return _decode_json(text) if complete is None else complete[0]


def decode_envelope(raw: bytes | str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Draft:
    """Decode one envelope from JSON. Raises `DecodeError`."""
    return _decode_json(_utf8(raw, max_bytes))


def decode_complete(raw: bytes, max_bytes: int) -> tuple[Envelope, bytes] | None:
    """Fast path: decode an envelope in the form of the usual clients. Returns None if the message needs `decode`.

    Returns the same envelope as `decode`, and its `encode`; None where `decode` raises.
    """
    # `find`, because `in` first tries the text as a number.
    if raw[: len(_COMPLETE_PREFIX)] != _COMPLETE_PREFIX or len(raw) > max_bytes or raw.find(b"null") >= 0:
        return None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        return None
    if len(raw) > MAX_VALUES and raw.count(b",") > MAX_VALUES:
        return None
    adapter = compiled(Envelope)
    try:
        envelope: Envelope = adapter.validator.validate_json(raw, by_alias=True, by_name=False)
        data = adapter.serializer.to_json(envelope, by_alias=True, exclude_none=True)  # cheaper than `exclude_unset`
    except ValueError:
        return None
    # A null that the sender did not write stands for NaN, infinity or a number that the parser read as infinity.
    # Encoding costs a third of a search for such numbers, and a gateway needs the bytes in any case.
    if data.find(b"null") >= 0:
        return None
    protocol, envelope_id, ts, sender, kind = _headers_of(envelope.__dict__)
    return (envelope, data) if protocol == PROTOCOL and envelope_id and ts and sender and kind else None


def _parsed(raw: bytes) -> object:
    if len(raw) > MAX_VALUES and _has_too_many_values(raw):
        raise DecodeError(errors.TOO_LARGE, f"a message may hold at most {MAX_VALUES:,} values")
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise _too_deep() from None
        repaired = _without_lone_surrogates(raw) if len(raw) <= _MAX_REPAIRED_BYTES else raw
        if repaired != raw:
            return _parsed(repaired)
        raise DecodeError(errors.INVALID_JSON, f"invalid JSON: {error}") from None


def parse_json(raw: bytes) -> object:
    """Return the value of a JSON text, without NaN, infinity and lone surrogates, so that it can be written as UTF-8.

    Lone surrogates become the replacement character. Raises `DecodeError`.
    """
    value = _parsed(raw)
    _check_value(value, raw)
    return value


def _check_value(value: object, raw: bytes) -> None:
    """Raise `DecodeError` for a number that became infinity, and for a value nested too deeply."""
    if (_large_exponent(raw) or _many_digits(raw)) and _has_infinity(value):
        raise DecodeError(errors.INVALID_JSON, "invalid JSON: a number is too large")
    # Counting brackets is far cheaper than walking the value, and few messages have so many.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise _too_deep()


def _decode_json(raw: bytes) -> Draft:
    value = _parsed(raw)
    try:
        _check_value(value, raw)
        return read_draft(value)
    except DecodeError as problem:
        problem.envelope_id = _id_in(value)
        raise


def _id_in(value: object) -> str | None:
    known = value.get("id") if isinstance(value, dict) else None
    return known if isinstance(known, str) and len(known) <= _MAX_KNOWN_ID else None


def _has_too_many_values(text: bytes) -> bool:
    # Commas within texts are excluded only if there are so many.
    return _separators_in(text) > MAX_VALUES and _separators_in(_string.sub(b"", text)) > MAX_VALUES


def _separators_in(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _without_lone_surrogates(text: bytes) -> bytes:
    """Replace escapes of lone surrogates with the escape of the replacement character."""
    return _escapes.sub(lambda found: rb"\ufffd" if found["lone"] else found[0], text)


def read_draft(value: object) -> Draft:
    """Read an envelope from a parsed JSON value: an `Envelope` if it is complete, else a `Draft`.

    Raises `DecodeError`.
    """
    if not isinstance(value, dict):
        found = "an array" if isinstance(value, list) else "null" if value is None else "a single value"
        raise DecodeError(
            errors.INVALID_ENVELOPE, f"an envelope must be a JSON object, not {found}", errors.VALIDATION_ERROR
        )
    try:
        model = Envelope if is_complete(value) else Draft
        draft = model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        problem = ": ".join(first_mistake(error))
        raise DecodeError(errors.INVALID_ENVELOPE, problem, errors.VALIDATION_ERROR) from None
    protocol = draft.protocol
    if protocol != PROTOCOL and protocol and protocol not in ACCEPTED_PROTOCOLS:
        raise DecodeError(
            errors.UNSUPPORTED_PROTOCOL,
            f"protocol '{protocol}' is not supported; use '{PROTOCOL}'",
            errors.VALIDATION_ERROR,
        )
    return draft


def _utf8(raw: bytes | str, max_bytes: int) -> bytes:
    """Return the bytes of a message. Raises `DecodeError` if they exceed the limit."""
    # A character takes at least one byte, so a text that is too long is refused before it is encoded.
    encoded = raw.encode(errors="replace") if isinstance(raw, str) and len(raw) <= max_bytes else raw
    if isinstance(encoded, str) or len(encoded) > max_bytes:
        raise DecodeError(
            errors.TOO_LARGE,
            f"a message may have at most {max_bytes:,} bytes; this one has {len(encoded):,} or more",
        )
    return encoded


def _too_deep() -> DecodeError:
    problem = f"an envelope may nest at most {MAX_DEPTH} levels deep"
    return DecodeError(errors.TOO_DEEP, problem, errors.VALIDATION_ERROR)


def _has_infinity(value: object) -> bool:
    """Return True if a parsed value contains an infinite number. The parser limits its depth."""
    if isinstance(value, dict):
        return any(map(_has_infinity, value.values()))
    if isinstance(value, list):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and isinf(value)


def _is_too_deep(value: object) -> bool:
    """Return True if lists and objects nest deeper than the limit."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
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


def _decode_frame(raw: bytes | str, is_text: bool) -> StreamFrame:
    if is_text and isinstance(raw, bytes):
        try:
            raw = raw.decode()
        except UnicodeDecodeError:
            problem = "a text message must be UTF-8; send other bytes as binary"
            raise DecodeError(errors.INVALID_FRAME, problem) from None
    if isinstance(raw, str):
        end = raw.find("#", 1)
        if end > 0:
            return StreamFrame(raw[1:end], raw)
    else:
        end = raw.find(b"#", 1)
        if end > 0:
            try:
                return StreamFrame(raw[1:end].decode(), raw)
            except UnicodeDecodeError:
                raise DecodeError(errors.INVALID_FRAME, "a stream id must be UTF-8 text") from None
    raise DecodeError(errors.INVALID_FRAME, "a stream frame is '#<stream id>#<data>'; the second '#' is missing")
