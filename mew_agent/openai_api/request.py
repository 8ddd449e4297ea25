"""[pure] Read chat completion requests, and answer the background prompts that clients send by themselves.

Owns which parts of a request apply to an agent. An agent has its own history, system prompt, tools and sampling, so
only the last user message counts; the other parts are listed in `ignored`. Parameters that change the shape of the
answer are refused, because the client could not read ours. Background prompts (titles, tags, suggestions) never reach
the agent: a stateless model forgets them, an agent would remember them as messages.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mew_protocol.codec import DEFAULT_MAX_BYTES

from mew_agent.openai_api.format import invalid_body

MAX_TEXT_BYTES: Final = DEFAULT_MAX_BYTES // 4
"""Maximum message size: JSON escapes may multiply the bytes of a character in the envelope."""

_SYSTEM_ROLES: Final = ("system", "developer")
_ROLES: Final = (*_SYSTEM_ROLES, "user", "assistant", "tool", "function")
_SUPPORTED: Final = frozenset({"model", "messages", "stream", "stream_options"})
_WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
"""Keys that change no answer of any model; they are not listed as ignored."""

_MAX_IGNORED: Final = 20

_CHAT_HISTORY: Final = re.compile(r"<chat_history>(.*)</chat_history>", re.DOTALL)
_FIRST_MESSAGE: Final = re.compile(r"^\s*user\s*:\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_TASKS: Final = ("title", "tags", "follow_ups", "queries", "prompt", "text")
_MAX_TITLE_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A chat completion request. `include_usage` is `stream_options.include_usage`."""

    model: str
    text: str
    system: str = ""
    is_streamed: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()


def read_request(body: object) -> CompletionRequest:
    """Read the body of a chat completion request. Raises `OpenAIApiError` (400)."""
    if not isinstance(body, Mapping):
        raise invalid_body("body", f"is {_kind(body)}", "a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        problem = "is missing" if model in (None, "") else f"is {_kind(model)}"
        raise invalid_body("model", problem, "the name of an agent")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_body("messages", "is empty or not a list", "a list of messages that ends with the user's")
    _check_messages(messages)
    _refuse_unsupported(body)
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise invalid_body("stream_options", f"is {_kind(options)}", "an object")
    last = len(messages) - 1
    systems = [one.get("content") for one in messages if one["role"] in _SYSTEM_ROLES]
    return CompletionRequest(
        model=model,
        text=_text_of(messages[last].get("content"), f"messages[{last}].content"),
        system="\n".join(text for text in systems if isinstance(text, str)),
        is_streamed=_flag(body.get("stream"), "stream"),
        include_usage=_flag((options or {}).get("include_usage"), "stream_options.include_usage"),
        ignored=tuple(_ignored(body, messages)),
    )


def _check_messages(messages: list[Any]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise invalid_body(f"messages[{index}]", f"is {_kind(message)}", "an object with `role` and `content`")
        if message.get("role") not in _ROLES:
            raise invalid_body(f"messages[{index}].role", f"is {message.get('role')!r}", f"one of {', '.join(_ROLES)}")
    if (role := messages[-1]["role"]) != "user":
        where = f"messages[{len(messages) - 1}].role"
        raise invalid_body(where, f"is '{role}'", "'user': the last message must be the user's")


def _text_of(content: object, where: str) -> str:
    """The text of a message: a string, or text parts joined by line breaks."""
    if isinstance(content, list):
        text = "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))
    elif isinstance(content, str):
        text = content
    else:
        raise invalid_body(where, f"is {_kind(content)}", "a string or a list of text parts")
    if not text.strip():
        raise invalid_body(where, "contains no text", "some text")
    size = len(text.encode(errors="replace"))
    if size > MAX_TEXT_BYTES:
        raise invalid_body(where, f"has {size:,} bytes", f"at most {MAX_TEXT_BYTES:,}")
    # A lone surrogate cannot be encoded as UTF-8.
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image_url", "input_audio", "file"):
        raise invalid_body(where, f"is a part of type '{kind}'", "text parts only")
    raise invalid_body(where, "is not a text part", '{"type": "text", "text": "..."}')


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise invalid_body("n", f"is {body['n']!r}", "1: an agent answers once")
    response_format = body.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if response_format is not None and kind != "text":
        raise invalid_body("response_format", "is not supported", '{"type": "text"}: an agent answers in text')
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise invalid_body("tool_choice", "requires a tool call", "none or auto: an agent calls the tools of its space")
    if body.get("logprobs"):
        raise invalid_body("logprobs", "is on", "off: agents do not report them")
    if body.get("modalities") not in (None, ["text"]):
        raise invalid_body("modalities", "is not supported", '["text"]')


def _ignored(body: Mapping[str, Any], messages: list[Any]) -> Iterator[str]:
    """The parts of the request that an agent does not use, worded for people."""
    systems = sum(message["role"] in _SYSTEM_ROLES for message in messages)
    if systems:
        yield "system messages"
    if len(messages) - systems > 1:
        yield "earlier messages"
    rest = sorted(key for key in body.keys() - _SUPPORTED - _WITHOUT_EFFECT if body[key] not in (None, [], {}))
    yield from (key[:40] for key in rest[:_MAX_IGNORED])


def _flag(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise invalid_body(where, f"is {_kind(value)}", "true or false")


def _kind(value: object) -> str:
    """The JSON type of a value, with its article."""
    names = {type(None): "null", bool: "a boolean", str: "a string", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


# -- background prompts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """The answer to a background prompt. `task` is what the client requested, for example `title`."""

    task: str
    text: str


def answer_in_background(text: str, system: str = "") -> BackgroundAnswer | None:
    """Answer a background prompt: a title from the first message, else nothing. None for a message of a person."""
    if system.lstrip().startswith("Available Tools:") and '"tool_calls"' in system:
        return BackgroundAnswer("tool_calls", json.dumps({"tool_calls": []}))
    history = _CHAT_HISTORY.search(text)
    if history is None or not text.lstrip().startswith("### Task:"):
        return None
    instructions = text[: history.start()] + text[history.end() :]
    task = next((key for key in _TASKS if re.search(rf'"{key}"\s*:', instructions)), None)
    match task:
        case None:
            return None
        case "title":
            return BackgroundAnswer(task, json.dumps({"title": _title(history[1])}, ensure_ascii=False))
        case "prompt" | "text":
            return BackgroundAnswer(task, json.dumps({task: ""}))
        case _:
            return BackgroundAnswer(task, json.dumps({task: []}))


def _title(history: str) -> str:
    """The first words of the first message."""
    first = _FIRST_MESSAGE.search(history)
    title = " ".join(first[1].split()) if first else ""
    if len(title) <= _MAX_TITLE_CHARS:
        return title
    cut = title[:_MAX_TITLE_CHARS].rpartition(" ")[0] or title[:_MAX_TITLE_CHARS]
    return f"{cut} ..."
