"""[pure] The board: the last status of every participant, as it was said and when.

A figure is kept exactly as its owner reported it; the board adds only its age. It knows nothing of who may see it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import BoardEntry, Status, is_whole_status
from mew_protocol.timestamp import wire_timestamp
from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class _Posted:
    status: Status
    status_id: str
    received_at: datetime


class StatusBoard:
    """Statuses by participant. A disconnect does not erase one: its age tells how much it is worth."""

    def __init__(self) -> None:
        self._posted: dict[str, _Posted] = {}

    def post(self, envelope: Envelope, *, at: datetime) -> bool:
        """Take a `participant/status` of its sender. Returns whether the board changed.

        A status addressed to one asker may be narrowed to the fields it asked for; such a part never replaces a
        whole. A status that does not read as one (`mew_protocol.payloads.participant.Status`) is not shown.
        """
        if not is_whole_status(envelope):
            return False
        try:
            status = Status.model_validate(envelope.body)
        except ValidationError:
            return False
        self._posted[envelope.sender] = _Posted(status, envelope.id, at)
        return True

    @property
    def participants(self) -> tuple[str, ...]:
        """Everybody who ever posted."""
        return tuple(self._posted)

    def entry(self, participant: str, *, connected: bool, now: datetime) -> BoardEntry:
        """One line of the board. `status` is absent while nothing was posted."""
        posted = self._posted.get(participant)
        if posted is None:
            return BoardEntry(id=participant, connected=connected)
        return BoardEntry(
            id=participant,
            connected=connected,
            status=posted.status,
            status_id=posted.status_id,
            received_at=wire_timestamp(posted.received_at),
            age_seconds=round(max(0.0, (now - posted.received_at).total_seconds()), 3),
        )

    def entries(self, participants: Iterable[tuple[str, bool]], *, now: datetime) -> tuple[BoardEntry, ...]:
        """Lines for (participant, connected) pairs, in their order."""
        return tuple(self.entry(name, connected=connected, now=now) for name, connected in participants)
