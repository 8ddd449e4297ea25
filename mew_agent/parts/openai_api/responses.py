"""[pure] OpenAI's Responses API: reads its requests, and writes answers as its objects and events.

A client's `input` is read like the messages of a chat completion (see `request`). Does not know agents, sessions or
HTTP.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from mew_agent.parts.openai_api.format import ApiAnswer, Json, invalid_body
from mew_agent.parts.openai_api.request import (
    ApiRequest,
    checked_body,
    checked_format,
    flag,
    ignored_parts,
    read_messages,
)
from mew_agent.parts.shared.api_limits import AnswerFailed
from mew_agent.parts.shared.responses_format import ResponseWriter, event, usage_in_responses

_SUPPORTED: Final = frozenset({"model", "input", "stream", "text", "previous_response_id", "conversation"})
_WITHOUT_EFFECT: Final = frozenset({"include", "truncation", "parallel_tool_calls", "stream_options", "instructions"})


def read_responses_request(body: object) -> ApiRequest:
    """Read the body of `POST /v1/responses`. Raises `AnswerFailed` (400)."""
    body = checked_body(body)
    request = read_messages(body, _messages_of(body.get("input")), "input")
    if flag(body.get("background"), "background"):
        raise invalid_body("background", "is on", "false: answers are not stored")
    if body.get("prompt") is not None:
        raise invalid_body("prompt", "is not supported", "`input`: an agent has its own prompt")
    previous = body.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise invalid_body("previous_response_id", "is not a string", "the id of an earlier response")
    if previous is not None and request.earlier:
        raise invalid_body("input", "has earlier messages", "only the new message, with previous_response_id")
    has_system = bool(request.system or body.get("instructions"))
    return replace(
        request,
        ignored=tuple(ignored_parts(body, _SUPPORTED | _WITHOUT_EFFECT, has_system=has_system)),
        response_format=_format_of(body.get("text")),
        conversation=_conversation_of(body.get("conversation")),
        previous_response=previous,
    )


def _messages_of(given: object) -> list[Any]:
    """Return the messages in `input`; reasoning that a client sends back is left out."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid_body("input", "is missing", "a string or a list of messages that ends with the user's")
    kept: list[Any] = []
    for index, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, Mapping) else "message"
        if kind == "message":
            kept.append(item)
        elif kind != "reasoning":
            problem, expected = f"is an item of type '{kind}'", "messages: an agent calls the tools of its space"
            raise invalid_body(f"input[{index}]", problem, expected)
    if not kept:
        raise invalid_body("input", "contains no message", "a message of the user")
    return kept


def _format_of(text: object) -> Mapping[str, Any] | None:
    """Return `text.format` as chat completions have it, with the parts of a schema under a separate key."""
    if text is not None and not isinstance(text, Mapping):
        raise invalid_body("text", "is not an object", '{"format": {"type": "text"}}')
    wanted = (text or {}).get("format")
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema" and "schema" in wanted:
        parts = {key: wanted[key] for key in ("name", "description", "schema", "strict") if wanted.get(key) is not None}
        wanted = {"type": "json_schema", "json_schema": parts}
    return checked_format(wanted, "text.format")


def _conversation_of(value: object) -> str:
    name = value.get("id") if isinstance(value, Mapping) else value
    if name is not None and not isinstance(name, str):
        raise invalid_body("conversation", "is not a name", "a string, or an object with `id`")
    return name or ""


class ResponseFormat:
    """The JSON of one response; see `ReplyFormat`."""

    def __init__(self, name: str, request: ApiRequest, created: int) -> None:
        form = request.response_format
        shape: Json = {"type": "text"} if form is None else dict(form)
        shape |= shape.pop("json_schema", {})
        keys = {"previous_response_id": request.previous_response, "text": {"format": shape}, "mew": {}}
        self.id = name
        self._writer = ResponseWriter(name, request.model, created, keys)

    def begin(self) -> list[bytes]:
        return _encoded(self._writer.begin())

    def piece(self, text: str, *, is_reasoning: bool) -> list[bytes]:
        return _encoded(self._writer.write("reasoning" if is_reasoning else "message", text))

    def end(self, answer: ApiAnswer) -> list[bytes]:
        events: list[Json] = []
        if not any(item["type"] == "message" for item in self._writer.output):  # an empty answer is also an item
            events = self._writer.open("message")
        return _encoded([*events, *self._writer.end("completed", **_outcome(answer))])

    def fail(self, error: AnswerFailed) -> list[bytes]:
        return _encoded(self._writer.end("failed", error={"code": error.code, "message": str(error)}))

    def as_json(self, answer: ApiAnswer) -> Json:
        if answer.reasoning:
            self._writer.write("reasoning", answer.reasoning)
        self._writer.write("message", answer.text)
        self._writer.close()
        return self._writer.response("completed", **_outcome(answer))


def _encoded(events: Iterable[Json]) -> list[bytes]:
    return [event(one, one["type"]) for one in events]


def _outcome(answer: ApiAnswer) -> Json:
    """Return the outcome of an answer. Details of its usage that were not reported are null, not 0."""
    usage = None if answer.usage is None else usage_in_responses(answer.usage, None)
    return {"usage": usage, "mew": answer.mew}
