"""Open questions: what answers them, and what ends them without an answer."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope

from mew_agent.errors import AnswerLost, PeerAbsent, PeerTimeout, Refused
from mew_agent.participant.requests import Question, Questions


def envelope(kind: str, sender: str, *about: str, name: str = "x", payload: dict[str, Any] | None = None) -> Envelope:
    return Envelope.write(kind, id=name, ts="t", sender=sender, payload=payload, correlation_id=about)


def asked(peer: str = "bob") -> tuple[Questions, Question]:
    return Questions("ada"), Question(envelope("mcp/request", "ada", name="q"), peer, "mcp/response")


def test_only_who_was_asked_answers_and_only_the_first_time() -> None:
    questions, question = asked()
    with questions.open(question):
        questions.receive(envelope("mcp/response", "eve", "q"))
        questions.receive(envelope("chat", "bob", "q"))
        assert not question.settled.is_set()
        first = envelope("mcp/response", "bob", "other", "q", name="1")
        questions.receive(first)
        questions.receive(envelope("mcp/response", "bob", "q", name="2"))
    assert question.answered(1.0) is first


def test_the_gateways_refusal_is_an_answer_nobody_elses_is() -> None:
    questions, question = asked()
    refusal = {"error": "capability_violation", "message": "no"}
    with questions.open(question):
        questions.receive(envelope("system/error", "eve", "q", payload=refusal))
        assert not question.settled.is_set()
        questions.receive(envelope("system/error", "system:gateway", "q", payload=refusal))
    with pytest.raises(Refused, match="capability_violation"):
        question.answered(1.0)


def test_without_an_answer_there_is_a_reason() -> None:
    _, question = asked()
    with pytest.raises(PeerTimeout, match=r"'bob' did not answer 'mcp/request' within 2 seconds \(it is paused\)"):
        question.answered(2.0, "it is paused")


def test_who_leaves_will_not_answer() -> None:
    questions, question = asked()
    with questions.open(question):
        questions.left("eve")
        assert not question.settled.is_set()
        questions.left("bob")
    with pytest.raises(PeerAbsent, match="'bob' left before it answered"):
        question.answered(1.0)


@pytest.mark.parametrize(("is_sent", "is_echoed", "is_lost"), [(1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_a_new_connection_loses_what_the_old_one_did_not_show(is_sent: int, is_echoed: int, is_lost: int) -> None:
    questions, question = asked()
    with questions.open(question):
        question.is_sent = bool(is_sent)
        if is_echoed:
            questions.receive(question.sent)
        questions.rejoined()
    assert isinstance(question.failure, AnswerLost) == bool(is_lost)


def test_whoever_does_not_come_back_after_a_new_connection_will_not_answer() -> None:
    questions, question = asked()
    _, later = asked("eve")
    with questions.open(question):
        before = questions.to_peers()
        questions.missing({"bob"}, before)
        assert question.failure is None
        questions.missing({"eve"}, (later,))
        assert question.failure is None
        questions.missing({"eve"}, before)
    assert isinstance(question.failure, PeerAbsent)


def test_the_gateway_is_no_peer_that_could_stay_away() -> None:
    questions, question = asked("gateway")
    with questions.open(question):
        assert questions.to_peers() == ()


def test_a_closed_question_hears_nothing() -> None:
    questions, question = asked()
    with questions.open(question):
        pass
    questions.receive(envelope("mcp/response", "bob", "q"))
    assert question.reply is None
