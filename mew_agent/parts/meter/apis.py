"""[pure] Read the events of a reply of the Responses API and of the Messages API, except its text.

`model.reply_events` decides on complete replies and usage.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from mew_protocol.json_values import object_at, objects_at, text_at, value_at

from mew_agent.model.reply_events import SERVER_TOOLS, BodyReader, ChatReader, Json, ReplyEvents
from mew_agent.model.usage import CACHE_APART, positive_count, read_usage

Api = Literal["chat", "responses", "messages"]

_TOOL_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_use"}
)
_MAY_RUN_AT_SERVER: Final = frozenset({"custom_tool_call", "shell_call"})
"""Calls for the client or for the server: OpenAI's shells, xAI's searches. A message after one has its result."""


class _Items:
    """The items or blocks of one reply."""

    def __init__(self) -> None:
        self._may_have_run: set[str] = set()  # ids of such calls

    def read(self, items: list[Json], reply: ReplyEvents) -> None:
        """Note the tool calls in these items."""
        for item in items:
            kind, name = text_at(item.get("type")), text_at(item.get("call_id")) or text_at(item.get("id"))
            reply.ran_tools = reply.ran_tools or kind in SERVER_TOOLS
            if kind in _TOOL_CALLS and name:
                reply.add_call(name)
            if kind in _MAY_RUN_AT_SERVER:
                self._may_have_run.add(name)
            elif kind == "message":
                reply.tool_calls = [one for one in reply.tool_calls if one not in self._may_have_run]


class ResponseReader(BodyReader):
    """Reads one reply of the Responses API."""

    has_end_event = True

    def __init__(self) -> None:
        self._items = _Items()

    def read(self, body: Json, reply: ReplyEvents) -> None:
        kind = text_at(body.get("type"))
        if kind == "response.output_item.done":
            self._items.read([object_at(body, "item")], reply)
        elif kind in ("response.completed", "response.incomplete"):
            self._read_response(object_at(body, "response"), reply)
        elif kind == "response.failed":
            reply.error = value_at(body, "response", "error") or kind
        elif kind == "error":
            reply.error = body
        elif reply.is_whole:
            self._read_response(body, reply)

    def _read_response(self, response: Json, reply: ReplyEvents) -> None:
        reply.note_names(response)
        if response.get("status") == "failed":
            reply.error = response.get("error") or "failed"
        self._items.read(objects_at(response, "output"), reply)
        reply.add(read_usage(response.get("usage")))
        reply.finish_reason, reply.is_done = text_at(response.get("status")) or "completed", True


class MessageReader(BodyReader):
    """Reads one reply of the Messages API."""

    has_end_event = True

    def __init__(self) -> None:
        self._items = _Items()
        self._raw_usage: dict[str, object] = {}  # the API reports it in two events

    def read(self, body: Json, reply: ReplyEvents) -> None:
        match body.get("type"):
            case "message_start":
                self._read_message(object_at(body, "message"), reply)
            case "content_block_start":
                self._items.read([object_at(body, "content_block")], reply)
                reply.add(grew=True)
            case "content_block_delta":
                reply.add(grew=True)
            case "message_delta":
                self._merge_usage(body.get("usage"), reply)
                reply.finish_reason = text_at(body, "delta", "stop_reason") or reply.finish_reason
            case "message_stop":
                reply.is_done = True
            case "message":
                self._read_message(body, reply)
                reply.is_done = True
            case _:
                pass

    def _read_message(self, message: Json, reply: ReplyEvents) -> None:
        reply.note_names(message)
        self._merge_usage(message.get("usage"), reply)
        self._items.read(objects_at(message, "content"), reply)
        reply.finish_reason = text_at(message.get("stop_reason")) or reply.finish_reason

    def _merge_usage(self, raw: object, reply: ReplyEvents) -> None:
        if isinstance(raw, Mapping) and raw:
            self._raw_usage = _merged(self._raw_usage, raw)
            reply.add(read_usage(self._raw_usage))


READERS: Final[Mapping[Api, Callable[[], BodyReader]]] = {
    "chat": ChatReader,
    "responses": ResponseReader,
    "messages": MessageReader,
}
"""The reader of each API."""


def _merged(before: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return a usage object of the Messages API after a later one: null and 0 replace nothing.

    A later prompt with positive `input_tokens` replaces all earlier figures, even with zeros.
    """
    later_prompt = CACHE_APART if positive_count(new.get("input_tokens")) else ()
    return {
        **before,
        **{key: one for key, one in new.items() if one or key not in before or (one == 0 and key in later_prompt)},
    }
