"""What senders learn about their envelopes: accepted, duplicate, or not stored.

Recognises envelopes that come twice, and composes the answers. An envelope that is broadcast needs none: its echo
with a number is the answer. Does not know when an answer may be sent; `service` sends it behind what it rests on.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mew_protocol import errors, kinds
from mew_protocol.bounded_dict import FairDict
from mew_protocol.codec import decode_envelope
from mew_protocol.envelope import Draft, Envelope, wire_timestamp
from mew_protocol.ids import GATEWAY, ParticipantId
from mew_protocol.payloads.system import SystemError as ErrorPayload
from mew_protocol.position import Position

from mew_spaces.core.admission import content_digest
from mew_spaces.core.effects import Broadcast, ConnectionId, Deliver, Receipt
from mew_spaces.core.space import Space
from mew_spaces.log.memory import SpaceLog

REMEMBERED_UNECHOED = 10_000
"""How many accepted envelopes that were not broadcast are recognised when they come twice."""

NOT_STORED_MESSAGE = "the gateway could not store this envelope, so no participant received it; send it again later"


class Acknowledgements:
    """The answers of one space to its senders. Knows the envelopes in the log, and the newest ones without an echo."""

    def __init__(
        self,
        log: SpaceLog,
        space: Space,
        owners: Mapping[ConnectionId, ParticipantId],
        *,
        clock: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        """`owners` maps every connection that has joined to its participant; the caller keeps it up to date."""
        self._log = log
        self._space = space
        self._owners = owners
        self._clock = clock
        self._new_id = new_id
        self._unechoed: FairDict[tuple[str, str], str] = FairDict(REMEMBERED_UNECHOED, lambda key, _: key[0])
        """The digests of accepted envelopes that were not broadcast, by sender and id."""

    # Envelopes that come twice

    def find_duplicate(self, sender: str, draft: Draft, now: datetime) -> Receipt | None:
        """Return the receipt for an envelope whose sender and id are known; None for a new one, or without an id."""
        if draft.id is None:
            return None
        key = (sender, draft.id)
        sequence, unechoed = self._log.sequence_of(*key), self._unechoed.get(key)
        if unechoed is not None and unechoed == content_digest(draft):
            position = None
        elif sequence is not None and self._is_same(sequence, draft):
            position = self._position_of(sequence)
        else:
            return None
        accepted = Envelope.complete(draft, id=draft.id, ts=wire_timestamp(now), sender=sender)
        answer = {"status": "duplicate"} | ({} if position is None else {"position": str(position)})
        return Receipt((), accepted=accepted, answer=answer)

    def _is_same(self, sequence: int, draft: Draft) -> bool:
        """Return whether a draft repeats a logged envelope. Some clients count ids from 1 at every start."""
        entry = self._log.entry(sequence)
        if entry is None:  # still being written, or no longer kept: a repetition is more likely than a new envelope
            return draft.kind != kinds.MCP_PROPOSAL  # the space compares it with what was proposed
        known = decode_envelope(entry.data)
        return (known.kind, known.to, known.payload) == (draft.kind, draft.to, draft.payload)

    def confirm(self, receipt: Receipt, session: ConnectionId | None) -> tuple[Deliver, ...]:
        """Remember an accepted envelope that is not broadcast, and return the confirmation for a session."""
        accepted = receipt.accepted
        if accepted is None or accepted.kind == kinds.SYSTEM_HEARTBEAT:
            return ()
        if any(isinstance(one, Broadcast) and one.envelope.id == accepted.id for one in receipt.effects):
            return ()
        self._unechoed[accepted.sender, accepted.id] = content_digest(accepted)
        return () if session is None else (self.receipt(session, accepted.sender, accepted.id, status="accepted"),)

    # Answers

    def receipt(
        self,
        connection: ConnectionId,
        to: str,
        envelope_id: str | None,
        *,
        status: str,
        position: Position | None = None,
        **about: Any,
    ) -> Deliver:
        """Return a `system/receipt` about an envelope, or without an id about a session: `live` or `gap`.

        `about` are further keys of its payload.
        """
        where = {} if position is None else {"position": str(position)}
        envelope = Envelope.write(
            kinds.SYSTEM_RECEIPT,
            id=self._new_id(),
            ts=wire_timestamp(self._clock()),
            sender=GATEWAY,
            payload={"status": status, **about, **where},
            to=(to,),
            correlation_id=() if envelope_id is None else (envelope_id,),
        )
        return Deliver(envelope, (connection,), is_secret=True)

    def duplicate(self, connection: ConnectionId, sender: str, envelope_id: str) -> Deliver:
        """Return the answer to an envelope that came again, once the first copy is stored or could not be."""
        if not self._is_known(sender, envelope_id):
            return self.not_stored(connection, sender, envelope_id)
        position = self._position_of(self._log.sequence_of(sender, envelope_id))
        return self.receipt(connection, sender, envelope_id, status="duplicate", position=position)

    def is_stored(self, receipt: Receipt, is_batch_stored: bool) -> bool:
        """Return whether an accepted envelope is stored, after its batch; that of a duplicate was an earlier one."""
        accepted = receipt.accepted
        if accepted is None or receipt.answer.get("status") != "duplicate":
            return is_batch_stored
        return self._is_known(accepted.sender, accepted.id)

    def _is_known(self, sender: str, envelope_id: str) -> bool:
        return self._log.sequence_of(sender, envelope_id) is not None or (sender, envelope_id) in self._unechoed

    def not_stored(self, connection: ConnectionId, sender: str, envelope_id: str | None) -> Deliver:
        """Return the error for the sender of an envelope that could not be stored."""
        payload, now = ErrorPayload(error=errors.NOT_STORED, message=NOT_STORED_MESSAGE), self._clock()
        envelope = self._space.messages.compose_error(payload, sender, now=now, envelope_id=envelope_id)
        return Deliver(envelope, (connection,))

    def take_back(self, envelope: Envelope) -> tuple[Deliver, ...]:
        """Forget an envelope that could not be stored, and return the errors for the connections of its sender."""
        sender = envelope.sender
        self._unechoed.pop((sender, envelope.id), None)
        to = tuple(connection for connection, owner in self._owners.items() if owner == sender)
        return tuple(self.not_stored(connection, sender, envelope.id) for connection in to)

    def refusal(self, connection: ConnectionId | None, sender: str, draft: Draft) -> Receipt:
        """Return the receipt of an envelope that is refused because storing fails; over HTTP without a connection."""
        payload = ErrorPayload(error=errors.NOT_STORED, message=NOT_STORED_MESSAGE, attempted_kind=draft.kind)
        effects = () if connection is None else (self.not_stored(connection, sender, draft.id),)
        return Receipt(effects, refused=payload)

    def _position_of(self, sequence: int | None) -> Position | None:
        return None if sequence is None else Position(self._log.epoch, sequence)
