"""[pure] Reads chat completion requests, and answers the clients' own background prompts.

Selects the parts of a request that apply to an agent. An agent has its own system prompt, tools and sampling, so a
client's are listed in `ignored`. Refuses parameters that require an answer of another shape, because the client could
not read an agent's answer. Background prompts (titles, tags, suggestions) never reach the agent: a stateless model
forgets them, an agent would remember them as messages.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mew_protocol.json_values import well_formed

from mew_agent.parts.openai_api.format import invalid_body
from mew_agent.parts.shared.api_limits import MAX_TEXT_BYTES

_SYSTEM_ROLES: Final = ("system", "developer")
_ROLES: Final = (*_SYSTEM_ROLES, "user", "assistant", "tool", "function")
_SUPPORTED: Final = frozenset({"model", "messages", "stream", "stream_options", "response_format"})
_WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
"""Keys that change no answer of any model; they are not listed as ignored."""

_MAX_IGNORED: Final = 20

_FIRST_MESSAGE: Final = re.compile(r"^[^\S\n]*user\s*:\s*(\S.*)", re.IGNORECASE | re.MULTILINE)
_TASKS: Final = ("title", "tags", "follow_ups", "queries", "prompt", "text")
_TASK_KEY: Final = re.compile(rf'"({"|".join(_TASKS)})"\s*:')
_MAX_TITLE_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request for an answer. `text` is the user's last message; `earlier` are the (role, text) pairs before it.

    `include_usage` is `stream_options.include_usage`. `response_format` is in the form of chat completions, None for
    text. `user` is the end user, and `conversation` the client's name for the conversation; both may be empty.
    `previous_response` is the id that a request of the Responses API continues from.
    """

    model: str
    text: str
    system: str = ""
    earlier: tuple[tuple[str, str], ...] = ()
    is_streamed: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    response_format: Mapping[str, Any] | None = None
    user: str = ""
    conversation: str = ""
    previous_response: str | None = None


def read_request(body: object) -> ApiRequest:
    """Read the body of a chat completion request. Raises `AnswerFailed` (400)."""
    body = checked_body(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_body("messages", "is empty or not a list", "a list of messages that ends with the user's")
    request = read_messages(body, messages, "messages")
    if body.get("n") not in (None, 1):
        raise invalid_body("n", f"is {body['n']!r}", "1: an agent answers once")
    if body.get("logprobs"):
        raise invalid_body("logprobs", "is on", "off: agents do not report them")
    if body.get("modalities") not in (None, ["text"]):
        raise invalid_body("modalities", "is not supported", '["text"]')
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise invalid_body("stream_options", f"is {_kind(options)}", "an object")
    return replace(
        request,
        include_usage=flag((options or {}).get("include_usage"), "stream_options.include_usage"),
        ignored=tuple(ignored_parts(body, _SUPPORTED, has_system=bool(request.system))),
        response_format=checked_format(body.get("response_format"), "response_format"),
    )


def checked_body(body: object) -> Mapping[str, Any]:
    """Check that a body names a model, and return it. Raises `AnswerFailed`, also if the client requires a call of its
    own tools.
    """
    if not isinstance(body, Mapping):
        raise invalid_body("body", f"is {_kind(body)}", "a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        problem = "is missing" if model in (None, "") else f"is {_kind(model)}"
        raise invalid_body("model", problem, "the name of an agent")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise invalid_body("tool_choice", "requires a tool call", "none or auto: an agent calls the tools of its space")
    return body


def _check_roles(messages: list[Any], where: str) -> None:
    """Raise `AnswerFailed` unless these are messages of known roles, the last one the user's."""
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise invalid_body(f"{where}[{index}]", f"is {_kind(message)}", "an object with `role` and `content`")
        if message.get("role") not in _ROLES:
            raise invalid_body(f"{where}[{index}].role", f"is {message.get('role')!r}", f"one of {', '.join(_ROLES)}")
    if (role := messages[-1]["role"]) != "user":
        place = f"{where}[{len(messages) - 1}].role"
        raise invalid_body(place, f"is '{role}'", "'user': the last message must be the user's")


def read_messages(body: Mapping[str, Any], messages: list[Any], where: str) -> ApiRequest:
    """Return the request with these messages, and with the other keys of both APIs.

    Raises `AnswerFailed` unless these are messages of known roles, the last one the user's.
    """
    _check_roles(messages, where)
    last = len(messages) - 1
    texts = [(one["role"], _loose_text(one.get("content"))) for one in messages[:-1]]
    system = "\n".join(text for role, text in texts if role in _SYSTEM_ROLES)
    earlier = tuple((role, text) for role, text in texts if role in ("user", "assistant") and text.strip())
    text = _text_of(messages[last].get("content"), f"{where}[{last}].content")
    users = [name for key in ("user", "safety_identifier") if isinstance(name := body.get(key), str)]
    is_streamed = flag(body.get("stream"), "stream")
    return ApiRequest(body["model"], text, system, earlier, is_streamed, user=users[0] if users else "")


def checked_format(value: object, where: str) -> Mapping[str, Any] | None:
    """Return a `response_format` for JSON; None for text. Raises `AnswerFailed`."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if value is None or kind == "text":
        return None
    if not isinstance(value, Mapping) or kind not in ("json_object", "json_schema"):
        raise invalid_body(where, "is not supported", "type text, json_object or json_schema")
    if kind == "json_schema" and not isinstance(value.get("json_schema"), Mapping):
        raise invalid_body(f"{where}.json_schema", "is missing", "an object with `name` and `schema`")
    return value


def ignored_parts(body: Mapping[str, Any], supported: frozenset[str], *, has_system: bool) -> Iterator[str]:
    """Yield, in words, the parts of the request that an agent does not use."""
    if has_system:
        yield "system messages"
    rest = sorted(key for key in body.keys() - supported - _WITHOUT_EFFECT if body[key] not in (None, [], {}))
    yield from (key[:40] for key in rest[:_MAX_IGNORED])


def _loose_text(content: object) -> str:
    """Return the text of an earlier message; omit other content."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return well_formed("\n".join(text for text in texts if isinstance(text, str)))


def _text_of(content: object, where: str) -> str:
    """Return the text of a message: a string, or text parts joined by line breaks."""
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
    return well_formed(text)


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("text", "input_text") and isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image_url", "input_audio", "file", "input_image", "input_file"):
        raise invalid_body(where, f"is a part of type '{kind}'", "text parts only")
    raise invalid_body(where, "is not a text part", '{"type": "text", "text": "..."}')


def flag(value: object, where: str) -> bool:
    """Return a boolean of the body; null is false. Raises `AnswerFailed`."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise invalid_body(where, f"is {_kind(value)}", "true or false")


def _kind(value: object) -> str:
    """Return the JSON type of a value, with its article."""
    names = {type(None): "null", bool: "a boolean", str: "a string", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


# -- background prompts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackgroundAnswer:
    """The answer to a background prompt. `task` is the client's request, for example `title`."""

    task: str
    text: str


def answer_in_background(text: str, system: str = "") -> BackgroundAnswer | None:
    """Answer a background prompt: a title from the first message, else an empty text. None for a person's message."""
    if system.lstrip().startswith("Available Tools:") and '"tool_calls"' in system:
        return BackgroundAnswer("tool_calls", json.dumps({"tool_calls": []}))
    before, begin, rest = text.partition("<chat_history>")
    history, end, after = rest.rpartition("</chat_history>")
    if not (begin and end and text.lstrip().startswith("### Task:")):
        return None
    keys = set(_TASK_KEY.findall(before + after))
    task = next((key for key in _TASKS if key in keys), None)
    match task:
        case None:
            return None
        case "title":
            return BackgroundAnswer(task, json.dumps({"title": _title(history)}, ensure_ascii=False))
        case "prompt" | "text":
            return BackgroundAnswer(task, json.dumps({task: ""}))
        case _:
            return BackgroundAnswer(task, json.dumps({task: []}))


def _title(history: str) -> str:
    """Return the first words of the first message."""
    first = _FIRST_MESSAGE.search(history)
    title = " ".join(first[1].split()) if first else ""
    if len(title) <= _MAX_TITLE_CHARS:
        return title
    cut = title[:_MAX_TITLE_CHARS].rpartition(" ")[0] or title[:_MAX_TITLE_CHARS]
    return f"{cut} ..."
