"""[pure] The envelopes that change membership: grants, invitations, removals, pauses, shutdowns and proposals.

Receives envelopes that their senders' capabilities allow. Checks their contents and derives their changes. `membership`
has the changes and the lookups.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mew_protocol import errors, kinds
from mew_protocol.capability import MAX_PATTERNS, has_kind, patterns_problem
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.errors import PayloadError
from mew_protocol.ids import ParticipantId, invited_id_problem
from mew_protocol.patterns import BudgetExceeded
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.capability import Ended, EndedRights, Grant, Revoke
from mew_protocol.payloads.mcp import digest_of
from mew_protocol.payloads.participant import Pause, Resume, Shutdown, read_control
from mew_protocol.payloads.space import Invite, InviteAck, Kick
from mew_protocol.payloads.system import ErrorPayload, Member, Presence

from mew_spaces.config.lookalikes import alike, imitates_ascii
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.connections import ConnectionRules
from mew_spaces.core.containment import covers
from mew_spaces.core.effects import (
    AddToken,
    AuditNote,
    Broadcast,
    Deliver,
    Effect,
    Receipt,
    SendWelcome,
    accept,
    refuse,
    state_changed,
)
from mew_spaces.core.events import ConnectionId
from mew_spaces.core.membership import Membership
from mew_spaces.core.state import CapabilityGrant, Changes, Invitation
from mew_spaces.core.system_messages import SystemMessages


class MembershipRules:
    """The membership rules of one space."""

    def __init__(
        self, membership: Membership, connections: ConnectionRules, messages: SystemMessages, config: SpaceConfig
    ) -> None:
        self._membership = membership
        self._proposals = membership.proposals
        self._connections = connections
        self._messages = messages
        self._config = config

    def receive(
        self, envelope: Envelope, *, reply_to: tuple[ConnectionId, ...], connection_url: str | None, now: datetime
    ) -> Receipt | None:
        """Handle an envelope. None: it is only passed on.

        `reply_to` are the connections for answers to its sender; invited participants connect to `connection_url`.
        """
        try:
            match envelope.kind:
                case kinds.CAPABILITY_GRANT:
                    return self._grant(envelope)
                case kinds.CAPABILITY_REVOKE:
                    return self._revoke(envelope, now)
                case kinds.SPACE_INVITE:
                    return self._invite(envelope, reply_to, connection_url, now)
                case kinds.SPACE_KICK:
                    return self._kick(envelope, now)
                case kinds.PARTICIPANT_PAUSE | kinds.PARTICIPANT_RESUME | kinds.PARTICIPANT_SHUTDOWN:
                    return self._control(envelope, now)
                case kinds.MCP_PROPOSAL:
                    return self._propose(envelope, now)
                case kinds.MCP_REQUEST | kinds.MCP_RESPONSE:
                    return self._check_fulfilment(envelope, now)
                case kinds.MCP_WITHDRAW | kinds.MCP_REJECT:
                    return self._end_proposal(envelope, now)
                case _:
                    return None
        except BudgetExceeded:
            text = f"{envelope.kind}: too many capabilities to compare; send fewer at once"
            return refuse(errors.LIMIT_EXCEEDED, text)
        except PayloadError as problem:
            # TypeScript clients expect this error for an incomplete invitation.
            error = errors.INVALID_REQUEST if envelope.kind == kinds.SPACE_INVITE else errors.INVALID_PAYLOAD
            return refuse(error, str(problem), code=errors.VALIDATION_ERROR)

    def _grant(self, envelope: Envelope) -> Receipt:
        payload = read_payload(envelope, Grant)
        refused = _invalid_patterns(envelope.kind, "capabilities", payload.capabilities)
        if refused is not None:
            return refused
        recipient = self._find(payload.recipient)
        if recipient is None:
            return _not_found(payload.recipient)
        is_checked = self._config.capabilities.check_grants
        through = self._sources(envelope.sender, payload.capabilities, recipient, is_checked=is_checked)
        if isinstance(through, Receipt):
            return through
        held = len(self._membership.permissions_of(recipient).granted)
        if held + len(payload.capabilities) > MAX_PATTERNS:
            text = f"'{recipient}' already has {held} granted capabilities; the limit is {MAX_PATTERNS}"
            return refuse(errors.LIMIT_EXCEEDED, text)
        names = frozenset(name for name in (envelope.id, payload.grant_id) if name)
        grant = CapabilityGrant(names=names, granter=envelope.sender, patterns=payload.capabilities, through=through)
        changes = self._membership.grant(recipient, grant)
        note = AuditNote(envelope, recipient, payload.reason, payload.capabilities, payload.grant_id or envelope.id)
        return accept(envelope, *state_changed(changes), note, *self._welcomes((recipient,)))

    def _revoke(self, envelope: Envelope, now: datetime) -> Receipt | None:
        payload = read_payload(envelope, Revoke)
        if payload.grant_id is None and not payload.capabilities:
            text = "capability/revoke: give payload.grant_id, or the patterns to revoke in payload.capabilities"
            return refuse(errors.INVALID_PAYLOAD, text, code=errors.VALIDATION_ERROR)
        recipient = self._find(payload.recipient)
        if recipient is None:
            return _not_found(payload.recipient)
        patterns = payload.capabilities or ()
        changes, ended = self._membership.revoke(
            recipient,
            grant_id=payload.grant_id,
            patterns=patterns,
            keep_passed_on=bool(payload.keep_passed_on),
        )
        if not changes:
            return None
        revoked = tuple(pattern for one in ended if one.participant == recipient for pattern in one.capabilities)
        others = tuple(one for one in ended if one.participant != recipient)
        note = AuditNote(envelope, recipient, payload.reason, revoked, payload.grant_id)
        effects, listed = self._end_others(envelope, others, payload.reason, now)
        closed, withdrawn = self._connections.close_rejected(changes, now=now)
        welcomes = self._welcomes((recipient,)) if revoked else ()
        answer = {"revoked": list(revoked), **listed}
        changed = state_changed((*changes, *closed))
        return accept(envelope, *changed, note, *welcomes, *effects, *withdrawn, answer=answer)

    def _welcomes(self, participants: Iterable[str]) -> tuple[Effect, ...]:
        """Send participants their new permissions, before the others are notified."""
        connections = {name: self._membership.connections_of((name,)) for name in dict.fromkeys(participants)}
        return tuple(SendWelcome(ParticipantId(name), to) for name, to in connections.items() if to)

    def _end_others(
        self, cause: Envelope, ended: tuple[EndedRights, ...], reason: str | None, now: datetime
    ) -> tuple[tuple[Effect, ...], dict[str, Any]]:
        """Announce the rights of others that ended with a withdrawn one, and list them for the HTTP answer."""
        if not ended:
            return (), {"ended": []}
        left, listed, omitted = self._config.limits.kept_payload_bytes, list[EndedRights](), 0
        for one in ended:
            left -= len(one.model_dump_json())
            if left >= 0:
                listed.append(one)
            else:
                omitted += len(one.capabilities)
        payload = Ended(ended=tuple(listed), omitted=omitted or None).model_dump(mode="json", exclude_none=True)
        message = self._messages.compose(kinds.CAPABILITY_ENDED, payload, now=now, correlation_id=(cause.id,))
        notes = (AuditNote(cause, one.participant, reason, one.capabilities) for one in ended)
        return (*notes, *self._welcomes(one.participant for one in ended), Broadcast(message)), payload

    def _invite(
        self, envelope: Envelope, reply_to: tuple[ConnectionId, ...], connection_url: str | None, now: datetime
    ) -> Receipt:
        payload = read_payload(envelope, Invite)
        name, capabilities = payload.participant_id, payload.initial_capabilities or ()
        problem = invited_id_problem(name)
        if problem:
            return refuse(errors.INVALID_REQUEST, f"space/invite: payload.participant_id: {problem}")
        refused = _invalid_patterns(envelope.kind, "initial_capabilities", capabilities)
        if refused is not None:
            return refused
        if self._find(name) is not None:
            return self._already_exists(envelope, name, reply_to, now)
        other = alike(name, self._membership.names)
        if other is not None:
            text = f"'{other}' is a participant of this space, and '{name}' looks like it; choose another id"
            return refuse(errors.ALREADY_EXISTS, text)
        if imitates_ascii(name):
            text = "space/invite: payload.participant_id: looks like an ASCII id, but is another one; use ASCII letters"
            return refuse(errors.INVALID_REQUEST, text)
        is_checked = self._config.capabilities.check_invites and not self._config.is_reference
        through = self._sources(envelope.sender, capabilities, name, is_checked=is_checked)
        if isinstance(through, Receipt):
            return through
        most = self._config.limits.members
        if len(self._membership.state.invited) >= most:
            text = f"this space already has {most} invited participants, which is the limit"
            return refuse(errors.LIMIT_EXCEEDED, text)
        invitation = Invitation(
            capabilities=capabilities,
            several_sockets=bool(payload.several_sockets),
            until_restart=bool(payload.until_restart),
            invited_by=envelope.sender,
            invited_at=wire_timestamp(now),
            through=through,
        )
        changes = self._membership.invite(name, invitation)
        token = self._messages.ids.new_token()
        ack = InviteAck(status="created", participant_id=name, token=token, connection_url=connection_url)
        presence = Presence(
            event="invited",
            participant=Member(id=name, capabilities=self._membership.after(changes).permissions_of(name).patterns),
            invited_by=envelope.sender,
            reason=payload.reason,
        )
        effects = (
            *state_changed(changes),
            AddToken(ParticipantId(name), token),
            AuditNote(envelope, name, payload.reason, capabilities),
            *self._acknowledge(envelope, ack, reply_to, now),
            Broadcast(
                self._messages.compose(kinds.SYSTEM_PRESENCE, presence, now=now),
                # The inviter gets the acknowledgement instead, as with the TypeScript gateway.
                without=frozenset(self._membership.connections_of((envelope.sender,))),
            ),
        )
        return Receipt(effects, accepted=envelope, answer=ack.model_dump(exclude_none=True))

    def _already_exists(
        self, envelope: Envelope, name: str, reply_to: tuple[ConnectionId, ...], now: datetime
    ) -> Receipt:
        message = f"'{name}' is already a participant of this space"
        ack = InviteAck(status="already_exists", participant_id=name, error=message)
        return Receipt(
            self._acknowledge(envelope, ack, reply_to, now),
            refused=ErrorPayload(error=errors.ALREADY_EXISTS, message=message),
            answer={"status": "already_exists", "participant_id": name},
        )

    def _acknowledge(
        self, envelope: Envelope, ack: InviteAck, reply_to: tuple[ConnectionId, ...], now: datetime
    ) -> tuple[Effect, ...]:
        """Answer only the inviter, because the answer contains the new participant's token."""
        message = self._messages.compose(
            kinds.SPACE_INVITE_ACK, ack, now=now, to=(envelope.sender,), correlation_id=(envelope.id,)
        )
        return (Deliver(message, reply_to, is_secret=True),) if reply_to else ()

    def _kick(self, envelope: Envelope, now: datetime) -> Receipt:
        payload = read_payload(envelope, Kick)
        participant = self._find(payload.participant_id)
        if participant is None:
            return _not_found(payload.participant_id)
        note = AuditNote(envelope, participant, payload.reason)
        changes, effects, ended = self._connections.remove(participant, now=now)
        others, listed = self._end_others(envelope, ended, payload.reason, now)
        # Broadcast it before the disconnection, so that the removed participant also learns who removed it and why.
        return Receipt(
            (*state_changed(changes), note, *others, Broadcast(envelope), *effects),
            accepted=envelope,
            answer={"participant_id": participant, **listed},
        )

    def _others_named(self, envelope: Envelope) -> tuple[str, ...]:
        """Return an envelope's distinct addressees, except its sender."""
        membership = self._membership
        others = (name for name in dict.fromkeys(envelope.addressees) if name != envelope.sender)
        return tuple(name for name in others if membership.has(name) or name in membership.connected)

    def _control(self, envelope: Envelope, now: datetime) -> Receipt | None:
        """Pause, resume or shut down participants. Affects only named participants, never the sender."""
        options, membership = self._config.control, self._membership
        named = self._others_named(envelope)
        match read_control(envelope):
            case Pause() as pause if options.enforce_pause:
                return self._changed(envelope, membership.pause(named, pause, envelope.id, now=now))
            case Resume():
                resumed = named if envelope.to else [one for one in membership.state.pauses if one != envelope.sender]
                return self._changed(envelope, membership.resume(resumed))
            case Shutdown() if options.enforce_shutdown:
                return self._changed(envelope, membership.shut_down(named))
            case _:
                return None

    def _propose(self, envelope: Envelope, now: datetime) -> Receipt | None:
        """Store a proposal. Refuse a second one with the same id, unless it repeats an open one."""
        known, digest = (
            self._membership.state.proposals.get(envelope.id),
            digest_of(envelope.body, envelope.sender, envelope.addressees),
        )
        if known is not None and known.envelope is not None and known.digest == digest:
            return Receipt((), accepted=envelope)
        problem = self._proposals.problem_of(envelope, now=now)
        if problem is not None:
            return refuse(*problem)
        limit = self._config.limits.kept_payload_bytes
        return self._changed(envelope, self._proposals.add(envelope, now=now, max_bytes=limit))

    def _check_fulfilment(self, envelope: Envelope, now: datetime) -> Receipt | None:
        """Refuse answers to a proposal, and requests for it, by or to participants that were not proposed."""
        if not envelope.correlation_ids:
            return None
        found = self._proposals.misdirected(envelope)
        if found is None:
            problem = self._proposals.approval_problem(envelope) if envelope.kind == kinds.MCP_REQUEST else None
            return self._decide(envelope, now) if problem is None else refuse(*problem)
        proposal_id, proposal = found
        rule = "may answer" if envelope.kind == kinds.MCP_RESPONSE else "may be asked to fulfil"
        text = f"only the peers of the proposal '{proposal_id}' {rule} it: {', '.join(proposal.peers)}"
        return refuse(errors.UNAUTHORIZED, text)

    def _end_proposal(self, envelope: Envelope, now: datetime) -> Receipt | None:
        """Refuse a withdrawal or rejection without a proposal, and a withdrawal of another's proposal."""
        if not envelope.correlation_ids:
            text = f"{envelope.kind}: correlation_id must contain the proposal's id"
            return refuse(errors.INVALID_ENVELOPE, text, code=errors.VALIDATION_ERROR)
        foreign = self._proposals.foreign_to(envelope)
        if envelope.kind == kinds.MCP_WITHDRAW and foreign is not None:
            text = f"only its proposer may withdraw '{foreign}'; send mcp/reject to decline it"
            return refuse(errors.UNAUTHORIZED, text)
        return self._decide(envelope, now)

    def _decide(self, decision: Envelope, now: datetime) -> Receipt | None:
        """Close the proposals that an envelope decides. Refuse a second decision, because the tool would run twice.

        Clients do not know who may fulfil a proposal. So the gateway withdraws one that the last of these rejected.
        """
        if decision.kind in (kinds.MCP_REQUEST, kinds.MCP_REJECT):
            decided = self._proposals.decided_before(decision)
            if decided is not None:
                text = f"'{decided[1]}' has already decided the proposal '{decided[0]}'"
                return refuse(errors.ALREADY_DECIDED, text)
        changes = self._proposals.decide(decision)
        if decision.kind == kinds.MCP_REJECT and (closed := self._proposals.closed_by_others(decision.sender, changes)):
            withdrawal = Broadcast(self._messages.withdraw(closed, "all_rejected", now=now))
            return Receipt((*state_changed(changes), Broadcast(decision), withdrawal), accepted=decision)
        return self._changed(decision, changes)

    def _changed(self, envelope: Envelope, changes: Changes) -> Receipt | None:
        return accept(envelope, *state_changed(changes)) if changes else None

    def _find(self, name: str) -> ParticipantId | None:
        connected = ParticipantId(name) if name in self._membership.connected else None
        return self._membership.resolve(name) or connected

    def _sources(
        self, sender: str, patterns: tuple[dict[str, Any], ...], recipient: str, *, is_checked: bool
    ) -> tuple[tuple[str, ...], ...] | Receipt:
        """Return the sources of each pattern. Refuse patterns that the sender does not have, or may not give back."""
        if not is_checked:
            return ((),) * len(patterns)
        own, found = self._membership.permissions_of(sender).patterns, list[tuple[str, ...]]()
        for pattern, through in zip(patterns, self._membership.sources(sender, patterns, recipient), strict=True):
            if through is None:
                problem = "you cannot give a capability that you do not have"
                if covers(own, pattern, ignore_to=self._config.capabilities.ignore_to):
                    problem = (
                        f"it was revoked from '{recipient}', and you have it from there, so you cannot give it back"
                    )
                text = f"{problem}: {json.dumps(pattern, ensure_ascii=False)}"
                return refuse(errors.GRANT_EXCEEDS_OWN, text, your_capabilities=own)
            found.append(through)
        return tuple(found)


def _not_found(name: str) -> Receipt:
    return refuse(errors.PARTICIPANT_NOT_FOUND, f"'{name}' is not a participant of this space")


def _invalid_patterns(kind: str, field: str, patterns: tuple[dict[str, Any], ...]) -> Receipt | None:
    """Refuse too many or too long patterns. Raises `PayloadError` for a capability without a valid form."""
    found = patterns_problem(patterns)
    if found is not None:
        index, problem = found
        place = field if index is None else f"{field}.{index}"
        return refuse(errors.LIMIT_EXCEEDED, f"{kind}: payload.{place}: {problem}")
    for index, pattern in enumerate(patterns):
        if not has_kind(pattern):
            raise PayloadError(kind, f"payload.{field}.{index}", "a capability must be an object with a 'kind'")
    return None
