"""[pure] The JSON of OpenAI's chat completions API, as its clients read it.

Owns keys and their order in time: a role first, then deltas, a finish reason, usage last. Knows no agent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer on its way. `created` is in seconds since 1970."""

    id: str
    model: str
    created: int
    include_usage: bool = False

    def role(self) -> Json:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, key: str, text: str) -> Json:
        """A piece of text under `content` or `reasoning_content`."""
        return self._chunk({key: text})

    def last(self, usage: Json | None, mew: Json) -> list[Json]:
        """The end of a stream: the finish reason, and usage behind it on a chunk without choices where asked for."""
        if not self.include_usage:
            return [self._chunk({}, "stop") | {"usage": usage, "mew": mew}]
        return [
            self._chunk({}, "stop"),
            {**self._head("chat.completion.chunk"), "choices": [], "usage": usage, "mew": mew},
        ]

    def whole(self, text: str, reasoning: str, usage: Json | None, mew: Json) -> Json:
        """An answer that is not streamed."""
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage, "mew": mew}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.include_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def model_entry(name: str, *, created: int, owner: str, context_window: int | None, mew: Json) -> Json:
    """One entry of the list of models; `context_window` is left out when it is not known."""
    window = {} if context_window is None else {"context_window": context_window}
    return {"id": name, "object": "model", "created": created, "owned_by": owner, **window, "mew": mew}


def model_list(entries: list[Json]) -> Json:
    """`GET /v1/models`."""
    return {"object": "list", "data": entries}
