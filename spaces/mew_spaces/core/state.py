"""[pure] The durable state of a space as one value, and the changes to it.

Owns everything about a space that has to survive a restart: invitations, removals, grants, pauses, shutdowns, open
proposals and open streams. `SpaceState` holds all of it and serialises as one JSON object. It changes only through
`Change` values, each of which sets or removes one entry. The core returns every change in a `StateChanged` effect,
ahead of the messages that announce it, so a store can write it first.

Does not know why a change was made, who is connected, or where the state is stored.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.system import ActiveStream
from pydantic import BaseModel, ConfigDict, Field


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Invitation(_Record):
    """What `space/invite` gave a participant, who sent the invitation, and when."""

    capabilities: tuple[dict[str, Any], ...] = ()
    several_sockets: bool = False
    above_configured: bool = False
    """Whether it overrides space.yaml: it was sent for a configured participant after that one was removed."""
    invited_by: str
    invited_at: str


class CapabilityGrant(_Record):
    """The patterns of one `capability/grant`. `names` are the ids that a revocation may use for it."""

    names: frozenset[str]
    granter: str
    patterns: tuple[dict[str, Any], ...]


class ActivePause(_Record):
    """A pause in force; without `until` it lasts until a resume."""

    until: datetime | None = None
    reason: str | None = None


class Stream(_Record):
    """An open stream. Empty `targets` mean every member; `names` are the ids that a close may use for it."""

    number: int
    owner: ParticipantId
    writers: tuple[ParticipantId, ...]
    targets: tuple[str, ...] = ()
    created: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    names: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Its name on the wire."""
        return f"stream-{self.number}"

    def describe(self) -> ActiveStream:
        """Return the description that late joiners get."""
        gateway_keys = {
            "stream_id": self.id,
            "owner": self.owner,
            "authorized_writers": self.writers,
            "created": self.created,
        }
        return ActiveStream.model_validate({**self.metadata, **gateway_keys})


class _Change(_Record):
    """Sets the entry `key` of a table to `value`; None removes the entry."""

    key: str


class InvitationChange(_Change):
    """An invitation of the participant `key`."""

    table: Literal["invited"] = "invited"
    value: Invitation | None


class RemovalChange(_Change):
    """A removal of the participant `key`."""

    table: Literal["removed"] = "removed"
    value: Literal[True] | None


class GrantsChange(_Change):
    """All grants of the participant `key`, oldest first."""

    table: Literal["grants"] = "grants"
    value: tuple[CapabilityGrant, ...] | None


class PauseChange(_Change):
    """The pause of the participant `key`."""

    table: Literal["pauses"] = "pauses"
    value: ActivePause | None


class ShutdownChange(_Change):
    """A shutdown of the participant `key`."""

    table: Literal["shut_down"] = "shut_down"
    value: Literal[True] | None


class ProposalChange(_Change):
    """The participants that sent a proposal with the id `key`."""

    table: Literal["proposals"] = "proposals"
    value: tuple[str, ...] | None


class StreamChange(_Change):
    """The open stream with the id `key`."""

    table: Literal["streams"] = "streams"
    value: Stream | None


Change = Annotated[
    InvitationChange | RemovalChange | GrantsChange | PauseChange | ShutdownChange | ProposalChange | StreamChange,
    Field(discriminator="table"),
]


class SpaceState(BaseModel):
    """The durable state of one space. Each field is a table of entries by participant, proposal or stream id."""

    model_config = ConfigDict(extra="forbid")

    invited: dict[str, Invitation] = Field(default_factory=dict)
    removed: set[str] = Field(default_factory=set)
    grants: dict[str, tuple[CapabilityGrant, ...]] = Field(default_factory=dict)
    pauses: dict[str, ActivePause] = Field(default_factory=dict)
    shut_down: set[str] = Field(default_factory=set)
    proposals: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    streams: dict[str, Stream] = Field(default_factory=dict)
    streams_opened: int = 0
    """Number of the newest stream. Stream ids are never reused, so this outlives the streams."""

    def apply(self, change: Change) -> None:
        """Set or remove one entry. Applying the same changes in the same order always gives the same state."""
        entries = getattr(self, change.table)
        if isinstance(entries, set):
            entries.discard(change.key) if change.value is None else entries.add(change.key)
        elif change.value is None:
            entries.pop(change.key, None)
        else:
            entries[change.key] = change.value
        if isinstance(change, StreamChange) and change.value is not None:
            self.streams_opened = max(self.streams_opened, change.value.number)
