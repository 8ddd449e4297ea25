"""[pure] Read the reply of a model from its bytes, whole or streamed: usage, tool calls, and whether it is complete.

Owns where each of the three APIs puts them, and decompression. Keeps no text. Does not know which call it was.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mew_protocol.json_values import object_at, objects_at, value_at

from mew_agent.meter.facts import Api, digest_of
from mew_agent.model.usage import Usage, newest_usage, normalise, usage_object

READABLE_ENCODINGS: Final = ("identity", "gzip", "deflate")

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
"""Size of one event of a stream, or of a whole reply, that is still read."""

_PIECE_BYTES: Final = 1024 * 1024
_TOOL_CALLS: Final = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_use"}
)
_RESPONSE_ENDS: Final = ("response.completed", "response.incomplete")


@dataclass(frozen=True, slots=True)
class Reply:
    """The contents of a complete reply. `usage` is None if it was not reported."""

    usage: Usage | None = None
    tool_calls: frozenset[str] = frozenset()  # digests of their ids
    response: str | None = None  # digest of the id of the response
    model: str | None = None


@dataclass(slots=True)
class ReplyReader:
    """Reads one reply while its bytes pass. `feed` never raises: what cannot be read leaves the usage unknown."""

    api: Api
    is_stream: bool
    encoding: str = "identity"
    is_complete: bool = False
    """Whether nothing of interest can follow. Only a stream marks its own end."""
    _has_finished: bool = False  # whether a finish reason was seen
    _usage: Usage | None = None
    _raw_usage: dict[str, Any] = field(default_factory=dict)  # Anthropic reports it in two events
    _tool_calls: set[str] = field(default_factory=set)
    _response: str | None = None
    _model: str | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _is_readable: bool = True
    _inflate: Any = None

    def __post_init__(self) -> None:
        self._is_readable = self.encoding in READABLE_ENCODINGS
        if self._is_readable and self.encoding != "identity":
            self._inflate = zlib.decompressobj(wbits=47 if self.encoding == "gzip" else 15)

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the body, as they came."""
        if not self._is_readable:
            return
        try:
            for piece in self._inflated(chunk):
                self._buffer += piece
                if self.is_stream:
                    self._read_lines()
                if len(self._buffer) > MAX_EVENT_BYTES:
                    raise ValueError
        except (ValueError, TypeError, AttributeError, zlib.error):
            self._is_readable = False
            self._buffer.clear()

    def end(self, *, was_cut: bool = False) -> Reply | None:
        """Return the reply at the end of the body; None if it lacks its end. `was_cut`: the connection broke."""
        if not self.is_stream and self._is_readable and not was_cut:
            try:
                self._read_whole(json.loads(bytes(self._buffer)))
            except (ValueError, TypeError, AttributeError):
                self._is_readable = False
        if (self._is_readable or was_cut) and not (self.is_complete or self._has_finished):
            return None
        usage = normalise(self._raw_usage) if self._raw_usage else self._usage
        if usage is not None and usage.contradicts_itself:
            usage = None
        return Reply(usage, frozenset(self._tool_calls), self._response, self._model)

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        """Yield bounded pieces, because a small chunk may inflate to a very large one."""
        if self._inflate is None:
            yield chunk
            return
        while chunk:
            yield self._inflate.decompress(chunk, _PIECE_BYTES)
            chunk = self._inflate.unconsumed_tail

    def _read_lines(self) -> None:
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            if line.startswith(b"data:"):  # each event of these APIs is one line of JSON
                data = line[5:].strip()
                if data == b"[DONE]":
                    self.is_complete = True
                elif data:
                    self._read_event(json.loads(data))

    def _read_event(self, event: Any) -> None:
        if not isinstance(event, Mapping):
            return
        match self.api:
            case "chat":
                self._read_chunk(event)
            case "responses":
                self._read_response_event(event)
            case "messages":
                self._read_message_event(event)

    def _read_whole(self, body: Any) -> None:
        if not isinstance(body, Mapping):
            return
        match self.api:
            case "chat":
                self._read_chunk(body)
            case "responses":
                self._read_response(body)
            case "messages":
                self._read_message(body)
        self.is_complete = True

    def _read_chunk(self, chunk: Mapping[str, Any]) -> None:
        self._usage = newest_usage(self._usage, usage_object(chunk))
        self._model = chunk.get("model") or self._model
        for choice in chunk.get("choices") or ():
            self._has_finished |= bool(choice.get("finish_reason"))
            for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ():
                self._add_call(call.get("id"))

    def _read_response_event(self, event: Mapping[str, Any]) -> None:
        if event.get("type") == "response.output_item.done":
            self._read_items([object_at(event, "item")])
        elif event.get("type") in _RESPONSE_ENDS:
            self._read_response(event.get("response"))
            self.is_complete = True

    def _read_response(self, response: Any) -> None:
        self._usage = newest_usage(self._usage, value_at(response, "usage"))
        self._model = value_at(response, "model") or self._model
        self._response = digest_of(value_at(response, "id"))
        self._read_items(objects_at(response, "output"))

    def _read_message_event(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._read_message(event.get("message"))
            case "content_block_start":
                self._read_items([object_at(event, "content_block")])
            case "message_delta":
                self._add_usage(event.get("usage"))
                self._has_finished |= bool(value_at(event, "delta", "stop_reason"))
            case "message_stop":
                self.is_complete = True
            case _:
                pass

    def _read_message(self, message: Any) -> None:
        self._add_usage(value_at(message, "usage"))
        self._model = value_at(message, "model") or self._model
        self._read_items(objects_at(message, "content"))

    def _add_usage(self, usage: Any) -> None:
        """Add usage: later figures replace earlier ones, but null and 0 replace nothing."""
        known = self._raw_usage
        known |= {key: value for key, value in object_at(usage).items() if value or key not in known}

    def _read_items(self, items: list[Mapping[str, Any]]) -> None:
        for item in items:
            if item.get("type") in _TOOL_CALLS:
                self._add_call(item.get("call_id") or item.get("id"))

    def _add_call(self, name: object) -> None:
        if isinstance(name, str):
            self._tool_calls.add(digest_of(name))
