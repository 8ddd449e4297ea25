"""[pure] What a space wants done, as data. `service` performs effects one by one, in order.

A connection is known here by its number alone; what is behind the number is the service's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, NewType

from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.system import SystemError as ErrorPayload

from mew_spaces.core.permissions import PermissionDecision
from mew_spaces.core.roster import Roster

ConnectionId = NewType("ConnectionId", int)


class Broadcast(NamedTuple):
    """An envelope for every member and for the history. `without` names connections that do not get it."""

    envelope: Envelope
    without: frozenset[ConnectionId] = frozenset()


@dataclass(frozen=True, slots=True)
class Send:
    """An envelope for some connections only; it does not enter the history. A secret is not logged either."""

    envelope: Envelope
    connections: tuple[ConnectionId, ...]
    is_secret: bool = False


class Relay(NamedTuple):
    """A stream frame, as it came, for the given connections; None means every member's."""

    frame: StreamFrame
    connections: tuple[ConnectionId, ...] | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """From now on a connection receives what is broadcast."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Dismiss:
    """From now on a connection receives nothing; it stays open."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Close:
    """End a connection, after everything it was sent before."""

    connection: ConnectionId
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Enrol:
    """From now on a token names a participant; the roster is to be kept."""

    participant: ParticipantId
    token: str
    roster: Roster


@dataclass(frozen=True, slots=True)
class Expel:
    """From now on no token names a participant, and no socket is its; the roster is to be kept."""

    participant: ParticipantId
    roster: Roster
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something about permissions, for the audit trail. `by` did it, `capabilities` are what it is about."""

    event: str
    envelope_id: str
    participant: str
    by: str
    capabilities: tuple[Mapping[str, Any], ...] = ()
    grant_id: str | None = None
    reason: str | None = None


Effect = Broadcast | Send | Relay | Admit | Dismiss | Close | Enrol | Expel | Note


class Receipt(NamedTuple):
    """What became of one envelope: it was accepted, or `refused` says why. Never both."""

    effects: tuple[Effect, ...]
    accepted: Envelope | None = None
    refused: ErrorPayload | None = None
    answer: Mapping[str, Any] = MappingProxyType({})
    """What an HTTP sender is told beyond id and timestamp."""
    decision: PermissionDecision | None = None
    """None where nobody had to ask for capabilities."""


def refusal(error: str, message: str, *, code: str | None = None, **about: Any) -> Receipt:
    """The receipt of an envelope that is not accepted; `about` are further keys of the error's payload."""
    return Receipt((), refused=ErrorPayload(error=error, message=message, code=code, **about))
