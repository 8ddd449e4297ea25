"""[pure] OpenAI's Responses API: reads its requests, and writes answers as its objects and events.

Owns the keys and the order of events. A client's `input` is read like the messages of a chat completion (see
`request`). Does not know agents, sessions or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mew_agent.openai_api.format import ApiAnswer, Json, OpenAIApiError, event, invalid_body
from mew_agent.openai_api.request import (
    ApiRequest,
    checked_body,
    checked_format,
    flag,
    ignored_parts,
    read_messages,
    user_of,
)

_SUPPORTED: Final = frozenset({"model", "input", "stream", "text", "previous_response_id", "conversation"})
_WITHOUT_EFFECT: Final = frozenset({"include", "truncation", "parallel_tool_calls", "stream_options", "instructions"})

Kind = Literal["reasoning", "message"]


def read_responses_request(body: object) -> ApiRequest:
    """Read the body of `POST /v1/responses`. Raises `OpenAIApiError` (400)."""
    body, model = checked_body(body)
    text, system, earlier = read_messages(_messages_of(body.get("input")), "input")
    if flag(body.get("background"), "background"):
        raise invalid_body("background", "is on", "false: answers are not stored")
    if body.get("prompt") is not None:
        raise invalid_body("prompt", "is not supported", "`input`: an agent has its own prompt")
    previous = body.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise invalid_body("previous_response_id", "is not a string", "the id of an earlier response")
    if previous is not None and earlier:
        raise invalid_body("input", "has earlier messages", "only the new message, with previous_response_id")
    instructions = body.get("instructions")
    return ApiRequest(
        model=model,
        text=text,
        system=system,
        earlier=earlier,
        is_streamed=flag(body.get("stream"), "stream"),
        ignored=tuple(ignored_parts(body, _SUPPORTED | _WITHOUT_EFFECT, has_system=bool(system or instructions))),
        response_format=_format_of(body.get("text")),
        user=user_of(body),
        conversation=_conversation_of(body.get("conversation")),
        previous_response=previous,
    )


def _messages_of(given: object) -> list[Any]:
    """The messages in `input`; reasoning that a client sends back is left out."""
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
    """`text.format` in the form of chat completions, which has the parts of a schema under a separate key."""
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


@dataclass(slots=True)
class ResponseFormat:
    """The JSON of one response. Each run of reasoning or answer is a separate output item."""

    id: str
    request: ApiRequest
    created: int
    _output: list[Json] = field(default_factory=list)
    _open: tuple[Kind, str] | None = None
    _sent: int = 0

    def begin(self) -> list[bytes]:
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def piece(self, text: str, *, is_reasoning: bool) -> list[bytes]:
        kind: Kind = "reasoning" if is_reasoning else "message"
        events: list[bytes] = []
        if self._open is not None and self._open[0] != kind:
            events += self._close()
        if self._open is None:
            events += self._begin_item(kind)
        before = self._open[1] if self._open is not None else ""
        self._open = (kind, before + text)
        extra: Json = {} if is_reasoning else {"logprobs": []}
        return [*events, self._event(f"response.{_part_name(kind)}.delta", **self._place(), delta=text, **extra)]

    def end(self, answer: ApiAnswer) -> list[bytes]:
        events = self._close()
        if not any(item["type"] == "message" for item in self._output):  # an empty answer is also an item
            events += self._begin_item("message")
        return [
            *events,
            *self._close(),
            self._event("response.completed", response=self._response("completed", answer)),
        ]

    def fail(self, error: OpenAIApiError) -> list[bytes]:
        events = self._close()
        failed = self._response("failed") | {"error": {"code": error.code, "message": str(error)}}
        return [*events, self._event("response.failed", response=failed)]

    def as_json(self, answer: ApiAnswer) -> Json:
        for text, is_reasoning in ((answer.reasoning, True), (answer.text, False)):
            if text or not is_reasoning:
                self.piece(text, is_reasoning=is_reasoning)
        self._close()
        return self._response("completed", answer)

    # -- items -------------------------------------------------------------------------------------------

    def _begin_item(self, kind: Kind) -> list[bytes]:
        self._open = (kind, "")
        name = f"{'rs' if kind == 'reasoning' else 'msg'}_{self.id}_{len(self._output)}"
        self._output.append(_item(name, kind, "", "in_progress"))
        shown = {**self._output[-1], "content": []}
        added = self._event("response.output_item.added", output_index=len(self._output) - 1, item=shown)
        return [added, self._event("response.content_part.added", **self._place(), part=_part(kind, ""))]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        kind, text = self._open
        extra: Json = {} if kind == "reasoning" else {"logprobs": []}
        place, index = self._place(), len(self._output) - 1
        self._output[-1] = item = _item(self._output[-1]["id"], kind, text, "completed")
        self._open = None
        return [
            self._event(f"response.{_part_name(kind)}.done", **place, text=text, **extra),
            self._event("response.content_part.done", **place, part=_part(kind, text)),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, "content_index": 0}

    # -- the whole ---------------------------------------------------------------------------------------

    def _event(self, name: str, **values: Any) -> bytes:
        self._sent += 1
        return event({"type": name, "sequence_number": self._sent - 1, **values}, name)

    def _response(self, status: str, answer: ApiAnswer | None = None) -> Json:
        form = self.request.response_format
        shape: Json = {"type": "text"} if form is None else dict(form)
        shape |= shape.pop("json_schema", {})
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.request.model,
            "output": list(self._output),
            "previous_response_id": self.request.previous_response,
            "text": {"format": shape},
            "usage": None if answer is None else _usage(answer.usage),
            "mew": {} if answer is None else answer.mew,
            # The response models of OpenAI's SDKs require the keys from here on.
            **dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p")),
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }


def _part_name(kind: Kind) -> str:
    return "reasoning_text" if kind == "reasoning" else "output_text"


def _item(name: str, kind: Kind, text: str, status: str) -> Json:
    item = {"id": name, "type": kind, "status": status, "content": [_part(kind, text)]}
    return {**item, "summary": []} if kind == "reasoning" else {**item, "role": "assistant"}


def _part(kind: Kind, text: str) -> Json:
    part: Json = {"type": _part_name(kind), "text": text}
    return part if kind == "reasoning" else {**part, "annotations": [], "logprobs": []}


def _usage(usage: Json | None) -> Json | None:
    """Usage under the names of this API. Details that were not reported are null, not 0."""
    if usage is None:
        return None
    prompt, completion = (usage.get(f"{part}_tokens_details", {}) for part in ("prompt", "completion"))
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens"), "cache_write_tokens": None},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens")},
        "total_tokens": usage["total_tokens"],
    }
