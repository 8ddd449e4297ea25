"""The envelopes of a participant that wait for an answer: which envelope answers which, and when none can come.

Owns the one registry of pending requests, and what an answer to `participant/compact` looks like. Does not know how a
request is sent, or how long its sender waits.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.ids import GATEWAY, GATEWAY_IDS
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.base import Payload
from mew_protocol.payloads.capability import Ended, EndedRights
from mew_protocol.payloads.chat import chat_refusal_in
from mew_protocol.payloads.participant import CompactDone, Status, refusal_in

from mew_agent.errors import (
    AnswerLost,
    BadAnswer,
    ChatRefused,
    ControlRefused,
    PeerAbsent,
    PeerError,
    PeerTimeout,
    Refused,
)
from mew_agent.participant.peers import PeerChanges

Answer = TypeVar("Answer", bound=Payload)


class PendingRequest:
    """An envelope to `peer` that waits for an envelope of kind `answer_kind`.

    `done` is set when `reply` (perhaps the gateway's refusal) or `failure` is there; the first one counts.
    """

    def __init__(self, sent: Envelope, peer: str, answer_kind: str) -> None:
        self.sent = sent
        self.peer = peer
        self.answer_kind = answer_kind
        self.done = anyio.Event()
        self.reply: Envelope | None = None
        self.failure: PeerError | None = None
        self.is_sent = False
        """Whether the envelope was written to a connection."""
        self.is_echoed = False
        """Whether the gateway relayed it: the sender of an envelope receives it, too."""

    def receive(self, envelope: Envelope) -> str | None:
        """Check an envelope that refers to this request: only the peer answers it, and both may refuse it.

        Returns the id of an envelope whose answers also belong to this request, None if there is none.
        """
        if is_refusal(envelope) or (envelope.kind == self.answer_kind and envelope.sender == self.peer):
            self._complete(reply=envelope)
        elif envelope.sender == self.peer and (problem := chat_refusal_in(envelope)) is not None:
            self._complete(failure=ChatRefused(self.peer, problem))
        return None

    def relayed(self, _echo: Envelope) -> None:
        """Record that the gateway relayed it."""
        self.is_echoed = True

    def fail(self, failure: PeerError) -> None:
        """Record that no answer can come."""
        self._complete(failure=failure)

    def reply_or_raise(self, waited_seconds: float, detail: str = "") -> Envelope:
        """Return the answer. Raises the `PeerError` that says why there is none after `waited_seconds`."""
        if self.failure is not None:
            raise self.failure
        if self.reply is None:
            raise PeerTimeout(self.peer, self.sent.kind, waited_seconds, detail)
        if is_refusal(self.reply) and self.answer_kind != kinds.SYSTEM_ERROR:
            error, message = self.reply.body.get("error"), self.reply.body.get("message")
            raise Refused(self.peer, self.sent.kind, str(error or "refused"), str(message or ""))
        return self.reply

    def _complete(self, reply: Envelope | None = None, failure: PeerError | None = None) -> None:
        if not self.done.is_set():
            self.reply, self.failure = reply, failure
            self.done.set()


class CompactionRequest(PendingRequest):
    """A `participant/compact`; a peer without `participant/compact-done` reports the outcome in its status."""

    def __init__(self, sent: Envelope, peer: str) -> None:
        super().__init__(sent, peer, kinds.PARTICIPANT_COMPACT_DONE)

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`. An outcome comes before the final status, so it counts if there is one."""
        if (
            envelope.sender == self.peer
            and envelope.kind == kinds.PARTICIPANT_STATUS
            and envelope.body.get("status") not in (None, "compacting")
        ):
            self._complete(reply=envelope)
        return super().receive(envelope)

    def outcome(self, waited_seconds: float) -> CompactDone:
        """Return the outcome. Raises the errors of `reply_or_raise`, and `BadAnswer`."""
        answer = self.reply_or_raise(waited_seconds)
        if answer.kind == kinds.PARTICIPANT_COMPACT_DONE:
            return read_answer(answer, CompactDone)
        return CompactDone.from_status(read_answer(answer, Status))


class ControlRequest(PendingRequest):
    """A control; a peer that does not carry it out refuses it in a status."""

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`."""
        is_status = envelope.kind == kinds.PARTICIPANT_STATUS and envelope.sender == self.peer
        if is_status and (problem := refusal_in(envelope.body.get("status"))) is not None:
            self._complete(failure=ControlRefused(self.peer, self.sent.kind, problem))
        return super().receive(envelope)


class RevocationRequest(PendingRequest):
    """A `capability/revoke`, which is done when it comes back. The gateway lists the ended rights before."""

    def __init__(self, sent: Envelope) -> None:
        super().__init__(sent, GATEWAY, kinds.CAPABILITY_REVOKE)
        self.ended: tuple[EndedRights, ...] = ()

    def receive(self, envelope: Envelope) -> str | None:
        """See `PendingRequest.receive`."""
        if envelope.kind == kinds.CAPABILITY_ENDED and envelope.sender == GATEWAY:
            self.ended = read_answer(envelope, Ended).ended
        return super().receive(envelope)

    def relayed(self, echo: Envelope) -> None:
        """See `PendingRequest.relayed`."""
        super().relayed(echo)
        self._complete(reply=echo)


class PendingRequests:
    """All pending requests of one participant, by the ids of their envelopes."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._by_id: dict[str, PendingRequest] = {}

    @contextmanager
    def tracking(self, request: PendingRequest) -> Iterator[None]:
        """Match envelopes with the request while the block runs."""
        self._by_id[request.sent.id] = request
        try:
            yield
        finally:
            for name in [name for name, one in self._by_id.items() if one is request]:
                del self._by_id[name]

    def receive(self, envelope: Envelope, changes: PeerChanges) -> None:
        """Match an envelope with the requests that it refers to. A peer that leaves will not answer."""
        if not self._by_id:
            return
        if envelope.sender == self._me and envelope.id in self._by_id:
            self._by_id[envelope.id].relayed(envelope)
        for name in envelope.correlation_ids:
            waiting = self._by_id.get(name)
            if waiting is not None and (followed := waiting.receive(envelope)) is not None:
                # A peer chooses the id: it must not redirect the answers to another request of ours.
                self._by_id.setdefault(followed, waiting)
        # A welcome after a lost connection lists who is back already; the others get some time, see `fail_absent`.
        if envelope.kind == kinds.SYSTEM_PRESENCE:
            gone = {peer.id for peer in changes.left}
            for request in self._open():
                if request.peer in gone:
                    request.fail(PeerAbsent(request.peer, had_been_asked=True))

    def connected(self) -> None:
        """Fail requests of an earlier connection that the gateway did not relay: they may be lost."""
        for request in self._open():
            if request.is_sent and not request.is_echoed:
                request.fail(AnswerLost(request.peer, request.sent.kind))

    def fail_absent(self, present: Collection[str], requests: Collection[PendingRequest]) -> None:
        """Fail the open ones of `requests` to peers that are not `present`."""
        for request in self._open():
            if request in requests and request.peer not in present:
                request.fail(PeerAbsent(request.peer, had_been_asked=True))

    def to_peers(self) -> tuple[PendingRequest, ...]:
        """Return the open requests that a peer, not the gateway, has to answer."""
        return tuple(one for one in self._open() if one.peer not in GATEWAY_IDS and one.peer != self._me)

    def _open(self) -> tuple[PendingRequest, ...]:
        return tuple(dict.fromkeys(self._by_id.values()))


def is_refusal(envelope: Envelope) -> bool:
    """Return whether this is the gateway's refusal to relay the envelope that it refers to."""
    return envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in GATEWAY_IDS


def read_answer(answer: Envelope, model: type[Answer]) -> Answer:
    """Read the payload of an answer. Raises `BadAnswer` naming the field."""
    try:
        return read_payload(answer, model)
    except PayloadError as error:
        raise BadAnswer(answer.sender, str(error)) from None
