"""[pure] Assemble a reply from the chunks of a stream, or from one whole body. Ignores parts of unknown shape."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mew_protocol.json_values import object_at, objects_at

from mew_agent.model.interface import ModelReply, ReasoningDelta, TextDelta, ToolCall
from mew_agent.model.usage import Usage, newest_usage, usage_object

Delta = TextDelta | ReasoningDelta
Json = Mapping[str, object]


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class ReplyAssembly:
    """Builds one reply: feed every chunk in order, then call `reply`."""

    def __init__(self, model: str) -> None:
        self.chunks = 0
        self.is_done = False  # whether the stream said `[DONE]`
        self.finish_reason: str | None = None  # a stream that ends without one has no reply
        self.error: object = None
        self._model = model
        self._completion_id = ""
        self._usage: Usage | None = None
        self._has_grown = False  # whether a part of the reply arrived after the usage
        self._texts: dict[type[Delta], list[str]] = {TextDelta: [], ReasoningDelta: []}
        self._calls: list[_PartialCall] = []
        self._call_at: dict[int, _PartialCall] = {}

    def feed(self, chunk: Json) -> list[Delta]:
        """Add one chunk or one whole body, and return the deltas in it."""
        self.chunks += 1
        self._model = _text(chunk.get("model")) or self._model
        self._completion_id = _text(chunk.get("id")) or self._completion_id
        deltas: list[Delta] = []
        for choice in objects_at(chunk, "choices"):
            # Other choices are alternatives to the first, not parts of it.
            if choice.get("index") in (None, 0):
                deltas += self._feed_choice(choice)
        usage = newest_usage(self._usage, usage_object(chunk))
        if usage is not self._usage:
            self._usage, self._has_grown = usage, False
        return deltas

    def reply(self, *, request_id: str | None, is_streamed: bool) -> ModelReply:
        """Return the complete reply. Only a whole body may lack a finish reason."""
        finish_reason = self.finish_reason or ("tool_calls" if self._calls else "stop")
        return ModelReply(
            text="".join(self._texts[TextDelta]),
            tool_calls=tuple(self._finished(call, place) for place, call in enumerate(self._calls)),
            finish_reason=finish_reason,
            usage=None if self._usage is None else replace(self._usage, is_provisional=self._has_grown),
            served_model=self._model,
            reasoning_text="".join(self._texts[ReasoningDelta]),
            request_id=request_id,
            streamed=is_streamed,
        )

    def _feed_choice(self, choice: Json) -> Iterator[Delta]:
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        if choice.get("error") or choice.get("finish_reason") == "error":
            self.error = choice.get("error") or "finish_reason error"
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
        else:
            yield from self._delta(TextDelta, _text(content))
        # A refusal replaces the answer, so the user has to see it.
        yield from self._delta(TextDelta, _text(delta.get("refusal")))
        for piece in objects_at(delta, "tool_calls"):
            self._feed_call(piece)

    def _delta(self, kind: type[Delta], text: str) -> Iterator[Delta]:
        if text:
            self._texts[kind].append(text)
            self._has_grown = True
            yield kind(text)

    def _feed_call(self, piece: Json) -> None:
        self._has_grown = True
        function = object_at(piece, "function")
        call_id, name = _text(piece.get("id")), _text(function.get("name"))
        call = self._call_for(piece.get("index"), call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments += arguments
        elif isinstance(arguments, Mapping):
            call.arguments += json.dumps(arguments, ensure_ascii=False)

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
        call_id = call.id
        if not call_id:
            # Deterministic, and different for two replies of one conversation.
            seed = f"{self._completion_id}\n{call.name}\n{call.arguments}"
            call_id = f"call_{place}_{hashlib.sha256(seed.encode(errors='replace')).hexdigest()[:12]}"
        return ToolCall(call_id, call.name, call.arguments or "{}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _part_text(value: object) -> str:
    """Return the text of reasoning: a string or a list of text parts."""
    return _text(value) or "".join(_text(part.get("text")) for part in objects_at(value))
