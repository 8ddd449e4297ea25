"""[pure] Composes every envelope that the gateway itself sends."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mew_protocol import kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.ids import GATEWAY, ParticipantId
from mew_protocol.payloads.system import SystemError as ErrorPayload
from pydantic import BaseModel

NewId = Callable[[], str]


class SystemMessages:
    """Composes envelopes from `system:gateway`, or from the sender that the wire uses for streams."""

    def __init__(self, new_id: NewId) -> None:
        self.new_id = new_id

    def compose(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any],
        *,
        now: datetime,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        sender: ParticipantId = GATEWAY,
    ) -> Envelope:
        """Return an envelope with a new id; an empty `to` addresses everyone."""
        return Envelope.write(
            kind,
            id=self.new_id(),
            ts=wire_timestamp(now),
            sender=sender,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
        )

    def compose_error(
        self,
        payload: ErrorPayload,
        participant: str | None,
        *,
        now: datetime,
        envelope_id: str | None = None,
        sender: ParticipantId = GATEWAY,
    ) -> Envelope:
        """Return a `system/error` for a participant, if it is known, about the envelope it sent, if that has an id."""
        to = (participant,) if participant else ()
        correlation_id = (envelope_id,) if envelope_id else ()
        return self.compose(kinds.SYSTEM_ERROR, payload, now=now, to=to, correlation_id=correlation_id, sender=sender)
