"""[pure] The options of the rehearsal model and their defaults. Does not know HTTP or text."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

UsageOn = Literal["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "no_total", "every_chunk", "none"]
"""Where a stream reports its usage:

* `empty_last_chunk`: after the finish chunk, on a chunk with `choices: []` (OpenAI, llama.cpp, Ollama)
* `finish_chunk`: on the chunk with the finish reason
* `before_null_usage_chunk`: on a chunk followed by another chunk with `usage: null`
* `no_total`: like `empty_last_chunk`, without `total_tokens`
* `every_chunk`: a running figure on every chunk (vLLM's continuous usage)
* `none`: nowhere, even on request
"""

SummaryBehaviour = Literal["extract", "quarter", "echo_everything", "empty", "fail", "silent", "endless"]
"""The reply to a summary request: extracted sentences, every fourth sentence of each message, the whole text (which
frees nothing), an empty reply, HTTP 500, a stream without chunks, or a stream that ignores every limit."""

CutStyle = Literal["connection", "end_of_stream"]
"""How `cut_after_chunks` ends a stream: with a broken connection, or with an apparently complete body."""

ReportedUsage = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt | None]
"""Prompt, completion and total tokens to report. A total of None is omitted."""


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedToolCall(_Options):
    """A tool call of the model, scripted or requested by a message. `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ScriptedReply(_Options):
    """A reply with a fixed text. `status` sends that HTTP error instead."""

    text: str = ""
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    status: int | None = Field(default=None, ge=400, le=599)


class RehearsalOptions(_Options):
    """Options of one rehearsal model. Lengths are in tokens of its own tokenizer."""

    model: str = "rehearsal"
    window_tokens: PositiveInt = 8192
    report_window: bool = True  # whether `GET /v1/models` contains the window, under the keys that llama.cpp uses
    reply_tokens: PositiveInt = 120  # maximum length of an ordinary answer
    summary_tokens: PositiveInt = 600
    """Maximum length of a summary. A summary is also limited to a sixth of its source, or 64 tokens if that is more."""

    tokens_per_chunk: PositiveInt = 6
    counts_prompts: bool = True  # whether it has a route that counts the tokens of a request
    chunk_delay_seconds: float = Field(default=0.0, ge=0.0)  # delay before every chunk after the first
    served_model: str | None = None  # the model name in replies (default: `model`)
    api_key: str | None = None  # required API key; requests without it get HTTP 401 (default: no key required)
    usage_on: UsageOn = "empty_last_chunk"
    fixed_usage: tuple[ReportedUsage | None, ...] = ()
    """Usage that the first calls report, one entry per call, None for no usage. Later calls report the true counts.
    Summary requests skip this list."""

    reasoning_tokens: NonNegativeInt = 0
    """Hidden reasoning: counted in the completion and reported in its details, but never sent."""

    visible_reasoning: str = ""
    """Reasoning streamed before the answer. Counted in the completion, and reported in its details unless
    `reasoning_reported` is off."""

    reasoning_reported: bool = True
    cached_tokens: NonNegativeInt | None = None  # cached prompt tokens to report (default: not reported)
    prefix_cache: bool = False
    """Report as cached the tokens that a prompt shares with the start of one of the newest prompts. `cached_tokens`
    overrides it."""

    script: tuple[ScriptedReply, ...] = ()  # the first replies, one per call. Summary requests skip this list.
    summary_behaviour: SummaryBehaviour = "extract"
    summary_script: tuple[str, ...] = ()
    """Fixed texts of the first summaries, one per summary request; `summary_behaviour` writes the later ones."""
    reject_stream_options: bool = False  # answer requests that contain `stream_options` with HTTP 400
    refuse_streaming: bool = False  # answer streaming requests with HTTP 400
    refuse_tools: bool = False
    """Answer requests that offer tools with HTTP 400, in the words of a server with a model without tools."""

    refuse_images: bool = False
    """Answer requests that contain images with HTTP 400."""

    cut_after_chunks: NonNegativeInt | None = None
    cut_style: CutStyle = "connection"
    empty_stream_on_overflow: bool = False
    """Answer a streaming request that does not fit with HTTP 200 and no chunks, as some servers do."""

    shortens_prompts: bool = False
    """Leave out the oldest messages of a prompt that does not fit, as some servers do without saying so."""

    status: int | None = Field(default=None, ge=400, le=599)  # answer every completion request with this HTTP status
    retry_after_seconds: float | None = Field(default=None, ge=0.0)
    """The `Retry-After` header that accompanies `status`."""
