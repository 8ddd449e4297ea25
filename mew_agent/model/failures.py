"""[pure] Turns a failed model call into a `ModelError` with a one-line message, without the API key.

Reads the error bodies of known servers. Does not know the client library.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mew_board.visible import short_line
from mew_protocol.json_values import object_at, value_at

import mew_agent.errors as errors
from mew_agent.model.usage import positive_count

_MAX_DETAIL_CHARS: Final = 200

_NO_SUCH_PATH: Final = (404, 405)
_TOO_LARGE: Final = 413
_OVERFLOW_STATUSES: Final = (400, _TOO_LARGE, 422)
# After the first line: Anthropic, Bedrock, Gemini and Copilot, xAI, Kimi, vLLM, Qwen, OpenRouter, TGI, Z.ai, Groq.
_OVERFLOW: Final = re.compile(
    r"context[ _](?:size|length|window)|prompt (?:is )?too long|exceeds? (?:the )?(?:available )?context"
    r"|input is too long for|token count[^.]{0,40} exceeds the (?:limit|maximum)|maximum prompt length"
    r"|exceeded model token limit|maximum model length|range of input length|maximum allowed input length"
    r"|`inputs` (?:tokens \+|must have less than)|prompt exceeds max|reduce the length of the messages",
    re.IGNORECASE,
)
_PAGE: Final = re.compile(r"\s*<[!a-z]", re.IGNORECASE)  # not `<400> InternalError`, as Qwen begins its messages
_COUNT: Final = r"(\d[\d,]*)"
_LIMIT: Final = re.compile(
    rf"maximum context length (?:is|of) {_COUNT}"
    rf"|> {_COUNT} maximum"
    rf"|context (?:size|length|window) (?:is |of )?(?:only )?\(?{_COUNT}"
    rf"|\+ [\d,]+ > {_COUNT}|(?:tokens allowed|exceeds the limit of) \(?{_COUNT}|model token limit: {_COUNT}"
    rf"|maximum (?:prompt|model|allowed input) length (?:is|of) {_COUNT}|input length should be \[1, {_COUNT}"
    rf"|(?:must be <=|must have less than) {_COUNT}",
    re.IGNORECASE,
)
_REQUESTED: Final = re.compile(
    r"(?:resulted in|you requested|prompt is too long:|(?:request|prompt|input) (?:has|contains|is))"
    rf" (?:at least |about )?{_COUNT}"
    rf"|request \({_COUNT} tokens\)|token count (?:of )?\(?{_COUNT}|requested: {_COUNT}|prompt \(length {_COUNT}"
    rf"|given: {_COUNT}",
    re.IGNORECASE,
)

_TOOLS_STATUSES: Final = (400, 404, 422, 500, 501)
_CALLING: Final = r"(?:tools?|function)(?:[ _-]?(?:use|call(?:s|ing)?|choice))?"
_TOOLS_REFUSED: Final = re.compile(
    rf"\b(?:not|n't) support(?:s|ed|ing)?\b[^.:]{{0,30}}\b{_CALLING}\b"
    rf"|\b{_CALLING}\b[`'\"]? (?:is|are) (?:not |un)(?:supported|enabled|allowed|available)\b"
    r"|\bno endpoints found that support tool|tools param requires|requires --enable-auto-tool-choice"
    r"|\b(?:unrecognised|unknown|unexpected|extra)\b[^.]{0,40}\btools\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ModelErrors:
    """Builds the errors of calls to one model. `endpoint` appears in each message; `secret` never does."""

    endpoint: str
    model: str
    secret: str | None = None

    def unreachable(self, cause: str) -> errors.ModelUnreachable:
        """Return the error for a server that gave no answer."""
        return errors.ModelUnreachable(self.endpoint, self.model, self._line(cause))

    def cut(self, cause: str, *, chunks: int) -> errors.ModelStreamCut:
        """Return the error for a stream that ended early, after this number of chunks."""
        return errors.ModelStreamCut(self.endpoint, self.model, self._line(cause), chunks=chunks)

    def failed(self, detail: str, request_id: str | None = None, http_status: int | None = None) -> errors.ModelFailed:
        """Return the error for an answer that cannot be used."""
        return errors.ModelFailed(self.endpoint, self.model, self._line(detail), request_id, http_status)

    def from_body(
        self,
        body: object,
        *,
        status: int | None = None,
        reason: str = "the server reported an error without a message",
        request_id: str | None = None,
        wait_seconds: float | None = None,
        offered_tools: bool = False,
    ) -> errors.ModelError:
        """Return the error for a decoded error body; `reason` replaces a missing message.

        `status` is None for an error in a stream or in an answer with HTTP 200.
        """
        problem = error_message(body) or reason
        base_url = self.endpoint.rstrip("/")
        has_path = "/" in base_url.partition("://")[2]
        if status in _NO_SUCH_PATH and not has_path and "model" not in problem.lower():
            problem += f"; most servers need the base URL {base_url}/v1"
        detail = self._line(problem if status is None else f"HTTP {status}: {problem}")
        fields = self.endpoint, self.model, detail, request_id
        overflow = find_overflow(status, body)
        if overflow is not None:
            return errors.ContextOverflow(*fields, *overflow)
        if status in (401, 403):
            return errors.ModelRefused(*fields)
        code = str(value_at(body, "code")) if status is None else str(status)
        if code in ("429", "rate_limit_exceeded"):
            return errors.ModelRateLimited(*fields, wait_seconds)
        if offered_tools and refuses_tools(status, body):
            return errors.ToolsUnsupported(*fields)
        return errors.ModelFailed(*fields, status)

    def _line(self, text: str) -> str:
        """Return one line of at most 200 characters, without the key."""
        return short_line(text.replace(self.secret, "[key]") if self.secret else text, _MAX_DETAIL_CHARS - 1)


def find_overflow(status: int | None, body: object) -> tuple[int | None, int | None] | None:
    """Return the window, and the size of a request that exceeds it, in tokens; None for other errors.

    Figures that the provider omits are None. `status` is None without an HTTP error.
    """
    if status is not None and status not in _OVERFLOW_STATUSES:
        return None
    fields = object_at(body)
    text = error_message(body)
    is_named = fields.get("code") == "context_length_exceeded" or fields.get("type") == "exceed_context_size_error"
    # A smaller request is the answer to "too large" in any words.
    if status != _TOO_LARGE and not is_named and not _OVERFLOW.search(text):
        return None
    return (
        positive_count(fields.get("n_ctx")) or _first(_LIMIT, text),
        positive_count(fields.get("n_prompt_tokens")) or _first(_REQUESTED, text),
    )


def refuses_tools(status: int | None, body: object) -> bool:
    """Return whether the server rejects every request that offers tools."""
    return status in _TOOLS_STATUSES and _TOOLS_REFUSED.search(error_message(body)) is not None


def error_message(body: object) -> str:
    """Return the message in an error body: OpenAI's, FastAPI's `detail`, or a bare string; "" without one."""
    if isinstance(body, str):
        # The HTML page of a reverse proxy does not help in one line.
        return "" if _PAGE.match(body) else body
    if isinstance(body, Mapping):
        for key in ("message", "error", "detail"):
            if text := error_message(body.get(key)):
                return text
    if isinstance(body, list):
        return "; ".join(filter(None, (error_message(item) or error_message(value_at(item, "msg")) for item in body)))
    return ""


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(next(filter(None, match.groups())).replace(",", "")) if match else None
