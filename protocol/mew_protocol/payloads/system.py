"""[pure] `system/*`: membership and errors, said by the gateway alone (joins and heartbeats excepted)."""

from typing import Any, Literal

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.participant import BoardEntry

Capability = dict[str, Any]
"""A capability pattern, as `mew_protocol.capability` reads it."""


class Member(Payload):
    """A member of a space as others see it."""

    id: str
    capabilities: tuple[Capability, ...] = ()


class ActiveStream(Payload):
    """A stream a late joiner should know. Every other key of the request travels along."""

    stream_id: str
    owner: str
    authorized_writers: tuple[str, ...] = ()
    direction: str | None = None
    created: str | None = None


class DeliveryReceipt(Payload):
    """What became of envelopes that have no echo, for a session that asked for `delivery` when it joined.

    `accepted` and `duplicate` name them in `correlation_id`; `live` says that the session has caught up, `gap` that
    something it missed is gone. `position` is `<epoch>-<sequence>`.
    """

    status: Literal["accepted", "duplicate", "live", "gap"]
    position: str | None = None


class Gap(Payload):
    """Envelopes that a session cannot get any more: those behind `after` and before `before`."""

    after: str
    before: str
    reason: Literal["history_gone", "other_epoch"]


class Delivery(Payload):
    """How a session begins that asked for `delivery`: numbered envelopes follow `position`."""

    position: str
    recovered: bool
    live: bool
    gap: Gap | None = None


class Welcome(Payload):
    """What a joiner learns. `board` is ours: the last context status of every participant."""

    you: Member
    participants: tuple[Member, ...] = ()
    active_streams: tuple[ActiveStream, ...] = ()
    board: tuple[BoardEntry, ...] | None = None
    delivery: Delivery | None = None


class Presence(Payload):
    """Somebody joined, left or was invited."""

    event: Literal["join", "leave", "invited"]
    participant: Member
    invited_by: str | None = None
    reason: str | None = None


class SystemError(Payload):  # noqa: A001 - the wire's word
    """Why an envelope was refused. `error` is a code of `mew_protocol.errors`, `message` says it for people."""

    error: str
    message: str | None = None
    code: str | None = None
    attempted_kind: str | None = None
    your_capabilities: tuple[Capability, ...] | None = None
    targets: tuple[str, ...] | None = None
    stream_id: str | None = None


class Join(Payload):
    """The payload of `system/join`; `mew_protocol.join` reads all its spellings."""

    space: str | None = None
    token: str | None = None
    participant_id: str | None = Field(default=None, alias="participantId")


class Heartbeat(Payload):
    """Nothing: the envelope itself is the message."""


class Register(Payload):
    """Reserved; nobody may send it."""


PAYLOADS: dict[str, type[Payload]] = {
    kinds.SYSTEM_JOIN: Join,
    kinds.SYSTEM_WELCOME: Welcome,
    kinds.SYSTEM_PRESENCE: Presence,
    kinds.SYSTEM_ERROR: SystemError,
    kinds.SYSTEM_RECEIPT: DeliveryReceipt,
    kinds.SYSTEM_HEARTBEAT: Heartbeat,
    kinds.SYSTEM_REGISTER: Register,
}
