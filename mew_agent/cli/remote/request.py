"""Sends one envelope over HTTP and follows the events that answer it.

Owns sending and waiting: the event stream opens before the envelope is sent, so no answer is missed. The commands
decide what to send and which kinds answer it.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import Board, BoardEntry
from pydantic import BaseModel

from mew_agent.cli.app.options import ConnectionOptions
from mew_agent.cli.board.live_board import apply_event, entry_of
from mew_agent.cli.remote.http_api import EventStream
from mew_agent.cli.remote.session import ApiSession, open_session
from mew_agent.errors import ConfigError, NotConnected, PeerTimeout


class NoSuchParticipant(ConfigError):
    """`problem` names the participant that does not exist, `expected` lists those that do."""

    def __str__(self) -> str:
        return f"{self.problem} (members: {self.expected})"


class ParticipantOffline(NotConnected):
    """No answer can come; `cause` names the participant that is not connected."""

    def __str__(self) -> str:
        return self.cause


@dataclass
class SentRequest:
    """An envelope that was sent, and the events that follow it."""

    sender: str
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

    def answers(self, *kinds: str, accept_uncorrelated: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Kind and payload of each answer of these kinds from the participant.

        `accept_uncorrelated` also accepts an envelope addressed to the sender without a correlation id, for agents that
        do not correlate. Raises `PeerTimeout` or `NotConnected`.
        """
        while True:
            try:
                event = self.events.next(deadline=self.deadline)
            except TimeoutError:
                detail = f"it is paused; {self.resume_hint}" if self.is_paused else ""
                raise PeerTimeout(self.participant, self.kind, self.timeout_seconds, detail) from None
            self.board, changed = apply_event(self.board, event.name, event.body)
            body = event.body if event.name == "envelope" and isinstance(event.body, Mapping) else {}
            if body.get("from") == self.participant and self._is_answered_by(
                body, accept_uncorrelated=accept_uncorrelated
            ):
                if body.get("kind") in kinds:
                    yield str(body["kind"]), body.get("payload") or {}
            elif changed == self.participant and not (self.entry is not None and self.entry.connected):
                raise ParticipantOffline(self.gateway, f"'{self.participant}' left before it answered")

    @property
    def entry(self) -> BoardEntry | None:
        """The participant's entry on the board."""
        return entry_of(self.board, self.participant) if self.board else None

    @property
    def is_paused(self) -> bool:
        """Whether the participant last reported that it is paused; it answers after it is resumed."""
        entry = self.entry
        return entry is not None and entry.status is not None and entry.status.status == "paused"

    @property
    def resume_hint(self) -> str:
        """The command that resumes the participant."""
        return f"`mew resume {self.participant}` resumes it"

    def _is_answered_by(self, body: Mapping[str, Any], *, accept_uncorrelated: bool) -> bool:
        correlated = body.get("correlation_id") or ()
        return self.id in correlated or (
            accept_uncorrelated and not correlated and self.sender in (body.get("to") or ())
        )


@contextmanager
def send_request(
    connection: ConnectionOptions, participant: str, kind: str, payload: BaseModel, timeout_seconds: float
) -> Iterator[SentRequest]:
    """Send an envelope to one participant. Raises `NoSuchParticipant` or `ParticipantOffline` before sending it."""
    session = open_session(connection)
    with session.api.events() as events:
        board, _ = apply_event(None, "board", _first_board(events))
        _check_member(session, board, participant)
        envelope = new_envelope(session, kind, payload, participant)
        request = SentRequest(
            session.api.participant,
            participant,
            kind,
            envelope.id,
            board,
            events,
            session.api.gateway,
            timeout_seconds,
        )
        session.api.send(envelope.as_dict())
        yield request


def new_envelope(session: ApiSession, kind: str, payload: BaseModel, *to: str) -> Envelope:
    """An envelope from the session's participant, with a new id and the current time."""
    return Envelope.write(
        kind,
        id=str(uuid4()),
        ts=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        sender=session.api.participant,
        to=to,
        payload=payload,
    )


def _first_board(events: EventStream) -> Any:
    while True:
        event = events.next()
        if event.name == "board":
            return event.body


def _check_member(session: ApiSession, board: Board | None, participant: str) -> None:
    entry = entry_of(board, participant) if board else None
    space = session.api.space
    if entry is None:
        members = ", ".join(sorted(one.id for one in board.participants)) if board else "none"
        raise NoSuchParticipant(participant, f"no participant '{participant}' in space '{space}'", members)
    if not entry.connected:
        raise ParticipantOffline(session.api.gateway, f"'{participant}' is not connected to space '{space}'")
