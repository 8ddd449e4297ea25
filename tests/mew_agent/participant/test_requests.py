"""Pending requests: what answers them, and what ends them without an answer."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope

from mew_agent.errors import AnswerLost, PeerAbsent, PeerTimeout, Refused
from mew_agent.participant.messenger import CompactionRequest, ControlRequest, PendingRequest, PendingRequests
from mew_agent.participant.peers import Peer, PeerChanges


def envelope(kind: str, sender: str, *about: str, name: str = "x", payload: dict[str, Any] | None = None) -> Envelope:
    return Envelope.write(kind, id=name, ts="t", sender=sender, payload=payload, correlation_id=about)


def leaving(name: str) -> tuple[Envelope, PeerChanges]:
    return envelope("system/presence", "system:gateway"), PeerChanges(left=(Peer(name),))


def requested(peer: str = "bob") -> tuple[PendingRequests, PendingRequest]:
    return PendingRequests("ada"), PendingRequest(envelope("mcp/request", "ada", name="q"), peer, "mcp/response")


def test_only_the_first_answer_of_the_peer_counts() -> None:
    requests, request = requested()
    with requests.tracking(request):
        requests.receive(envelope("mcp/response", "eve", "q"), PeerChanges())
        requests.receive(envelope("chat", "bob", "q"), PeerChanges())
        assert not request.done.is_set()
        first = envelope("mcp/response", "bob", "other", "q", name="1")
        requests.receive(first, PeerChanges())
        requests.receive(envelope("mcp/response", "bob", "q", name="2"), PeerChanges())
    assert request.reply_or_raise(1.0) is first


@pytest.mark.parametrize(
    ("kind", "word", "is_answer"),
    [
        ("participant/request-status", "compacting", True),  # the word of what its agent does now
        ("participant/forget", "forgetting", False),
        ("participant/forget", "forgot", True),
        ("participant/forget", None, True),
        ("participant/compact", "compacting", False),
        ("participant/compact", None, False),
        ("participant/compact", "compacted", True),
    ],
)
def test_a_status_about_begun_work_answers_no_control(kind: str, word: str | None, is_answer: bool) -> None:
    sent = envelope(kind, "ada", name="q")
    compacts = kind == "participant/compact"
    request = CompactionRequest(sent, "bob") if compacts else ControlRequest(sent, "bob", "participant/status")
    payload: dict[str, Any] = {"messages_in_context": 1} | ({} if word is None else {"status": word})
    request.receive(envelope("participant/status", "bob", "q", payload=payload))
    assert request.done.is_set() is is_answer


def test_only_the_gateway_refuses_a_request() -> None:
    requests, request = requested()
    refusal = {"error": "capability_violation", "message": "no"}
    with requests.tracking(request):
        requests.receive(envelope("system/error", "eve", "q", payload=refusal), PeerChanges())
        assert not request.done.is_set()
        requests.receive(envelope("system/error", "system:gateway", "q", payload=refusal), PeerChanges())
    with pytest.raises(Refused, match="capability_violation"):
        request.reply_or_raise(1.0)


def test_missing_answer_raises_a_timeout_with_the_detail() -> None:
    _, request = requested()
    with pytest.raises(PeerTimeout, match=r"'bob' did not answer 'mcp/request' within 2 seconds \(it is paused\)"):
        request.reply_or_raise(2.0, "it is paused")


def test_request_fails_when_its_peer_leaves() -> None:
    requests, request = requested()
    with requests.tracking(request):
        requests.receive(*leaving("eve"))
        assert not request.done.is_set()
        requests.receive(*leaving("bob"))
    with pytest.raises(PeerAbsent, match="'bob' left before it answered"):
        request.reply_or_raise(1.0)


@pytest.mark.parametrize(("is_sent", "is_echoed", "is_lost"), [(1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_unrelayed_requests_are_lost_with_their_connection(is_sent: int, is_echoed: int, is_lost: int) -> None:
    requests, request = requested()
    with requests.tracking(request):
        request.is_sent = bool(is_sent)
        if is_echoed:
            requests.receive(request.sent, PeerChanges())
        requests.connected()
    assert isinstance(request.failure, AnswerLost) == bool(is_lost)


def test_request_fails_if_its_peer_does_not_return_after_a_reconnect() -> None:
    requests, request = requested()
    _, later = requested("eve")
    with requests.tracking(request):
        before = requests.to_peers()
        requests.fail_absent({"bob"}, before)
        assert request.failure is None
        requests.fail_absent({"eve"}, (later,))
        assert request.failure is None
        requests.fail_absent({"eve"}, before)
    assert isinstance(request.failure, PeerAbsent)


@pytest.mark.parametrize("gateway", ["gateway", "system:gateway"])
def test_gateway_is_not_a_peer_that_could_be_absent(gateway: str) -> None:
    requests, request = requested(gateway)
    with requests.tracking(request):
        assert requests.to_peers() == ()


def test_closed_request_receives_nothing() -> None:
    requests, request = requested()
    with requests.tracking(request):
        pass
    requests.receive(envelope("mcp/response", "bob", "q"), PeerChanges())
    assert request.reply is None
