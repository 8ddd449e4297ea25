"""Envelopes of ours that wait for an answer: which envelope answers which, and when none can come any more.

Fed with every envelope that arrives, and told who left and when the connection was joined anew. It sends nothing and
knows no clock; how long an answer is waited for is the asker's matter.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.ids import GATEWAY, STREAM_GATEWAY

from mew_agent.errors import AnswerLost, PeerAbsent, PeerError, PeerTimeout, Refused


class Question:
    """An envelope of ours to `peer` that waits for an envelope of kind `answer`.

    `settled` is set when `reply` (maybe the gateway's refusal) or `failure` is there.
    """

    def __init__(self, sent: Envelope, peer: str, answer: str) -> None:
        self.sent = sent
        self.peer = peer
        self.answer = answer
        self.settled = anyio.Event()
        self.reply: Envelope | None = None
        self.failure: PeerError | None = None
        self.is_sent = False
        """Whether we wrote it to a connection."""
        self.is_echoed = False
        """Whether the gateway showed it to us, as it does with everything it passes on."""

    def take(self, envelope: Envelope) -> str | None:
        """Look at an envelope that names the question: only who was asked can answer, or the gateway refuse.

        Returns the id of an envelope whose answers count, too.
        """
        if is_refusal(envelope) or (envelope.kind == self.answer and envelope.sender == self.peer):
            self._settle(reply=envelope)
        return None

    def fail(self, failure: PeerError) -> None:
        """No answer can come any more."""
        self._settle(failure=failure)

    def answered(self, waited_seconds: float, detail: str = "") -> Envelope:
        """The answer, after so long a wait. Raises a `PeerError` when there is none."""
        if self.failure is not None:
            raise self.failure
        if self.reply is None:
            raise PeerTimeout(self.peer, self.sent.kind, waited_seconds, detail)
        if is_refusal(self.reply) and self.answer != kinds.SYSTEM_ERROR:
            error, message = self.reply.body.get("error"), self.reply.body.get("message")
            raise Refused(self.peer, self.sent.kind, str(error or "refused"), str(message or ""))
        return self.reply

    def _settle(self, reply: Envelope | None = None, failure: PeerError | None = None) -> None:
        if not self.settled.is_set():
            self.reply, self.failure = reply, failure
            self.settled.set()


class Questions:
    """All open questions of one participant."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._by_id: dict[str, Question] = {}

    @contextmanager
    def open(self, question: Question) -> Iterator[None]:
        """While the block runs, what arrives may answer the question."""
        self._by_id[question.sent.id] = question
        try:
            yield
        finally:
            for name in [name for name, one in self._by_id.items() if one is question]:
                del self._by_id[name]

    def receive(self, envelope: Envelope) -> None:
        """An envelope arrived."""
        if not self._by_id:
            return
        if envelope.sender == self._me and envelope.id in self._by_id:
            self._by_id[envelope.id].is_echoed = True
        for name in envelope.correlation_ids:
            question = self._by_id.get(name)
            followed = question.take(envelope) if question is not None else None
            if question is not None and followed is not None:
                self._by_id[followed] = question

    def left(self, participant: str) -> None:
        """Somebody left the space."""
        for question in self._open():
            if question.peer == participant:
                question.fail(PeerAbsent(participant, had_been_asked=True))

    def rejoined(self) -> None:
        """There is a new connection: what the old one did not show to have passed on may be lost."""
        for question in self._open():
            if question.is_sent and not question.is_echoed:
                question.fail(AnswerLost(question.peer, question.sent.kind))

    def missing(self, present: Collection[str], asked: Collection[Question]) -> None:
        """Some time has passed since we joined anew: of those asked before, who is not back will not answer."""
        for question in self._open():
            if question in asked and question.peer not in present:
                question.fail(PeerAbsent(question.peer, had_been_asked=True))

    def to_peers(self) -> tuple[Question, ...]:
        """The open questions that somebody else than the gateway should answer."""
        return tuple(one for one in self._open() if one.peer not in (GATEWAY, STREAM_GATEWAY))

    def _open(self) -> tuple[Question, ...]:
        return tuple(dict.fromkeys(self._by_id.values()))


def is_refusal(envelope: Envelope) -> bool:
    """Whether the gateway says here that it did not pass on what this names."""
    return envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in (GATEWAY, STREAM_GATEWAY)
