"""Which error a failure of a server is, told without its key."""

from typing import Any

import pytest

from mew_agent.errors import ContextOverflow, ModelError, ModelFailed, ModelRateLimited, ModelRefused, ToolsUnsupported
from mew_agent.model.failures import Failures

FAILURES = Failures("http://here/v1", "m", "sk-secret")
OVERFLOW = {"message": "This model's maximum context length is 2048 tokens.", "code": "context_length_exceeded"}
NO_TOOLS = {"message": "this model does not support tools"}


def of_status(status: int, body: object, *, offered_tools: bool = False) -> Any:
    return FAILURES.of_status(
        status, body, reason="Bad Request", request_id="r-1", wait_seconds=7.0, offered_tools=offered_tools
    )


@pytest.mark.parametrize(
    ("status", "body", "offered_tools", "kind"),
    [
        (401, {}, False, ModelRefused),
        (403, OVERFLOW, False, ModelRefused),
        (429, {}, True, ModelRateLimited),
        (400, OVERFLOW, True, ContextOverflow),
        (400, NO_TOOLS, True, ToolsUnsupported),
        (400, NO_TOOLS, False, ModelFailed),
        (500, {}, True, ModelFailed),
    ],
)
def test_a_status_and_what_its_body_says_are_one_kind_of_error(
    status: int, body: object, offered_tools: bool, kind: type[ModelError]
) -> None:
    error = of_status(status, body, offered_tools=offered_tools)
    assert isinstance(error, kind)
    assert (error.endpoint, error.model, error.request_id) == ("http://here/v1", "m", "r-1")


def test_what_a_provider_tells_with_its_refusal_is_kept() -> None:
    assert of_status(429, {}).retry_after_seconds == 7.0
    assert of_status(400, OVERFLOW).limit_tokens == 2048
    assert of_status(502, {}).http_status == 502
    assert of_status(502, {}).detail == "HTTP 502: Bad Request"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (OVERFLOW, ContextOverflow),
        ({"message": "slow down", "code": 429}, ModelRateLimited),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, ModelRateLimited),
        ({"message": "oh", "code": "400"}, ModelFailed),
        ("just a text", ModelFailed),
        (None, ModelFailed),
    ],
)
def test_an_error_without_a_status_is_known_by_its_body(body: object, kind: type) -> None:
    error = FAILURES.inside(body, "r-2")
    assert (type(error), error.request_id) == (kind, "r-2")
    assert error.detail


def test_no_line_holds_the_key_or_a_line_break() -> None:
    told = (
        of_status(400, {"message": "key sk-secret\nis wrong"}),
        FAILURES.inside("sk-secret\n"),
        FAILURES.unreachable("no way to sk-secret\n"),
        FAILURES.cut("sk-secret\ngone", chunks=3),
        FAILURES.failed("sk-secret\n"),
    )
    for error in told:
        assert "sk-secret" not in str(error)
        assert "\n" not in str(error)
    assert told[3].chunks == 3
