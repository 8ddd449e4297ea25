"""[pure] Who is in a space, and by which connections. Who may be there is not asked here."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mew_protocol.ids import ParticipantId

from mew_spaces.core.effects import ConnectionId


@dataclass(slots=True)
class Member:
    """Somebody who is here, by at least one connection. `virtual` is the one that is only a log."""

    connections: list[ConnectionId] = field(default_factory=list)
    virtual: ConnectionId | None = None

    @property
    def hearing(self) -> tuple[ConnectionId, ...]:
        """Every connection that is sent what members are sent."""
        return tuple(self.connections) if self.virtual is None else (self.virtual, *self.connections)


class Members(dict[ParticipantId, Member]):
    """The members of a space, in the order in which they joined."""

    def connections_of(self, participants: Iterable[str]) -> tuple[ConnectionId, ...]:
        """The connections of those among them who are here."""
        return tuple(
            connection
            for name in participants
            if (member := self.get(ParticipantId(name))) is not None
            for connection in member.hearing
        )
