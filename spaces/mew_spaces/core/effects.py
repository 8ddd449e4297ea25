"""[pure] Effects: the actions of a space as values. The service performs them one by one, in order.

Connections are only numbers; the service maps them to sockets and files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.system import ErrorPayload

from mew_spaces.core.events import ConnectionId
from mew_spaces.core.membership import PermissionDecision
from mew_spaces.core.state import Changes


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Change the durable state. Comes before the effects that announce the change."""

    changes: Changes


class Broadcast(NamedTuple):
    """Deliver an envelope to every member and to the history, except to the connections in `without`."""

    envelope: Envelope
    without: frozenset[ConnectionId] = frozenset()


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver an envelope to some connections and not to the history. A secret is not logged."""

    envelope: Envelope
    connections: tuple[ConnectionId, ...]
    is_secret: bool = False


class Relay(NamedTuple):
    """Deliver a stream frame unchanged to these connections; None means every member's."""

    frame: StreamFrame
    connections: tuple[ConnectionId, ...] | None = None


@dataclass(frozen=True, slots=True)
class SendWelcome:
    """Send a participant's connections a welcome with the state of the space at that moment."""

    participant: ParticipantId
    connections: tuple[ConnectionId, ...]


@dataclass(frozen=True, slots=True)
class StartDelivery:
    """Start to deliver broadcasts to a connection."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """Stop delivering to a connection; it stays open."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close a connection after everything sent to it before."""

    connection: ConnectionId
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class AddToken:
    """Accept a token for a participant."""

    participant: ParticipantId
    token: str


@dataclass(frozen=True, slots=True)
class RevokeTokens:
    """Remove a participant: stop accepting its tokens, and close all its remaining sockets."""

    participant: ParticipantId


@dataclass(frozen=True, slots=True)
class AuditNote:
    """Log that an envelope changed the permissions of a participant. `capabilities` are the changed patterns."""

    envelope: Envelope
    participant: str
    reason: str | None
    capabilities: tuple[Mapping[str, Any], ...] = ()
    grant_id: str | None = None

    @property
    def event(self) -> str:
        """The kind of the envelope, in the form of logs."""
        return self.envelope.kind.replace("/", "_")


Effect = (
    StateChanged
    | Broadcast
    | Deliver
    | SendWelcome
    | Relay
    | StartDelivery
    | StopDelivery
    | CloseConnection
    | AddToken
    | RevokeTokens
    | AuditNote
)


NO_ANSWER: Mapping[str, Any] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class Receipt:
    """The outcome of one envelope: `accepted` is the envelope, or `refused` the reason."""

    effects: tuple[Effect, ...]
    accepted: Envelope | None = None
    refused: ErrorPayload | None = None
    answer: Mapping[str, Any] = field(default_factory=lambda: NO_ANSWER)
    """Further keys of the answer to an HTTP sender."""
    decision: PermissionDecision | None = None
    """The capability check; None if the envelope was refused before one."""

    @property
    def changes(self) -> Changes:
        """The changes of the state among its effects."""
        return tuple(change for one in self.effects if isinstance(one, StateChanged) for change in one.changes)


def state_changed(changes: Changes) -> tuple[Effect, ...]:
    """Return the effect that stores changes; nothing without changes."""
    return (StateChanged(changes),) if changes else ()


def accept(envelope: Envelope, *before: Effect, answer: Mapping[str, Any] = NO_ANSWER) -> Receipt:
    """Return the receipt of an accepted envelope, which is broadcast after the effects in `before`."""
    return Receipt((*before, Broadcast(envelope)), accepted=envelope, answer=answer)


def refuse(error: str, message: str, *, code: str | None = None, **details: Any) -> Receipt:
    """Return the receipt of a refused envelope; `details` are further keys of the error payload."""
    return Receipt((), refused=ErrorPayload(error=error, message=message, code=code, **details))
