"""[pure] `space/*`: inviting and removing participants."""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Invite(Payload, kind=kinds.SPACE_INVITE):
    """Add a participant to the space."""

    participant_id: str = Field(min_length=1)
    initial_capabilities: tuple[dict[str, Any], ...] | None = None
    several_sockets: bool | None = None
    """Whether it may hold several sockets at once, as people may. Otherwise the newest socket supersedes others."""
    until_restart: bool | None = None
    """Whether the invitation ends when the gateway starts next: space.yaml then says who may join."""
    reason: str | None = None


class InviteAck(Payload, kind=kinds.SPACE_INVITE_ACK):
    """The answer of the gateway to an invitation; `status` is `created`, `already_exists` or `error`."""

    status: str
    participant_id: str
    token: str | None = None
    connection_url: str | None = None
    error: str | None = None


class Kick(Payload, kind=kinds.SPACE_KICK):
    """Remove a participant from the space."""

    participant_id: str = Field(min_length=1)
    reason: str | None = None
