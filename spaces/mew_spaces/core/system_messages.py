"""[pure] Composes the gateway's own envelopes, with ids that all gateways of a space derive identically."""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

from mew_protocol import kinds
from mew_protocol.envelope import Envelope, wire_timestamp
from mew_protocol.ids import GATEWAY, ParticipantId
from mew_protocol.payloads.mcp import Withdraw, WithdrawalCause
from mew_protocol.payloads.system import ErrorPayload
from pydantic import BaseModel

NewId = Callable[[], str]

_REASONS: Mapping[WithdrawalCause, str] = {
    "proposer_left": "its proposer left",
    "all_rejected": "all who may approve it have rejected it",
}


class DerivedIds:
    """The ids of the gateway's envelopes and the tokens of invited participants: derived within an event, else random.

    They do not reveal the seed, so a token cannot be derived from an id.
    """

    def __init__(self, *, new_id: NewId, new_token: NewId) -> None:
        """`new_id` and `new_token` are used outside events."""
        self.new_id = self._random_id = new_id
        """Returns a new envelope id."""
        self._random_token = new_token
        self._seed: bytes | None = None
        self._count = 0

    def derive_from(self, seed: bytes | None, event: int = 0) -> None:
        """Derive ids from the seed of a batch and the position of an event from now on; None stops this."""
        self._seed, self._count = None if seed is None else b"%s/%d" % (seed, event), 0
        self.new_id = self._random_id if seed is None else self._derived_id

    def new_token(self) -> str:
        """Return a new token."""
        if self._seed is None:
            return self._random_token()
        return urlsafe_b64encode(self._derive(32, b"token")).rstrip(b"=").decode()

    def _derived_id(self) -> str:
        return self._derive(16, b"id").hex()

    def _derive(self, size: int, purpose: bytes) -> bytes:
        assert self._seed is not None
        self._count += 1
        return blake2b(b"%s/%d" % (self._seed, self._count), digest_size=size, person=purpose).digest()


class SystemMessages:
    """Composes envelopes from `system:gateway`, or from the sender that the wire uses for streams."""

    def __init__(self, ids: DerivedIds) -> None:
        self.ids = ids

    def compose(
        self,
        kind: str,
        payload: BaseModel | Mapping[str, Any],
        *,
        now: datetime,
        to: tuple[str, ...] = (),
        correlation_id: tuple[str, ...] = (),
        sender: ParticipantId = GATEWAY,
    ) -> Envelope:
        """Return an envelope with a new id; an empty `to` addresses everyone."""
        return Envelope.write(
            kind,
            id=self.ids.new_id(),
            ts=wire_timestamp(now),
            sender=sender,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
        )

    def withdraw(self, proposals: tuple[str, ...], cause: WithdrawalCause, *, now: datetime) -> Envelope:
        """Return the withdrawal of closed proposals."""
        payload = Withdraw(reason=_REASONS[cause], cause=cause)
        return self.compose(kinds.MCP_WITHDRAW, payload, now=now, correlation_id=proposals)

    def compose_error(
        self,
        payload: ErrorPayload,
        participant: str | None,
        *,
        now: datetime,
        envelope_id: str | None = None,
        sender: ParticipantId = GATEWAY,
    ) -> Envelope:
        """Return a `system/error` for a participant (if known) about its envelope (if that has an id)."""
        to = (participant,) if participant else ()
        correlation_id = (envelope_id,) if envelope_id else ()
        return self.compose(kinds.SYSTEM_ERROR, payload, now=now, to=to, correlation_id=correlation_id, sender=sender)
