"""[pure] What a chat client is told when it gets no answer: OpenAI's error shape.

Owns the shape, the codes and the HTTP status that goes with each. Knows neither the space nor the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mew_agent.errors import MewAgentError, NoAnswer

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
TOO_LARGE: Final = 413
BUSY: Final = 429
BAD_GATEWAY: Final = 502
UNAVAILABLE: Final = 503
TIMED_OUT: Final = 504

_SERVER_FAULTS: Final = 500
_NO_ANSWER: Final[Mapping[str, int]] = MappingProxyType(
    {"refused": FORBIDDEN, "agent_busy": BUSY, "closing": UNAVAILABLE, "agent_silent": TIMED_OUT}
)


@dataclass(eq=False)
class Problem(MewAgentError):
    """A request that gets no answer. `param` names the part of the body that is wrong.

    `is_repeatable` tells a client's own retries whether asking again is harmless: it is not once an agent has
    heard the question, for an agent remembers what it hears.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    is_repeatable: bool = False

    def __str__(self) -> str:
        return self.message

    def as_dict(self) -> dict[str, Any]:
        """The body of an error response, and of an error inside a stream."""
        kind = "server_error" if self.status >= _SERVER_FAULTS else "invalid_request_error"
        if self.status == BUSY:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_body(where: str, problem: str, expected: str) -> Problem:
    """A body that cannot be used: where, what is wrong there, what was expected."""
    return Problem(BAD_REQUEST, "invalid_request", f"{where}: {problem} (expected {expected})", param=where)


def unknown_model(model: str, known: list[str]) -> Problem:
    """Nobody of that name is an agent here."""
    here = f"agents here: {', '.join(known)}" if known else "no agent is here"
    return Problem(NOT_FOUND, "model_not_found", f"there is no agent '{model}' in this space ({here})", param="model")


def no_answer(failure: NoAnswer) -> Problem:
    """An agent that was asked does not answer."""
    return Problem(_NO_ANSWER.get(failure.code, BAD_GATEWAY), failure.code, failure.problem)
