"""[pure] The durable state of a space as one value, and its changes.

Owns everything that must survive a restart: invitations, removals, grants, pauses, shutdowns, proposals, open streams
and the last status of each participant. `SpaceState` contains all of it, and serialises as one JSON object. It changes
only through `Change` values, which set or remove one entry each. The core returns an envelope's changes in a
`StateChanged` effect, and applies them once stored.

Does not know the reasons of changes, the connections, or the storage.
"""

from collections.abc import Iterator, Sized
from copy import copy
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from mew_protocol.ids import ParticipantId
from mew_protocol.payloads.mcp import GATEWAY_KEYS, CallSubject
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic_core import to_json


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _paired(patterns: Sized, through: Sized) -> None:
    """Raise `ValueError` unless each pattern has its sources."""
    if len(patterns) != len(through):
        raise ValueError(f"{len(patterns)} capabilities with the sources of {len(through)}")


class Invitation(_Record):
    """An invitation of a participant: its capabilities, its sender and its time."""

    capabilities: tuple[dict[str, Any], ...] = ()
    several_sockets: bool = False
    above_configured: bool = False
    """Whether it overrides space.yaml: it was sent for a configured participant after that one was removed."""
    until_restart: bool = False
    """Whether it ends with the run, because space.yaml names the participant from the next start on."""
    invited_by: str
    invited_at: str
    through: tuple[tuple[str, ...], ...]
    """For each capability, the patterns of the inviter that it came from; none if invitations are not checked."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _paired(self.capabilities, self.through)
        return self


GrantStatus = Literal["held", "lapsed", "withdrawn"]


class CapabilityGrant(_Record):
    """The patterns of one `capability/grant`. `names` are its ids for a revocation.

    `through` names, for each pattern, its sources among the granter's patterns; empty if grants are not checked. A
    grant that is not `held` gives its recipient nothing: it lapsed in the recipient's absence, or was withdrawn from
    the recipient only. It stays while rights that the recipient passed on depend on it.
    """

    names: frozenset[str]
    granter: str
    patterns: tuple[dict[str, Any], ...]
    through: tuple[tuple[str, ...], ...]
    status: GrantStatus = "held"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _paired(self.patterns, self.through)
        return self


class ActivePause(_Record):
    """An active pause; without `until` it lasts until a resume. `envelope_id` is the id of the pause envelope."""

    until: datetime | None = None
    reason: str | None = None
    envelope_id: str | None = None


class KnownProposal(_Record):
    """A proposal, undecided or decided: the proposed call, its proposer and its peers. Empty `peers` mean any.

    A decided proposal is kept, because answers may still arrive, and because its id must not be reused. `digest` covers
    the proposal. `short_id` is the shortest beginning of its id with which no earlier id began. `envelope` is the
    original proposal while undecided; if too large, it has no parameters and is `truncated`. `decided_by` is the
    participant that fulfilled, answered or withdrew it, or that rejected it as the last possible approver; None if it
    ended otherwise, for example because its proposer left. `rejected_by` are the participants that rejected it so far.
    """

    proposer: str
    peers: tuple[str, ...] = ()
    method: str
    tool: str | None = None
    digest: str
    short_id: str | None = None
    envelope: dict[str, Any] | None = None
    truncated: bool = False
    proposed_at: datetime | None = None
    decided_by: str | None = None
    rejected_by: tuple[str, ...] = ()

    @property
    def subject(self) -> CallSubject:
        """The proposed call."""
        return CallSubject(self.method, self.tool)

    def describe(self, now: datetime) -> dict[str, Any]:
        """Return the description for late joiners: the proposal with its age."""
        age = 0.0 if self.proposed_at is None else max(0.0, (now - self.proposed_at).total_seconds())
        optional = {
            "truncated": self.truncated or None,
            "digest": self.digest,
            "short_id": self.short_id,
            "rejected_by": self.rejected_by or None,
        }
        known = {key: value for key, value in optional.items() if value is not None}
        sent = {key: value for key, value in (self.envelope or {}).items() if key not in GATEWAY_KEYS}
        return {**sent, "age_seconds": round(age, 3), **known}


class Stream(_Record):
    """An open stream. Empty `targets` mean every member; `names` are its ids for a close."""

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

    def describe(self) -> dict[str, Any]:
        """Return the description for late joiners: an `ActiveStream`."""
        return {
            **self.metadata,
            "stream_id": self.id,
            "owner": self.owner,
            "authorized_writers": list(self.writers),
            "created": self.created,
        }


class ReportedStatus(_Record):
    """The unchanged last status of a participant, and its time.

    `figure_at` is the time of the first status with this size and time of measurement.
    """

    status: dict[str, Any]
    envelope_id: str
    received_at: datetime
    figure_at: datetime


Table = Literal["invited", "removed", "grants", "pauses", "shut_down", "proposals", "streams", "statuses"]
"""The tables of `SpaceState`."""


Value = Invitation | tuple[CapabilityGrant, ...] | ActivePause | KnownProposal | Stream | ReportedStatus | Literal[True]
"""An entry of a table. An entry of a set is True."""


class Change(NamedTuple):
    """Sets the entry `key` of a table to `value`, or removes it if that is None."""

    table: Table
    key: str
    value: Value | None = None

    def encode(self) -> bytes:
        """Return the change as JSON."""
        return to_json(self._asdict())

    @staticmethod
    def decode(data: bytes) -> "Change":
        """Read a change. Raises `ValueError` if this version cannot read it."""
        table, key, value = _READ_CHANGE.validate_json(data)
        written = {} if value is None else {table: [key] if value is True else {key: value}}
        entries = getattr(SpaceState.model_validate(written), table)
        return Change(table, key, value if isinstance(entries, set) else entries.get(key))


Changes = tuple[Change, ...]


class _WrittenChange(NamedTuple):
    """A change as JSON. The table determines the type of its value."""

    table: Table
    key: str
    value: Any = None


_READ_CHANGE: Final = TypeAdapter(_WrittenChange)


class SpaceState(BaseModel):
    """The durable state of one space. Each field is a table of entries by participant, proposal or stream id."""

    model_config = ConfigDict(extra="forbid")

    invited: dict[str, Invitation] = Field(default_factory=dict)
    removed: set[str] = Field(default_factory=set)
    grants: dict[str, tuple[CapabilityGrant, ...]] = Field(default_factory=dict)
    pauses: dict[str, ActivePause] = Field(default_factory=dict)
    shut_down: set[str] = Field(default_factory=set)
    proposals: dict[str, KnownProposal] = Field(default_factory=dict)
    streams: dict[str, Stream] = Field(default_factory=dict)
    statuses: dict[str, ReportedStatus] = Field(default_factory=dict)
    streams_opened: int = 0
    """Number of the newest stream. Stream ids are never reused, so this outlives the streams."""

    def without(self, participant: str) -> list[Change]:
        """Return the changes that remove a participant's grants, pause, shutdown and last status."""
        tables: tuple[Table, ...] = ("grants", "pauses", "shut_down", "statuses")
        return [Change(table, participant) for table in tables if participant in getattr(self, table)]

    def apply(self, change: Change) -> None:
        """Set or remove one entry. The same changes in the same order always give the same state."""
        entries = getattr(self, change.table)
        if isinstance(entries, set):
            entries.discard(change.key) if change.value is None else entries.add(change.key)
        elif change.value is None:
            entries.pop(change.key, None)
        else:
            entries[change.key] = change.value
        if isinstance(change.value, Stream):
            self.streams_opened = max(self.streams_opened, change.value.number)

    def changes(self) -> Iterator[Change]:
        """Yield the changes that turn an empty state into this one."""
        for table in get_args(Table):
            entries = getattr(self, table)
            for key in entries:
                yield Change(table, key, True if isinstance(entries, set) else entries[key])

    def after(self, changes: Changes) -> "SpaceState":
        """Return a copy with changes applied."""
        copied = self.model_copy(update={table: copy(getattr(self, table)) for table in get_args(Table)})
        for change in changes:
            copied.apply(change)
        return copied
