"""[pure] `capability/*`: permissions given and taken while a space runs."""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Grant(Payload):
    """More capabilities for a participant."""

    recipient: str = Field(min_length=1)
    capabilities: tuple[dict[str, Any], ...] = Field(min_length=1)
    grant_id: str | None = None
    reason: str | None = None


class Revoke(Payload):
    """Capabilities taken back, by the grant's id or by pattern."""

    recipient: str = Field(min_length=1)
    grant_id: str | None = None
    capabilities: tuple[dict[str, Any], ...] | None = None
    reason: str | None = None


class GrantAck(Payload):
    """The recipient's answer."""

    status: str | None = None
    grant_id: str | None = None
    reason: str | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.CAPABILITY_GRANT: Grant,
    kinds.CAPABILITY_REVOKE: Revoke,
    kinds.CAPABILITY_GRANT_ACK: GrantAck,
}
