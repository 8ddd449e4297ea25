"""Drives one pure space, performs its effects, and shows them as members see them."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from mew_protocol.codec import StreamFrame, read_draft
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_spaces.config.loading import SpaceConfig
from mew_spaces.core.effects import (
    AddToken,
    AuditNote,
    Broadcast,
    CloseConnection,
    Deliver,
    Effect,
    Receipt,
    Relay,
    RevokeTokens,
    SendWelcome,
    StartDelivery,
    StateChanged,
    StopDelivery,
)
from mew_spaces.core.events import (
    ConnectionId,
    ConnectionJoins,
    ConnectionLeaves,
    EnvelopeArrives,
    FrameArrives,
    InputEvent,
    TimePasses,
)
from mew_spaces.core.space_core import SpaceCore
from mew_spaces.core.state import Change, SpaceState
from mew_spaces.core.system_messages import DerivedIds

START = datetime(2026, 1, 1, tzinfo=UTC)


class SpaceDriver:
    """A space, a clock set by hand, and everything each connection received.

    `stored` is the state that a store would hold: only `StateChanged` effects change it.
    """

    def __init__(self, config: SpaceConfig, state: SpaceState | None = None) -> None:
        numbers = itertools.count(1)
        self.stored = SpaceState() if state is None else state.model_copy(deep=True)
        self.space = SpaceCore(
            config,
            DerivedIds(new_id=lambda: f"id-{next(numbers)}", new_token=lambda: f"token-{next(numbers)}"),
            clock=lambda: self.waited_seconds,
            state=self.stored.model_copy(deep=True),
        )
        self.now = START
        self.waited_seconds = 0.0
        self.admitted: dict[ConnectionId, None] = {}
        self.inbox: dict[ConnectionId, list[Envelope | StreamFrame]] = {}
        self.closed: dict[ConnectionId, int] = {}
        self.history: list[Envelope] = []
        self.tokens: dict[str, str] = {}
        self.notes: list[AuditNote] = []
        self.changes: list[Change] = []

    def join(self, number: int, name: str) -> None:
        """Let a connection join as a participant."""
        self.inbox.setdefault(ConnectionId(number), [])
        self._follow(ConnectionJoins(ConnectionId(number), ParticipantId(name), 0))

    def leave(self, number: int, name: str) -> None:
        """Close a connection."""
        self._follow(ConnectionLeaves(ConnectionId(number), ParticipantId(name)))

    def send_envelope(
        self, number: int | None, name: str, kind: str | None, payload: Any = None, **headers: Any
    ) -> Receipt:
        """Send an envelope over a connection, or over HTTP if `number` is None."""
        draft = read_draft({"kind": kind, "payload": payload, **headers})
        connection = None if number is None else ConnectionId(number)
        event = EnvelopeArrives(connection, ParticipantId(name), 0, False, None, draft)
        checked = self.space.check(event, now=self.now)
        if checked is None:
            before = self.space.state.model_copy(deep=True)
            decision = self.space.decide(event, now=self.now)
            assert self.space.state == before, "a decision changed the state"
            assert decision.problem is None
            receipt = decision.receipt
            follows = self.space.apply(decision, after=0)
            self.perform(
                (
                    *(one for one in receipt.effects if isinstance(one, StateChanged)),
                    *follows,
                    *(one for one in receipt.effects if not isinstance(one, StateChanged)),
                )
            )
        else:
            receipt = checked.receipt
            self.perform(receipt.effects)
        return receipt

    def write(self, number: int, name: str, stream: str, data: str = "data") -> None:
        """Send a stream frame."""
        frame = StreamFrame(stream, f"#{stream}#{data}")
        self._follow(FrameArrives(ConnectionId(number), ParticipantId(name), frame))

    def wait(self, seconds: float) -> None:
        """Advance the clock and end what has expired."""
        self.now += timedelta(seconds=seconds)
        self.waited_seconds += seconds
        self._follow(TimePasses())

    def _follow(self, event: InputEvent) -> None:
        """Let a fact happen."""
        decision = self.space.decide(event, now=self.now)
        if decision.problem is not None:
            raise decision.problem
        self.perform(decision.receipt.effects)

    def perform(self, effects: tuple[Effect, ...]) -> None:
        """Perform effects as the service does, and check that changes come before the messages about them."""
        announced = False
        for effect in effects:
            match effect:
                case StateChanged(changes):
                    assert not announced, "a change is announced before it is stored"
                    self._store(changes)
                case Broadcast() | Deliver() | SendWelcome():
                    announced = True
                    self._announce(effect)
                case Relay(frame, connections):
                    for connection in self.admitted if connections is None else connections:
                        self.inbox[connection].append(frame)
                case StartDelivery() | StopDelivery() | CloseConnection():
                    self._change_connection(effect)
                case AddToken() | RevokeTokens() | AuditNote():
                    self._change_membership(effect)
        assert self.stored == self.space.state, "the stored state differs from the state of the space"

    def _announce(self, effect: Broadcast | Deliver | SendWelcome) -> None:
        if isinstance(effect, Broadcast):
            self.history.append(effect.envelope)
            to = [one for one in self.admitted if one not in effect.without]
        else:
            effect = self.space.welcome(effect, now=self.now) if isinstance(effect, SendWelcome) else effect
            to = list(effect.connections)
        for connection in to:
            self.inbox.setdefault(connection, []).append(effect.envelope)

    def _store(self, changes: tuple[Change, ...]) -> None:
        assert changes, "an effect without changes"
        for change in changes:
            self.stored.apply(change)
        self.changes += changes

    def _change_connection(self, effect: StartDelivery | StopDelivery | CloseConnection) -> None:
        match effect:
            case StartDelivery(connection):
                self.admitted[connection] = None
            case StopDelivery(connection):
                self.admitted.pop(connection, None)
            case CloseConnection(connection, code, _):
                self.closed[connection] = code

    def _change_membership(self, effect: AddToken | RevokeTokens | AuditNote) -> None:
        match effect:
            case AddToken(participant, token):
                self.tokens[participant] = token
            case RevokeTokens(participant):
                self.tokens.pop(participant, None)
            case AuditNote():
                self.notes.append(effect)

    def take(self, number: int) -> list[Any]:
        """Return what a connection received since the last call, in short."""
        got = self.inbox.get(ConnectionId(number), [])
        self.inbox[ConnectionId(number)] = []
        return [_short(one) for one in got]

    def last(self, number: int) -> Envelope:
        """Return the newest envelope of a connection."""
        envelope = self.inbox[ConnectionId(number)][-1]
        assert isinstance(envelope, Envelope)
        return envelope


def _short(message: Envelope | StreamFrame) -> Any:
    """Return the kind of a message and its most telling key."""
    if isinstance(message, StreamFrame):
        return message.raw
    body = message.body
    for key in ("error", "event", "text", "stream_id"):
        if key in body:
            return f"{message.kind} {body[key]}"
    return message.kind
