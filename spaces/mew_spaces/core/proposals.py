"""[pure] The proposals of a space: undecided ones for late joiners, and decided ones, whose ids stay reserved.

Owns the limits of proposals, the right to decide one, and the valid references of decisions. Methods named after a
change return it; `Membership.apply` changes the state. Does not know connections, or why an envelope was allowed.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Protocol

from mew_listener.bounded_dict import Shares
from mew_protocol import errors, kinds
from mew_protocol.capability import CapabilitySet
from mew_protocol.envelope import Draft, Envelope
from mew_protocol.payloads.mcp import (
    KEPT_SHORT,
    MAX_NAME_CHARS,
    CallSubject,
    digest_of,
    fulfils,
    is_for_call,
    is_for_peers,
)
from pydantic_core import to_json

from mew_spaces.core.events import EPOCH
from mew_spaces.core.state import Change, Changes, KnownProposal, SpaceState

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


class PermissionHolder(Protocol):
    """The permissions of one participant, for proposals."""

    @property
    def capabilities(self) -> CapabilitySet:
        """All its capabilities."""


class PermissionSource(Protocol):
    """The participants of a space and their permissions, for proposals."""

    state: SpaceState

    @property
    def names(self) -> tuple[str, ...]:
        """All participants, connected or not."""

    def has(self, name: str) -> bool:
        """Return whether this id is a participant, connected or not."""

    def permissions_of(self, participant: str) -> PermissionHolder:
        """Return a participant's permissions."""

    def may_send(self, participant: str, draft: Draft, *, approving: bool = False) -> bool:
        """Return whether a participant may send an envelope. `approving`: it approves another participant's
        proposal.
        """

    def apply(self, *changes: Change) -> None:
        """Change the state."""


class Proposals:
    """The proposals in the state of one space."""

    def __init__(self, membership: PermissionSource, *, ignore_to: bool) -> None:
        self._membership = membership
        self._state = membership.state
        self._ignore_to = ignore_to
        self._remembered: Shares[str] = Shares()
        """The ids of all proposals, by proposer."""
        self._sorted_ids: list[str] = []
        """The same ids in order: those that begin like a new one are next to its place."""
        self._undecided: Shares[str] = Shares()
        """The ids of undecided proposals, by their size in bytes."""
        self._approvers: dict[str, tuple[str, ...]] = {}
        """The participants that may fulfil an undecided proposal, by its id, if known."""
        self._approver: dict[str, str] = {}
        """One that had not rejected it yet."""
        stored = self._state.proposals  # a database returns them by id
        for proposal_id in sorted(stored, key=lambda one: stored[one].proposed_at or EPOCH):
            self.reindex(proposal_id)

    def add(self, proposal: Envelope, *, now: datetime, max_bytes: int = 64 * 1024) -> Changes:
        """Store a proposal with its proposer and peers, and keep it for late joiners until it is decided.

        A proposal above `max_bytes` is kept without its parameters. `apply_surplus` enforces the limits.
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
        """Remove or close proposals above the limits, after an addition. Returns the changes."""
        changes: list[Change] = []
        while (oldest := self._remembered.surplus(MAX_PROPOSALS, MAX_PROPOSALS_OF_ONE)) is not None:
            changes.append(Change("proposals", oldest))
            self._membership.apply(changes[-1])
        # Close it, but remember it: a late decision is still checked against the proposer and the addressee.
        while (oldest := self._undecided.surplus(MAX_UNDECIDED_BYTES, MAX_UNDECIDED)) is not None:
            changes.append(self._closed(oldest))
            self._membership.apply(changes[-1])
        return tuple(changes)

    def problem_of(self, proposal: Envelope, *, now: datetime) -> tuple[str, str] | None:
        """Return why a new proposal is refused, as an error code and a sentence, or None."""
        name, sender = proposal.id, proposal.sender
        known = self._state.proposals.get(name)
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
        oldest = None if first is None or made < MAX_PROPOSALS_OF_ONE else self._state.proposals[first].proposed_at
        if oldest is not None and now - oldest < REMEMBERED_FOR:
            text = f"'{sender}' made {made:,} proposals within {REMEMBERED_FOR.seconds // 60} minutes; wait"
            return errors.LIMIT_EXCEEDED, text
        return None

    def _short_id(self, name: str) -> str | None:
        """Return the shortest beginning of a new id that no stored id shares; None if there is none."""
        place = bisect_left(self._sorted_ids, name)
        neighbours = self._sorted_ids[max(0, place - 1) : place + 1]
        shared = max((_shared_chars(name, one) for one in neighbours), default=0)
        if shared < min(len(name), KEPT_SHORT):
            return name[:KEPT_SHORT]
        return name[: shared + 1] if shared < len(name) or len(name) < KEPT_SHORT else None

    @property
    def undecided(self) -> dict[str, KnownProposal]:
        """The proposals that still need a decision, by id, oldest first."""
        return {key: self._state.proposals[key] for key in self._undecided}

    def decide(self, decision: Envelope) -> Changes:
        """Close the proposals that an accepted request, response, rejection or withdrawal decides."""

        def is_decided(name: str, one: KnownProposal) -> bool:
            match decision.kind:
                case kinds.MCP_RESPONSE | kinds.MCP_REQUEST:
                    return fulfils(decision, one.subject, one.peers)
                case kinds.MCP_WITHDRAW:
                    return one.proposer == decision.sender
                case _:
                    return one.proposer == decision.sender or self._is_rejected(name, one)

        changes: list[Change] = []
        for name in dict.fromkeys(decision.correlation_ids):
            one = known = self._state.proposals.get(name)
            if one is None or name not in self._undecided:
                continue
            if decision.kind == kinds.MCP_REJECT and decision.sender not in one.rejected_by:
                one = one.model_copy(update={"rejected_by": (*one.rejected_by, decision.sender)})
            if is_decided(name, one):
                changes.append(self._closed(name, decision.sender))
            elif one is not known:
                changes.append(Change("proposals", name, one))
        return tuple(changes)

    def may_fulfil(self) -> Iterator[tuple[str, ...]]:
        """Yield for each undecided proposal, oldest first, the participants that may send the proposed request.

        Checks equal capabilities once, and each proposal once until rights change.
        """
        held = {name: self._membership.permissions_of(name).capabilities for name in self._membership.names}
        different, ignore_to = tuple(dict.fromkeys(held.values())), self._ignore_to
        found: dict[tuple[CapabilitySet, ...], tuple[str, ...]] = {}
        for proposal_id, one in self.undecided.items():
            if proposal_id not in self._approvers:
                request = _proposed_request(one)
                allowing = tuple(own for own in different if own.allows(request, ignore_to=ignore_to, approving=True))
                if allowing not in found:
                    found[allowing] = tuple(name for name, own in held.items() if own in allowing)
                self._approvers[proposal_id] = found[allowing]
            yield self._approvers[proposal_id]

    def forget_approvers(self) -> None:
        """Note that rights have changed."""
        self._approvers = {}

    def _is_rejected(self, name: str, one: KnownProposal) -> bool:
        """Return whether all who may fulfil a proposal have rejected it.

        Remembers one participant that may fulfil it, because rejections can be frequent and a search takes long.
        """
        membership, request = self._membership, _proposed_request(one)
        rejected, tried = {one.proposer, *one.rejected_by}, set[CapabilitySet]()
        known = self._approver.get(name)
        is_known = known is not None and known not in rejected and membership.has(known)
        if is_known and membership.may_send(str(known), request, approving=True):
            return False
        for other in membership.names:
            held = membership.permissions_of(other).capabilities
            if other in rejected or held in tried:
                continue
            tried.add(held)
            if held.allows(request, ignore_to=self._ignore_to, approving=True):
                self._approver[name] = other
                return False
        return True

    def decided_before(self, decision: Envelope) -> tuple[str, str] | None:
        """Return the first proposal decided before a request or rejection, and the participant that decided."""
        for name, one in self._correlated(decision):
            is_meant = decision.kind != kinds.MCP_REQUEST or fulfils(decision, one.subject, one.peers)
            if is_meant and one.envelope is None and one.decided_by is not None:
                return name, one.decided_by
        return None

    @staticmethod
    def closed_by_others(sender: str, changes: Changes) -> tuple[str, ...]:
        """Return the ids of the proposals that changes close and `sender` did not make."""
        values = ((one.key, one.value) for one in changes if isinstance(one.value, KnownProposal))
        return tuple(name for name, value in values if value.envelope is None and value.proposer != sender)

    def close_rejected(self, after: "Proposals") -> Changes:
        """Close the proposals that all who may fulfil them have rejected.

        `after` has the participants and the rights that count. Leaves out proposals of others, who were removed.
        """
        has, undecided = after._membership.has, self.undecided.items()
        rejected = [(name, one) for name, one in undecided if one.rejected_by and has(one.proposer)]
        return tuple(self._closed(name, one.rejected_by[-1]) for name, one in rejected if after._is_rejected(name, one))

    def close_of(self, proposer: str) -> Changes:
        """Close a departed participant's undecided proposals."""
        made = (name for name in self._undecided if self._state.proposals[name].proposer == proposer)
        return tuple(self._closed(name) for name in made)

    def _closed(self, name: str, decided_by: str | None = None) -> Change:
        before = self._state.proposals[name]
        closed = {"envelope": None, "truncated": False, "decided_by": decided_by or before.decided_by}
        return Change("proposals", name, before.model_copy(update=closed))

    def reindex(self, name: str) -> None:
        """Update the indexes after a change of the proposal with this id."""
        # A kept proposal keeps its place, so that the order follows from the state alone.
        one = self._state.proposals.get(name)
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
            self._approvers.pop(name, None)
            self._approver.pop(name, None)
        elif name not in self._undecided:
            self._undecided.add(name, one.proposer, len(to_json(one.envelope)))

    def _correlated(self, envelope: Envelope) -> Iterator[tuple[str, KnownProposal]]:
        """Yield the known proposals that an envelope refers to, with their ids."""
        for name in dict.fromkeys(envelope.correlation_ids):
            if (one := self._state.proposals.get(name)) is not None:
                yield name, one

    def foreign_to(self, withdrawal: Envelope) -> str | None:
        """Return the first of an envelope's proposals that belongs to another participant."""
        return next((name for name, one in self._correlated(withdrawal) if one.proposer != withdrawal.sender), None)

    def misdirected(self, fulfilment: Envelope) -> tuple[str, KnownProposal] | None:
        """Return the first proposal that a request or response may not fulfil, with its id."""
        for name, one in self._correlated(fulfilment):
            if is_for_call(fulfilment, one.subject) and not is_for_peers(fulfilment, one.peers):
                return name, one
        return None

    def approval_problem(self, request: Envelope) -> tuple[str, str] | None:
        """Return the reason to refuse a request as an approval, as an error code and a sentence, or None.

        A digest identifies the call that the approver saw: it must equal the proposal's, and the request must repeat
        the proposed call unless marked as changed.
        """
        known = tuple(self._correlated(request))
        for name, one in known:
            is_foreign = one.proposer != request.sender and is_for_call(request, one.subject)
            if is_foreign and not self._membership.may_send(request.sender, request, approving=True):
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
        if not one.digest == digest == asked:
            text = f"what was shown to you, or what you ask for, is not the proposal '{name}'; list the proposals again"
            return errors.PROPOSAL_DIFFERS, text
        return None


def _proposed_request(proposal: KnownProposal) -> Draft:
    return Draft(kind=kinds.MCP_REQUEST, to=proposal.peers, payload=(proposal.envelope or {}).get("payload"))


def _shared_chars(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    differing = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _kept(proposal: Envelope, subject: CallSubject) -> dict[str, Any]:
    """Return a too large proposal without its parameters, except the tool's name."""
    params = {} if subject.tool is None else {"params": {"name": subject.tool}}
    whole = proposal.as_dict()
    headers = {key: whole[key] for key in ("protocol", "id", "ts", "from", "kind")}
    return {
        **headers,
        "to": list(proposal.addressees),
        "payload": {"method": subject.method, **params},
    }
