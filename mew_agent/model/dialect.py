"""[pure] Build the request body for a server, and adapt it to the arguments that the server accepts."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mew_agent.model.image import Image
from mew_agent.model.interface import Message, ModelRequest, ToolCall, plain_name

IMAGES_FOLLOW: Final = "[The images of the tool results above]"
EARLIER: Final = "[The messages before are no longer in your context.]"
NO_IMAGES: Final = "\n[This model takes no images, so they are not shown. Say so if the answer depends on them.]"

_OPENAI_HOSTS: Final = ("api.openai.com", ".openai.azure.com")

LimitKey = Literal["max_tokens", "max_completion_tokens"]
Names = Literal["any", "plain", "none"]
"""The names of authors that a server accepts: all, some characters (OpenAI, Azure), or none (Mistral)."""

# Statuses that servers use for an unknown argument.
_REJECTED_STATUSES = frozenset({400, 404, 405, 415, 422, 501})
_STREAMING_REJECTED = re.compile(
    r"\bstream(?:ing|ed)?\b[^.]{0,60}\b(?:not|n't|unsupported|disabled|false|unavailable)\b"
    r"|(?:\bnot\b|\bunsupported\b|\bcannot\b|\bunknown\b|\bunrecognized\b|\bverified\b)[^.]{0,60}\bstream(?:ing|ed)?\b",
    re.IGNORECASE,
)


# OpenAI, by name or place; Gemini.
_TOOL_REJECTED = re.compile(
    r"invalid schema for function '([\w-]+)'|(?:\btools\[(?=\d+\]\.function\b)|function_declarations\[)(\d{1,6})\]",
    re.IGNORECASE,
)
_SAME_ROLES_REJECTED = re.compile(r"\balternat(?:e|ing)\b")
_REASONING_REQUIRED = re.compile(
    r"missing.{0,20}reasoning_content|reasoning_content.{0,80}(?:missing|passed back)", re.IGNORECASE
)
_NAMES_REJECTED = re.compile(r"messages\W+\d+\W+(user\W+|property\W+)?name\b")

_IMAGES_REJECTED = re.compile(r"image|vision|multi-?modal|content\b[^.]{0,40}\bstring", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The arguments that a server accepts or requires. Starts with all it may accept; each rejection changes one."""

    is_streaming: bool = True
    has_stream_options: bool = True
    limit_key: LimitKey = "max_tokens"
    takes_images: bool = True
    names: Names = "any"
    sends_extra: bool = True  # signatures of thoughts that this or another server wanted back
    sends_reasoning: bool = False  # DeepSeek and Kimi require it back with tool calls
    refused_tools: frozenset[str] = frozenset()  # whose schemas the server does not accept
    takes_same_roles: bool = True  # in succession; the templates of some models, such as Gemma's, raise an error


def is_openai(host: str | None) -> bool:
    """Return whether this is a host of OpenAI, or of Azure for it."""
    return (host or "").endswith(_OPENAI_HOSTS)


def dialect_for(host: str | None) -> Dialect:
    """Return the dialect to try first: OpenAI's newer models reject `max_tokens`; most other servers require it."""
    return Dialect(limit_key="max_completion_tokens" if is_openai(host) else "max_tokens")


def adapted(
    dialect: Dialect,
    status: int,
    param: str | None,
    text: str,
    *,
    has_images: bool = False,
    tools: Iterable[str] = (),
) -> Dialect | None:
    """Return the dialect to try after an error that names an argument (`param`, or in the body's `text`), or None.

    `tools` are the names of the offered tools, in order.
    """
    # llama.cpp answers 500 to an image that its model cannot read.
    may_refuse_images = has_images and dialect.takes_images and status in _REJECTED_STATUSES | {500}
    if may_refuse_images and _IMAGES_REJECTED.search(text):
        return replace(dialect, takes_images=False)
    # llama.cpp answers 500 to an error of a template.
    if dialect.takes_same_roles and status in _REJECTED_STATUSES | {500} and _SAME_ROLES_REJECTED.search(text):
        return replace(dialect, takes_same_roles=False, names="none")
    # Only a named argument is removed: guessing would hide real errors.
    if status not in _REJECTED_STATUSES:
        return None
    if (tool := _rejected_tool(text, [name for name in tools if name not in dialect.refused_tools])) is not None:
        return replace(dialect, refused_tools=dialect.refused_tools | {tool})
    return _messages_otherwise(dialect, text) or _arguments_otherwise(dialect, param, text)


def _rejected_tool(text: str, names: Sequence[str]) -> str | None:
    """Return the tool whose definition an error rejects; None if it names none of these."""
    match = _TOOL_REJECTED.search(text)
    if match is None:
        return None
    if match[2] is not None:
        return names[int(match[2])] if int(match[2]) < len(names) else None
    return match[1] if match[1] in names else None


def _messages_otherwise(dialect: Dialect, text: str) -> Dialect | None:
    """Return the dialect with other keys in its messages, if the error rejects or requires one."""
    if dialect.sends_extra and ("extra_content" in text or "reasoning_details" in text):
        return replace(dialect, sends_extra=False)
    if not dialect.sends_reasoning and _REASONING_REQUIRED.search(text):
        return replace(dialect, sends_reasoning=True)
    if dialect.names != "none" and (rejected := _NAMES_REJECTED.search(text)) is not None:
        return replace(dialect, names="none" if rejected[1] or dialect.names == "plain" else "plain")
    return None


def _arguments_otherwise(dialect: Dialect, param: str | None, text: str) -> Dialect | None:
    """Return the dialect without an argument that the error names."""
    if dialect.is_streaming and (other := _streaming_otherwise(dialect, param, text)) is not None:
        return other
    if "max_completion_tokens" in text:
        key: LimitKey = "max_tokens" if dialect.limit_key == "max_completion_tokens" else "max_completion_tokens"
        return replace(dialect, limit_key=key)
    return None


def _streaming_otherwise(dialect: Dialect, param: str | None, text: str) -> Dialect | None:
    """Return the dialect without the options of a stream, or without a stream, if the error names one of these."""
    if dialect.has_stream_options and re.search("stream_options|include_usage", text):
        return replace(dialect, has_stream_options=False)
    if param == "stream" or _STREAMING_REJECTED.search(text):
        return replace(dialect, is_streaming=False)
    return None


def request_body(request: ModelRequest, model: str, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON body of `POST /chat/completions`."""
    messages = list(_messages(request.messages, dialect))
    body: dict[str, Any] = {
        "model": model,
        "messages": messages if dialect.takes_same_roles else _alternating(messages),
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
            }
            for t in request.tools
            if t.name not in dialect.refused_tools
        ]
        if not body["tools"]:
            del body["tools"]
    if request.max_output_tokens is not None:
        body[dialect.limit_key] = request.max_output_tokens
    if request.response_format is not None:
        body["response_format"] = dict(request.response_format)
    if dialect.is_streaming:
        body["stream"] = True
        if dialect.has_stream_options:
            body["stream_options"] = {"include_usage": True}
    return body


def _messages(messages: Iterable[Message], dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Yield the messages. Images follow all results of a reply in a separate message: results may contain only text."""
    waiting: list[Image] = []
    for message in messages:
        if waiting and message.role != "tool":
            yield _images(waiting)
            waiting = []
        note = NO_IMAGES if message.images and not dialect.takes_images else ""
        yield _message(message, message.content + note, dialect)
        waiting += message.images if dialect.takes_images else ()
    if waiting:
        yield _images(waiting)


def _alternating(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, those of one role in succession as one, and a message of a user before the others."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and _may_be_one(found[-1], message):
            found[-1]["content"] += f"\n\n{message['content']}"
            continue
        if message["role"] == "assistant" and all(one["role"] == "system" for one in found[-1:]):
            found.append({"role": "user", "content": EARLIER})
        found.append(message)
    return found


def _may_be_one(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two messages are texts of one role, without tool calls."""
    are_texts = all(isinstance(one["content"], str) and "tool_calls" not in one for one in (first, second))
    return first["role"] == second["role"] != "tool" and are_texts


def _images(images: Iterable[Image]) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": f"data:{one.mime_type};base64,{one.data}"}} for one in images]
    return {"role": "user", "content": [{"type": "text", "text": IMAGES_FOLLOW}, *parts]}


def _message(message: Message, content: str, dialect: Dialect) -> dict[str, Any]:
    # Empty content is sent, too: some servers answer null with HTTP 500, others a missing key.
    wire: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        if dialect.names == "none":
            wire["content"] = f"{message.name}: {content}"
        elif dialect.names == "plain":
            wire["name"] = plain_name(message.name)
        else:
            wire["name"] = message.name
    if message.tool_calls:
        wire["tool_calls"] = [_tool_call(call, dialect) for call in message.tool_calls]
    if dialect.sends_reasoning and (message.reasoning or message.tool_calls):
        wire["reasoning_content"] = message.reasoning or " "  # Kimi requires one even of a call without thoughts
    if message.extra and dialect.sends_extra:
        wire |= json.loads(message.extra)
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _tool_call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    extra = {"extra_content": json.loads(call.extra)} if call.extra and dialect.sends_extra else {}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}, **extra}
