"""[pure] A chat completion request, read: whom it asks, what, and how the answer shall come.

Owns what of a request means something to an agent. An agent has its own history, system prompt, tools and
sampling, so all a request brings is its last user message; whatever else it holds is named in `ignored`. What
would change the shape of the answer is refused, because a client that asked for it could not read ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mew_protocol.codec import DEFAULT_MAX_BYTES

from mew_agent.openai_api.problems import bad_body

MAX_TEXT_BYTES: Final = DEFAULT_MAX_BYTES // 4
"""Longest question: every character of it may take a few bytes more on its way."""

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_UNDERSTOOD: Final = frozenset({"model", "messages", "stream", "stream_options"})
_WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key"})
"""Keys that change no answer anywhere, so that ignoring them needs no word."""

_MAX_IGNORED: Final = 20


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks. `include_usage` is `stream_options.include_usage`."""

    model: str
    text: str
    system: str = ""
    is_streamed: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()


def read_question(body: object) -> Question:
    """Read the body of a chat completion request. Raises `Problem` (400): where, what, what was expected."""
    if not isinstance(body, Mapping):
        raise bad_body("body", f"is {_kind(body)}", "a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_body("model", "is missing" if model in (None, "") else f"is {_kind(model)}", "the name of an agent")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_body("messages", "is empty or no list", "a list of messages that ends with the user's")
    _check_messages(messages)
    _refuse_other_shapes(body)
    streamed = _flag(body.get("stream"), "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise bad_body("stream_options", f"is {_kind(options)}", "an object")
    last = len(messages) - 1
    return Question(
        model=model,
        text=_text_of(messages[last].get("content"), f"messages[{last}].content"),
        system="\n".join(_system_texts(messages)),
        is_streamed=streamed,
        include_usage=_flag((options or {}).get("include_usage"), "stream_options.include_usage"),
        ignored=tuple(_ignored(body, messages)),
    )


def _check_messages(messages: list[Any]) -> None:
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise bad_body(f"messages[{place}]", f"is {_kind(message)}", "an object with `role` and `content`")
        if message.get("role") not in _ROLES:
            raise bad_body(f"messages[{place}].role", f"is {message.get('role')!r}", f"one of {', '.join(_ROLES)}")
    last = len(messages) - 1
    role = messages[last]["role"]
    if role != "user":
        raise bad_body(f"messages[{last}].role", f"is '{role}'", "the last message to be the user's, for an agent")


def _text_of(content: object, where: str) -> str:
    """The text of a message: a string, or text parts joined by line breaks."""
    if isinstance(content, list):
        text = "\n".join(_part_text(part, f"{where}[{place}]") for place, part in enumerate(content))
    elif isinstance(content, str):
        text = content
    else:
        raise bad_body(where, f"is {_kind(content)}", "a string or a list of text parts")
    if not text.strip():
        raise bad_body(where, "holds no text", "something to say")
    size = len(text.encode(errors="replace"))
    if size > MAX_TEXT_BYTES:
        raise bad_body(where, f"holds {size:,} bytes", f"at most {MAX_TEXT_BYTES:,}")
    # Half of a surrogate pair cannot be written to the wire.
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image_url", "input_audio", "file"):
        raise bad_body(where, f"is a part of type '{kind}'", "text parts only: what is said in a space is text")
    raise bad_body(where, "is no text part", '{"type": "text", "text": "..."}')


def _refuse_other_shapes(body: Mapping[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise bad_body("n", f"is {body['n']!r}", "1: an agent answers once")
    form = body.get("response_format")
    if form is not None and (not isinstance(form, Mapping) or form.get("type") != "text"):
        raise bad_body("response_format", "asks for another form", '{"type": "text"}: an agent answers in text')
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise bad_body("tool_choice", "demands a tool call", "none or auto: an agent calls the tools of its space")
    if body.get("logprobs"):
        raise bad_body("logprobs", "is on", "off: agents report none")
    if body.get("modalities") not in (None, ["text"]):
        raise bad_body("modalities", "asks for more than text", '["text"]')


def _ignored(body: Mapping[str, Any], messages: list[Any]) -> Iterator[str]:
    """What the request holds and an agent does not use, in words for people."""
    systems = sum(message["role"] in ("system", "developer") for message in messages)
    if systems:
        yield "system messages"
    if len(messages) - systems > 1:
        yield "earlier messages"
    rest = sorted(key for key in body.keys() - _UNDERSTOOD - _WITHOUT_EFFECT if body[key] not in (None, [], {}))
    yield from (key[:40] for key in rest[:_MAX_IGNORED])


def _system_texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        if message["role"] in ("system", "developer") and isinstance(message.get("content"), str):
            yield message["content"]


def _flag(value: object, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad_body(where, f"is {_kind(value)}", "true or false")


def _kind(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case Mapping():
            return "an object"
        case _:
            return "a list"
