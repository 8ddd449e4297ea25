"""[pure] Membership: the participants of a space, those that are connected, and the permissions of each.

Combines space.yaml with the durable state: invitations, removals, grants, pauses, shutdowns and proposals. Methods that
name a change return it; only `apply` changes the state. `membership_rules` decides which changes an envelope may
cause. Does not know tokens, sockets or files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from mew_protocol import errors, kinds
from mew_protocol.bounded_dict import Shares
from mew_protocol.capability import (
    EVERY_KIND,
    EVERY_KIND_AT_ANY_DEPTH,
    CapabilityPattern,
    CapabilitySet,
    advertised,
    is_same_value,
    normalise,
)
from mew_protocol.containment import COMPARISON_STEPS, covers
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.ids import ParticipantId
from mew_protocol.patterns import Steps
from mew_protocol.payloads.capability import EndedRights
from mew_protocol.payloads.mcp import KEPT_SHORT, MAX_NAME_CHARS, CallSubject, digest_of
from mew_protocol.payloads.participant import Pause
from pydantic_core import to_json

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.provenance import Rights, Rules, downstream, sources
from mew_spaces.core.state import ActivePause, CapabilityGrant, Change, Changes, Invitation, KnownProposal, SpaceState

MAX_PROPOSALS = 10_000
"""How many proposals a space remembers; the participant that made the most loses its oldest."""

MAX_PROPOSALS_OF_ONE = 1_000
"""How many proposals of one participant are remembered."""

REMEMBERED_FOR = timedelta(minutes=10)
"""How long at least. Until then a participant with so many may not propose: an id that a person has read must not get
another meaning."""

MAX_UNDECIDED = 100
"""How many undecided proposals of one participant are kept in full; its oldest are dropped from the list."""

MAX_UNDECIDED_BYTES = 6 * 1024 * 1024
"""How large all undecided proposals may be, so that a welcome can list them; the participant with the most loses one.
"""

_MAX_PROPOSED_PEERS = 16
"""How many peers a proposal may name. Bounds the memory of proposals."""

_ALL_STEPS = 100 * COMPARISON_STEPS
"""Budget for looking at all rights of a space once, when it starts."""

_MAX_PAUSE_SECONDS = 10 * 365 * 24 * 3600.0
"""Keeps the end of a pause within the range of `datetime`."""


_EVERYTHING = (EVERY_KIND, EVERY_KIND_AT_ANY_DEPTH)

Source = Literal["static", "dynamic", "implicit"]
"""Where a capability comes from: space.yaml or an invitation, a grant, or the protocol itself."""


class PermissionDecision(NamedTuple):
    """The result of a capability check: the permissions it used, and the pattern that allowed the envelope."""

    permissions: "Permissions"
    matched: CapabilityPattern | None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of one participant. `patterns` are its capabilities as advertised, also as `patterns_json`."""

    capabilities: CapabilitySet
    patterns: tuple[dict[str, Any], ...]
    patterns_json: bytes
    granted: tuple[dict[str, Any], ...]
    several_connections: bool
    _decisions: dict[int, PermissionDecision] = field(default_factory=dict, repr=False, compare=False)

    def decide(self, draft: Draft, *, ignore_to: bool) -> PermissionDecision:
        """Decide whether an envelope may be sent, by which pattern, and where that pattern comes from."""
        matched = self.capabilities.match(draft, ignore_to=ignore_to)
        if draft.kind == kinds.STREAM_OPEN and matched is not None and matched["kind"] in _EVERYTHING:
            matched = None  # a message of gateways, so a pattern has to name it
        decision = self._decisions.get(id(matched))
        if decision is None:
            source: Source | None = None
            if matched is not None:
                source = "dynamic" if matched in self.granted else "static"
            decision = self._decisions[id(matched)] = PermissionDecision(self, matched, source)
        return decision


@dataclass(slots=True)
class MemberConnections:
    """The connections of one member. Those in `logs` only write log files, one of each gateway."""

    sockets: list[ConnectionId] = field(default_factory=list)
    logs: list[ConnectionId] = field(default_factory=list)

    @property
    def all(self) -> tuple[ConnectionId, ...]:
        """Every connection that receives broadcasts."""
        return (*self.logs, *self.sockets)


class Membership:
    """The participants of one space. `connected` are those in the space now, in the order in which they joined."""

    def __init__(self, config: SpaceConfig, state: SpaceState) -> None:
        self.state = state
        self.connected: dict[ParticipantId, MemberConnections] = {}
        self._config = config
        self._permissions: dict[str, Permissions] = {}
        self._compiled: WeakValueDictionary[bytes, CapabilitySet] = WeakValueDictionary()
        """The capabilities of participants that are given the same, once, by their patterns as JSON."""
        self._remembered: Shares[str] = Shares()
        """The ids of all proposals, by proposer."""
        self._sorted_ids: list[str] = []
        """The same ids in order: those that begin like a new one are next to its place."""
        self._undecided: Shares[str] = Shares()
        """The ids of undecided proposals, by their size in bytes."""
        options = config.capabilities
        self._rules = Rules(
            self._invitation_of,
            self._patterns_of_its_own,
            lambda name: self.permissions_of(name).patterns,
            options.ignore_to,
            options.check_grants,
            options.check_invites,
        )
        self.reset()

    def reset(self) -> None:
        """Derive indexes and permissions again: the state was replaced."""
        self._permissions.clear()
        self._undecided.clear()
        self._remembered.clear()
        self._sorted_ids.clear()
        for proposal_id in self.state.proposals:
            self._index_proposal(proposal_id)

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
        """Remove a participant with everything it was given, until it is invited again.

        If it was invited for this run only, space.yaml may name it later. Returns the changes, and the rights that end
        with it: those that it has passed on.
        """
        invitation = self._invitation_of(participant)
        is_temporary = invitation is not None and invitation.until_restart
        changes: list[Change] = [] if is_temporary else [Change("removed", participant, value=True)]
        if participant in self.state.invited:
            changes.append(Change("invited", participant))
        changes += self.state.without(participant)
        after = self.after(tuple(changes))
        settled, ended = _settle(Rights(after.state, after._rules, [participant]))
        return (*changes, *settled), ended

    # Who is in the space

    def connections_of(self, participants: Iterable[str]) -> tuple[ConnectionId, ...]:
        """Return the connections of those participants that are in the space."""
        return tuple(
            connection
            for name in participants
            if (member := self.connected.get(ParticipantId(name))) is not None
            for connection in member.all
        )

    # What each participant may send

    def permissions_of(self, participant: str) -> Permissions:
        """Return a participant's permissions; an unknown one gets the defaults of the space."""
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
        """Return whether a participant may send an envelope. `approving`: it approves the proposal of another."""
        held = self.permissions_of(participant).capabilities
        return held.allows(draft, ignore_to=self._config.capabilities.ignore_to, approving=approving)

    def grant(self, recipient: str, grant: CapabilityGrant) -> Changes:
        """Add a grant; earlier grants stay."""
        return (Change("grants", recipient, (*self.state.grants.get(recipient, ()), grant)),)

    def sources(
        self, giver: str, patterns: Iterable[CapabilityPattern], recipient: str
    ) -> tuple[tuple[str, ...] | None, ...]:
        """Return the sources of each pattern; None for one that `giver` may not pass on to this recipient.

        It may pass on what it has, but not give back to a participant what was withdrawn from it. Raises
        `BudgetExceeded` if there are too many patterns to compare.
        """
        steps = Steps(COMPARISON_STEPS)
        has_links = any(grant.status == "withdrawn" for grant in self.state.grants.get(recipient, ()))
        if has_links and giver in downstream(self.state, [recipient]):
            return Rights(self.state, self._rules, [recipient]).sources(giver, patterns, recipient, steps)
        held, ignore_to = self.permissions_of(giver).patterns, self._rules.ignore_to
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

        What the recipient has passed on ends as well. With `keep_passed_on` it stays, but it cannot come back to the
        recipient. Capabilities from space.yaml or an invitation stay. Returns the changes and all rights that ended.
        Raises `BudgetExceeded` if there are too many patterns to compare.
        """
        unwanted, steps = tuple(patterns), Steps(COMPARISON_STEPS)
        named = {index for index, grant in enumerate(self.state.grants.get(recipient, ())) if grant_id in grant.names}
        rights = Rights(self.state, self._rules, [recipient])
        is_changed = rights.withdraw(
            lambda index, pattern: (
                index in named
                or any(covers((one,), pattern, steps=steps) or is_same_value(pattern, one, steps) for one in unwanted)
            ),
            recipient,
            keep_passed_on=keep_passed_on,
        )
        return _settle(rights) if is_changed else ((), ())

    def drop_grants(self, participants: Iterable[str]) -> Changes:
        """End all grants of participants that are away. Rights that they passed on stay."""
        grants = self.state.grants
        granted = [name for name in participants if any(one.status == "held" for one in grants.get(name, ()))]
        if not granted:
            return ()
        rights = Rights(self.state, self._rules, granted)
        for name in granted:
            rights.lapse(name)
        return _settle(rights)[0]

    def end_unfounded(self) -> tuple[Changes, tuple[EndedRights, ...]]:
        """End the rights that no longer come from space.yaml: it changed, or an earlier version kept them."""
        return _settle(Rights(self.state, self._rules), Steps(_ALL_STEPS))

    def _patterns_of_its_own(self, participant: str) -> tuple[dict[str, Any], ...] | None:
        if not self.has(participant):
            return None
        return self._config.patterns_of(participant) if self._invitation_of(participant) is None else ()

    # Who is silenced

    def silenced_because(self, draft: Draft, sender: str, *, now: datetime) -> str | None:
        """Return why a pause or a shutdown stops this envelope, or None if nothing does."""
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
        """Pause participants; a second pause replaces the first. A pause outlives a reconnect."""
        seconds = pause.timeout_seconds
        until = None if seconds is None else now + timedelta(seconds=min(float(seconds), _MAX_PAUSE_SECONDS))
        value = ActivePause(until=until, reason=pause.reason, envelope_id=envelope_id)
        return tuple(Change("pauses", name, value) for name in participants)

    def shift_pauses(self, by: timedelta) -> Changes:
        """Move the end of every pause: the wall clock was set, and the time that is left stays."""
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
        """Silence participants until they join again."""
        return tuple(Change("shut_down", name, value=True) for name in participants)

    def end_shutdown(self, participant: str) -> Changes:
        """Let a participant that joined again send."""
        return (Change("shut_down", participant),) if participant in self.state.shut_down else ()

    # Who proposed what

    def add_proposal(self, proposal: Envelope, *, now: datetime, max_bytes: int = 64 * 1024) -> Changes:
        """Remember a proposal with its proposer and peers, and keep it for late joiners until it is decided.

        A proposal of more than `max_bytes` is kept without its parameters. `apply_surplus` keeps the limits.
        """
        proposer, peers = proposal.sender, proposal.addressees
        subject = CallSubject.read(proposal.body)
        is_too_large = len(proposal.encode()) > max_bytes
        value = KnownProposal(
            proposer=proposer,
            peers=peers,
            method=subject.method,
            tool=subject.tool,
            digest=digest_of(proposal.body, proposer, peers),
            short_id=self._short_id(proposal.id),
            envelope=_kept(proposal, subject) if is_too_large else proposal.as_dict(),
            truncated=is_too_large,
            proposed_at=now,
        )
        return (Change("proposals", proposal.id, value),)

    def apply_surplus(self) -> Changes:
        """Remove or close the proposals above the limits, after one was added. Returns the changes."""
        changes: list[Change] = []
        while (oldest := self._remembered.surplus(MAX_PROPOSALS, MAX_PROPOSALS_OF_ONE)) is not None:
            changes.append(Change("proposals", oldest))
            self.apply(changes[-1])
        # Closed, not forgotten: a late decision is still checked against the proposer and the addressee.
        while (oldest := self._undecided.surplus(MAX_UNDECIDED_BYTES, MAX_UNDECIDED)) is not None:
            changes.append(self._closed(oldest))
            self.apply(changes[-1])
        return tuple(changes)

    def proposal_problem(self, proposal: Envelope, *, now: datetime) -> tuple[str, str] | None:
        """Return why a new proposal may not be made, as an error code and a sentence, or None."""
        name, sender = proposal.id, proposal.sender
        known = self.state.proposals.get(name)
        if known is not None:
            rule = "a proposal cannot change" if known.proposer == sender else f"'{known.proposer}' used it"
            return errors.ALREADY_EXISTS, f"a proposal has the id '{name}' already: {rule}; propose with a new id"
        if any(len(one or "") > MAX_NAME_CHARS for one in CallSubject.read(proposal.body)):
            return errors.LIMIT_EXCEEDED, f"method and tool of a proposal may have {MAX_NAME_CHARS} characters"
        if len(proposal.addressees) > _MAX_PROPOSED_PEERS:
            return errors.LIMIT_EXCEEDED, f"a proposal may be for {_MAX_PROPOSED_PEERS} participants, or for everyone"
        if self._short_id(name) is None:
            return errors.ALREADY_EXISTS, f"the id of an earlier proposal begins with '{name}'; propose with a new id"
        made, first = self._remembered.count(sender), self._remembered.oldest(sender)
        oldest = None if first is None or made < MAX_PROPOSALS_OF_ONE else self.state.proposals[first].proposed_at
        if oldest is not None and now - oldest < REMEMBERED_FOR:
            text = f"'{sender}' made {made:,} proposals within {REMEMBERED_FOR.seconds // 60} minutes; wait"
            return errors.LIMIT_EXCEEDED, text
        return None

    def _short_id(self, name: str) -> str | None:
        """Return the shortest beginning of a new id with which no remembered id begins; None if there is none."""
        place = bisect_left(self._sorted_ids, name)
        neighbours = self._sorted_ids[max(0, place - 1) : place + 1]
        shared = max((_shared_chars(name, one) for one in neighbours), default=0)
        if shared < min(len(name), KEPT_SHORT):
            return name[:KEPT_SHORT]
        return name[: shared + 1] if shared < len(name) or len(name) < KEPT_SHORT else None

    @property
    def undecided_proposals(self) -> dict[str, KnownProposal]:
        """The proposals that still need a decision, by id, oldest first."""
        return {key: self.state.proposals[key] for key in self._undecided}

    def decide_proposals(self, decision: Envelope) -> Changes:
        """Close the proposals that an accepted envelope decides: a request, a response, a rejection or a withdrawal."""

        def is_decided(one: KnownProposal) -> bool:
            match decision.kind:
                # TypeScript agents answer a proposal without repeating it as a request.
                case kinds.MCP_RESPONSE:
                    return decision.sender in one.peers
                case kinds.MCP_REQUEST:
                    return _is_same_call(one, decision) and _may_fulfil(one, decision)
                case kinds.MCP_WITHDRAW:
                    return one.proposer == decision.sender
                case _:
                    rejected = {decision.sender, one.proposer, *one.rejected_by}
                    return one.proposer == decision.sender or rejected.issuperset(*self.may_fulfil((one,)))

        changes: list[Change] = []
        for name in dict.fromkeys(decision.correlation_ids):
            one = self.state.proposals.get(name)
            if one is None or name not in self._undecided:
                continue
            is_reject = decision.kind == kinds.MCP_REJECT
            if is_reject and decision.sender in one.rejected_by:
                continue
            if is_decided(one):
                changes.append(self._closed(name, decision.sender))
            elif is_reject:
                rejected = one.model_copy(update={"rejected_by": (*one.rejected_by, decision.sender)})
                changes.append(Change("proposals", name, rejected))
        return tuple(changes)

    def may_fulfil(self, proposals: Iterable[KnownProposal]) -> Iterator[tuple[str, ...]]:
        """Yield for each proposal the participants that may send the proposed request.

        Equal capabilities are checked once for all who have them.
        """
        held = {name: self.permissions_of(name).capabilities for name in self.names}
        different, ignore_to = tuple(dict.fromkeys(held.values())), self._config.capabilities.ignore_to
        found: dict[tuple[CapabilitySet, ...], tuple[str, ...]] = {}
        for one in proposals:
            payload = (one.envelope or {}).get("payload")
            request = Draft(kind=kinds.MCP_REQUEST, to=one.peers, payload=payload)
            allowing = tuple(have for have in different if have.allows(request, ignore_to=ignore_to, approving=True))
            if allowing not in found:
                found[allowing] = tuple(name for name, have in held.items() if have in allowing)
            yield found[allowing]

    def decided_before(self, decision: Envelope) -> tuple[str, str] | None:
        """Return the first proposal that a request or rejection is too late for, and the participant that decided."""
        for name, one in self._correlated(decision):
            is_meant = decision.kind != kinds.MCP_REQUEST or (
                _is_same_call(one, decision) and _may_fulfil(one, decision)
            )
            if is_meant and one.envelope is None and one.decided_by is not None:
                return name, one.decided_by
        return None

    def close_proposals_of(self, proposer: str) -> Changes:
        """Close the undecided proposals of a participant that left."""
        made = (name for name in self._undecided if self.state.proposals[name].proposer == proposer)
        return tuple(self._closed(name) for name in made)

    def _closed(self, name: str, decided_by: str | None = None) -> Change:
        before = self.state.proposals[name]
        closed = {"envelope": None, "truncated": False, "decided_by": decided_by or before.decided_by}
        return Change("proposals", name, before.model_copy(update=closed))

    def _index_proposal(self, name: str) -> None:
        # One that stays keeps its place, so that the order follows from the state alone.
        one = self.state.proposals.get(name)
        place = bisect_left(self._sorted_ids, name)
        if one is None:
            if name in self._remembered:
                del self._sorted_ids[place]
            self._remembered.discard(name)
        elif name not in self._remembered:
            self._sorted_ids.insert(place, name)
            self._remembered.add(name, one.proposer)
        if one is None or one.envelope is None:
            self._undecided.discard(name)
        elif name not in self._undecided:
            self._undecided.add(name, one.proposer, len(to_json(one.envelope)))

    def _correlated(self, envelope: Envelope) -> Iterator[tuple[str, KnownProposal]]:
        """Yield the known proposals that an envelope refers to, with their ids."""
        for name in dict.fromkeys(envelope.correlation_ids):
            if (one := self.state.proposals.get(name)) is not None:
                yield name, one

    def foreign_proposal(self, withdrawal: Envelope) -> str | None:
        """Return the first of the proposals that an envelope refers to which another participant made."""
        return next((name for name, one in self._correlated(withdrawal) if one.proposer != withdrawal.sender), None)

    def misdirected(self, fulfilment: Envelope) -> tuple[str, KnownProposal] | None:
        """Return the first proposal that a request or response may not fulfil, with its id."""
        for name, one in self._correlated(fulfilment):
            if _is_same_call(one, fulfilment) and not _may_fulfil(one, fulfilment):
                return name, one
        return None

    def approval_problem(self, request: Envelope) -> tuple[str, str] | None:
        """Return the reason to refuse a request as an approval, as an error code and a sentence, or None.

        A digest says what the approver was shown: it must be that of the proposal, and the request must be what was
        proposed, unless it says that it is changed.
        """
        known = tuple(self._correlated(request))
        for name, one in known:
            is_foreign = one.proposer != request.sender and _is_same_call(one, request)
            if is_foreign and not self.may_send(request.sender, request, approving=True):
                text = f"'{request.sender}' may make such calls itself, but not approve '{name}' of '{one.proposer}'"
                return errors.CAPABILITY_VIOLATION, text
        digest = request.body.get("proposal_digest")
        if digest is None:
            return None
        if len(known) != 1:
            text = f"an approval with a digest refers to one known proposal, not {len(known)}; list the proposals again"
            return errors.PROPOSAL_DIFFERS, text
        name, one = known[0]
        is_changed = request.body.get("proposal_changed") is True
        asked = digest if is_changed else digest_of(request.body, one.proposer, request.addressees)
        if one.digest is not None and not one.digest == digest == asked:
            text = f"what was shown to you, or what you ask for, is not the proposal '{name}'; list the proposals again"
            return errors.PROPOSAL_DIFFERS, text
        return None

    def apply(self, *changes: Change) -> None:
        """Change the state."""
        for change in changes:
            self.state.apply(change)
            if change.table in ("invited", "removed", "grants"):
                self._permissions.pop(change.key, None)
            if change.table == "proposals":
                self._index_proposal(change.key)

    def after(self, changes: Changes) -> "Membership":
        """Return the membership as it will be after changes, without proposals: no right depends on them."""
        return Membership(self._config, self.state.model_copy(update={"proposals": {}}).after(changes))

    def _invitation_of(self, participant: str) -> Invitation | None:
        """Return the invitation that counts: space.yaml comes first, unless the participant was removed since."""
        invitation = self.state.invited.get(participant)
        is_configured = participant in self._config.participants
        return invitation if invitation is not None and (invitation.above_configured or not is_configured) else None


def _settle(rights: Rights, steps: Steps | None = None) -> tuple[Changes, tuple[EndedRights, ...]]:
    rights.settle(steps or Steps(COMPARISON_STEPS))
    return tuple(rights.changes()), rights.no_longer_held()


def _shared_chars(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    differing = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _kept(proposal: Envelope, subject: CallSubject) -> dict[str, Any]:
    """A proposal that is too large, without its parameters but for the name of the tool."""
    params = {} if subject.tool is None else {"params": {"name": subject.tool}}
    whole = proposal.as_dict()
    headers = {key: whole[key] for key in ("protocol", "id", "ts", "from", "kind")}
    return {
        **headers,
        "to": list(proposal.addressees),
        "payload": {"method": subject.method, **params},
    }


def _is_same_call(proposal: KnownProposal, fulfilment: Envelope) -> bool:
    """Whether a request repeats the proposed call. A response names none."""
    is_request = fulfilment.kind == kinds.MCP_REQUEST
    return not is_request or (proposal.method, proposal.tool) == tuple(CallSubject.read(fulfilment.body))


def _may_fulfil(proposal: KnownProposal, fulfilment: Envelope) -> bool:
    """Whether a request goes to proposed peers, or a proposed peer answers or passes the request on to others."""
    addressees = fulfilment.addressees if fulfilment.kind == kinds.MCP_REQUEST else ()
    is_to_peers = bool(addressees) and set(addressees) <= set(proposal.peers)
    return not proposal.peers or is_to_peers or fulfilment.sender in proposal.peers
