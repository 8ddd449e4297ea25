"""[pure] The JSON of OpenAI's API: replies, chunks, model entries and errors.

Owns keys, the order of chunks (role, deltas, finish reason, usage), and the status and code of each error. Does not
know agents or HTTP.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mew_agent.errors import MewAgentError, NoAnswer

Json = dict[str, Any]

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event, with a name if it is given."""
    head = f"event: {name}\n".encode() if name else b""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"%sdata: %s\n\n" % (head, text.encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A whole answer. `usage` is OpenAI's for chat completions, None if not reported; `mew` is our extension."""

    text: str
    reasoning: str = ""
    usage: Json | None = None
    mew: Json = field(default_factory=dict)


class ReplyFormat(Protocol):
    """How one API writes an answer, whole or as server-sent events."""

    @property
    def id(self) -> str:
        """The id of the answer."""

    def begin(self) -> list[bytes]:
        """Return the first events of a stream."""

    def piece(self, text: str, *, is_reasoning: bool) -> list[bytes]:
        """Return the events for a piece of the answer, or of what precedes it."""

    def end(self, answer: ApiAnswer) -> list[bytes]:
        """Return the last events of a stream."""

    def fail(self, error: "OpenAIApiError") -> list[bytes]:
        """Return the last events of a stream that ends with an error."""

    def as_json(self, answer: ApiAnswer) -> Json:
        """Return the answer as one body."""


@dataclass(frozen=True, slots=True)
class CompletionFormat:
    """The JSON of one chat completion. `created` is in seconds since 1970."""

    id: str
    model: str
    created: int
    include_usage: bool = False

    def begin(self) -> list[bytes]:
        return [event(self._chunk({"role": "assistant", "content": ""}))]

    def piece(self, text: str, *, is_reasoning: bool) -> list[bytes]:
        return [event(self._chunk({"reasoning_content" if is_reasoning else "content": text}))]

    def end(self, answer: ApiAnswer) -> list[bytes]:
        last, ending = self._chunk({}, "stop"), {"usage": answer.usage, "mew": answer.mew}
        if not self.include_usage:
            return [event(last | ending), DONE]
        # Usage comes in a chunk of its own, without choices.
        return [event(last), event({**self._head("chat.completion.chunk"), "choices": [], **ending}), DONE]

    def fail(self, error: "OpenAIApiError") -> list[bytes]:
        return [event(error.as_dict()), DONE]

    def as_json(self, answer: ApiAnswer) -> Json:
        message: Json = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": answer.usage, "mew": answer.mew}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


# -- errors ------------------------------------------------------------------------------------------------------

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
TOO_LARGE: Final = 413
BUSY: Final = 429
INTERNAL_ERROR: Final = 500
BAD_GATEWAY: Final = 502
UNAVAILABLE: Final = 503
TIMED_OUT: Final = 504

_STATUS_OF_CODE: Final = {"refused": FORBIDDEN, "agent_busy": BUSY, "closing": UNAVAILABLE, "agent_silent": TIMED_OUT}


@dataclass(eq=False)
class OpenAIApiError(MewAgentError):
    """An error response. `param` names the invalid part of the request body.

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

    def as_dict(self) -> Json:
        """Return the body of an error response, and of an error event in a stream."""
        kind = "server_error" if self.status >= INTERNAL_ERROR else "invalid_request_error"
        kind = "rate_limit_error" if self.status == BUSY else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid_body(where: str, problem: str, expected: str) -> OpenAIApiError:
    """Return the error for an invalid request body: where, what is wrong, what was expected."""
    return OpenAIApiError(BAD_REQUEST, "invalid_request", f"{where}: {problem} (expected {expected})", param=where)


def unknown_model(model: str, known: list[str]) -> OpenAIApiError:
    """Return the error for a model that is not an agent of the space."""
    agents = f"agents: {', '.join(known)}" if known else "the space has no agents"
    return OpenAIApiError(NOT_FOUND, "model_not_found", f"no agent '{model}' in this space ({agents})", param="model")


def no_answer(failure: NoAnswer) -> OpenAIApiError:
    """Return the error for a message that an agent received but did not answer."""
    return OpenAIApiError(_STATUS_OF_CODE.get(failure.code, BAD_GATEWAY), failure.code, failure.problem)
