"""[pure] `capability/*`: capabilities granted and revoked while a space runs."""

from typing import Any

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload


class Grant(Payload, kind=kinds.CAPABILITY_GRANT):
    """Grant capabilities to a participant."""

    recipient: str = Field(min_length=1)
    capabilities: tuple[dict[str, Any], ...] = Field(min_length=1)
    grant_id: str | None = None
    reason: str | None = None


class Revoke(Payload, kind=kinds.CAPABILITY_REVOKE):
    """Revoke granted capabilities, by the id of the grant or by pattern.

    Capabilities that the recipient passed on also end. With `keep_passed_on` they stay, but cannot be given back.
    """

    recipient: str = Field(min_length=1)
    grant_id: str | None = None
    capabilities: tuple[dict[str, Any], ...] | None = None
    keep_passed_on: bool | None = None
    reason: str | None = None


class EndedRights(Payload):
    """Capabilities that a participant lost, and their giver."""

    participant: str
    granted_by: str
    capabilities: tuple[dict[str, Any], ...]


class Ended(Payload, kind=kinds.CAPABILITY_ENDED):
    """The rights that ended together with a revoked right or a removed participant.

    `omitted` is the number of capabilities missing from a long list.
    """

    ended: tuple[EndedRights, ...]
    omitted: int | None = None


class GrantAck(Payload, kind=kinds.CAPABILITY_GRANT_ACK):
    """The recipient's answer to a grant."""

    status: str | None = None
    grant_id: str | None = None
    reason: str | None = None
