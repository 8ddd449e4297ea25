"""Ask a model server how many tokens a request will have, chat template and tools included.

Chooses the endpoint of each server, and stops asking a server that has none. Makes no request itself: callers pass
`fetch`.
"""

from typing import Any, Final, Literal
from urllib.parse import urlsplit

from mew_protocol.json_values import value_at

from mew_agent.errors import ContextOverflow, ModelError, ModelUnreachable
from mew_agent.model.dialect import Dialect, is_openai, request_body
from mew_agent.model.interface import ModelRequest
from mew_agent.model.usage import positive_count
from mew_agent.model.window_lookup import Fetch

Route = Literal["input_tokens", "tokenize"]

_NOT_COUNTED: Final = frozenset({"stream", "stream_options", "max_tokens", "max_completion_tokens", "response_format"})
_ANY: Final = Dialect()
_MAX_FAILURES: Final = 2  # failures in a row after which the server is not asked again


class PromptCounter:
    """Counts the prompt tokens of requests at one server, for one model."""

    def __init__(self, base_url: str, model: str) -> None:
        self._base = base_url.rstrip("/")
        self._model = model
        # llama.cpp has the first, vLLM the second; OpenAI's own hosts have neither.
        self._routes: list[Route] = [] if is_openai(urlsplit(base_url).hostname) else ["input_tokens", "tokenize"]
        self._failures = 0
        self._has_counted = False

    async def count(self, fetch: Fetch, request: ModelRequest, dialect: Dialect = _ANY) -> int | None:
        """Return the prompt tokens of `request` as the server counts them, else None. Never raises."""
        if any(message.images for message in request.messages):
            return None  # these endpoints count text
        while self._routes:
            url, body = self._count_request(self._routes[0], request, dialect)
            try:
                tokens = read_count(await fetch("POST", url, body))
            except ModelUnreachable:
                self._record_failure()
                return None
            except ContextOverflow as overflow:
                return overflow.requested_tokens
            except ModelError:
                tokens = None
            if tokens is not None:
                self._failures, self._has_counted = 0, True
                del self._routes[1:]
                return tokens
            if self._has_counted:  # a chat template may reject one request and accept the next
                self._record_failure()
                return None
            self._failures = 0
            del self._routes[0]
        return None

    def _record_failure(self) -> None:
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            self._routes.clear()

    def _count_request(self, route: Route, request: ModelRequest, dialect: Dialect) -> tuple[str, dict[str, object]]:
        """Return the URL and the JSON body that ask for a count."""
        full_body: dict[str, Any] = request_body(request, self._model, dialect)
        body = {key: value for key, value in full_body.items() if key not in _NOT_COUNTED}
        match route:
            case "input_tokens":
                return f"{self._base}/chat/completions/input_tokens", body
            case "tokenize":
                return f"{self._base.removesuffix('/v1')}/tokenize", {**body, "add_generation_prompt": True}


def read_count(answer: object) -> int | None:
    """Return the count in an answer of either endpoint, or None. 0 is not a count: every prompt has tokens."""
    return positive_count(value_at(answer, "input_tokens")) or positive_count(value_at(answer, "count"))
