"""[pure] Turns a planned reply into JSON: limits, reported usage, chunks and bodies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mew_agent.model.interface import ToolCall
from mew_agent.parts.rehearsal.behaviour import PlannedReply
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions, ReportedUsage
from mew_agent.parts.rehearsal.tokenizer import count_tool_call, encode

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply cut to length, with its true counts in tokens."""

    number: int
    model: str
    prompt_tokens: int
    completion_tokens: int  # includes all reasoning, hidden and visible
    reasoning_tokens: int
    finish_reason: str
    reasoning: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    cached_tokens: int | None = None  # of the prompt; None without a cache

    @property
    def id(self) -> str:
        return f"rehearsal-{self.number}"


def complete(
    plan: PlannedReply,
    options: RehearsalOptions,
    *,
    number: int,
    prompt_tokens: int,
    max_tokens: int | None,
    cached_tokens: int | None = None,
) -> Completion:
    """Cut `plan` to `max_tokens` and to the room in the window. `number` identifies the reply and its calls."""
    room = options.window_tokens - prompt_tokens
    room = room if max_tokens is None else min(room, max_tokens)
    bound = room
    hidden = min(options.reasoning_tokens, room)
    visible = encode(options.visible_reasoning)
    reasoning = visible[: room - hidden]
    room -= hidden + len(reasoning)
    whole = encode(plan.text)
    text = whole[:room]
    room -= len(text)
    calls: list[ToolCall] = []
    for place, call in enumerate(plan.calls):
        if (cost := count_tool_call(call.name, call.arguments)) > room:
            break
        calls.append(ToolCall(f"call_{number}_{place}", call.name, call.arguments))
        room -= cost
    wanted = options.reasoning_tokens, len(visible), len(whole), len(plan.calls)
    is_whole = (hidden, len(reasoning), len(text), len(calls)) == wanted
    return Completion(
        number=number,
        model=options.served_model or options.model,
        prompt_tokens=prompt_tokens,
        completion_tokens=bound - room,
        reasoning_tokens=hidden + len(reasoning),
        finish_reason="length" if not is_whole else "tool_calls" if calls else "stop",
        reasoning=tuple(reasoning),
        text=tuple(text),
        calls=tuple(calls),
        cached_tokens=cached_tokens,
    )


def usage_of(completion: Completion, options: RehearsalOptions, fixed: ReportedUsage | None = None) -> Json:
    """Return the usage object of a complete reply. `fixed` replaces its counts."""
    prompt, generated = completion.prompt_tokens, completion.completion_tokens
    total: int | None = prompt + generated
    if fixed is not None:
        prompt, generated, total = fixed
    usage: Json = {"prompt_tokens": prompt, "completion_tokens": generated}
    if total is not None and options.usage_on != "no_total":
        usage["total_tokens"] = total
    cached = completion.cached_tokens if options.cached_tokens is None else options.cached_tokens
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    if completion.reasoning_tokens and options.reasoning_reported:
        usage["completion_tokens_details"] = {"reasoning_tokens": completion.reasoning_tokens}
    return usage


def body_of(completion: Completion, usage: Json | None) -> Json:
    """Return the JSON body of a reply that is not streamed."""
    message: Json = {"role": "assistant", "content": "".join(completion.text)}
    if completion.reasoning:
        message["reasoning_content"] = "".join(completion.reasoning)
    if completion.calls:
        message["tool_calls"] = [function_call(call.id, call.name, call.arguments) for call in completion.calls]
    choices = [{"index": 0, "message": message, "finish_reason": completion.finish_reason}]
    body = {**_frame(completion, "chat.completion"), "choices": choices}
    return body if usage is None else {**body, "usage": usage}


def function_call(call_id: object, name: object, arguments: object) -> Json:
    """Return a tool call in a message of chat completions."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunks_of(completion: Completion, options: RehearsalOptions, usage: Json | None) -> Iterator[Json]:
    """Yield the chunks of a streamed reply. `options.usage_on` decides where `usage` goes; None reports no usage."""
    running = usage if options.usage_on == "every_chunk" else None
    sent = completion.reasoning_tokens - len(completion.reasoning)
    for delta, tokens in _deltas(completion, options.tokens_per_chunk):
        sent += tokens
        yield _chunk(completion, delta, usage=_usage_after(sent, running) if running else None)
    on_finish = usage if options.usage_on in ("finish_chunk", "every_chunk") else None
    yield _chunk(completion, {}, finish_reason=completion.finish_reason, usage=on_finish)
    if usage is not None and options.usage_on != "finish_chunk":
        yield _chunk(completion, None, usage=usage)
    if usage is not None and options.usage_on == "before_null_usage_chunk":
        yield _chunk(completion, None, usage=None)


def unlimited_chunks(completion: Completion) -> Iterator[Json]:
    """Yield the chunks of a reply that never ends, whatever limit the request set."""
    for number in count():
        yield _chunk(completion, {"content": f"Point {number} follows from the point before it. "}, usage=None)


def _usage_after(tokens: int, usage: Json) -> Json:
    """Return the usage after this part of a reply, as reported by servers with a figure in every chunk."""
    so_far = min(tokens, usage["completion_tokens"])
    return {**usage, "completion_tokens": so_far, "total_tokens": usage["prompt_tokens"] + so_far}


def _deltas(completion: Completion, tokens_per_chunk: int) -> Iterator[tuple[Json, int]]:
    """Yield each delta with its number of tokens."""
    yield {"role": "assistant", "content": ""}, 0
    for piece in pieces(completion.reasoning, tokens_per_chunk):
        yield {"reasoning_content": "".join(piece)}, len(piece)
    for piece in pieces(completion.text, tokens_per_chunk):
        yield {"content": "".join(piece)}, len(piece)
    for index, call in enumerate(completion.calls):
        arguments = encode(call.arguments)
        frame = count_tool_call(call.name, call.arguments) - len(arguments)
        opening: Json = {"index": index, "id": call.id, "type": "function"}
        yield {"tool_calls": [{**opening, "function": {"name": call.name, "arguments": ""}}]}, frame
        for piece in pieces(arguments, tokens_per_chunk):
            yield {"tool_calls": [{"index": index, "function": {"arguments": "".join(piece)}}]}, len(piece)


def pieces(tokens: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield the tokens in groups of `size`."""
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def _chunk(completion: Completion, delta: Json | None, *, finish_reason: str | None = None, usage: Json | None) -> Json:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {**_frame(completion, "chat.completion.chunk"), "choices": choices, "usage": usage}


def _frame(completion: Completion, kind: str) -> Json:
    about = {"model": completion.model, "system_fingerprint": f"rehearsal {completion.model}"}
    return {"id": completion.id, "object": kind, "created": completion.number, **about}
