"""[pure] `stream/*`: opening, owning and closing data streams. Their frames are not envelopes (`codec`)."""

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.envelope import Ids
from mew_protocol.payloads.base import Payload


class StreamRequest(Payload, kind=kinds.STREAM_REQUEST):
    """Request a stream from the gateway. Further keys are metadata for late joiners."""

    direction: str | None = None
    description: str | None = None
    content_type: str | None = None
    target: Ids | None = None


class Open(Payload, kind=kinds.STREAM_OPEN):
    """A stream was opened."""

    stream_id: str
    owner: str | None = None
    encoding: str = "text"
    authorized_writers: tuple[str, ...] = ()
    target: Ids | None = None


class Close(Payload, kind=kinds.STREAM_CLOSE):
    """A stream ends. Without `stream_id`, `correlation_id` names its opening or its request."""

    stream_id: str | None = None
    reason: str | None = None


class WriteGrant(Payload, kind=(kinds.STREAM_GRANT_WRITE, kinds.STREAM_REVOKE_WRITE)):
    """The owner grants or revokes the right to write to a stream."""

    stream_id: str = Field(min_length=1)
    participant_id: str = Field(min_length=1)
    reason: str | None = None


class TransferOwnership(Payload, kind=kinds.STREAM_TRANSFER_OWNERSHIP):
    """The owner transfers a stream to another participant."""

    stream_id: str = Field(min_length=1)
    new_owner: str = Field(min_length=1)
    reason: str | None = None


class WritersChanged(Payload, kind=(kinds.STREAM_WRITE_GRANTED, kinds.STREAM_WRITE_REVOKED)):
    """The writers of a stream changed."""

    stream_id: str
    participant_id: str
    authorized_writers: tuple[str, ...] = ()
    reason: str | None = None


class OwnershipTransferred(Payload, kind=kinds.STREAM_OWNERSHIP_TRANSFERRED):
    """The owner of a stream changed."""

    stream_id: str
    previous_owner: str
    new_owner: str
    authorized_writers: tuple[str, ...] = ()
    reason: str | None = None
