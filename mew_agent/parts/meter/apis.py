"""[pure] Read the events of a reply of the Responses API and of the Messages API, apart from its text.

What completes a reply, and its usage, are those of `model.reply_events`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from mew_protocol.json_values import object_at, objects_at, text_at, value_at

from mew_agent.model.reply_events import SERVER_TOOLS, Json, ReplyEvents
from mew_agent.model.usage import CACHE_APART, normalise, positive_count

Api = Literal["chat", "responses", "messages"]

_TOOL_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_use"}
)
_MAY_RUN_AT_SERVER: Final = frozenset({"custom_tool_call", "shell_call"})
"""Calls for the client or for the server: OpenAI's shells, xAI's searches. A message after one has its result."""


@dataclass(slots=True)
class _ItemEvents(ReplyEvents):
    """A reply in items or blocks. It ends with an event of its own, with or without usage."""

    _may_have_run: set[str] = field(default_factory=set)  # ids of such calls

    @property
    def has_ended(self) -> bool:
        """True if no usage can follow."""
        return self.is_complete and self.is_done

    def _read_items(self, items: list[Json]) -> None:
        for item in items:
            kind, name = text_at(item.get("type")), text_at(item.get("call_id")) or text_at(item.get("id"))
            self._ran_tools = self._ran_tools or kind in SERVER_TOOLS
            if kind in _TOOL_CALLS and name:
                self._add_call(name)
            if kind in _MAY_RUN_AT_SERVER:
                self._may_have_run.add(name)
            elif kind == "message":
                self.tool_calls = [one for one in self.tool_calls if one not in self._may_have_run]


@dataclass(slots=True)
class ResponseEvents(_ItemEvents):
    """The events of one reply of the Responses API so far."""

    def _read_body(self, body: Json) -> None:
        kind = text_at(body.get("type"))
        if kind == "response.output_item.done":
            self._read_items([object_at(body, "item")])
        elif kind in ("response.completed", "response.incomplete"):
            self._read_response(object_at(body, "response"))
        elif kind == "response.failed":
            self.error = value_at(body, "response", "error") or kind
        elif kind == "error":
            self.error = body
        elif self._is_whole:
            self._read_response(body)

    def _read_response(self, response: Json) -> None:
        self._name(response)
        if response.get("status") == "failed":
            self.error = response.get("error") or "failed"
        self._read_items(objects_at(response, "output"))
        self._add(normalise(response.get("usage")))
        self.finish_reason, self.is_done = text_at(response.get("status")) or "completed", True


@dataclass(slots=True)
class MessageEvents(_ItemEvents):
    """The events of one reply of the Messages API so far."""

    _raw_usage: dict[str, object] = field(default_factory=dict)  # the API reports it in two events

    def _read_body(self, body: Json) -> None:
        match body.get("type"):
            case "message_start":
                self._read_message(object_at(body, "message"))
            case "content_block_start":
                self._read_items([object_at(body, "content_block")])
                self._add(grew=True)
            case "content_block_delta":
                self._add(grew=True)
            case "message_delta":
                self._merge_usage(body.get("usage"))
                self.finish_reason = text_at(body, "delta", "stop_reason") or self.finish_reason
            case "message_stop":
                self.is_done = True
            case "message":
                self._read_message(body)
                self.is_done = True
            case _:
                pass

    def _read_message(self, message: Json) -> None:
        self._name(message)
        self._merge_usage(message.get("usage"))
        self._read_items(objects_at(message, "content"))
        self.finish_reason = text_at(message.get("stop_reason")) or self.finish_reason

    def _merge_usage(self, raw: object) -> None:
        if isinstance(raw, Mapping) and raw:
            self._raw_usage = _merged(self._raw_usage, raw)
            self._add(normalise(self._raw_usage))


EVENTS: Final[Mapping[Api, type[ReplyEvents]]] = {
    "chat": ReplyEvents,
    "responses": ResponseEvents,
    "messages": MessageEvents,
}
"""The reader of each API."""


def _merged(before: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return a usage object of the Messages API after a later one: null and 0 replace nothing.

    A later prompt, one with positive `input_tokens`, replaces all figures of the earlier one, with zeros too.
    """
    later_prompt = CACHE_APART if positive_count(new.get("input_tokens")) else ()
    return {
        **before,
        **{key: one for key, one in new.items() if one or key not in before or (one == 0 and key in later_prompt)},
    }
