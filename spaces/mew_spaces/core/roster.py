"""[pure] Who belongs to a space beyond its space.yaml: who was invited, and who was sent out.

A roster is what survives a restart; storing it is `roster_file`'s business. Tokens are not in it.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Invited(BaseModel):
    """A place made by `space/invite`: what its holder may send, by whom and when it was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capabilities: tuple[dict[str, Any], ...] = ()
    several_sockets: bool = False
    above_configured: bool = False
    """Whether it was made for somebody whom space.yaml had already, and who had been removed."""
    invited_by: str
    invited_at: str


class Roster(BaseModel):
    """Invited participants by id, and the ids that were removed and may not come back uninvited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    invited: dict[str, Invited] = Field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    def place_of(self, participant: str, *, is_configured: bool) -> Invited | None:
        """The invitation that counts: what space.yaml says stands first, unless its participant was removed since."""
        place = self.invited.get(participant)
        return place if place is not None and (place.above_configured or not is_configured) else None

    def with_invited(self, participant: str, place: Invited) -> "Roster":
        """The roster after an invitation; it lifts an earlier removal."""
        return Roster(invited={**self.invited, participant: place}, removed=self.removed - {participant})

    def without(self, participant: str) -> "Roster":
        """The roster after a removal."""
        invited = {name: place for name, place in self.invited.items() if name != participant}
        return Roster(invited=invited, removed=self.removed | {participant})
