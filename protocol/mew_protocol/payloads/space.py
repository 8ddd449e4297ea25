"""[pure] `space/*`: bringing people in and sending them out."""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Invite(Payload):
    """Make a place for somebody."""

    participant_id: str = Field(min_length=1)
    initial_capabilities: tuple[dict[str, Any], ...] | None = None
    several_sockets: bool | None = None
    """Whether it is a person, who may hold several sockets at once; of a program the newest socket counts."""
    reason: str | None = None


class InviteAck(Payload):
    """The gateway's answer to an invite; `status` is `created`, `already_exists` or `error`."""

    status: str
    participant_id: str
    token: str | None = None
    connection_url: str | None = None
    error: str | None = None


class Kick(Payload):
    """Send somebody out."""

    participant_id: str = Field(min_length=1)
    reason: str | None = None


PAYLOADS: dict[str, type[Payload]] = {
    kinds.SPACE_INVITE: Invite,
    kinds.SPACE_INVITE_ACK: InviteAck,
    kinds.SPACE_KICK: Kick,
}
