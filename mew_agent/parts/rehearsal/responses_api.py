"""[pure] OpenAI's responses API: requests in the shape of chat completions, and completions as responses and events.

A tool in a namespace becomes `NAMESPACE.NAME`; no other function name contains a dot. Keeps nothing, so
`previous_response_id` is unknown here. Does not know HTTP.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mew_protocol.json_values import objects_at

from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from mew_agent.parts.rehearsal.reply_bodies import Completion, Json, function_call, pieces
from mew_agent.parts.rehearsal.tokenizer import encode
from mew_agent.parts.shared.responses_format import ResponseWriter, usage_in_responses

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = ("function_call_output", "custom_tool_call_output")


def as_chat(body: Mapping[str, Any]) -> Json:
    """Return the request as one of chat completions. Tools other than functions are left out."""
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
        call = function_call(item.get("call_id"), name, item.get(_CALLS[kind]))
        previous = messages[-1].get("tool_calls") if messages else None
        if isinstance(previous, list):  # parallel calls are separate items here
            previous.append(call)
        else:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    elif kind in _RESULTS:
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output") or ""})


def body_of(completion: Completion, usage: Json | None) -> Json:
    """Return the JSON body of a response that is not streamed."""
    *_, last = events_of(completion, RehearsalOptions(), usage)
    return dict(last["response"])


def events_of(completion: Completion, options: RehearsalOptions, usage: Json | None) -> Iterator[Json]:
    """Yield the events of a streamed response: reasoning, then the answer, then calls. It has an answer or a call."""
    size = options.tokens_per_chunk
    writer = ResponseWriter(f"resp_{completion.id}", completion.model, completion.number)
    yield from writer.begin()
    for tokens in pieces(completion.reasoning, size):
        yield from writer.write("reasoning", "".join(tokens))
    if completion.text or not completion.calls:
        yield from writer.open("message")
    for tokens in pieces(completion.text, size):
        yield from writer.write("message", "".join(tokens))
    for call in completion.calls:
        namespace, _, name = call.name.rpartition(".")
        item: Json = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": name}
        item |= {"arguments": call.arguments, **({"namespace": namespace} if namespace else {})}
        yield from writer.call(item, map("".join, pieces(encode(call.arguments), size)))
    counts = None if usage is None else usage_in_responses(usage, 0)
    if completion.finish_reason == "length":
        yield from writer.end("incomplete", usage=counts, incomplete_details={"reason": "max_output_tokens"})
    else:
        yield from writer.end("completed", usage=counts)
