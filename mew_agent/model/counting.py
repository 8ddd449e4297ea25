"""Asking a server how many tokens a request will be, chat template and tools included.

Owns which endpoint a server has for that, found out once, and when to stop asking. The requests go through the one
door that `openai_client` is, which hands in `fetch`; how a request is spelled is the dialect's matter.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from mew_agent.errors import ContextOverflow, ModelError, ModelUnreachable
from mew_agent.model.dialect import Dialect, dialect_for, request_body
from mew_agent.model.interface import ModelRequest
from mew_agent.model.window import Fetch

Route = Literal["input_tokens", "tokenize"]

_UNCOUNTED: Final = frozenset({"stream", "stream_options", "max_tokens", "max_completion_tokens", "response_format"})
_PATIENCE: Final = 2
"""So many questions in a row may go unanswered before a server is not asked any more."""


class PromptCounter:
    """Counts requests at one server, for one model.

    llama.cpp has `/v1/chat/completions/input_tokens`, vLLM `/tokenize`; each is tried once, and what did not answer
    with a count is not tried again, unless it has counted before: a chat template may refuse one request and take the
    next. OpenAI's own hosts have neither and are not asked.
    """

    def __init__(self, base_url: str, model: str) -> None:
        self._base = base_url.rstrip("/")
        self._model = model
        host = urlsplit(base_url).hostname or ""
        is_cloud = dialect_for(host) != Dialect()
        self._routes: list[Route] = [] if is_cloud else ["input_tokens", "tokenize"]
        self._unanswered = 0
        self._has_counted = False

    async def count(self, fetch: Fetch, request: ModelRequest) -> int | None:
        """Prompt tokens of `request` as the server counts them; None when it does not tell. Raises nothing."""
        while self._routes:
            url, body = self._question(self._routes[0], request)
            try:
                tokens = counted(await fetch("POST", url, body))
            except ModelUnreachable:
                self._went_unanswered()
                return None
            except ContextOverflow as overflow:
                return overflow.requested_tokens
            except ModelError:
                tokens = None
            if tokens is not None:
                self._unanswered, self._has_counted = 0, True
                del self._routes[1:]
                return tokens
            if self._has_counted:
                self._went_unanswered()
                return None
            self._unanswered = 0
            del self._routes[0]
        return None

    def _went_unanswered(self) -> None:
        self._unanswered += 1
        if self._unanswered >= _PATIENCE:
            self._routes.clear()

    def _question(self, route: Route, request: ModelRequest) -> tuple[str, dict[str, object]]:
        spelled: dict[str, Any] = request_body(request, self._model, Dialect(is_streaming=False))
        body = {key: value for key, value in spelled.items() if key not in _UNCOUNTED}
        match route:
            case "input_tokens":
                return f"{self._base}/chat/completions/input_tokens", body
            case "tokenize":
                return f"{self._base.removesuffix('/v1')}/tokenize", {**body, "add_generation_prompt": True}


def counted(answer: object) -> int | None:
    """The count in an answer of either endpoint; None when it is not one. A prompt is never 0 tokens."""
    if not isinstance(answer, Mapping):
        return None
    for key in ("input_tokens", "count"):
        value = answer.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
