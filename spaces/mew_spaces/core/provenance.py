"""[pure] The sources of given rights, and the rights that end with another one.

A right is one pattern of a grant or an invitation. It names the giver's patterns that allowed it, and is valid while
these are: each chain ends at patterns of space.yaml. A right that its holder lost may stay as a link of such chains
while a valid right depends on it. `membership` gives and withdraws rights.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from mew_protocol.capability import CapabilityPattern, normalise
from mew_protocol.patterns import BudgetExceeded, Steps
from mew_protocol.payloads.capability import EndedRights

from mew_spaces.core.containment import covering
from mew_spaces.core.state import CapabilityGrant, Change, GrantStatus, Invitation, SpaceState


@dataclass(eq=False, slots=True)
class _Right:
    holder: str
    granter: str
    pattern: dict[str, Any]
    through: tuple[str, ...]
    status: GrantStatus
    record: int
    """The index of its grant; -1 for the invitation."""
    is_free: bool
    """Whether it needs no source: the check of grants or of invitations is switched off."""
    _node: tuple[str, str] | None = None

    @property
    def node(self) -> tuple[str, str]:
        if self._node is None:  # rarely needed: most rights are never passed on
            self._node = self.holder, _key(self.pattern)
        return self._node

    @property
    def sources(self) -> list[tuple[str, str]]:
        return [(self.granter, key) for key in self.through]


@dataclass(frozen=True, slots=True)
class RightsOrigins:
    """The sources of rights in a space. `roots` returns a participant's own patterns; None if it is unknown.

    Its own patterns come from space.yaml. `holdings` returns all its patterns, `invitation` its valid invitation.
    """

    invitation: Callable[[str], Invitation | None]
    roots: Callable[[str], Sequence[CapabilityPattern] | None]
    holdings: Callable[[str], Sequence[CapabilityPattern]]
    ignore_to: bool
    check_grants: bool
    check_invites: bool


_Kept = dict[str, dict[tuple[int, GrantStatus], list[_Right]]]
"""The rights of each holder, by the place of their record in the state and by their status."""


class Rights:
    """The given rights of some participants and of everyone they passed rights on to, or of all participants.

    Assumes that other rights are valid. `changes` returns the changes; they are not applied.
    """

    def __init__(self, state: SpaceState, origins: RightsOrigins, participants: Iterable[str] | None = None) -> None:
        self._state, self._origins = state, origins
        self._concerned = None if participants is None else downstream(state, participants)
        self._known_roots: dict[str, Mapping[str, CapabilityPattern]] = {}
        self._held: dict[str, list[_Right]] = {}
        for holder in dict.fromkeys([*state.invited, *state.grants]):
            if self._concerned is None or holder in self._concerned:
                self._held[holder] = list(self._read(holder))
        self._rights = [one for rights in self._held.values() for one in rights]
        self._before = [one.status for one in self._rights]
        self._givers = {one.granter for one in self._rights}
        self._ended: set[_Right] = set()

    def _read(self, holder: str) -> Iterator[_Right]:
        invitation = self._origins.invitation(holder)
        if invitation is not None:
            is_free, giver = not self._origins.check_invites, invitation.invited_by
            for pattern, through in zip(invitation.capabilities, invitation.through, strict=True):
                yield _Right(holder, giver, pattern, through, "held", -1, is_free)
        is_free = not self._origins.check_grants
        for index, grant in enumerate(self._state.grants.get(holder, ())):
            for pattern, through in zip(grant.patterns, grant.through, strict=True):
                yield _Right(holder, grant.granter, pattern, through, grant.status, index, is_free)

    def sources(
        self, giver: str, patterns: Iterable[CapabilityPattern], recipient: str, steps: Steps
    ) -> tuple[tuple[str, ...] | None, ...]:
        """Return the sources of new rights; None for a right that its giver may not pass on to this recipient.

        Rights that were withdrawn from the recipient, but passed on before, cannot be given back to it. Raises
        `BudgetExceeded`.
        """
        valid = self._valid(without=recipient)
        return tuple(self._covering(giver, valid, one, steps) for one in patterns)

    def withdraw(self, rights: Callable[[int, CapabilityPattern], bool], holder: str, *, keep_passed_on: bool) -> bool:
        """Withdraw the granted rights of a participant selected by `rights` (by index of grant and pattern).

        Returns False if there are none.
        """
        chosen = [one for one in self._held.get(holder, ()) if one.record >= 0 and rights(one.record, one.pattern)]
        for one in chosen:
            one.status = "withdrawn"
        if not keep_passed_on:
            self._ended.update(chosen)
        return bool(chosen)

    def lapse(self, holder: str) -> None:
        """End an absent participant's grants. Rights that it passed on stay."""
        for one in self._held.get(holder, ()):
            if one.record >= 0 and one.status == "held":
                one.status = "lapsed"

    def end_unfounded(self, steps: Steps) -> None:
        """End every right without a valid chain, and drop links that no right needs.

        A right whose source ended stays if its giver has another source. After `steps` comparisons it ends.
        """
        while True:
            valid = self._valid()
            lost = [one for one in self._lasting if not self._is_valid(one, valid)]
            if not lost or not self._find_other_sources(lost, valid, steps):
                break
        self._ended.update(lost)
        for holder in dict.fromkeys(one.holder for one in self._lasting if one.status == "withdrawn"):
            self._withdraw_what_follows(holder)
        self._drop_links()

    @property
    def _lasting(self) -> list[_Right]:
        """The rights that have not ended."""
        return [one for one in self._rights if one not in self._ended]

    def _withdraw_what_follows(self, holder: str) -> None:
        """Withdraw the rights that a participant gave away and no longer has itself."""
        valid = self._valid(without=holder)
        for one in self._held[holder]:
            if one.status == "held" and not self._is_valid(one, valid):
                one.status = "withdrawn"

    def _find_other_sources(self, lost: Iterable[_Right], valid: set[tuple[str, str]], steps: Steps) -> bool:
        found = False
        for one in lost:
            try:
                through = self._covering(one.granter, valid, one.pattern, steps)
            except BudgetExceeded:
                return found
            if through is not None:
                one.through, found = through, True
        return found

    def _drop_links(self) -> None:
        """Drop ended rights on which no valid right depends."""
        by_node: dict[tuple[str, str], list[_Right]] = defaultdict(list)
        for one in self._lasting:
            if one.holder in self._givers:
                by_node[one.node].append(one)
        needed: set[_Right] = set()
        waiting = [one for one in self._lasting if one.status == "held"]
        while waiting:
            one = waiting.pop()
            if one not in needed:
                needed.add(one)
                for source in one.sources:
                    waiting += by_node.get(source, ())
        self._ended.update(one for one in self._rights if one not in needed)

    def changes(self) -> list[Change]:
        """Return the changes to the state."""
        kept: _Kept = defaultdict(lambda: defaultdict(list))
        for one in self._lasting:
            kept[one.holder][one.record, one.status].append(one)
        return [*self._invitation_changes(kept), *self._grant_changes(kept)]

    def _invitation_changes(self, kept: _Kept) -> Iterator[Change]:
        """Remove the rights of invitations from `kept`."""
        for holder in self._held:
            invitation = self._origins.invitation(holder)
            rest = kept[holder].pop((-1, "held"), [])
            if invitation is None:
                continue
            given = tuple(one.pattern for one in rest)
            through = tuple(one.through for one in rest)
            if (given, through) != (invitation.capabilities, invitation.through):
                changed = invitation.model_copy(update={"capabilities": given, "through": through})
                yield Change("invited", holder, changed)

    def _grant_changes(self, kept: _Kept) -> Iterator[Change]:
        for holder in self._held:
            before = self._state.grants.get(holder, ())
            after = []
            for (record, status), rights in kept[holder].items():
                of_it = {
                    "patterns": tuple(one.pattern for one in rights),
                    "through": tuple(one.through for one in rights),
                    "status": status,
                }
                if record >= 0:
                    after.append(before[record].model_copy(update=of_it))
                else:  # of an invitation
                    after.append(CapabilityGrant(names=frozenset(), granter=rights[0].granter, **of_it))
            if tuple(after) != before:
                yield Change("grants", holder, tuple(after) or None)

    def no_longer_held(self) -> tuple[EndedRights, ...]:
        """Return the lost rights, by holder and giver."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for one, before in zip(self._rights, self._before, strict=True):
            if before == "held" and (one in self._ended or one.status != "held"):
                found[one.holder, one.granter].append(one.pattern)
        return tuple(
            EndedRights(participant=holder, granted_by=giver, capabilities=tuple(patterns))
            for (holder, giver), patterns in found.items()
        )

    def _valid(self, *, without: str | None = None) -> set[tuple[str, str]]:
        """Return the patterns with a valid chain; with `without`, except those withdrawn from that participant."""
        valid: set[tuple[str, str]] = set()
        missing: dict[_Right, int] = {}
        dependents: dict[tuple[str, str], list[_Right]] = defaultdict(list)
        ready: list[_Right] = []
        for one in self._lasting:
            if one.status == "withdrawn" and one.holder == without:
                continue
            open_sources = self._open_sources(one)
            for source in open_sources:
                dependents[source].append(one)
            missing[one] = len(open_sources)
            if not open_sources and self._is_valid(one, valid):
                ready.append(one)
        while ready:
            one = ready.pop()
            if one.holder in self._givers and (node := one.node) not in valid:
                valid.add(node)
                for dependent in dependents[node]:
                    missing[dependent] -= 1
                ready += (dependent for dependent in dependents[node] if not missing[dependent])
        return valid

    def _open_sources(self, right: _Right) -> list[tuple[str, str]]:
        """Return the sources of a right that need a chain themselves."""
        return [] if right.is_free else [source for source in right.sources if not self._is_root(source)]

    def _is_valid(self, right: _Right, valid: set[tuple[str, str]]) -> bool:
        if right.is_free:
            return self._origins.roots(right.granter) is not None
        sources = right.sources
        return bool(sources) and all(source in valid or self._is_root(source) for source in sources)

    def _is_root(self, node: tuple[str, str]) -> bool:
        is_outside = self._concerned is not None and node[0] not in self._concerned
        return is_outside or node[1] in self._roots_of(node[0])

    def _roots_of(self, name: str) -> Mapping[str, CapabilityPattern]:
        if name not in self._known_roots:
            roots = self._origins.roots(name)
            self._known_roots[name] = {} if roots is None else {_key(one): one for one in normalise(roots)}
        return self._known_roots[name]

    def _covering(
        self, giver: str, valid: set[tuple[str, str]], pattern: CapabilityPattern, steps: Steps
    ) -> tuple[str, ...] | None:
        if self._concerned is not None and giver not in self._concerned:
            held = self._origins.holdings(giver)
        else:
            given = (one for one in self._held.get(giver, ()) if one.status == "held" and self._is_valid(one, valid))
            held = (*self._roots_of(giver).values(), *(one.pattern for one in given))
        return sources(held, pattern, ignore_to=self._origins.ignore_to, steps=steps)


def sources(
    held: Iterable[CapabilityPattern], pattern: CapabilityPattern, *, ignore_to: bool, steps: Steps
) -> tuple[str, ...] | None:
    """Return the names of the patterns that contain a passed-on right; None if none do.

    Raises `BudgetExceeded`.
    """
    found = covering(held, pattern, ignore_to=ignore_to, steps=steps)
    return None if found is None else tuple(dict.fromkeys(map(_key, found)))


def downstream(state: SpaceState, participants: Iterable[str]) -> set[str]:
    """Return these participants, those with rights from one of them, and so on."""
    recipients: dict[str, set[str]] = defaultdict(set)
    for holder, invitation in state.invited.items():
        recipients[invitation.invited_by].add(holder)
    for holder, grants in state.grants.items():
        for grant in grants:
            recipients[grant.granter].add(holder)
    found, waiting = set[str](), list(participants)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += recipients.get(name, ())
    return found


def _key(pattern: CapabilityPattern) -> str:
    """Return a short, collision-resistant name of a pattern."""
    return blake2b(json.dumps(pattern, sort_keys=True).encode(), digest_size=16).hexdigest()
