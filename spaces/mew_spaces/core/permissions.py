"""[pure] What each participant may, present or not: space.yaml, invitations, removals and grants taken together."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mew_protocol.capability import CapabilityPattern, CapabilitySet, advertised, normalise
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.grants import Grant, Grants, Pattern
from mew_spaces.core.roster import Invited, Roster

Source = Literal["static", "dynamic", "implicit"]
"""Where a capability comes from: the space's files, a grant, or the protocol itself."""


class PermissionDecision(NamedTuple):
    """What a sender's capabilities said: the seat it spoke from, and the pattern that took the envelope."""

    seat: "Seat"
    matched: CapabilityPattern | None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """One participant's place. `patterns` are its capabilities as they travel, `patterns_json` the same as bytes."""

    capabilities: CapabilitySet
    patterns: tuple[dict[str, Any], ...]
    patterns_json: bytes
    granted: tuple[dict[str, Any], ...]
    several_connections: bool
    _decisions: dict[int, PermissionDecision] = field(default_factory=dict, repr=False, compare=False)

    def decide(self, draft: Draft, *, ignore_to: bool) -> PermissionDecision:
        """Whether this seat may send an envelope, by which pattern and where that comes from."""
        matched = self.capabilities.match(draft, ignore_to=ignore_to)
        known = self._decisions.get(id(matched))
        if known is None:
            source = None if matched is None else self.source_of(matched)
            known = self._decisions[id(matched)] = PermissionDecision(self, matched, source)
        return known

    def source_of(self, pattern: CapabilityPattern) -> Source:
        """Whether a pattern of this seat was granted."""
        return "dynamic" if pattern in self.granted else "static"


class Seats:
    """All places of one space. A seat is made when it is asked for and kept until something about it changes."""

    def __init__(self, config: SpaceConfig, roster: Roster) -> None:
        self.roster = roster
        self._config = config
        self._grants = Grants()
        self._seats: dict[str, Seat] = {}

    def of(self, participant: str) -> Seat:
        """A participant's place; that of somebody unknown has the space's defaults."""
        seat = self._seats.get(participant)
        if seat is None:
            granted = self._grants.of(participant)
            held = normalise((*self._base(participant), *granted))
            patterns = advertised(held)
            seat = self._seats[participant] = Seat(
                CapabilitySet(held), patterns, to_json(patterns), granted, self._is_person(participant)
            )
        return seat

    @property
    def names(self) -> tuple[str, ...]:
        """Everybody who has a place: configured, then invited."""
        everybody = dict.fromkeys([*self._config.participants, *self.roster.invited])
        return tuple(name for name in everybody if name not in self.roster.removed)

    def has(self, participant: str) -> bool:
        """Whether somebody has a place."""
        if participant in self.roster.removed:
            return False
        return participant in self._config.participants or participant in self.roster.invited

    def resolve(self, name: str) -> ParticipantId | None:
        """Who is meant: the participant of this id, else the only one whose display name it is."""
        if self.has(name):
            return ParticipantId(name)
        named = [one for one, place in self._config.participants.items() if place.name == name and self.has(one)]
        return ParticipantId(named[0]) if len(named) == 1 else None

    def invite(self, participant: str, place: Invited) -> Roster:
        """Make a place. Returns the roster to be kept."""
        if participant in self._config.participants:
            place = place.model_copy(update={"above_configured": True})
        self.roster = self.roster.with_invited(participant, place)
        self._seats.pop(participant, None)
        return self.roster

    def remove(self, participant: str) -> Roster:
        """Take a place away, with every grant. Returns the roster to be kept."""
        self.roster = self.roster.without(participant)
        self._grants.forget(participant)
        self._seats.pop(participant, None)
        return self.roster

    def grant(self, recipient: str, grant: Grant) -> None:
        """Give a participant more."""
        self._grants.add(recipient, grant)
        self._seats.pop(recipient, None)

    def revoke(self, recipient: str, *, grant_id: str | None, patterns: tuple[Pattern, ...]) -> list[Pattern]:
        """Take grants back; what space.yaml or an invitation gives stays. Returns what was taken."""
        taken = self._grants.revoke(recipient, grant_id=grant_id, patterns=patterns)
        self._seats.pop(recipient, None)
        return taken

    def forget_grants(self, participant: str) -> None:
        """Grants end when their recipient has left for good."""
        if self._grants.forget(participant):
            self._seats.pop(participant, None)

    def _base(self, participant: str) -> tuple[dict[str, Any], ...]:
        if participant in self.roster.removed:
            return ()
        place = self._invited(participant)
        return place.capabilities if place is not None else self._config.patterns_of(participant)

    def _is_person(self, participant: str) -> bool:
        place = self._invited(participant)
        return place.several_sockets if place is not None else self._config.is_person(participant)

    def _invited(self, participant: str) -> Invited | None:
        return self.roster.place_of(participant, is_configured=participant in self._config.participants)
