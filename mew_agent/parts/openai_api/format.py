"""[pure] The JSON of chat completions: replies, chunks and errors.

Owns keys, and the order of chunks (role, deltas, finish reason, usage). Does not know agents or HTTP.
"""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.responses_format import DONE, event

Json = dict[str, Any]

KEEP_ALIVE: Final = b": keep-alive\n\n"


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
        """Return the events for a piece of the answer, or of its reasoning."""

    def end(self, answer: ApiAnswer) -> list[bytes]:
        """Return the last events of a stream."""

    def fail(self, error: AnswerFailed) -> list[bytes]:
        """Return the last events of a failed stream."""

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
        # Usage comes in a separate chunk without choices.
        return [event(last), event({**self._head("chat.completion.chunk"), "choices": [], **ending}), DONE]

    def fail(self, error: AnswerFailed) -> list[bytes]:
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


def invalid_body(where: str, problem: str, expected: str) -> AnswerFailed:
    """Return the error for an invalid request body: the place, the problem and the expected value."""
    return AnswerFailed(
        HTTPStatus.BAD_REQUEST, "invalid_request", f"{where}: {problem} (expected {expected})", param=where
    )
