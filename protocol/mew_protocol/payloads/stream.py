"""[pure] `stream/*`: opening, owning and closing data streams. Frames themselves are no envelopes (`codec`)."""

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.envelope import Ids
from mew_protocol.payloads.base import Payload


class StreamRequest(Payload):
    """Ask the gateway for a stream; every further key is metadata that late joiners see."""

    direction: str | None = None
    description: str | None = None
    content_type: str | None = None
    target: Ids | None = None


class Open(Payload):
    """A stream exists now."""

    stream_id: str
    owner: str | None = None
    encoding: str = "text"
    authorized_writers: tuple[str, ...] = ()
    target: Ids | None = None


class Close(Payload):
    """A stream ends; `correlation_id` names its opening where `stream_id` is left out."""

    stream_id: str | None = None
    reason: str | None = None


class WriteGrant(Payload):
    """The owner lets somebody write, or takes that back."""

    stream_id: str = Field(min_length=1)
    participant_id: str = Field(min_length=1)
    reason: str | None = None


class TransferOwnership(Payload):
    """The owner gives a stream away."""

    stream_id: str = Field(min_length=1)
    new_owner: str = Field(min_length=1)
    reason: str | None = None


class WritersChanged(Payload):
    """Who may write now."""

    stream_id: str
    participant_id: str
    authorized_writers: tuple[str, ...] = ()
    reason: str | None = None


class OwnershipTransferred(Payload):
    """Who owns a stream now."""

    stream_id: str
    previous_owner: str
    new_owner: str
    authorized_writers: tuple[str, ...] = ()
    reason: str | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.STREAM_REQUEST: StreamRequest,
    kinds.STREAM_OPEN: Open,
    kinds.STREAM_CLOSE: Close,
    kinds.STREAM_GRANT_WRITE: WriteGrant,
    kinds.STREAM_REVOKE_WRITE: WriteGrant,
    kinds.STREAM_TRANSFER_OWNERSHIP: TransferOwnership,
    kinds.STREAM_WRITE_GRANTED: WritersChanged,
    kinds.STREAM_WRITE_REVOKED: WritersChanged,
    kinds.STREAM_OWNERSHIP_TRANSFERRED: OwnershipTransferred,
}
