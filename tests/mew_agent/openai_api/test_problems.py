"""Errors in OpenAI's shape."""

import pytest

from mew_agent.errors import NoAnswer
from mew_agent.openai_api.problems import Problem, bad_body, no_answer, unknown_model


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "invalid_request_error"), (429, "rate_limit_error"), (502, "server_error")],
)
def test_the_error_type_follows_the_status(status: int, kind: str) -> None:
    problem = Problem(status, "some_code", "What happened.")
    expected = {"message": "What happened.", "type": kind, "param": None, "code": "some_code"}
    assert problem.as_dict() == {"error": expected}
    assert str(problem) == "What happened."


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("agent_left", 502),
        ("cancelled", 502),
        ("connection_lost", 502),
        ("agent_busy", 429),
        ("refused", 403),
        ("closing", 503),
        ("agent_silent", 504),
    ],
)
def test_each_missing_answer_has_its_status_and_forbids_retries(code: str, status: int) -> None:
    problem = no_answer(NoAnswer("coder", code, "why"))
    assert (problem.status, problem.code, problem.message, problem.is_repeatable) == (status, code, "why", False)


def test_an_invalid_body_error_names_the_field() -> None:
    problem = bad_body("n", "is 2", "1")
    assert problem.message == "n: is 2 (expected 1)"
    assert problem.as_dict()["error"]["param"] == "n"


def test_an_unknown_model_error_names_the_models() -> None:
    assert "(agents here: a, b)" in unknown_model("x", ["a", "b"]).message
    assert "(no agent is here)" in unknown_model("x", []).message
