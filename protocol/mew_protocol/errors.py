"""[pure] Errors of received messages, and their codes on the wire.

    ProtocolError
    ├── DecodeError      bytes that are neither an envelope nor a stream frame
    └── PayloadError     an envelope whose payload does not fit its kind

The constants in lower case are the values of `payload.error` in a `system/error`. `payload.code` has the two values of
the TypeScript gateway, so that its clients understand this one. `CLOSE_...` are WebSocket close codes.
"""

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from mew_protocol.expectations import expectation

VALIDATION_ERROR: Final = "VALIDATION_ERROR"
PROCESSING_ERROR: Final = "PROCESSING_ERROR"

INVALID_JSON: Final = "invalid_json"
INVALID_FRAME: Final = "invalid_frame"
INVALID_ENVELOPE: Final = "invalid_envelope"
INVALID_PAYLOAD: Final = "invalid_payload"
INVALID_REQUEST: Final = "invalid_request"
INVALID_OPERATION: Final = "invalid_operation"
TOO_LARGE: Final = "too_large"
TOO_DEEP: Final = "too_deep"
UNSUPPORTED_PROTOCOL: Final = "unsupported_protocol"
UNAUTHORIZED: Final = "unauthorized"
NOT_JOINED: Final = "not_joined"
SUPERSEDED: Final = "superseded"
SLOW_CONSUMER: Final = "slow_consumer"
IDENTITY_MISMATCH: Final = "identity_mismatch"
RESERVED_KIND: Final = "reserved_kind"
CAPABILITY_VIOLATION: Final = "capability_violation"
TARGET_NOT_FOUND: Final = "target_not_found"
STREAM_NOT_FOUND: Final = "stream_not_found"
PARTICIPANT_NOT_FOUND: Final = "participant_not_found"
SPACE_NOT_FOUND: Final = "space_not_found"
ALREADY_EXISTS: Final = "already_exists"
ALREADY_DECIDED: Final = "already_decided"
PROPOSAL_DIFFERS: Final = "proposal_differs"
GRANT_EXCEEDS_OWN: Final = "grant_exceeds_own"
PAUSED: Final = "paused"
LIMIT_EXCEEDED: Final = "limit_exceeded"
RATE_LIMITED: Final = "rate_limited"
REMOVED: Final = "removed"
NOT_STORED: Final = "not_stored"
OUTCOME_UNKNOWN: Final = "outcome_unknown"
INTERNAL_ERROR: Final = "internal_error"
UNAUTHORIZED_STREAM_WRITE: Final = "unauthorized_stream_write"

CLOSE_UNAUTHORIZED: Final = 4401
CLOSE_REMOVED: Final = 4403
CLOSE_NOT_FOUND: Final = 4404
CLOSE_SLOW_CONSUMER: Final = 4408
CLOSE_LIMIT: Final = 4429


class ProtocolError(Exception):
    """Base of errors in a peer's messages."""


@dataclass(eq=False)
class DecodeError(ProtocolError):
    """Bytes that cannot be decoded. `error` is a code of this module, `code` the TypeScript gateway's.

    `envelope_id` is the id of the envelope if it could be read.
    """

    error: str
    detail: str
    code: str = PROCESSING_ERROR
    envelope_id: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.detail}"


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """Return the place of the first mistake in a JSON value, as a dotted path of keys, and the problem there."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"] if step not in _TYPES)
    return place, expectation(first, in_json=True)


_TYPES: Final = frozenset({"str", "int", "dict[str,any]"})
"""What pydantic adds to the place of a value that may have several types."""


@dataclass(eq=False)
class PayloadError(ProtocolError):
    """A payload that does not fit its kind. `field` is a dotted path, `problem` the mistake there."""

    kind: str
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.field}: {self.problem}"
