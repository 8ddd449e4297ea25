"""[pure] Anthropic's messages API: requests in the shape of chat completions, and completions as messages and events.

Owns this API's JSON. Does not know HTTP.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mew_protocol.json_values import objects_at

from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from mew_agent.parts.rehearsal.reply_bodies import Completion, Json, function_call, pieces
from mew_agent.parts.rehearsal.tokenizer import encode

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def as_chat(body: Mapping[str, Any]) -> Json:
    """Return the request as one of chat completions. Leaves out tools that the server itself would run."""
    messages: list[Json] = []
    if body.get("system"):
        messages.append({"role": "system", "content": body["system"]})
    for message in objects_at(body, "messages"):
        messages += _translated(message)
    tools = [
        {**{key: tool.get(key) for key in ("name", "description")}, "parameters": tool["input_schema"]}
        for tool in objects_at(body, "tools")
        if "input_schema" in tool
    ]
    return {
        "messages": messages,
        "tools": [{"type": "function", "function": tool} for tool in tools],
        "stream": body.get("stream"),
        "stream_options": {"include_usage": True},
        "max_tokens": body.get("max_tokens"),
    }


def _of_type(name: str, blocks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [block for block in blocks if block.get("type") == name]


def _translated(message: Mapping[str, Any]) -> list[Json]:
    """Return one message, or its tool results as separate messages before the rest."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    blocks = objects_at(content)
    results: list[Json] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content") or ""}
        for block in _of_type("tool_result", blocks)
    ]
    calls = [
        function_call(block.get("id"), block.get("name"), json.dumps(block.get("input"), ensure_ascii=False))
        for block in _of_type("tool_use", blocks)
    ]
    text = _of_type("text", blocks)
    if results and not text:
        return results
    rest: Json = {"role": role, "content": text}
    return [*results, {**rest, "tool_calls": calls} if calls else rest]


def body_of(completion: Completion, usage: Json | None) -> Json:
    """Return the JSON body of a message that is not streamed."""
    reason = _STOP_REASONS[completion.finish_reason]
    return {**_message(completion, _usage(usage)), "content": _blocks(completion), "stop_reason": reason}


def events_of(completion: Completion, options: RehearsalOptions, usage: Json | None) -> Iterator[Json]:
    """Yield the events of a streamed message. The last event but one has the complete usage."""
    counts = _usage(usage)
    yield {"type": "message_start", "message": _message(completion, {**counts, "output_tokens": min(1, len(counts))})}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(completion)):
        yield from _block_events(index, block, options.tokens_per_chunk)
    delta = {"stop_reason": _STOP_REASONS[completion.finish_reason], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": counts["output_tokens"]}}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Json, size: int) -> Iterator[Json]:
    kind = block["type"]
    opened: Json = {kind: ""}
    text, delta, key = str(block.get(kind)), f"{kind}_delta", kind
    if kind == "tool_use":
        opened = {"input": {}}
        text, delta, key = json.dumps(block["input"]), "input_json_delta", "partial_json"
    yield {"type": "content_block_start", "index": index, "content_block": {**block, **opened}}
    for piece in pieces(encode(text), size):
        yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, key: "".join(piece)}}
    yield {"type": "content_block_stop", "index": index}


def _blocks(completion: Completion) -> list[Json]:
    blocks: list[Json] = []
    if completion.reasoning:
        blocks.append({"type": "thinking", "thinking": "".join(completion.reasoning), "signature": "rehearsal"})
    if completion.text or not completion.calls:
        blocks.append({"type": "text", "text": "".join(completion.text)})
    uses = [(call.id, call.name, json.loads(call.arguments)) for call in completion.calls]
    return [*blocks, *({"type": "tool_use", "id": name, "name": tool, "input": given} for name, tool, given in uses)]


def _message(completion: Completion, usage: Json) -> Json:
    return {
        "id": f"msg_{completion.id}",
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(usage: Mapping[str, Any] | None) -> Json:
    """Return the usage in this API, which counts cached tokens separately. Servers send 0 for unknown figures."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens")
    counts: Json = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
    if cached is not None:
        counts |= {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
        }
    return counts


def error_of(kind: str, message: str) -> Json:
    """Return an error in the form of this API."""
    return {"type": "error", "error": {"type": kind, "message": message}}
