"""A question to one participant over HTTP, and the events that answer it.

Owns asking and waiting: the event stream is open before the envelope leaves, so no answer can be missed. What is
asked and what counts as the answer is the commands' matter.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Board
from pydantic import BaseModel

from mew_agent.cli.app.options import Flags
from mew_agent.cli.board.live_board import entry_of, follow
from mew_agent.cli.remote.http_api import EventStream
from mew_agent.cli.remote.identity import Seat, take_seat
from mew_agent.errors import ConfigError, NotConnected, PeerTimeout


class NoSuchParticipant(ConfigError):
    """`problem` says who is not there, `expected` lists who is."""

    def __str__(self) -> str:
        return f"{self.problem} (members: {self.expected})"


class NotHere(NotConnected):
    """Nobody can answer: `cause` says who is missing, and since when."""

    def __str__(self) -> str:
        return f"{self.cause}; nobody answers"


@dataclass
class Question:
    """An envelope on its way, and the events that follow it."""

    asker: str
    participant: str
    kind: str
    id: str
    board: Board | None
    events: EventStream
    gateway: str
    timeout_seconds: float
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout_seconds

    def answers(self, *accepted: str, loosely: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Kind and payload of everything of the accepted kinds that the participant says to this.

        `loosely` also takes what names us without naming the question, as agents do that do not correlate. Raises
        `PeerTimeout` or `NotConnected`.
        """
        while True:
            try:
                event = self.events.next(deadline=self.deadline)
            except TimeoutError:
                detail = f"it is paused; {self.remedy}" if self.is_paused else ""
                raise PeerTimeout(self.participant, self.kind, self.timeout_seconds, detail) from None
            self.board, changed = follow(self.board, event.name, event.body)
            body = event.body if event.name == "envelope" and isinstance(event.body, Mapping) else {}
            if body.get("from") == self.participant and self._is_answered_by(body, loosely=loosely):
                if body.get("kind") in accepted:
                    yield str(body["kind"]), body.get("payload") or {}
            elif changed == self.participant and not self._is_here():
                raise NotHere(self.gateway, f"'{self.participant}' left before it answered")

    @property
    def is_paused(self) -> bool:
        """Whether the participant was last heard to be paused: it answers when it is resumed, not before."""
        entry = entry_of(self.board, self.participant) if self.board else None
        return entry is not None and entry.status is not None and entry.status.status == "paused"

    @property
    def remedy(self) -> str:
        """What makes a paused participant speak."""
        return f"`mew resume {self.participant}` lets it speak"

    def _is_answered_by(self, body: Mapping[str, Any], *, loosely: bool) -> bool:
        correlated = body.get("correlation_id") or ()
        return self.id in correlated or (loosely and not correlated and self.asker in (body.get("to") or ()))

    def _is_here(self) -> bool:
        entry = entry_of(self.board, self.participant) if self.board else None
        return entry is not None and entry.connected


@contextmanager
def asking(flags: Flags, participant: str, kind: str, payload: BaseModel, timeout_seconds: float) -> Iterator[Question]:
    seat = take_seat(flags)
    with seat.api.events() as events:
        board, _ = follow(None, "board", _first_board(events))
        _check_member(seat, board, participant)
        identifier = str(uuid4())
        envelope = Envelope.write(
            kind,
            id=identifier,
            ts=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            sender=seat.api.participant,
            to=(participant,),
            payload=payload,
        )
        question = Question(
            seat.api.participant, participant, kind, identifier, board, events, seat.api.gateway, timeout_seconds
        )
        seat.api.send(envelope.as_dict())
        yield question


def _first_board(events: EventStream) -> Any:
    while True:
        event = events.next()
        if event.name == "board":
            return event.body


def _check_member(seat: Seat, board: Board | None, participant: str) -> None:
    entry = entry_of(board, participant) if board else None
    if entry is None:
        members = ", ".join(sorted(one.id for one in board.participants)) if board else "none"
        raise NoSuchParticipant(participant, f"no participant '{participant}' in space '{seat.api.space}'", members)
    if not entry.connected:
        raise NotHere(seat.api.gateway, f"'{participant}' is not in space '{seat.api.space}' now")
