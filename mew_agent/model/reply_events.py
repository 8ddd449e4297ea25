"""[pure] Read the events of one chat completion, apart from its text: usage, tool calls, errors, and its end.

Owns where chat completions have these, and what completes a reply of any API; a meter reads two more. Keeps no text.
Does not know HTTP, or which call it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mew_protocol.json_values import object_at, objects_at, value_at

from mew_agent.model.event_stream import Event
from mew_agent.model.usage import Usage, newest_usage, usage_object

Json = Mapping[str, Any]

SERVER_TOOLS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
    | {"x_search_call", "tool_search_output", "shell_call_output"}  # their calls may be for the client to run
    | {"server_tool_use", "mcp_tool_use", "compaction"}
)
"""Items and blocks that take the provider's server another call of the model: tools that it ran, compactions."""

_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_BACKEND: Final = ("provider", "system_fingerprint")


@dataclass(slots=True)
class ReplyEvents:
    """The events of one reply so far: `read` each in order."""

    chunks: int = 0
    is_done: bool = False  # whether the end mark was seen
    finish_reason: str | None = None
    error: object = None
    model: str | None = None
    response: str | None = None  # the id of the reply
    tool_calls: list[str] = field(default_factory=list)  # their ids
    _backend: dict[str, str] = field(default_factory=dict)
    _usage: Usage | None = None
    _has_content: bool = False
    _has_grown: bool = False  # whether a part of the reply arrived after the usage
    _is_running: bool = False  # whether the usage came with a part of the text, so that more of it may follow
    _is_whole: bool = False
    _ran_tools: bool = False  # whether the server made several calls of the model

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
        self._is_whole = event.is_whole
        self._read_body(data)
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
        return self.is_complete and self.is_done and self._usage is not None

    @property
    def usage(self) -> Usage | None:
        """The usage of the reply; None if it was not reported."""
        if self._usage is None:
            return None
        is_sum = self._usage.is_sum or (self._ran_tools and self._usage.inner is None)
        return replace(self._usage, is_provisional=self._has_grown, is_sum=is_sum)

    @property
    def backend(self) -> str | None:
        """The machine that answered, as the provider names it; None if it does not."""
        return " ".join(self._backend[key] for key in _BACKEND if key in self._backend) or None

    def _read_body(self, body: Json) -> None:
        """Read a chunk, or a whole answer."""
        self._is_whole = self._is_whole and bool(body.get("choices"))
        self._name(body)
        grew = False
        for choice in first_choices(body):
            grew = self._read_choice(choice) or grew
        self._add_content(grew=grew)
        self._add_usage(usage_object(body), with_content=grew)

    def _read_choice(self, choice: Json) -> bool:
        """Read a piece of the reply. Returns whether it has content."""
        self.finish_reason = text_of(choice.get("finish_reason")) or self.finish_reason
        if choice.get("error") or choice.get("finish_reason") == "error":
            self.error = choice.get("error") or "finish_reason error"
        delta = object_at(choice, "delta") or object_at(choice, "message")
        self._ran_tools = self._ran_tools or bool(delta.get("executed_tools"))
        for call in objects_at(delta, "tool_calls"):
            self._add_call(call.get("id"))
        return any(delta.get(key) for key in _TEXTS)

    def _name(self, body: Json) -> None:
        self.model = text_of(body.get("model")) or self.model
        self.response = text_of(body.get("id")) or self.response
        self._backend |= {key: text for key in _BACKEND if (text := text_of(body.get(key)))}

    def _add_content(self, *, grew: bool) -> None:
        self._has_content = self._has_content or grew
        self._has_grown = self._has_grown or grew

    def _add_usage(self, raw: object, *, with_content: bool = False) -> None:
        usage = newest_usage(self._usage, raw)
        if usage is not self._usage:
            self._usage, self._has_grown, self._is_running = usage, False, with_content

    def _add_call(self, name: object) -> None:
        if isinstance(name, str) and name not in self.tool_calls:
            self.tool_calls.append(name)


def first_choices(chunk: Json) -> list[Json]:
    """Return the pieces of the first choice; other choices are alternatives to it, not parts of it."""
    return [choice for choice in objects_at(chunk, "choices") if choice.get("index") in (None, 0)]


def text_of(value: object) -> str:
    """Return the value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""
