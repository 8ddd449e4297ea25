"""[pure] OpenAI's responses API: requests in the shape of chat completions, and completions as responses and events.

Owns this API's JSON. A tool in a namespace becomes `NAMESPACE.NAME`; no other name of a function contains a dot. Keeps
nothing, so `previous_response_id` is unknown here. Does not know HTTP.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mew_protocol.json_values import objects_at

from mew_agent.rehearsal.completion import Completion, Json, pieces
from mew_agent.rehearsal.options import RehearsalOptions
from mew_agent.rehearsal.tokenizer import encode

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = ("function_call_output", "custom_tool_call_output")


def as_chat(body: Mapping[str, Any]) -> Json:
    """The request as one of chat completions. Tools other than functions are left out."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Json] = []
    if isinstance(instructions := body.get("instructions"), str):
        messages.append({"role": "system", "content": instructions})
    for item in items if isinstance(items, list) else ():
        _add_item(messages, item)
    return {
        "messages": messages,
        "tools": list(_functions(body.get("tools"), "")),
        "stream": body.get("stream"),
        "stream_options": {"include_usage": True},
        "max_tokens": body.get("max_output_tokens"),
    }


def _functions(tools: Any, prefix: str) -> Iterator[Json]:
    for tool in objects_at(tools):
        kind = tool.get("type")
        if kind == "function":
            about = {key: tool.get(key) for key in ("description", "parameters")}
            yield {"type": "function", "function": {"name": f"{prefix}{tool.get('name')}", **about}}
        elif kind == "namespace":
            yield from _functions(tool.get("tools"), f"{tool.get('name')}.")


def _add_item(messages: list[Json], item: Any) -> None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind in _CALLS:
        name = ".".join(filter(None, (item.get("namespace"), item.get("name"))))
        function = {"name": name, "arguments": item.get(_CALLS[kind])}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        previous = messages[-1].get("tool_calls") if messages else None
        if isinstance(previous, list):  # parallel calls are separate items here
            previous.append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind in _RESULTS:
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output") or ""})


def body_of(completion: Completion, usage: Json | None) -> Json:
    """The JSON body of a response that is not streamed."""
    return _response(completion, _items(completion), usage)


def events_of(completion: Completion, options: RehearsalOptions, usage: Json | None) -> Iterator[Json]:
    """The events of a streamed response, numbered."""
    for number, event in enumerate(_events(completion, options.tokens_per_chunk, usage)):
        yield {**event, "sequence_number": number}


def _events(completion: Completion, size: int, usage: Json | None) -> Iterator[Json]:
    started = {**_response(completion, [], None), "status": "in_progress"}
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    items = _items(completion)
    for index, item in enumerate(items):
        yield from _item_events(index, item, size)
    end = _response(completion, items, usage)
    yield {"type": f"response.{end['status']}", "response": end}


def _item_events(index: int, item: dict[str, Any], size: int) -> Iterator[Json]:
    place: Json = {"output_index": index, "item_id": item["id"]}
    is_call = item["type"] == "function_call"
    opened: Json = {"arguments": ""} if is_call else {"content": []}
    yield {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, **opened, "status": "in_progress"},
    }
    if is_call:
        for piece in pieces(encode(item["arguments"]), size):
            yield {"type": "response.function_call_arguments.delta", **place, "delta": "".join(piece)}
        done: Json = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **place, **done}
    else:
        part = item["content"][0]
        place["content_index"] = 0
        extra: Json = {"logprobs": []} if part["type"] == "output_text" else {}
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for piece in pieces(encode(part["text"]), size):
            yield {"type": f"response.{part['type']}.delta", **place, "delta": "".join(piece), **extra}
        yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **extra}
        yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _items(completion: Completion) -> list[dict[str, Any]]:
    """The output: reasoning, then the answer, then calls. An answer without calls may be empty."""
    items: list[dict[str, Any]] = []
    if completion.reasoning:
        part: Json = {"type": "reasoning_text", "text": "".join(completion.reasoning)}
        items.append({"id": f"rs_{completion.id}", "type": "reasoning", "summary": [], "content": [part]})
    if completion.text or not completion.calls:
        part = {"type": "output_text", "text": "".join(completion.text), "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{completion.id}", "type": "message", "role": "assistant", "content": [part]})
    for call in completion.calls:
        namespace, _, name = call.name.rpartition(".")
        about = {"call_id": call.id, "name": name, "arguments": call.arguments}
        if namespace:
            about["namespace"] = namespace
        items.append({"id": f"fc_{call.id}", "type": "function_call", **about})
    return [{**item, "status": "completed"} for item in items]


def _response(completion: Completion, output: list[dict[str, Any]], usage: Json | None) -> dict[str, Any]:
    is_cut = completion.finish_reason == "length"
    return {
        "id": f"resp_{completion.id}",
        "object": "response",
        "created_at": completion.number,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": completion.model,
        "output": output,
        "usage": None if usage is None else _usage(usage),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "instructions": None,
        "metadata": {},
        "temperature": None,
        "top_p": None,
    }


def _usage(usage: Mapping[str, Any]) -> Json:
    prompt, completion = (usage.get(f"{part}_tokens_details", {}) for part in ("prompt", "completion"))
    total = usage.get("total_tokens")
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        **({} if total is None else {"total_tokens": total}),
    }
