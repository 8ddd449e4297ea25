"""[pure] Read one request to a model for a meter: digests of its messages and tools, and its session.

Reads the messages of the three APIs, without the parts that may change between calls. Keeps no text. Does not know
which calls belong together.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from mew_protocol.json_values import object_at, objects_at

from mew_agent.parts.meter.apis import Api
from mew_agent.parts.meter.relayed_texts import NOT_SEARCHED, Found

SESSION_HEADERS: Final = (
    "thread-id",  # Codex; its `session-id` is shared with subagents
    "x-session-id",
    "x-session-affinity",
    "x-claude-code-session-id",
    "x-qwen-code-session-id",
    "session-id",
    "session_id",
)
"""Headers that name a conversation, the most exact first."""

SUBAGENT_HEADERS: Final = (
    "x-parent-session-id",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-claude-code-agent-id",
)
"""Headers that only calls of subagents and background tasks have."""

_PATHS: Final[Mapping[str, Api]] = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
_INSTRUCTIONS: Final = ("system", "developer")
_THINKING: Final = ("reasoning", "thinking", "redacted_thinking")
_STABLE_TYPES: Final[Mapping[str, str | None]] = {"input_text": "text", "output_text": "text", "message": None}
"""Types that later calls write differently: the one that is compared, or None for no type."""
_UNSTABLE_KEYS: Final = frozenset(
    {"annotations", "cache_control", "encrypted_content", "id", "index", "logprobs", "phase", "reasoning"}
    | {"reasoning_content", "reasoning_details", "refusal", "signature", "status"}
)
"""Keys of messages that agents and their libraries add, move and drop between calls."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One request. `prefix[n]` is the digest of the first n + 1 messages, without instructions and thinking."""

    api: Api
    model: str = ""
    session: str | None = None
    is_subagent: bool = False
    tools: frozenset[str] = frozenset()  # digests of the names of the tools
    prefix: tuple[str, ...] = ()
    answered_calls: frozenset[str] = frozenset()  # digests of the ids of tool calls whose results the request contains
    previous_response: str | None = None  # digest of the id of the response that the request continues
    body_bytes: int | None = None  # no prompt has more tokens, unless the request continues a stored response
    texts: Found = NOT_SEARCHED  # chats of the space in the request


Search = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], Found]
"""Searches the messages of a request, each with its digest."""


def api_of(path: str) -> Api | None:
    """Return the API that a POST to this path calls; None if it is none of the three."""
    return next((api for end, api in _PATHS.items() if path.endswith(end)), None)


def read_facts(
    api: Api, headers: Mapping[str, str], body: object, search: Search = lambda _: NOT_SEARCHED
) -> CallFacts | None:
    """Read a request; None if it has no messages. `headers` have lower-case names, `body` is the decoded JSON."""
    if not isinstance(body, Mapping):
        return None
    messages = _messages_of(body.get("input" if api == "responses" else "messages"))
    if messages is None:
        return None
    session = _first_of(SESSION_HEADERS, headers)
    previous = body.get("previous_response_id")
    start = digest_of(previous) if isinstance(previous, str) else ""
    chained = [*_chained(start, messages)]
    return CallFacts(
        api=api,
        model=str(body.get("model") or "")[:200],
        session=None if session is None else digest_of(session),
        is_subagent=_first_of(SUBAGENT_HEADERS, headers) is not None,
        tools=_tool_names(body.get("tools")),
        prefix=tuple(digest for digest, _ in chained),
        answered_calls=frozenset(digest_of(name) for name in _answered(messages)),
        previous_response=start or None,
        texts=search(chained),
    )


def digest_of(value: object) -> str:
    """Return a digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()


def _tool_names(tools: object) -> frozenset[str]:
    """Return digests of names only, because agents rewrite descriptions during a conversation."""
    named = (object_at(tool, "function") or tool for tool in objects_at(tools))
    return frozenset(digest_of(str(one.get("name") or one.get("type"))) for one in named)


def _chained(digest: str, messages: list[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each message with the digest of all messages up to it."""
    for message in objects_at(messages):
        if message.get("role") in _INSTRUCTIONS:
            continue
        stable = _stable(message)
        if stable is not None:
            digest = digest_of([digest, stable])
            yield digest, message


def _messages_of(given: object) -> list[Any] | None:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return given if isinstance(given, list) else None


def _first_of(names: Iterable[str], headers: Mapping[str, str]) -> str | None:
    """Return the first non-empty value of these headers."""
    return next((headers[name] for name in names if headers.get(name)), None)


def _stable(value: Any) -> Any:
    """Return the part of a message that later calls repeat; None without one."""
    if isinstance(value, Mapping):
        return None if value.get("type") in _THINKING else _stable_object(value)
    if isinstance(value, list):
        return [one for one in map(_stable, value) if one is not None]
    return value


def _stable_object(value: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = {key: _stable(one) for key, one in value.items() if key not in _UNSTABLE_KEYS}
    if isinstance(text := value.get("content"), str):  # the same text may be a list of parts in the next call
        kept["content"] = [{"type": "text", "text": text}] if text else None
    if isinstance(kind := kept.get("type"), str):
        kept["type"] = _STABLE_TYPES.get(kind, kind)
    return {key: one for key, one in kept.items() if one not in (None, [], "")} or None


def _answered(messages: list[Any]) -> Iterator[str]:
    """Yield the ids of the tool calls that the messages answer."""
    for message in objects_at(messages):
        blocks = objects_at(message, "content")
        own = message.get("call_id") if str(message.get("type")).endswith("_output") else message.get("tool_call_id")
        for name in (own, *(block.get("tool_use_id") for block in blocks)):
            if isinstance(name, str):
                yield name
