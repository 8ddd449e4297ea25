"""[pure] Read the events of one reply, apart from its text: usage, tool calls, errors, and whether it is complete.

Owns where the three APIs put these, for agents and meters alike. Keeps no text. Does not know HTTP, or which call it
was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from mew_protocol.json_values import object_at, objects_at, value_at

from mew_agent.model.event_stream import Event
from mew_agent.model.usage import Usage, merged, newest_usage, usage_object

Api = Literal["chat", "responses", "messages"]
Json = Mapping[str, Any]

_TOOL_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_use"}
)
SERVER_TOOLS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
    | {"server_tool_use", "mcp_tool_use"}
)
"""Items and blocks of tools that the provider's server ran, with a call of the model after each."""

_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_BACKEND: Final = ("provider", "system_fingerprint")


@dataclass(slots=True)
class ReplyEvents:
    """The events of one reply so far: `read` each in order."""

    api: Api = "chat"
    chunks: int = 0
    is_done: bool = False  # whether the end mark was seen
    finish_reason: str | None = None
    error: object = None
    model: str | None = None
    response: str | None = None  # the id of the reply
    tool_calls: list[str] = field(default_factory=list)  # their ids
    _backend: dict[str, str] = field(default_factory=dict)
    _usage: Usage | None = None
    _raw_usage: dict[str, object] = field(default_factory=dict)  # the Messages API reports it in two events
    _has_content: bool = False
    _has_grown: bool = False  # whether a part of the reply arrived after the usage
    _is_running: bool = False  # whether the usage came with a part of the text, so that more of it may follow
    _is_whole: bool = False
    _ran_tools: bool = False  # whether the server ran tools

    def read(self, event: Event) -> Json:
        """Read the next event. Returns its object; empty for the end mark and for errors.

        Raises ValueError if it is no object.
        """
        if event.is_done:
            self.is_done = True
            return {}
        self.chunks += 1
        data = event.data
        if event.is_error:
            self.error = value_at(data, "error") or data or "no message"
            return {}
        if not isinstance(data, Mapping):
            raise ValueError("a chunk of the stream is not a JSON object")
        if data.get("error"):
            self.error = data["error"]
            return {}
        self._is_whole = event.is_whole and (self.api != "chat" or bool(data.get("choices")))
        match self.api:
            case "chat":
                self._read_chunk(data)
            case "responses":
                self._read_response_event(data)
            case "messages":
                self._read_message_event(data)
        return data

    @property
    def is_complete(self) -> bool:
        """Whether this may be all of the reply, if nothing follows.

        It has a finish reason, or after its text the end mark or its final usage; servers leave each of these out.
        """
        if self.error is not None:
            return False
        ends = self.is_done or not (self._usage is None or self._has_grown or self._is_running)
        return self._is_whole or self.finish_reason is not None or (self._has_content and ends)

    @property
    def may_break_off(self) -> bool:
        """Whether the reply is whole even if the connection breaks now."""
        return self.is_done or self.finish_reason is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing that matters can follow. Some servers send the usage after the end mark."""
        return self.is_complete and self.is_done and (self._usage is not None or self.api != "chat")

    @property
    def usage(self) -> Usage | None:
        """The usage of the reply; None if it was not reported."""
        if self._usage is None:
            return None
        is_sum = self._usage.is_sum or (self._ran_tools and self._usage.inner is None)
        return replace(self._usage, is_provisional=self._has_grown, is_sum=is_sum)

    @property
    def backend(self) -> str | None:
        """What the provider says of the machine that answered; None if it says nothing."""
        return " ".join(self._backend[key] for key in _BACKEND if key in self._backend) or None

    # -- chat completions --------------------------------------------------------------------------------

    def _read_chunk(self, chunk: Json) -> None:
        self._name(chunk)
        grew = False
        for choice in first_choices(chunk):
            self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
            if choice.get("error") or choice.get("finish_reason") == "error":
                self.error = choice.get("error") or "finish_reason error"
            delta = object_at(choice, "delta") or object_at(choice, "message")
            grew = grew or any(delta.get(key) for key in _TEXTS)
            self._ran_tools = self._ran_tools or bool(delta.get("executed_tools"))
            for call in objects_at(delta, "tool_calls"):
                self._add_call(call.get("id"))
        self._add_content(grew=grew)
        self._add_usage(usage_object(chunk), with_content=grew)

    # -- Responses ---------------------------------------------------------------------------------------

    def _read_response_event(self, event: Json) -> None:
        kind = _text(event.get("type"))
        if kind == "response.output_item.done":
            self._read_items([object_at(event, "item")])
        elif kind in ("response.completed", "response.incomplete"):
            self._read_response(object_at(event, "response"))
        elif kind == "response.failed":
            self.error = value_at(event, "response", "error") or kind
        elif kind == "error":
            self.error = event
        elif self._is_whole:
            self._read_response(event)

    def _read_response(self, response: Json) -> None:
        self._name(response)
        if response.get("status") == "failed":
            self.error = response.get("error") or "failed"
        self._read_items(objects_at(response, "output"))
        self._add_usage(response.get("usage"))
        self.finish_reason, self.is_done = _text(response.get("status")) or "completed", True

    # -- Messages ----------------------------------------------------------------------------------------

    def _read_message_event(self, event: Json) -> None:
        match event.get("type"):
            case "message_start":
                self._read_message(object_at(event, "message"))
            case "content_block_start":
                self._read_items([object_at(event, "content_block")])
                self._add_content(grew=True)
            case "content_block_delta":
                self._add_content(grew=True)
            case "message_delta":
                self._merge_usage(event.get("usage"))
                self.finish_reason = _text(value_at(event, "delta", "stop_reason")) or self.finish_reason
            case "message_stop":
                self.is_done = True
            case "message":
                self._read_message(event)
                self.is_done = True
            case _:
                pass

    def _read_message(self, message: Json) -> None:
        self._name(message)
        self._merge_usage(message.get("usage"))
        self._read_items(objects_at(message, "content"))
        self.finish_reason = _text(message.get("stop_reason")) or self.finish_reason

    def _merge_usage(self, raw: object) -> None:
        if isinstance(raw, Mapping) and raw:
            self._raw_usage = merged(self._raw_usage, raw)
            self._add_usage(self._raw_usage)

    # -- all ---------------------------------------------------------------------------------------------

    def _name(self, body: Json) -> None:
        self.model = _text(body.get("model")) or self.model
        self.response = _text(body.get("id")) or self.response
        self._backend |= {key: text for key in _BACKEND if (text := _text(body.get(key)))}

    def _add_content(self, *, grew: bool) -> None:
        self._has_content = self._has_content or grew
        self._has_grown = self._has_grown or grew

    def _add_usage(self, raw: object, *, with_content: bool = False) -> None:
        usage = newest_usage(self._usage, raw)
        if usage is not self._usage:
            self._usage, self._has_grown, self._is_running = usage, False, with_content

    def _read_items(self, items: list[Json]) -> None:
        for item in items:
            kind = item.get("type")
            self._ran_tools = self._ran_tools or kind in SERVER_TOOLS
            if kind in _TOOL_CALLS:
                self._add_call(item.get("call_id") or item.get("id"))

    def _add_call(self, name: object) -> None:
        if isinstance(name, str) and name not in self.tool_calls:
            self.tool_calls.append(name)


def first_choices(chunk: Json) -> list[Json]:
    """Return the pieces of the first choice; other choices are alternatives to it, not parts of it."""
    return [choice for choice in objects_at(chunk, "choices") if choice.get("index") in (None, 0)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
