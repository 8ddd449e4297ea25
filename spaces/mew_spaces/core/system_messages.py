"""[pure] The gateway's own words: every envelope that no participant sent is written here."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY, ParticipantId
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.timestamp import wire_timestamp
from pydantic import BaseModel

NewId = Callable[[], str]


class Voice:
    """Writes as `system:gateway`, or under the older name that the wire has for the gateway of streams."""

    def __init__(self, new_id: NewId) -> None:
        self.new_id = new_id

    def say(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any],
        *,
        now: datetime,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        speaker: ParticipantId = GATEWAY,
    ) -> Envelope:
        """An envelope; an empty `to` is meant for everybody."""
        return Envelope.write(
            kind,
            id=self.new_id(),
            ts=wire_timestamp(now),
            sender=speaker,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
        )

    def complain(
        self,
        payload: ErrorPayload,
        participant: str | None,
        *,
        now: datetime,
        about: str | None = None,
        speaker: ParticipantId = GATEWAY,
    ) -> Envelope:
        """A `system/error` for one participant, if it is known who that is; `about` is the id of what it sent."""
        to = (participant,) if participant else ()
        offending = (about,) if about else ()
        return self.say(kinds.SYSTEM_ERROR, payload, now=now, to=to, correlation_id=offending, speaker=speaker)
