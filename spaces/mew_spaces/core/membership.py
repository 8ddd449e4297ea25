"""[pure] Membership: the participants of a space, their connections, and their permissions.

Combines space.yaml with the durable state: invitations, removals, grants, pauses and shutdowns. Methods named after a
change return it; only `apply` changes the state. `proposals` has the proposals; `membership_rules` decides which
changes an envelope may cause. Does not know tokens, sockets or files.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from mew_protocol import kinds
from mew_protocol.capability import (
    EVERY_KIND,
    EVERY_KIND_AT_ANY_DEPTH,
    CapabilityPattern,
    CapabilitySet,
    advertised,
    is_same_value,
    normalise,
)
from mew_protocol.envelope import Draft
from mew_protocol.ids import ParticipantId
from mew_protocol.patterns import Steps
from mew_protocol.payloads.capability import EndedRights
from mew_protocol.payloads.participant import Pause
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.containment import COMPARISON_STEPS, covers
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.proposals import Proposals
from mew_spaces.core.provenance import Rights, RightsOrigins, downstream, sources
from mew_spaces.core.state import ActivePause, CapabilityGrant, Change, Changes, Invitation, SpaceState

_ALL_STEPS = 100 * COMPARISON_STEPS
"""Budget for looking at all rights of a space once, when it starts."""

_MAX_PAUSE_SECONDS = 10 * 365 * 24 * 3600.0
"""Keeps the end of a pause within the range of `datetime`."""


_EVERYTHING = (EVERY_KIND, EVERY_KIND_AT_ANY_DEPTH)

CapabilitySource = Literal["static", "dynamic", "implicit"]
"""Where a capability comes from: space.yaml or an invitation, a grant, or the protocol itself."""


class PermissionDecision(NamedTuple):
    """The result of a capability check: the used permissions, and the pattern that allowed the envelope."""

    permissions: "Permissions"
    matched: CapabilityPattern | None
    source: CapabilitySource | None = None


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one participant. `patterns` (and as JSON, `patterns_json`) are its advertised capabilities."""

    capabilities: CapabilitySet
    patterns: tuple[dict[str, Any], ...]
    patterns_json: bytes
    granted: tuple[dict[str, Any], ...]
    several_connections: bool
    _decisions: dict[int, PermissionDecision] = field(default_factory=dict, repr=False, compare=False)

    def decide(self, draft: Draft, *, ignore_to: bool) -> PermissionDecision:
        """Decide whether an envelope may be sent, by which pattern, and from which source."""
        matched = self.capabilities.match(draft, ignore_to=ignore_to)
        if matched is not None and matched["kind"] in _EVERYTHING and draft.kind == kinds.STREAM_OPEN:
            matched = None  # a message between gateways, so a pattern must name it
        decision = self._decisions.get(id(matched))
        if decision is None:
            source: CapabilitySource | None = None
            if matched is not None:
                source = "dynamic" if matched in self.granted else "static"
            decision = self._decisions[id(matched)] = PermissionDecision(self, matched, source)
        return decision


@dataclass(slots=True)
class MemberConnections:
    """The connections of one member. Those in `logs` only write log files, one per gateway."""

    sockets: list[ConnectionId] = field(default_factory=list)
    logs: list[ConnectionId] = field(default_factory=list)

    @property
    def all(self) -> tuple[ConnectionId, ...]:
        """Every connection that receives broadcasts."""
        return (*self.logs, *self.sockets)


class Membership:
    """The participants of one space. `connected` are the current members, in the order of joining."""

    def __init__(self, config: SpaceConfig, state: SpaceState) -> None:
        self.state = state
        self.connected: dict[ParticipantId, MemberConnections] = {}
        self._config = config
        self._permissions: dict[str, Permissions] = {}
        self._compiled: WeakValueDictionary[bytes, CapabilitySet] = WeakValueDictionary()
        """The capabilities of participants that are given the same, once, by their patterns as JSON."""
        options = config.capabilities
        self.proposals = Proposals(self, ignore_to=options.ignore_to)
        self._origins = RightsOrigins(
            self._invitation_of,
            self._patterns_of_its_own,
            lambda name: self.permissions_of(name).patterns,
            options.ignore_to,
            options.check_grants,
            options.check_invites,
        )

    # Who may be in the space

    @property
    def names(self) -> tuple[str, ...]:
        """All participants, connected or not: configured ones first, then invited ones."""
        names = dict.fromkeys([*self._config.participants, *self.state.invited])
        removed = self.state.removed
        return tuple(name for name in names if name not in removed)

    def has(self, name: str) -> bool:
        """Return whether this id is a participant, connected or not."""
        if name in self.state.removed:
            return False
        return name in self._config.participants or name in self.state.invited

    def resolve(self, name: str) -> ParticipantId | None:
        """Return the participant with this id, else the only one with this display name."""
        if self.has(name):  # ids first, so that a display name cannot take over another participant's id
            return ParticipantId(name)
        found = [key for key, one in self._config.participants.items() if one.name == name and self.has(key)]
        return ParticipantId(found[0]) if len(found) == 1 else None

    def invite(self, participant: str, invitation: Invitation) -> Changes:
        """Add a participant. An invitation also lifts an earlier removal."""
        if participant in self._config.participants:
            invitation = invitation.model_copy(update={"above_configured": True})
        lifted = (Change("removed", participant),) if participant in self.state.removed else ()
        return Change("invited", participant, invitation), *lifted

    def remove(self, participant: str) -> tuple[Changes, tuple[EndedRights, ...]]:
        """Remove a participant and all its rights, until it is invited again.

        A participant invited only for this run may appear in space.yaml later. Returns the changes, and the rights it
        passed on, which end.
        """
        invitation = self._invitation_of(participant)
        is_temporary = invitation is not None and invitation.until_restart and not invitation.above_configured
        changes: list[Change] = [] if is_temporary else [Change("removed", participant, value=True)]
        if participant in self.state.invited:
            changes.append(Change("invited", participant))
        changes += self.state.without(participant)
        after = self.after(tuple(changes))
        unfounded, ended = _end_unfounded(Rights(after.state, after._origins, [participant]))
        return (*changes, *unfounded), ended

    # Who is in the space

    def connections_of(self, participants: Iterable[str]) -> tuple[ConnectionId, ...]:
        """Return the connections of these participants, as far as they are in the space."""
        return tuple(
            connection
            for name in participants
            if (member := self.connected.get(ParticipantId(name))) is not None
            for connection in member.all
        )

    # What each participant may send

    def permissions_of(self, participant: str) -> Permissions:
        """Return a participant's permissions; an unknown participant gets the defaults of the space."""
        permissions = self._permissions.get(participant)
        if permissions is None:
            invitation = self._invitation_of(participant)
            grants = self.state.grants.get(participant, ())
            granted = tuple(pattern for grant in grants if grant.status == "held" for pattern in grant.patterns)
            given: tuple[dict[str, Any], ...] = ()
            if participant not in self.state.removed:
                given = self._config.patterns_of(participant) if invitation is None else invitation.capabilities
            held = normalise((*given, *granted))
            patterns = advertised(held)
            several = self._config.is_person(participant) if invitation is None else invitation.several_sockets
            permissions = Permissions(self._compile(held), patterns, to_json(patterns), granted, several)
            self._permissions[participant] = permissions  # kept until something about the participant changes
        return permissions

    def _compile(self, patterns: tuple[dict[str, Any], ...]) -> CapabilitySet:
        written = to_json(patterns)
        compiled = self._compiled.get(written)
        if compiled is None:
            compiled = self._compiled[written] = CapabilitySet(patterns)
        return compiled

    def may_send(self, participant: str, draft: Draft, *, approving: bool = False) -> bool:
        """Return whether a participant may send an envelope. `approving`: it approves another participant's
        proposal.
        """
        held = self.permissions_of(participant).capabilities
        return held.allows(draft, ignore_to=self._config.capabilities.ignore_to, approving=approving)

    def grant(self, recipient: str, grant: CapabilityGrant) -> Changes:
        """Add a grant; earlier grants stay."""
        return (Change("grants", recipient, (*self.state.grants.get(recipient, ()), grant)),)

    def sources(
        self, giver: str, patterns: Iterable[CapabilityPattern], recipient: str
    ) -> tuple[tuple[str, ...] | None, ...]:
        """Return the sources of each pattern; None for a pattern that `giver` may not pass on to this recipient.

        A giver may pass on its own rights, but may not give a participant back what was withdrawn from it. Raises
        `BudgetExceeded` for too many comparisons.
        """
        steps = Steps(COMPARISON_STEPS)
        has_links = any(grant.status == "withdrawn" for grant in self.state.grants.get(recipient, ()))
        if has_links and giver in downstream(self.state, [recipient]):
            return Rights(self.state, self._origins, [recipient]).sources(giver, patterns, recipient, steps)
        held, ignore_to = self.permissions_of(giver).patterns, self._origins.ignore_to
        return tuple(sources(held, one, ignore_to=ignore_to, steps=steps) for one in patterns)

    def revoke(
        self,
        recipient: str,
        *,
        grant_id: str | None,
        patterns: Iterable[CapabilityPattern] = (),
        keep_passed_on: bool = False,
    ) -> tuple[Changes, tuple[EndedRights, ...]]:
        """Revoke a whole grant, or every granted pattern that equals one of `patterns` or is contained in one.

        Rights that the recipient passed on also end. With `keep_passed_on` they stay, but cannot return to the
        recipient. Capabilities from space.yaml or an invitation stay. Returns the changes and all ended rights. Raises
        `BudgetExceeded` for too many comparisons.
        """
        unwanted, steps = tuple(patterns), Steps(COMPARISON_STEPS)
        named = {index for index, grant in enumerate(self.state.grants.get(recipient, ())) if grant_id in grant.names}
        rights = Rights(self.state, self._origins, [recipient])
        is_changed = rights.withdraw(
            lambda index, pattern: (
                index in named
                or any(covers((one,), pattern, steps=steps) or is_same_value(pattern, one, steps) for one in unwanted)
            ),
            recipient,
            keep_passed_on=keep_passed_on,
        )
        return _end_unfounded(rights) if is_changed else ((), ())

    def drop_grants(self, participants: Iterable[str]) -> Changes:
        """End all grants of absent participants. Rights that they passed on stay."""
        grants = self.state.grants
        granted = [name for name in participants if any(one.status == "held" for one in grants.get(name, ()))]
        if not granted:
            return ()
        rights = Rights(self.state, self._origins, granted)
        for name in granted:
            rights.lapse(name)
        return _end_unfounded(rights)[0]

    def end_unfounded(self) -> tuple[Changes, tuple[EndedRights, ...]]:
        """End rights that lost their source in space.yaml, after a change of the file."""
        return _end_unfounded(Rights(self.state, self._origins), Steps(_ALL_STEPS))

    def _patterns_of_its_own(self, participant: str) -> tuple[dict[str, Any], ...] | None:
        if not self.has(participant):
            return None
        return self._config.patterns_of(participant) if self._invitation_of(participant) is None else ()

    # Who is silenced

    def silenced_because(self, draft: Draft, sender: str, *, now: datetime) -> str | None:
        """Return why a pause or a shutdown blocks this envelope, else None."""
        if draft.kind in kinds.ALLOWED_WHILE_PAUSED:
            return None
        if sender in self.state.shut_down:
            return f"'{sender}' was shut down; join again to continue"
        if self.pause_of(sender, now=now) is None:
            return None
        return f"'{sender}' is paused and may send only acknowledgements, cancellations, statuses and responses"

    def pause_of(self, participant: str, *, now: datetime) -> Pause | None:
        """Return the pause in force for a participant, with its remaining time, or None."""
        pause = self.state.pauses.get(participant)
        if pause is None:
            return None
        left = None if pause.until is None else (pause.until - now).total_seconds()
        return None if left is not None and left <= 0 else Pause(reason=pause.reason, timeout_seconds=left)

    def pause(self, participants: Iterable[str], pause: Pause, envelope_id: str, *, now: datetime) -> Changes:
        """Pause participants; a second pause replaces the first. A pause survives a reconnect."""
        seconds = pause.timeout_seconds
        until = None if seconds is None else now + timedelta(seconds=min(float(seconds), _MAX_PAUSE_SECONDS))
        value = ActivePause(until=until, reason=pause.reason, envelope_id=envelope_id)
        return tuple(Change("pauses", name, value) for name in participants)

    def shift_pauses(self, by: timedelta) -> Changes:
        """Shift the end of every pause after the wall clock was set, so that the remaining time stays."""
        limited = [(name, pause, pause.until) for name, pause in self.state.pauses.items() if pause.until is not None]
        return tuple(
            Change("pauses", name, pause.model_copy(update={"until": end + by})) for name, pause, end in limited
        )

    def resume(self, participants: Iterable[str]) -> Changes:
        """End the pauses of these participants."""
        return tuple(Change("pauses", name) for name in participants if name in self.state.pauses)

    def expired_pauses(self, *, now: datetime) -> dict[str, ActivePause]:
        """Return the pauses that have timed out, by participant."""
        return {name: pause for name, pause in self.state.pauses.items() if self.pause_of(name, now=now) is None}

    def shut_down(self, participants: Iterable[str]) -> Changes:
        """Block participants until they join again."""
        return tuple(Change("shut_down", name, value=True) for name in participants)

    def end_shutdown(self, participant: str) -> Changes:
        """Unblock a participant that joined again."""
        return (Change("shut_down", participant),) if participant in self.state.shut_down else ()

    def apply(self, *changes: Change) -> None:
        """Change the state."""
        for change in changes:
            self.state.apply(change)
            if change.table in ("invited", "removed", "grants"):
                self._permissions.pop(change.key, None)
                self.proposals.forget_approvers()
            if change.table == "proposals":
                self.proposals.reindex(change.key)

    def after(self, changes: Changes) -> "Membership":
        """Return the membership after changes, without proposals, because no right depends on them."""
        return Membership(self._config, self.state.model_copy(update={"proposals": {}}).after(changes))

    def _invitation_of(self, participant: str) -> Invitation | None:
        """Return the valid invitation: space.yaml takes precedence, unless the participant was removed since."""
        invitation = self.state.invited.get(participant)
        is_configured = participant in self._config.participants
        return invitation if invitation is not None and (invitation.above_configured or not is_configured) else None


def _end_unfounded(rights: Rights, steps: Steps | None = None) -> tuple[Changes, tuple[EndedRights, ...]]:
    rights.end_unfounded(steps or Steps(COMPARISON_STEPS))
    return tuple(rights.changes()), rights.no_longer_held()
