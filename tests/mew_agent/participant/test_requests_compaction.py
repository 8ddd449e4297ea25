"""The request to compact: what answers it, and how a bare status is read as an outcome."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import CompactDone

from mew_agent.errors import BadAnswer, PeerTimeout
from mew_agent.participant.messenger import CompactionRequest

REPORT = {
    "basis": "projected",
    "measure": "total",
    "max_tokens_basis": "configured",
    "level": "healthy",
    "severity": 0,
    "policy": "mew",
    "stale_messages": 0,
    "revision": 1,
    "compactions": 1,
}
FULL: dict[str, Any] = {"messages_in_context": 4, "tokens": 500, "max_tokens": 8192, "context": REPORT}


def envelope(kind: str, payload: Any, sender: str = "coder") -> Envelope:
    return Envelope.write(kind, id="a", ts="t", sender=sender, payload=payload, correlation_id=("q",))


def status(word: str, sender: str = "coder", **more: Any) -> Envelope:
    return envelope("participant/status", {"messages_in_context": 0, "status": word, **more}, sender)


def requested() -> CompactionRequest:
    return CompactionRequest(Envelope.write("participant/compact", id="q", ts="t", sender="ada"), "coder")


def test_first_outcome_counts_and_later_statuses_do_not() -> None:
    request = requested()
    for received in (
        status("compacting"),
        envelope("participant/compact-done", {"status": "compacted", "freed_tokens": 7}),
        status("compacted"),
    ):
        request.receive(received)
    assert request.outcome(1) == CompactDone(status="compacted", freed_tokens=7)


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (status("compacted"), CompactDone(status="skipped", skipped=True, reason="no_context")),
        (
            status("compacted", **FULL),
            CompactDone(status="compacted", tokens_after=500, max_tokens=8192, basis="projected"),
        ),
        (status("compacted", messages_in_context=4), CompactDone(status="compacted")),
        (
            status("compaction_failed:the model is down: refused"),
            CompactDone(status="skipped", skipped=True, reason="the model is down: refused"),
        ),
    ],
)
def test_final_status_of_a_peer_without_compact_done_is_an_outcome(last: Envelope, outcome: CompactDone) -> None:
    request = requested()
    request.receive(status("compacting"))
    request.receive(last)
    assert request.outcome(1) == outcome


def test_status_of_another_peer_is_not_an_answer() -> None:
    request = requested()
    request.receive(status("compacted", sender="writer"))
    with pytest.raises(PeerTimeout):
        request.outcome(1)


@pytest.mark.parametrize("kind", ["participant/compact-done", "participant/status"])
def test_unreadable_answer_raises_bad_answer(kind: str) -> None:
    request = requested()
    request.receive(envelope(kind, {"status": "compacted", "freed_tokens": "many", "messages_in_context": "some"}))
    with pytest.raises(BadAnswer, match=r"freed_tokens|messages_in_context"):
        request.outcome(1)
