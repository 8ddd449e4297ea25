"""[pure] Which `ModelError` a failure of one server is.

Owns the choice between them, and that each names the server and the model in one line without the key. It knows no
client library: statuses and decoded bodies come as arguments. What a body says is read in `refusal`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mew_agent.errors import (
    ContextOverflow,
    ModelError,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelStreamCut,
    ModelUnreachable,
    ToolsUnsupported,
)
from mew_agent.model.refusal import one_line, overflow_of, refuses_tools, said


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of the calls to one model. `endpoint` is shown as it is; `secret` is in no line."""

    endpoint: str
    model: str
    secret: str | None = None

    def unreachable(self, cause: str) -> ModelUnreachable:
        """There was no answer."""
        return ModelUnreachable(self.endpoint, self.model, self._line(cause))

    def cut(self, cause: str, *, chunks: int) -> ModelStreamCut:
        """A stream broke off after so many chunks."""
        return ModelStreamCut(self.endpoint, self.model, self._line(cause), chunks=chunks)

    def failed(self, detail: str, request_id: str | None = None, http_status: int | None = None) -> ModelFailed:
        """An answer that cannot be used."""
        return ModelFailed(self.endpoint, self.model, self._line(detail), request_id, http_status)

    def of_status(
        self,
        status: int,
        body: object,
        *,
        reason: str,
        request_id: str | None,
        wait_seconds: float | None,
        offered_tools: bool,
    ) -> ModelError:
        """An HTTP error. `reason` is its name, for bodies that say nothing; `wait_seconds` its Retry-After."""
        told = self.endpoint, self.model, self._line(f"HTTP {status}: {said(body) or reason}"), request_id
        if status in (401, 403):
            return ModelRefused(*told)
        if status == 429:
            return ModelRateLimited(*told, wait_seconds)
        overflow = overflow_of(status, body)
        if overflow is not None:
            return ContextOverflow(*told, overflow.limit_tokens, overflow.requested_tokens)
        if offered_tools and refuses_tools(status, body):
            return ToolsUnsupported(*told)
        return ModelFailed(*told, status)

    def inside(self, body: object, request_id: str | None = None) -> ModelError:
        """An error that came in a stream or with HTTP 200: there is a body but no status."""
        detail = self._line(said(body) or "the server reported an error without saying which")
        told = self.endpoint, self.model, detail, request_id
        overflow = overflow_of(None, body)
        if overflow is not None:
            return ContextOverflow(*told, overflow.limit_tokens, overflow.requested_tokens)
        code = str(body.get("code")) if isinstance(body, Mapping) else ""
        if code in ("429", "rate_limit_exceeded"):
            return ModelRateLimited(*told)
        return ModelFailed(*told)

    def _line(self, text: str) -> str:
        return one_line(text, self.secret)
