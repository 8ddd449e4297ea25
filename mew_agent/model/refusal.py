"""[pure] Reading a provider's error body: what it says in one line, and whether it means overflow.

Owns the wordings of the known servers. Knows no exception class of any client library.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LONGEST_DETAIL_CHARS = 200
_OVERFLOW_STATUSES = (400, 413)
_OVERFLOW = re.compile(
    r"maximum context length|context (?:size|length|window)|prompt is too long|exceeds? the (?:available )?context",
    re.IGNORECASE,
)
_COUNT = r"(\d[\d,]*)"
_LIMIT = re.compile(
    rf"maximum context length (?:is|of) {_COUNT}"
    rf"|> {_COUNT} maximum"
    rf"|context (?:size|length|window) (?:is |of )?(?:only )?\(?{_COUNT}",
    re.IGNORECASE,
)
_REQUESTED = re.compile(
    r"(?:resulted in|you requested|prompt is too long:|(?:request|prompt|input) (?:has|contains|is))"
    rf" (?:at least |about )?{_COUNT}"
    rf"|request \({_COUNT} tokens\)",
    re.IGNORECASE,
)


_TOOLS_STATUSES = (400, 404, 422, 500, 501)
_CALLING = r"(?:tools?|function)(?:[ _-]?(?:use|call(?:s|ing)?|choice))?"
_TOOLS_REFUSED = re.compile(
    rf"\b(?:not|n't) support(?:s|ed|ing)?\b[^.:]{{0,30}}\b{_CALLING}\b"
    rf"|\b{_CALLING}\b[`'\"]? (?:is|are) (?:not |un)(?:supported|enabled|allowed|available)\b"
    r"|\bno endpoints found that support tool|tools param requires|requires --enable-auto-tool-choice"
    r"|\b(?:unrecognized|unknown|unexpected|extra)\b[^.]{0,40}\btools\b",
    re.IGNORECASE,
)


def refuses_tools(status: int, body: object) -> bool:
    """Whether an error means that the server takes no requests that offer tools."""
    return status in _TOOLS_STATUSES and _TOOLS_REFUSED.search(said(body)) is not None


@dataclass(frozen=True, slots=True)
class Overflow:
    """The provider says that the request does not fit. Figures in tokens, as it named them."""

    limit_tokens: int | None = None
    requested_tokens: int | None = None


def overflow_of(status: int | None, body: object, message: str = "") -> Overflow | None:
    """Whether an error means that the request does not fit the window.

    `status` is None for an error that came inside a stream or with HTTP 200. `body` is the error object (the
    inner `error` where there is one), `message` its text where the body is none.
    """
    if status is not None and status not in _OVERFLOW_STATUSES:
        return None
    fields = body if isinstance(body, Mapping) else {}
    text = said(body) or message
    is_named = fields.get("code") == "context_length_exceeded" or fields.get("type") == "exceed_context_size_error"
    if not is_named and not _OVERFLOW.search(text):
        return None
    return Overflow(
        limit_tokens=_count(fields.get("n_ctx")) or _first(_LIMIT, text),
        requested_tokens=_count(fields.get("n_prompt_tokens")) or _first(_REQUESTED, text),
    )


def said(body: object) -> str:
    """The message in an error body: OpenAI's, FastAPI's `detail`, a bare string; "" when there is none."""
    if isinstance(body, str):
        # A web server's error page says nothing that is worth a line.
        return "" if body.lstrip().startswith("<") else body
    if isinstance(body, Mapping):
        for key in ("message", "error", "detail"):
            if text := said(body.get(key)):
                return text
    if isinstance(body, list):
        return "; ".join(filter(None, (said(item) or said(_at(item, "msg")) for item in body)))
    return ""


def one_line(text: str, secret: str | None = None) -> str:
    """`text` as a short detail: one line, bounded, without `secret`."""
    if secret:
        text = text.replace(secret, "[key]")
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_DETAIL_CHARS else line[: _LONGEST_DETAIL_CHARS - 3].rstrip() + "..."


def _at(item: object, key: str) -> object:
    return item.get(key) if isinstance(item, Mapping) else None


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(next(filter(None, match.groups())).replace(",", "")) if match else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
