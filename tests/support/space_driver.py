"""Drives one pure space and reads its effects as a member would see them."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from mew_protocol.codec import StreamFrame, draft_of
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.effects import (
    Admit,
    Broadcast,
    Close,
    ConnectionId,
    Dismiss,
    Effect,
    Enrol,
    Expel,
    Note,
    Receipt,
    Relay,
    Send,
)
from mew_spaces.core.space import Space

START = datetime(2026, 1, 1, tzinfo=UTC)


class SpaceDriver:
    """A space, a clock that is set by hand, and what every connection was sent."""

    def __init__(self, config: SpaceConfig) -> None:
        numbers = itertools.count(1)
        self.space = Space(config, new_id=lambda: f"id-{next(numbers)}", new_token=lambda: f"token-{next(numbers)}")
        self.now = START
        self.admitted: dict[ConnectionId, None] = {}
        self.inbox: dict[ConnectionId, list[Envelope | StreamFrame]] = {}
        self.closed: dict[ConnectionId, int] = {}
        self.history: list[Envelope] = []
        self.tokens: dict[str, str] = {}
        self.notes: list[Note] = []

    def join(self, number: int, name: str) -> None:
        """A connection joins as somebody."""
        self.inbox.setdefault(ConnectionId(number), [])
        self.perform(self.space.join(ConnectionId(number), ParticipantId(name), now=self.now))

    def leave(self, number: int, name: str) -> None:
        """A connection is gone."""
        self.perform(self.space.leave(ConnectionId(number), ParticipantId(name), now=self.now))

    def say(self, number: int | None, name: str, kind: str | None, payload: Any = None, **headers: Any) -> Receipt:
        """Somebody says something, by a connection or by HTTP."""
        draft = draft_of({"kind": kind, "payload": payload, **headers})
        connection = None if number is None else ConnectionId(number)
        receipt = self.space.receive(draft, sender=ParticipantId(name), connection=connection, now=self.now)
        self.perform(receipt.effects)
        return receipt

    def write(self, number: int, name: str, stream: str, data: str = "data") -> None:
        """Somebody writes a stream frame."""
        frame = StreamFrame(stream, f"#{stream}#{data}")
        self.perform(self.space.relay(frame, sender=ParticipantId(name), connection=ConnectionId(number), now=self.now))

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        self.perform(self.space.expire(now=self.now))

    def perform(self, effects: tuple[Effect, ...]) -> None:
        """Do what the space wants."""
        for effect in effects:
            match effect:
                case Broadcast(envelope, without):
                    self.history.append(envelope)
                    for connection in self.admitted:
                        if connection not in without:
                            self.inbox[connection].append(envelope)
                case Send(envelope, connections, _):
                    for connection in connections:
                        self.inbox.setdefault(connection, []).append(envelope)
                case Relay(frame, connections):
                    for connection in self.admitted if connections is None else connections:
                        self.inbox[connection].append(frame)
                case Admit() | Dismiss() | Close():
                    self._connect(effect)
                case Enrol() | Expel() | Note():
                    self._permit(effect)

    def _connect(self, effect: Admit | Dismiss | Close) -> None:
        match effect:
            case Admit(connection):
                self.admitted[connection] = None
            case Dismiss(connection):
                self.admitted.pop(connection, None)
            case Close(connection, code, _):
                self.closed[connection] = code

    def _permit(self, effect: Enrol | Expel | Note) -> None:
        match effect:
            case Enrol(participant, token, _):
                self.tokens[participant] = token
            case Expel(participant, _, _):
                self.tokens.pop(participant, None)
            case Note():
                self.notes.append(effect)

    def take(self, number: int) -> list[Any]:
        """What a connection was sent since it was last looked at, in short."""
        got = self.inbox.get(ConnectionId(number), [])
        self.inbox[ConnectionId(number)] = []
        return [_short(one) for one in got]

    def last(self, number: int) -> Envelope:
        """The newest envelope a connection was sent."""
        envelope = self.inbox[ConnectionId(number)][-1]
        assert isinstance(envelope, Envelope)
        return envelope


def _short(message: Envelope | StreamFrame) -> Any:
    """A message as its kind and what tells it apart."""
    if isinstance(message, StreamFrame):
        return message.raw
    body = message.body
    for key in ("error", "event", "text", "stream_id"):
        if key in body:
            return f"{message.kind} {body[key]}"
    return message.kind
