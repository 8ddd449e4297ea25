"""[pure] Assemble the texts and tool calls of a chat completion, streamed or whole. Ignores parts of unknown shape.

Does not know usage, errors or when a reply is complete; see `reply_events`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mew_protocol.json_values import object_at, objects_at

from mew_agent.model.event_stream import Event
from mew_agent.model.interface import ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.reply_events import ReplyEvents, first_choices

Delta = TextDelta | ReasoningDelta
Json = Mapping[str, object]


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments so far, as JSON."""
        return "".join(self.pieces)


class ReplyAssembly:
    """Builds one reply: feed every event in order, then call `reply`."""

    def __init__(self, model: str) -> None:
        self.events = ReplyEvents()
        self._model = model
        self._texts: dict[type[Delta], list[str]] = {TextDelta: [], ReasoningDelta: []}
        self._calls: list[_PartialCall] = []
        self._call_at: dict[int, _PartialCall] = {}

    def feed(self, event: Event) -> list[Delta]:
        """Add one event, and return the deltas in it. Raises ValueError for JSON that is no object."""
        chunk = self.events.read(event)
        return [delta for choice in first_choices(chunk) for delta in self._feed_choice(choice)]

    def reply(self, *, request_id: str | None, is_streamed: bool) -> ModelReply:
        """Return the complete reply."""
        events = self.events
        return ModelReply(
            text="".join(self._texts[TextDelta]),
            tool_calls=tuple(self._finished(call, place) for place, call in enumerate(self._calls)),
            finish_reason=events.finish_reason or ("tool_calls" if self._calls else "stop"),
            usage=events.usage,
            served_model=events.model or self._model,
            backend=events.backend,
            reasoning_text="".join(self._texts[ReasoningDelta]),
            request_id=request_id,
            streamed=is_streamed,
        )

    def _feed_choice(self, choice: Json) -> Iterator[Delta]:
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, Mapping):
            return
        # Some servers send the same reasoning under both names.
        yield from self._delta(ReasoningDelta, _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")))
        content = delta.get("content")
        if isinstance(content, list):
            for part in objects_at(content):
                yield from self._delta(ReasoningDelta, _part_text(part.get("thinking")))
                yield from self._delta(TextDelta, _text(part.get("text")))
        elif isinstance(content, Mapping):  # some servers decode what a model writes as JSON
            yield from self._delta(TextDelta, json.dumps(content, ensure_ascii=False))
        else:
            yield from self._delta(TextDelta, _text(content))
        # A refusal replaces the answer, so the user has to see it.
        yield from self._delta(TextDelta, _text(delta.get("refusal")))
        for piece in objects_at(delta, "tool_calls"):
            self._feed_call(piece)

    def _delta(self, kind: type[Delta], text: str) -> Iterator[Delta]:
        if text:
            self._texts[kind].append(text)
            yield kind(text)

    def _feed_call(self, piece: Json) -> None:
        function = object_at(piece, "function")
        call_id, name = _text(piece.get("id")), _text(function.get("name"))
        call = self._call_for(piece.get("index"), call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif isinstance(arguments, Mapping):
            call.pieces.append(json.dumps(arguments, ensure_ascii=False))

    def _call_for(self, index: object, call_id: str, name: str) -> _PartialCall:
        """Return the call that a piece belongs to, found by index; a new call if the piece cannot continue that one."""
        if isinstance(index, int):
            known = self._call_at.get(index)
            # Some servers send each parallel call whole, all with index 0.
            is_new = known is None or (call_id != "" and known.id != "" and call_id != known.id)
        else:
            # Without an index, only a name or another id marks where a call begins.
            known = self._calls[-1] if self._calls else None
            is_new = known is None or (name != "" and (call_id == "" or call_id != known.id))
        if known is not None and not is_new:
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
        return ToolCall(call_id, call.name, arguments or "{}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _part_text(value: object) -> str:
    """Return the text of reasoning: a string or a list of text parts."""
    return _text(value) or "".join(_text(part.get("text")) for part in objects_at(value))
