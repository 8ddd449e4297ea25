"""[pure] OpenAI's APIs on the server side: server-sent events, and the objects and usage of the Responses API.

Owns their keys and order. Does not know HTTP or the source of the texts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = dict[str, Any]
TextKind = Literal["reasoning", "message"]

DONE: Final = b"data: [DONE]\n\n"


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event, with a name if given."""
    head = f"event: {name}\n".encode() if name else b""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"%sdata: %s\n\n" % (head, text.encode(errors="replace"))


@dataclass(slots=True)
class ResponseWriter:
    """Writes one response. Each run of reasoning, run of answer text, and call is a separate output item.

    Methods return the events that follow, in order. `keys` are further keys of the response.
    """

    id: str
    model: str
    created: int
    keys: Mapping[str, Any] = field(default_factory=dict)
    output: list[Json] = field(default_factory=list)
    _open: TextKind | None = None
    _pieces: list[str] = field(default_factory=list)
    _events: int = 0

    def begin(self) -> list[Json]:
        """Return the first events."""
        response = self.response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def open(self, kind: TextKind) -> list[Json]:
        """Begin an item, unless it is open already."""
        if self._open == kind:
            return []
        events = self.close()
        self._open, self._pieces = kind, []
        name = f"{'rs' if kind == 'reasoning' else 'msg'}_{self.id}_{len(self.output)}"
        added = self._add({**_item(name, kind, "", "in_progress"), "content": []})
        return [*events, added, self._event("response.content_part.added", **self._place(), part=_part(kind, ""))]

    def write(self, kind: TextKind, text: str) -> list[Json]:
        """Write a piece of an item; begins a new item if another one is open."""
        events = self.open(kind)
        self._pieces.append(text)
        delta = self._event(f"response.{_part_name(kind)}.delta", **self._place(), delta=text, **_logprobs(kind))
        return [*events, delta]

    def close(self) -> list[Json]:
        """Complete the open item, if there is one."""
        kind, text, place = self._open, "".join(self._pieces), self._place() if self.output else {}
        if kind is None:
            return []
        self._open = None
        return [
            self._event(f"response.{_part_name(kind)}.done", **place, text=text, **_logprobs(kind)),
            self._event("response.content_part.done", **place, part=_part(kind, text)),
            self._complete(_item(place["item_id"], kind, text, "completed")),
        ]

    def call(self, item: Json, pieces: Iterable[str]) -> list[Json]:
        """Write a function call; its arguments come in `pieces`."""
        events = [*self.close(), self._add({**item, "arguments": "", "status": "in_progress"})]
        place = {"item_id": item["id"], "output_index": len(self.output) - 1}
        events += [self._event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces]
        done = {"name": item["name"], "arguments": item["arguments"]}
        events.append(self._event("response.function_call_arguments.done", **place, **done))
        return [*events, self._complete({**item, "status": "completed"})]

    def end(self, status: Literal["completed", "incomplete", "failed"], **values: Any) -> list[Json]:
        """Return the last events; `values` as in `response`."""
        return [*self.close(), self._event(f"response.{status}", response=self.response(status, **values))]

    def response(self, status: str, **values: Any) -> Json:
        """Return the response so far. `values` are added to its keys, or replace their defaults."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": list(self.output),
            # The response models of OpenAI's SDKs require the keys from here on.
            **dict.fromkeys(("usage", "error", "incomplete_details", "instructions", "temperature", "top_p")),
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **self.keys,
            **values,
        }

    def _add(self, item: Json) -> Json:
        self.output.append(item)
        return self._event("response.output_item.added", output_index=len(self.output) - 1, item=item)

    def _complete(self, item: Json) -> Json:
        self.output[-1] = item
        return self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)

    def _place(self) -> Json:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, "content_index": 0}

    def _event(self, name: str, /, **values: Any) -> Json:
        self._events += 1
        return {"type": name, "sequence_number": self._events - 1, **values}


def _part_name(kind: TextKind) -> str:
    return "reasoning_text" if kind == "reasoning" else "output_text"


def _item(name: str, kind: TextKind, text: str, status: str) -> Json:
    item = {"id": name, "type": kind, "status": status, "content": [_part(kind, text)]}
    return {**item, "summary": []} if kind == "reasoning" else {**item, "role": "assistant"}


def _part(kind: TextKind, text: str) -> Json:
    part: Json = {"type": _part_name(kind), "text": text}
    return part if kind == "reasoning" else {**part, "annotations": [], **_logprobs(kind)}


def _logprobs(kind: TextKind) -> Json:
    return {} if kind == "reasoning" else {"logprobs": []}


def usage_in_responses(usage: Mapping[str, Any], unreported: int | None) -> Json:
    """Return a chat completion's usage with this API's names; missing details are `unreported`."""
    prompt, completion = (usage.get(f"{part}_tokens_details", {}) for part in ("prompt", "completion"))
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens", unreported),
            "cache_write_tokens": unreported,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", unreported)},
        **({"total_tokens": usage["total_tokens"]} if "total_tokens" in usage else {}),
    }
