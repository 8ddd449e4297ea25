"""[pure] `system/*`: membership, errors and receipts. Only the gateway sends these, except joins and heartbeats."""

from typing import Any, Literal

from pydantic import Field

from mew_protocol import kinds
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.mcp import UndecidedProposal
from mew_protocol.payloads.participant import BoardEntry
from mew_protocol.payloads.text_fit import WouldFit

Capability = dict[str, Any]
"""A capability pattern, as `mew_protocol.capability` reads it."""


class Member(Payload):
    """A member of a space, in the form for others."""

    id: str
    capabilities: tuple[Capability, ...] = ()


class ActiveStream(Payload):
    """An open stream, in the form for late joiners, with the further keys of its request."""

    stream_id: str
    owner: str
    authorized_writers: tuple[str, ...] = ()
    direction: str | None = None
    created: str | None = None


class FrameTotals(Payload):
    """The number of frames per stream since the gateway started; `run` identifies that start."""

    run: str
    counts: dict[str, int]


class DeliveryReceipt(Payload, kind=kinds.SYSTEM_RECEIPT):
    """A receipt for a session, a connection that joined with `delivery`.

    `accepted` and `duplicate` are about envelopes without an echo; `correlation_id` names them. `live`: the session has
    caught up; `frames` has the counts of frames sent meanwhile. `gap`: missed envelopes are no longer available.
    `position` is `<epoch>-<sequence>`.
    """

    status: Literal["accepted", "duplicate", "live", "gap"]
    position: str | None = None
    frames: FrameTotals | None = None


class Gap(Payload):
    """Envelopes that are lost for a session: those after `after` and before `before`."""

    after: str
    before: str
    reason: Literal["history_gone", "other_epoch"]


class DeliveryStart(Payload):
    """Where a session starts: numbered envelopes follow `position`."""

    position: str
    recovered: bool
    live: bool
    gap: Gap | None = None
    frames: FrameTotals | None = None


class SpaceFacts(Payload):
    """Texts for agents: standing instructions, and the purpose of each described participant.

    `would_fit` is how agents treat chats that do not fit (default: `warn`).
    """

    instructions: str | None = None
    descriptions: dict[str, str] = Field(default_factory=dict)
    would_fit: WouldFit = "warn"


class Welcome(Payload, kind=kinds.SYSTEM_WELCOME):
    """The first message to a new member.

    Extensions: `board` (the last status of every participant), `proposals` (undecided ones), and `space`.
    """

    you: Member
    participants: tuple[Member, ...] = ()
    active_streams: tuple[ActiveStream, ...] = ()
    board: tuple[BoardEntry, ...] | None = None
    proposals: tuple[UndecidedProposal, ...] | None = None
    delivery: DeliveryStart | None = None
    space: SpaceFacts | None = None


class Presence(Payload, kind=kinds.SYSTEM_PRESENCE):
    """A participant joined, left or was invited.

    `has_reported`: a status of the participant came between its join and the batch with this presence.
    """

    event: Literal["join", "leave", "invited"]
    participant: Member
    invited_by: str | None = None
    reason: str | None = None
    has_reported: bool | None = None


class PresenceBatch(Payload, kind=kinds.SYSTEM_PRESENCE_BATCH):
    """Several presences at once, in order, for a session that joined with `presence: batched`."""

    changes: tuple[Presence, ...]


class ErrorPayload(Payload, kind=kinds.SYSTEM_ERROR):
    """Why an envelope was refused. `error` is a code of `mew_protocol.errors`, `message` is for people.

    `retry_after_seconds` is the pause before the next join, if the gateway could not admit the connection.
    """

    error: str
    message: str | None = None
    code: str | None = None
    attempted_kind: str | None = None
    your_capabilities: tuple[Capability, ...] | None = None
    targets: tuple[str, ...] | None = None
    stream_id: str | None = None
    retry_after_seconds: float | None = None


class DeliveryOptions(Payload):
    """The `delivery` of a join: numbered envelopes after the position `since`, else from the newest `last` ones on.

    With `presence: batched` the client gets presences in batches.
    """

    since: str | None = None
    last: int | None = Field(default=None, ge=0)
    presence: str | None = None


class Join(Payload, kind=kinds.SYSTEM_JOIN):
    """The payload of `system/join`; `mew_protocol.join` reads all its forms."""

    space: str | None = None
    token: str | None = None
    participant_id: str | None = Field(default=None, alias="participantId")
    delivery: DeliveryOptions | None = None


class Heartbeat(Payload, kind=kinds.SYSTEM_HEARTBEAT):
    """An empty payload: the envelope itself is the message."""


class Register(Payload, kind=kinds.SYSTEM_REGISTER):
    """Reserved. No participant may send it."""
