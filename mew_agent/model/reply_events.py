"""[pure] Read a model's answer from its events: their facts, and the reply with its texts.

Owns the places of texts, usage, tool calls and errors in chat completions, the choice of the valid usage report, and
the conditions of a complete reply in any API. Ignores parts of unknown shape. Does not know bytes (see `event_stream`),
HTTP, or which call it was.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from mew_protocol.json_values import object_at, objects_at, text_at, value_at

from mew_agent.model.event_stream import Event
from mew_agent.model.interface import ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.usage import Usage, usage_in

Json = Mapping[str, Any]
Delta = TextDelta | ReasoningDelta

SERVER_TOOLS: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
    | {"x_search_call", "tool_search_output", "shell_call_output"}  # the client may have to run their calls
    | {"server_tool_use", "mcp_tool_use", "compaction"}
)
"""Items and blocks that take the provider's server another call of the model: tools that it ran, compactions."""

CUT: Final = ("length", "content_filter")
"""The finish reasons of an incomplete reply."""

_FINISHED: Final = {
    "max_tokens": "length",
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii"), "content_filter"),
}
"""Gemini's own finish reasons, some of which its OpenAI API passes on."""

_SIGNATURE: Final = "reasoning.encrypted"
"""The type of reasoning details with a signature, which OpenRouter requires back."""

_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_BACKEND: Final = ("provider", "system_fingerprint")


class BodyReader(Protocol):
    """Reads the bodies of one API's events."""

    has_end_event: bool
    """Whether a reply ends with an event of its own, with or without usage."""

    def read(self, body: Json, reply: "ReplyEvents") -> None:
        """Read a chunk, or a whole answer, into the reply so far."""


class ChatReader(BodyReader):
    """Reads chat completions."""

    has_end_event = False

    def read(self, body: Json, reply: "ReplyEvents") -> None:
        reply.is_whole = reply.is_whole and bool(body.get("choices"))
        reply.note_names(body)
        grew = False
        for choice in objects_at(body, "choices"):
            if choice.get("index") in (None, 0):  # other choices are alternatives to the first one, not parts of it
                grew = self._read_choice(choice, reply) or grew
        reply.add(usage_in(body), grew=grew)

    def _read_choice(self, choice: Json, reply: "ReplyEvents") -> bool:
        """Read a part of the reply. Returns whether it has content."""
        if reason := text_at(choice.get("finish_reason")):
            reply.finish_reason = _FINISHED.get(reason.lower(), reason)
        if choice.get("error") or choice.get("finish_reason") == "error":
            reply.error = choice.get("error") or "finish_reason error"
        delta = object_at(choice, "delta")
        if not delta and not reply.has_content:  # after deltas, the message of the last chunk repeats all of them
            delta = object_at(choice, "message")
        reply.ran_tools |= bool(delta.get("executed_tools"))
        if delta.get("reasoning_details"):
            details = objects_at(delta, "reasoning_details")
            reply.signatures += [one for one in details if one.get("type") == _SIGNATURE]
        reply.pieces += [text for text in _texts_in(delta) if text.text]
        for call in objects_at(delta, "tool_calls"):
            reply.pieces.append(call)
            reply.add_call(call.get("id"))
        return any(delta.get(key) for key in _TEXTS)


@dataclass(slots=True)
class ReplyEvents:
    """The events of one reply so far: `read` each in order. Keeps no text."""

    reader: BodyReader = field(default_factory=ChatReader)
    chunks: int = 0
    is_done: bool = False  # whether the end mark arrived
    finish_reason: str | None = None
    error: object = None
    model: str | None = None
    response: str | None = None  # the id of the reply
    tool_calls: list[str] = field(default_factory=list)  # their ids
    _backend: dict[str, str] = field(default_factory=dict)
    _usage: Usage | None = None
    has_content: bool = False
    _has_grown: bool = False  # whether more of the reply arrived after the usage
    _is_running: bool = False  # whether the usage came with a part of the text, so that more may follow
    is_whole: bool = False
    ran_tools: bool = False  # whether the server itself made several calls of the model
    signatures: list[Json] = field(default_factory=list)  # of thoughts, which the server wants back
    pieces: list[Delta | Json] = field(default_factory=list)  # of the newest event

    def read(self, event: Event) -> Sequence[Delta | Json]:
        """Read the next event. Returns its texts, and the objects with parts of tool calls.

        Raises ValueError if it is not an object.
        """
        self.pieces, data = [], event.data
        self.chunks += not event.is_done
        if event.is_done:
            self.is_done = True
        elif event.is_error:
            self.error = value_at(data, "error") or data or "no message"
        elif not isinstance(data, Mapping):
            raise ValueError("a chunk of the stream is not a JSON object")
        elif data.get("error"):
            self.error = data["error"]
        else:
            self.is_whole = event.is_whole
            self.reader.read(data, self)
        return self.pieces

    @property
    def is_complete(self) -> bool:
        """Whether the reply may be complete if nothing follows.

        It has a finish reason, or after its text an end mark or final usage; servers may omit each of these.
        """
        if self.error is not None:
            return False
        ends = self.is_done or not (self._usage is None or self._has_grown or self._is_running)
        return self.is_whole or self.finish_reason is not None or (self.has_content and ends)

    @property
    def may_break_off(self) -> bool:
        """Whether the reply stays complete if the connection breaks now."""
        return self.is_done or self.finish_reason is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing relevant can follow. Some servers send the usage after the end mark."""
        return self.is_complete and self.is_done and (self._usage is not None or self.reader.has_end_event)

    @property
    def usage(self) -> Usage | None:
        """The usage of the reply; None if it was not reported."""
        if self._usage is None:
            return None
        is_sum = self._usage.is_sum or (self.ran_tools and self._usage.inner is None)
        return replace(self._usage, is_provisional=self._has_grown, is_sum=is_sum)

    @property
    def backend(self) -> str | None:
        """The machine that answered, as named by the provider; None if unnamed."""
        return " ".join(self._backend[key] for key in _BACKEND if key in self._backend) or None

    def note_names(self, body: Json) -> None:
        """Note the model, the id and the machine in a body."""
        self.model = text_at(body.get("model")) or self.model
        self.response = text_at(body.get("id")) or self.response
        self._backend |= {key: text for key in _BACKEND if (text := text_at(body.get(key)))}

    def add(self, usage: Usage | None = None, *, grew: bool = False) -> None:
        """Add a usage report; the argument says whether it came with a part of the reply."""
        self.has_content = self.has_content or grew
        self._has_grown = self._has_grown or grew
        # Providers put usage on the finish chunk, after it, before an empty last chunk, or on each chunk as a running
        # figure. So a later report replaces an earlier one and is never added to it; null and zeros replace nothing.
        before = self._usage
        if usage is not None and (before is None or before.contradicts_itself or not usage.contradicts_itself):
            self._usage, self._has_grown, self._is_running = usage, False, grew

    def add_call(self, name: object) -> None:
        """Note the id of a tool call."""
        if isinstance(name, str) and name not in self.tool_calls:
            self.tool_calls.append(name)


def _texts_in(delta: Json) -> Iterator[Delta]:
    """Yield the texts in a part of a reply, some of them empty."""
    # Some servers send the same reasoning under both names.
    yield ReasoningDelta(text_at(delta.get("reasoning_content")) or text_at(delta.get("reasoning")))
    content = delta.get("content")
    if isinstance(content, list):
        for part in objects_at(content):
            thinking = part.get("thinking")  # a text, or a list of text parts
            yield ReasoningDelta(text_at(thinking) or "".join(text_at(one.get("text")) for one in objects_at(thinking)))
            yield TextDelta(text_at(part.get("text")))
    elif isinstance(content, Mapping):  # some servers decode JSON that a model writes
        yield TextDelta(json.dumps(content, ensure_ascii=False))
    else:
        yield TextDelta(text_at(content))
    # A refusal replaces the answer, so the user must see it.
    yield TextDelta(text_at(delta.get("refusal")))


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    extra: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments so far, as JSON."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether all arguments arrived in one piece, so that another named piece begins another call."""
        try:
            return len(self.pieces) == 1 and isinstance(json.loads(self.pieces[0]), dict)
        except (ValueError, RecursionError):
            return False


@dataclass(slots=True)
class ReplyAssembly:
    """Builds one reply of a model: feed every event in order, then call `reply`."""

    model: str
    events: ReplyEvents = field(default_factory=ReplyEvents)
    _deltas: list[Delta] = field(default_factory=list)
    _calls: list[_PartialCall] = field(default_factory=list)
    _call_at: dict[int, _PartialCall] = field(default_factory=dict)

    def feed(self, event: Event) -> list[Delta]:
        """Add one event, and return the deltas in it. Raises ValueError for JSON that is not an object."""
        deltas: list[Delta] = []
        for piece in self.events.read(event):
            if isinstance(piece, Delta):
                deltas.append(piece)
            else:
                self._feed_call(piece)
        self._deltas += deltas
        return deltas

    def reply(self, *, request_id: str | None, is_streamed: bool) -> ModelReply:
        """Return the complete reply."""
        events = self.events
        return ModelReply(
            text="".join([one.text for one in self._deltas if isinstance(one, TextDelta)]),
            # A server may repeat a complete call: the same id, name and arguments.
            tool_calls=tuple(dict.fromkeys(self._finished(call, place) for place, call in enumerate(self._calls))),
            finish_reason=events.finish_reason or ("tool_calls" if self._calls else "stop"),
            usage=events.usage,
            served_model=events.model or self.model,
            backend=events.backend,
            reasoning_text="".join([one.text for one in self._deltas if isinstance(one, ReasoningDelta)]),
            request_id=request_id,
            streamed=is_streamed,
            extra=json.dumps({"reasoning_details": events.signatures}, ensure_ascii=False) if events.signatures else "",
        )

    def _feed_call(self, piece: Json) -> None:
        function = object_at(piece, "function")
        call_id, name = text_at(piece.get("id")), text_at(function.get("name"))
        call = self._call_for(piece.get("index"), call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        if extra := object_at(piece, "extra_content"):
            call.extra = json.dumps(extra, ensure_ascii=False)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.pieces += filter(None, (arguments,))
        elif isinstance(arguments, Mapping):
            call.pieces.append(json.dumps(arguments, ensure_ascii=False))

    def _call_for(self, index: object, call_id: str, name: str) -> _PartialCall:
        """Return the call that a piece continues, by index; a new call if it cannot."""
        if isinstance(index, int):
            known = self._call_at.get(index)
            is_other = known is not None and call_id != "" and known.id != "" and call_id != known.id
        else:
            # Without an index, only a name or another id marks where a call begins.
            known = self._calls[-1] if self._calls else None
            is_other = known is not None and name != "" and (call_id == "" or call_id != known.id)
        # Some servers send each parallel call complete, all with index 0, and without ids or with the same id.
        if known is not None and not is_other and not (name != "" and known.is_whole):
            return known
        call = _PartialCall()
        self._calls.append(call)
        if isinstance(index, int):
            self._call_at[index] = call
        return call

    def _finished(self, call: _PartialCall, place: int) -> ToolCall:
        call_id, arguments = call.id, call.arguments
        if not call_id:
            # Deterministic, and different for two replies of one conversation.
            seed = f"{self.events.response}\n{call.name}\n{arguments}"
            call_id = f"call_{place}_{hashlib.sha256(seed.encode(errors='replace')).hexdigest()[:12]}"
        # A reply that was cut before the arguments of its last call must not run that call with defaults.
        is_cut = self.events.finish_reason in CUT and place == len(self._calls) - 1
        return ToolCall(call_id, call.name, arguments or ("{" if is_cut else "{}"), call.extra)
