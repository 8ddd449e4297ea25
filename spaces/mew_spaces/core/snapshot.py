"""[pure] A space at one moment, frozen: what late joiners, HTTP readers and the dashboard are shown."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mew_protocol.payloads.participant import Board, BoardEntry
from mew_protocol.payloads.system import ActiveStream, Member, Welcome
from mew_protocol.timestamp import wire_timestamp


@dataclass(frozen=True, slots=True)
class MemberView:
    """One participant: configured, connected or both."""

    id: str
    connected: bool
    capabilities: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A space as it was at `at`: members in join order first, then who is configured and away."""

    space: str
    name: str | None
    at: datetime
    participants: tuple[MemberView, ...]
    active_streams: tuple[ActiveStream, ...]
    board: tuple[BoardEntry, ...]

    def welcome(self, participant: str, capabilities: tuple[dict[str, object], ...]) -> dict[str, Any]:
        """The payload for a joiner: itself, everybody else who is here, open streams, everybody's last status.

        Only what was said is written: a default of our reading is no statement of the one who reported.
        """
        welcome = Welcome(
            you=Member(id=participant, capabilities=capabilities),
            participants=tuple(
                Member(id=one.id, capabilities=one.capabilities)
                for one in self.participants
                if one.connected and one.id != participant
            ),
            active_streams=self.active_streams,
            board=tuple(entry for entry in self.board if entry.status is not None),
        )
        return welcome.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def as_board(self) -> Board:
        """The board as `GET /spaces/{id}/context` and the event stream say it."""
        board = Board(space=self.space, at=wire_timestamp(self.at), participants=self.board)
        return board.model_copy(update={"name": self.name}) if self.name is not None else board
