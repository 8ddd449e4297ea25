"""How providers write the end of a reply, as data: the order of events, the usage objects, and what is true of each.

One row per shape that was found in recorded streams, with figures of the same kind. The readers of agents and of meters
are both tested with these rows.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

Label = Literal["reported", "provisional", "unknown", "failed"]
Json = dict[str, Any]

USAGE = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}
ZEROS = dict.fromkeys(USAGE, 0)
OVERFLOW_TEXT = "the request exceeds the available context size of 2048 tokens"


def piece(content: object = None, finish: str | None = None, **fields: Any) -> Json:
    """A chunk with one choice."""
    delta = {} if content is None else {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


def bare(**fields: Any) -> Json:
    """A chunk without a choice."""
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], **fields}


def whole(content: object = "1094 km", finish: str | None = "stop", message: Json | None = None, **fields: Any) -> Json:
    """A reply that was not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **(message or {})},
        "finish_reason": finish,
    }
    return {"id": "c1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE, **fields}


def usage(prompt: int, completion: int, total: int | None = None, **fields: Any) -> Json:
    """A usage object; without a total it is prompt and completion."""
    total = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **fields}


def started(**fields: Any) -> Json:
    """The first event of the Messages API."""
    return {"type": "message_start", "message": {"id": "m1", "model": "m", "content": [], "usage": fields}}


def ended(reason: str = "end_turn", **fields: Any) -> Json:
    """The last event of the Messages API that has figures."""
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": fields}


def block(**fields: Any) -> Json:
    """A block of the Messages API begins."""
    return {"type": "content_block_start", "index": 0, "content_block": fields}


SAID = ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "1094 km"}},)
STOP = {"type": "message_stop"}


def item(kind: str) -> Json:
    """An item of the Responses API. That of a call has an id: `function_call c1`."""
    name, _, call = kind.partition(" ")
    return {"type": name, "call_id": call} if call else {"type": name}


def response(*items: str, status: str = "completed", **fields: Any) -> Json:
    """The last event of the Responses API."""
    body = {"id": "r1", "model": "m", "status": status, "output": [*map(item, items)], **fields}
    return {"type": f"response.{status}", "response": body}


@dataclass(frozen=True)
class Shape:
    """One reply: its events in order, and what is true of it. `figures` are prompt and total."""

    events: tuple[object, ...]
    figures: tuple[int, int] | None = (900, 1000)
    label: Label = "reported"
    api: Literal["chat", "responses", "messages"] = "chat"
    text: str = "1094 km"
    cached: int | None = None
    spent: int | None = None  # all tokens that are paid for; None: the total
    calls: tuple[str, ...] | None = None  # tool calls that wait for a result; None: not checked
    has_done: bool | None = None  # whether `[DONE]` ends the stream; None: only that of chat completions
    content_type: str = "text/event-stream"
    line_end: str = "\n"
    has_last_line_end: bool = True

    @property
    def body(self) -> bytes:
        """The bytes of the answer."""
        events = [*self.events]
        if len(events) == 1 and isinstance(events[0], dict) and self.content_type == "application/json":
            return json.dumps(events[0]).encode()
        if self.has_done or (self.has_done is None and self.api == "chat"):
            events.append("data: [DONE]")
        lines = [one if isinstance(one, str) else f"data: {json.dumps(one, ensure_ascii=False)}" for one in events]
        text = "".join(f"{line}{self.line_end * 2}" for line in lines)
        return (text if self.has_last_line_end else text.rstrip("\r\n")).encode()


def messages(*events: object, **values: Any) -> Shape:
    """A reply by the Messages API."""
    return Shape((*events, STOP), api="messages", **values)


def responses(*events: object, **values: Any) -> Shape:
    """A reply by the Responses API."""
    return Shape(events, api="responses", **values)


OWN_CHUNK = (piece("1094 km"), piece(finish="stop"), bare(usage=USAGE))
ON_THE_FINISH = (piece("1094 km"), piece(finish="stop", usage=USAGE))
WITHOUT_FINISH = (piece("1094 km"), bare(usage=USAGE))
GROK = usage(235, 90, prompt_tokens_details={"cached_tokens": 373})

SHAPES: dict[str, Shape] = {
    "OpenAI": Shape((piece("", usage=None), piece("1094 km", usage=None), piece(finish="stop"), bare(usage=USAGE))),
    "OpenAI without stream_options": Shape((piece("1094 km"), piece(finish="stop")), None, "unknown"),
    "Azure: an empty chunk first": Shape((bare(model="", prompt_filter_results=[{"prompt_index": 0}]), *OWN_CHUNK)),
    "Azure without stream_options": Shape(
        (bare(model="", prompt_filter_results=[]), piece("1094 km"), piece(finish="stop")), None, "unknown"
    ),
    "Azure with Grok: cached beyond the prompt": Shape(
        (piece("1094 km"), piece(finish="stop"), bare(usage=GROK)), (235, 325), cached=373
    ),
    "Azure with Grok, not streamed": Shape(
        (whole(usage=GROK),), (235, 325), cached=373, content_type="application/json"
    ),
    "DeepSeek": Shape(
        (piece("1094 km"), piece(finish="stop", usage={**USAGE, "prompt_cache_hit_tokens": 512})),
    ),
    "xAI: reasoning outside the completion": Shape(
        (
            piece("1094 km"),
            piece(finish="stop"),
            bare(usage=usage(900, 20, 1000, completion_tokens_details={"reasoning_tokens": 80})),
        )
    ),
    "Mistral": Shape(
        (piece(""), piece("1094 km"), piece("", "stop", usage={**USAGE, "num_cached_tokens": 64})),
    ),
    "Mistral: text in parts": Shape(
        (piece([{"type": "text", "text": "1094 km"}]), piece("", "stop", usage=USAGE)),
    ),
    "Mistral: the audio of the prompt apart": Shape(
        (
            whole(
                usage=usage(
                    9, 248, 632, prompt_audio_seconds=3, prompt_tokens_details={"cached_tokens": 0, "audio_tokens": 375}
                )
            ),
        ),
        (384, 632),
        content_type="application/json",
    ),
    "OpenAI: the audio of the prompt included": Shape(
        (
            piece("1094 km"),
            piece(finish="stop"),
            bare(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 375}}),
        )
    ),
    "Groq": Shape((piece("1094 km"), piece(finish="stop", x_groq={"id": "r", "usage": USAGE}))),
    "Groq with tools of its own": Shape(
        (whole(message={"executed_tools": [{"index": 0, "type": "search"}]}),),
        label="provisional",
        content_type="application/json",
    ),
    "Together": Shape((piece("1094 km"), piece(finish="stop", usage=USAGE), bare(usage=USAGE))),
    "Fireworks": Shape((piece("1094 km"), piece(finish="stop", usage=USAGE))),
    "Hugging Face's router": Shape((piece("1094 km"), piece(finish="stop", usage=None), bare(usage=USAGE))),
    "Databricks: running figures": Shape(
        (
            piece("1094", usage=usage(900, 60)),
            piece(" km", usage=usage(900, 100)),
            piece("", "stop", usage=usage(900, 100)),
        )
    ),
    "Z.ai": Shape(
        (piece("1094 km"), piece("", "stop", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}))
    ),
    "Perplexity: figures on every chunk": Shape(
        (piece("1094", usage=usage(900, 60)), piece(" km", "stop", usage={**USAGE, "search_context_size": "low"}))
    ),
    "DashScope": Shape((piece("", usage=None), piece("1094 km"), piece("", "stop"), bare(usage=USAGE))),
    "Cloudflare": Shape((piece("1094 km", usage=usage(900, 60)), piece(finish="stop"), bare(usage=USAGE))),
    "Cloudflare, JSON mode": Shape(
        (whole({"length": 1094}),), content_type="application/json", text='{"length": 1094}'
    ),
    "Cloudflare, JSON mode, streamed": Shape(
        (piece({"length": 1094}), piece(finish="stop", usage=USAGE)), text='{"length": 1094}'
    ),
    "Moonshot: figures in the choice": Shape(
        (
            {**piece("1094 km")},
            {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
        )
    ),
    "Crusoe": Shape(OWN_CHUNK),
    "Cerebras: zeros until the end": Shape((piece("1094 km", usage=ZEROS), piece(finish="stop", usage=USAGE))),
    "Avian": Shape(ON_THE_FINISH),
    "Ollama: zeros after the figures": Shape(
        (piece("1094 km", usage=ZEROS), piece(finish="stop", usage=USAGE), bare(usage=ZEROS))
    ),
    "gpustack": Shape(OWN_CHUNK, line_end="\r\n"),
    "gpustack: an error in mid-stream": Shape(
        (piece("1094"), f"error: {json.dumps({'message': OVERFLOW_TEXT, 'code': 500})}"), None, "failed"
    ),
    "gpustack: an error in words": Shape((piece("1094"), f"error: {OVERFLOW_TEXT}"), None, "failed"),
    "an error event": Shape(
        (piece("1094"), f"event: error\ndata: {json.dumps({'message': OVERFLOW_TEXT})}"), None, "failed"
    ),
    "an error in a chunk": Shape((piece("1094"), {"error": {"message": OVERFLOW_TEXT}}), None, "failed"),
    "an error in a choice": Shape(
        (piece("1094"), {"choices": [{"index": 0, "delta": {}, "error": {"message": OVERFLOW_TEXT}}]}), None, "failed"
    ),
    "llama.cpp": Shape(
        (
            piece("1094 km"),
            piece(finish="stop"),
            bare(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 880}}, timings={"cache_n": 880}),
        ),
        cached=880,
    ),
    "vLLM: figures in both places": Shape(
        (
            piece("1094", usage=usage(900, 60)),
            piece(" km", "stop", usage=USAGE),
            bare(usage=USAGE),
        )
    ),
    "LiteLLM": Shape(
        (
            piece("1094 km"),
            piece(finish="stop"),
            bare(usage={**USAGE, "cache_read_input_tokens": 512, "cache_creation_input_tokens": 0}),
        ),
        cached=512,
    ),
    "Vercel's gateway": Shape((piece("1094 km"), piece(finish="stop", usage=USAGE, provider_metadata={}))),
    "OpenRouter": Shape((": OPENROUTER PROCESSING", *OWN_CHUNK)),
    "OpenRouter with a search of the server": Shape(
        (
            piece("1094 km"),
            piece(finish="stop"),
            bare(usage={**USAGE, "server_tool_use": {"web_search_requests": 3}}),
        ),
        label="provisional",
    ),
    "OpenRouter with an advisor of the server": Shape(
        (
            piece("1094 km"),
            piece("", "stop", usage={**USAGE, "server_tool_use_details": {"tool_calls_executed": 1}}),
        ),
        label="provisional",
    ),
    "OpenRouter without a search": Shape(
        (piece("1094 km"), piece(finish="stop"), bare(usage={**USAGE, "server_tool_use": {"web_search_requests": 0}}))
    ),
    "MiniMax: the whole reply in the last chunk": Shape(
        (piece("1094", usage=ZEROS), piece(" km", usage=ZEROS), whole(object="chat.completion"))
    ),
    "kimi-k2 by OpenRouter: no finish reason": Shape(WITHOUT_FINISH),
    "kimi-k2 by Novita: no finish reason": Shape((piece("1094 km"), piece("", usage=USAGE))),
    "Snowflake: no finish reason": Shape((piece("1094 km"), bare(usage=USAGE), piece(""))),
    "final usage, neither a finish reason nor an end mark": Shape(WITHOUT_FINISH, has_done=False),
    "an end mark after text alone": Shape((piece("1094 km"),), None, "unknown"),
    "a stream that ends in mid-text": Shape((piece("1094"),), None, "failed", has_done=False),
    "running figures, cut in mid-text": Shape((piece("1094", usage=USAGE),), None, "failed", has_done=False),
    "figures after the end mark": Shape(
        (piece("1094 km"), piece(finish="stop"), "data: [DONE]", bare(usage=USAGE)), has_done=False
    ),
    "figures before the text alone": Shape(
        (bare(usage=usage(900, 0)), piece("1094 km"), piece(finish="stop")), (900, 900), "provisional"
    ),
    "an event stream that calls itself JSON": Shape(OWN_CHUNK, content_type="application/json"),
    "an event stream that calls itself text": Shape(OWN_CHUNK, content_type="text/plain"),
    "a whole reply that calls itself an event stream": Shape((json.dumps(whole()),), has_done=False),
    "a whole reply that ends in the middle": Shape(
        (json.dumps(whole())[:-9],), None, "failed", has_done=False, content_type="application/json"
    ),
    "a web page in place of a reply": Shape(
        ("<html><body>Please sign in.</body></html>",), None, "failed", has_done=False, content_type="text/html"
    ),
    "no line end after the last event": Shape(OWN_CHUNK, has_done=False, has_last_line_end=False),
    "CRLF, and no line end after the last event": Shape(
        OWN_CHUNK, has_done=False, line_end="\r\n", has_last_line_end=False
    ),
    "a byte order mark at the start": Shape(("\ufeffdata: " + json.dumps(OWN_CHUNK[0]), *OWN_CHUNK[1:])),
    "a mark of an event without data": Shape(("event: error", *OWN_CHUNK)),
    "an event in several lines": Shape(
        (piece("1094 km"), "data: " + json.dumps(piece(finish="stop", usage=USAGE), indent=1).replace("\n", "\ndata: "))
    ),
    "one line end between events": Shape(
        ("\n".join(f"data: {json.dumps(one)}" for one in OWN_CHUNK),),
    ),
    "a total below its parts": Shape(
        (piece("1094 km"), piece(finish="stop", usage=usage(900, 100, 950))), None, "unknown"
    ),
    "Anthropic's compatible API": Shape(OWN_CHUNK),
    "Responses": responses(
        {"type": "response.output_text.delta", "delta": "1094 km"},
        response("message", usage={"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}),
    ),
    "Responses, cut by its limit": responses(
        response(
            "message", status="incomplete", usage={"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}
        )
    ),
    "Responses, failed": responses(
        response(status="failed", error={"message": OVERFLOW_TEXT}), figures=None, label="failed"
    ),
    "Responses with web search": responses(
        {"type": "response.output_item.done", "item": {"type": "web_search_call", "id": "w1"}},
        response(
            "web_search_call", "message", usage={"input_tokens": 17_409, "output_tokens": 300, "total_tokens": 17_709}
        ),
        figures=(17_409, 17_709),
        label="provisional",
    ),
    "Responses with a search for tools by the server": responses(
        response(
            *("tool_search_call", "tool_search_output", "function_call"),
            usage={"input_tokens": 600, "output_tokens": 47, "total_tokens": 647},
        ),
        figures=(600, 647),
        label="provisional",
    ),
    "Responses with a search for tools by the client": responses(
        response("tool_search_call", usage={"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}),
    ),
    "Responses with a shell of the server": responses(
        {"type": "response.output_item.done", "item": item("shell_call s1")},
        {"type": "response.output_item.done", "item": item("shell_call_output s1")},
        response(
            *("shell_call s1", "shell_call_output s1", "message"), usage={"input_tokens": 1_501, "output_tokens": 314}
        ),
        figures=(1_501, 1_815),
        label="provisional",
        calls=(),
    ),
    "Responses with a shell of the client": responses(
        {"type": "response.output_item.done", "item": item("shell_call s1")},
        response("message", "shell_call s1", usage={"input_tokens": 900, "output_tokens": 100}),
        calls=("s1",),
    ),
    "Responses with a compaction at the server": responses(
        response("message", "compaction", usage={"input_tokens": 51_097, "output_tokens": 2_505}),
        figures=(51_097, 53_602),
        label="provisional",
    ),
    "xAI: a search of the server, and what is in the context": responses(
        response(
            *("web_search_call", "message"),
            usage={
                "input_tokens": 5_689,
                "output_tokens": 444,
                "total_tokens": 6_133,
                "server_side_tool_usage_details": {"web_search_calls": 2, "x_search_calls": 0},
                "context_details": {"input_tokens": 4_640, "output_tokens": 353},
            },
        ),
        figures=(4_640, 4_993),
        spent=6_133,
    ),
    "xAI: a search of X by the server": responses(
        {"type": "response.output_item.done", "item": item("custom_tool_call xs1")},
        {"type": "response.output_item.done", "item": item("message")},
        response(
            *("custom_tool_call xs1", "message"),
            usage={
                "input_tokens": 27_236,
                "output_tokens": 3_077,
                "server_side_tool_usage_details": {"x_search_calls": 1},
            },
        ),
        figures=(27_236, 30_313),
        label="provisional",
        calls=(),
    ),
    "xAI: no tool of the server": responses(
        response(
            "message",
            usage={
                "input_tokens": 955,
                "output_tokens": 45,
                "total_tokens": 1_000,
                "context_details": {"input_tokens": 955, "output_tokens": 46},
            },
        ),
        figures=(955, 1_000),
    ),
    "Responses with a function call": responses(
        {"type": "response.output_item.done", "item": item("function_call c1")},
        response("function_call c1", usage={"input_tokens": 900, "output_tokens": 100, "total_tokens": 1000}),
        calls=("c1",),
    ),
    "Responses with calls of both kinds": responses(
        response(
            *("custom_tool_call t1", "message", "custom_tool_call t2", "function_call c1"),
            usage={"input_tokens": 900, "output_tokens": 100},
        ),
        calls=("t2", "c1"),
    ),
    "Messages": messages(started(input_tokens=900, output_tokens=1), *SAID, ended(output_tokens=100)),
    "Messages with a cache": messages(
        started(input_tokens=20, cache_read_input_tokens=870, cache_creation_input_tokens=10, output_tokens=1),
        *SAID,
        ended(input_tokens=0, cache_read_input_tokens=0, output_tokens=100),
        cached=870,
    ),
    "Messages: the last figures replace those of the start": messages(
        started(input_tokens=100, cache_read_input_tokens=55_096, output_tokens=1),
        *SAID,
        ended(input_tokens=181, cache_creation_input_tokens=0, cache_read_input_tokens=0, output_tokens=8),
        figures=(181, 189),
        cached=0,
    ),
    "Messages by a proxy: figures at the end alone": messages(
        started(input_tokens=0, output_tokens=0), *SAID, ended(input_tokens=900, output_tokens=100)
    ),
    "Messages: a search of the server": messages(
        started(input_tokens=700, output_tokens=1),
        block(type="server_tool_use", id="s1", name="web_search"),
        *SAID,
        ended(input_tokens=2_411, output_tokens=100, server_tool_use={"web_search_requests": 1}),
        figures=(2_411, 2_511),
        label="provisional",
    ),
    "Messages: inner calls, one by one": messages(
        started(input_tokens=1_100, output_tokens=1),
        block(type="server_tool_use", id="s1", name="web_search"),
        *SAID,
        ended(
            input_tokens=2_361,
            output_tokens=150,
            server_tool_use={"web_search_requests": 1},
            iterations=[
                {"type": "message", "input_tokens": 1_158, "output_tokens": 80},
                {"type": "message", "input_tokens": 1_203, "output_tokens": 70},
            ],
        ),
        figures=(1_203, 1_273),
        spent=2_511,
    ),
    "Messages: an advisor beside the reply": messages(
        started(input_tokens=900, output_tokens=1),
        *SAID,
        ended(
            input_tokens=900,
            output_tokens=100,
            iterations=[
                {"type": "advisor_message", "input_tokens": 20_000, "output_tokens": 500},
                {"type": "message", "input_tokens": 900, "output_tokens": 100},
            ],
        ),
        spent=21_500,
    ),
    "Messages: another model answers after a refusal": messages(
        started(input_tokens=408, output_tokens=1),
        block(type="fallback"),
        *SAID,
        ended(
            input_tokens=412,
            output_tokens=264,
            iterations=[
                {"type": "message", "input_tokens": 408, "output_tokens": 0},
                {"type": "fallback_message", "input_tokens": 412, "output_tokens": 264},
            ],
        ),
        figures=(412, 676),
        spent=1_084,
    ),
    "Messages: a compaction at the server": messages(
        started(input_tokens=23_000, output_tokens=1),
        *SAID,
        ended(
            input_tokens=23_000,
            output_tokens=1_000,
            iterations=[
                {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
                {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
            ],
        ),
        figures=(23_000, 24_000),
        spent=207_500,
    ),
    "Messages, an error in mid-stream": Shape(
        (started(input_tokens=900, output_tokens=1), {"type": "error", "error": {"message": "overloaded"}}),
        None,
        "failed",
        api="messages",
    ),
}
