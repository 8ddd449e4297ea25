"""[pure] Limits for messages of API clients, names of their sessions, and error responses."""

import hashlib
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from mew_protocol.codec import DEFAULT_MAX_BYTES
from mew_protocol.payloads.chat import RESPONSE_FORMAT_UNSUPPORTED

from mew_agent.errors import MewAgentError, NoAnswer

MAX_TEXT_BYTES: Final = DEFAULT_MAX_BYTES // 4
"""Maximum message size: JSON escapes may multiply the bytes of a character in the envelope."""

MAX_SESSION_NAME: Final = 48 - 9  # the API key needs the rest

_STATUS_OF_CODE: Final = {
    "refused": HTTPStatus.FORBIDDEN,
    RESPONSE_FORMAT_UNSUPPORTED: HTTPStatus.BAD_REQUEST,
    "agent_busy": HTTPStatus.TOO_MANY_REQUESTS,
    "closing": HTTPStatus.SERVICE_UNAVAILABLE,
    "agent_silent": HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(eq=False)
class AnswerFailed(MewAgentError):
    """An error response. `status` is HTTP's. `param` names the invalid part of the request body.

    `is_retryable` tells a client whether it may retry. It may not once an agent has received the message, because the
    agent remembers it.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    is_retryable: bool = False

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        """Return the body of an error response, in the form of OpenAI's API."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        kind = "rate_limit_error" if self.status == HTTPStatus.TOO_MANY_REQUESTS else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def no_answer(failure: NoAnswer) -> AnswerFailed:
    """Return the error for a message that an agent received but did not answer."""
    status = _STATUS_OF_CODE.get(failure.code, HTTPStatus.BAD_GATEWAY)
    param = "response_format" if failure.code == RESPONSE_FORMAT_UNSUPPORTED else None
    return AnswerFailed(status, failure.code, failure.problem, param)


def session_name(*parts: str) -> str:
    """Return a unique session name: the readable characters of its parts, and a digest."""
    readable = re.sub(r"[^A-Za-z0-9._@-]", "-", ":".join(part for part in parts if part))[: MAX_SESSION_NAME - 17]
    return f"{readable}~{hashlib.blake2b(repr(parts).encode(errors='replace'), digest_size=8).hexdigest()}"
