"""[pure] Who may do more than before, and who may be here: `capability/*` and `space/*` in, effects out.

That somebody may send these kinds at all was decided before; here stands what they may not contain.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from mew_protocol import errors, kinds
from mew_protocol.capability import normalise
from mew_protocol.containment import may_pass_on
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.ids import ParticipantId, id_problem
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.capability import Grant as GrantPayload
from mew_protocol.payloads.capability import Revoke
from mew_protocol.payloads.space import Invite, InviteAck, Kick
from mew_protocol.payloads.system import Member, Presence
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.timestamp import wire_timestamp

from mew_spaces.config.settings import SpaceConfig
from mew_spaces.core.effects import Broadcast, ConnectionId, Effect, Enrol, Note, Receipt, Send, refusal
from mew_spaces.core.grants import Grant
from mew_spaces.core.members import Members
from mew_spaces.core.permissions import Seats
from mew_spaces.core.roster import Invited
from mew_spaces.core.system_messages import Voice


class Presences(Protocol):
    """What these rules need of a space beside its members: how to tell or remove somebody."""

    def welcome_again(self, participant: ParticipantId, /, *, now: datetime) -> tuple[Effect, ...]: ...

    def expel(self, participant: ParticipantId, reason: str, /, *, now: datetime) -> tuple[Effect, ...]: ...


class DelegationRules:
    """The rules of one space. `connection_url` is what invited participants are told to connect to."""

    def __init__(
        self,
        config: SpaceConfig,
        seats: Seats,
        members: Members,
        voice: Voice,
        *,
        presences: Presences,
        new_token: Callable[[], str],
    ) -> None:
        self.connection_url: str | None = None
        self._seats = seats
        self._members = members
        self._voice = voice
        self._presences = presences
        self._new_token = new_token
        self._options = config.capabilities
        self._limits = config.limits

    def receive(self, envelope: Envelope, *, hearers: tuple[ConnectionId, ...], now: datetime) -> Receipt:
        """Do what the envelope asks. `hearers` are the connections by which its sender hears answers meant for it."""
        try:
            match envelope.kind:
                case kinds.CAPABILITY_GRANT:
                    return self._grant(envelope, now)
                case kinds.CAPABILITY_REVOKE:
                    return self._revoke(envelope, now)
                case kinds.SPACE_INVITE:
                    return self._invite(envelope, hearers, now)
                case kinds.SPACE_KICK:
                    return self._kick(envelope, now)
                case _:
                    return Receipt((Broadcast(envelope),), accepted=envelope)
        except PayloadError as problem:
            # The reference knows missing parts of an invitation by this error.
            error = errors.INVALID_REQUEST if envelope.kind == kinds.SPACE_INVITE else errors.INVALID_PAYLOAD
            return refusal(error, str(problem), code=errors.VALIDATION_ERROR)

    def _grant(self, envelope: Envelope, now: datetime) -> Receipt:
        asked = read_payload(envelope, GrantPayload)
        _check_patterns(envelope.kind, "capabilities", asked.capabilities)
        recipient = self._known(asked.recipient)
        if recipient is None:
            return refusal(errors.PARTICIPANT_NOT_FOUND, f"'{asked.recipient}' is not a participant of this space")
        refused = self._exceeds_own(envelope.sender, asked.capabilities) if self._options.check_grants else None
        if refused is not None:
            return refused
        held = len(self._seats.of(recipient).granted)
        if held + len(asked.capabilities) > self._limits.grants_per_member:
            text = f"'{recipient}' was granted {held} capabilities; {self._limits.grants_per_member} are the limit"
            return refusal(errors.LIMIT_EXCEEDED, text)
        names = frozenset(name for name in (envelope.id, asked.grant_id) if name)
        self._seats.grant(recipient, Grant(names, envelope.sender, asked.capabilities))
        note = Note(
            "capability_grant",
            envelope.id,
            recipient,
            envelope.sender,
            asked.capabilities,
            asked.grant_id or envelope.id,
            asked.reason,
        )
        return self._changed(envelope, recipient, note, now)

    def _revoke(self, envelope: Envelope, now: datetime) -> Receipt:
        asked = read_payload(envelope, Revoke)
        if asked.grant_id is None and not asked.capabilities:
            text = "capability/revoke: name a grant by payload.grant_id, or what to take back by payload.capabilities"
            return refusal(errors.INVALID_PAYLOAD, text, code=errors.VALIDATION_ERROR)
        recipient = self._known(asked.recipient)
        if recipient is None:
            return refusal(errors.PARTICIPANT_NOT_FOUND, f"'{asked.recipient}' is not a participant of this space")
        taken = self._seats.revoke(recipient, grant_id=asked.grant_id, patterns=asked.capabilities or ())
        if not taken:
            return Receipt((Broadcast(envelope),), accepted=envelope)
        note = Note(
            "capability_revoke", envelope.id, recipient, envelope.sender, tuple(taken), asked.grant_id, asked.reason
        )
        return self._changed(envelope, recipient, note, now)

    def _changed(self, envelope: Envelope, recipient: ParticipantId, note: Note, now: datetime) -> Receipt:
        """The recipient learns what it may now before everybody learns why."""
        told = self._presences.welcome_again(recipient, now=now)
        return Receipt((note, *told, Broadcast(envelope)), accepted=envelope)

    def _invite(self, envelope: Envelope, hearers: tuple[ConnectionId, ...], now: datetime) -> Receipt:
        asked = read_payload(envelope, Invite)
        name = asked.participant_id
        problem = id_problem(name, max_length=self._limits.name_chars)
        if problem:
            return refusal(errors.INVALID_REQUEST, f"space/invite: payload.participant_id: {problem}")
        wanted = asked.initial_capabilities or ()
        _check_patterns(envelope.kind, "initial_capabilities", wanted)
        if self._known(name) is not None:
            return self._exists_already(envelope, name, hearers, now)
        refused = self._exceeds_own(envelope.sender, wanted) if self._options.check_invites else None
        if refused is not None:
            return refused
        if len(self._seats.roster.invited) >= self._limits.members:
            return refusal(errors.LIMIT_EXCEEDED, f"{self._limits.members} participants are invited already")
        token = self._new_token()
        place = Invited(
            capabilities=wanted,
            several_sockets=bool(asked.several_sockets),
            invited_by=envelope.sender,
            invited_at=wire_timestamp(now),
        )
        roster = self._seats.invite(name, place)
        answer: dict[str, Any] = {"status": "created", "participant_id": name, "token": token}
        if self.connection_url is not None:
            answer["connection_url"] = self.connection_url
        presence = Presence(
            event="invited",
            participant=Member(id=name, capabilities=self._seats.of(name).patterns),
            invited_by=envelope.sender,
            reason=asked.reason,
        )
        effects = (
            Enrol(ParticipantId(name), token, roster),
            Note("space_invite", envelope.id, name, envelope.sender, wanted, None, asked.reason),
            *self._acknowledge(envelope, InviteAck.model_validate(answer), hearers, now),
            Broadcast(
                self._voice.say(kinds.SYSTEM_PRESENCE, presence, now=now),
                without=frozenset(self._members.connections_of((envelope.sender,))),
            ),
        )
        return Receipt(effects, accepted=envelope, answer=answer)

    def _exists_already(
        self, envelope: Envelope, name: str, hearers: tuple[ConnectionId, ...], now: datetime
    ) -> Receipt:
        message = f"'{name}' is a participant of this space already"
        ack = InviteAck(status="already_exists", participant_id=name, error=message)
        return Receipt(
            self._acknowledge(envelope, ack, hearers, now),
            refused=ErrorPayload(error=errors.ALREADY_EXISTS, message=message),
            answer={"status": "already_exists", "participant_id": name},
        )

    def _acknowledge(
        self, envelope: Envelope, ack: InviteAck, hearers: tuple[ConnectionId, ...], now: datetime
    ) -> tuple[Effect, ...]:
        said = self._voice.say(
            kinds.SPACE_INVITE_ACK, ack, now=now, to=(envelope.sender,), correlation_id=(envelope.id,)
        )
        return (Send(said, hearers, is_secret=True),) if hearers else ()

    def _kick(self, envelope: Envelope, now: datetime) -> Receipt:
        asked = read_payload(envelope, Kick)
        participant = self._known(asked.participant_id)
        if participant is None:
            text = f"'{asked.participant_id}' is not a participant of this space"
            return refusal(errors.PARTICIPANT_NOT_FOUND, text)
        reason = asked.reason or "removed"
        note = Note("space_kick", envelope.id, participant, envelope.sender, (), None, asked.reason)
        gone = self._presences.expel(participant, reason, now=now)
        return Receipt((note, Broadcast(envelope), *gone), accepted=envelope, answer={"participant_id": participant})

    def _known(self, name: str) -> ParticipantId | None:
        return self._seats.resolve(name) or (ParticipantId(name) if name in self._members else None)

    def _exceeds_own(self, sender: str, wanted: tuple[dict[str, Any], ...]) -> Receipt | None:
        own = self._seats.of(sender).patterns
        for pattern in wanted:
            if not may_pass_on(own, pattern, ignore_to=self._options.ignore_to):
                text = f"you cannot give what you do not hold: {json.dumps(pattern, ensure_ascii=False)}"
                return refusal(errors.GRANT_EXCEEDS_OWN, text, your_capabilities=own)
        return None


def _check_patterns(kind: str, field: str, patterns: tuple[dict[str, Any], ...]) -> None:
    """Raises `PayloadError` for a capability that could never take anything for its form."""
    for index, pattern in enumerate(patterns):
        # The baseline is always among the normalised, so a malformed pattern leaves one.
        if "kind" not in pattern or pattern not in normalise([pattern]):
            raise PayloadError(kind, f"payload.{field}.{index}", "a capability is an object with a 'kind'")
