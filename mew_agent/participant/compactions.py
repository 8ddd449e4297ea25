"""The question to compact, and what answers it: the outcome itself, or the word of a peer that may not tell more.

A peer without the capability for `participant/compact-done` still says in its status when it is done. Owns which words
those are, and what of an outcome can be read from them.
"""

from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.errors import PayloadError
from mew_protocol.payloads import read_payload
from mew_protocol.payloads.participant import CompactDone, Status

from mew_agent.errors import BadAnswer
from mew_agent.participant.requests import Question

_FAILED = "compaction_failed"


class CompactionQuestion(Question):
    """A `participant/compact` of ours to `peer`."""

    def __init__(self, sent: Envelope, peer: str) -> None:
        super().__init__(sent, peer, kinds.PARTICIPANT_COMPACT_DONE)

    def take(self, envelope: Envelope) -> str | None:
        """See `Question.take`. Of one sender all arrives in order: after the last status no outcome comes any more."""
        if envelope.sender == self.peer and envelope.kind == kinds.PARTICIPANT_STATUS and _is_last(envelope):
            self._settle(reply=envelope)
        return super().take(envelope)

    def outcome(self, waited_seconds: float) -> CompactDone:
        """What came of it, after so long a wait. Raises what `answered` raises, and `BadAnswer`."""
        answer = self.answered(waited_seconds)
        try:
            if answer.kind == kinds.PARTICIPANT_COMPACT_DONE:
                return read_payload(answer, CompactDone)
            return _as_told_by(read_payload(answer, Status))
        except PayloadError as error:
            raise BadAnswer(answer.sender, str(error)) from None


def _is_last(status: Envelope) -> bool:
    word = str(status.body.get("status") or "").partition(":")[0]
    return word in ("compacted", _FAILED)


def _as_told_by(status: Status) -> CompactDone:
    """Nothing is known of what was freed; without a context there was nothing to free."""
    word, _, reason = (status.status or "").partition(":")
    if word == _FAILED:
        return CompactDone(status="skipped", skipped=True, reason=reason or "not told")
    if status.context is None and not status.tokens and not status.messages_in_context:
        return CompactDone(status="skipped", skipped=True, reason="no_history")
    basis = status.context.basis if status.context is not None and status.tokens is not None else None
    return CompactDone(
        status="compacted",
        tokens_after=status.tokens,
        max_tokens=status.max_tokens,
        basis=basis if basis in ("reported", "projected") else None,
    )
