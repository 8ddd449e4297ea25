"""[pure] Everything that can be chosen about the rehearsal model.

Owns the options and their defaults; knows neither HTTP nor text.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

UsageOn = Literal["empty_last_chunk", "finish_chunk", "before_null_usage_chunk", "no_total", "every_chunk", "none"]
"""Where a stream carries its usage:

* `empty_last_chunk`: after the finish chunk, on a chunk with `choices: []` (OpenAI, llama.cpp, Ollama)
* `finish_chunk`: on the chunk that carries the finish reason
* `before_null_usage_chunk`: on a chunk that another chunk with `usage: null` follows
* `no_total`: as `empty_last_chunk`, without `total_tokens`
* `every_chunk`: a running figure on every chunk (vLLM's continuous usage)
* `none`: nowhere, although it was asked for
"""

SummaryBehaviour = Literal["extract", "echo_everything", "empty", "fail"]
"""What a request for a summary gets: sentences drawn from the text; all of the text, which never shrinks
anything; an empty reply; or HTTP 500."""

CutStyle = Literal["connection", "end_of_stream"]
"""How `cut_after_chunks` ends a stream: the connection breaks, or the body ends as if it were complete."""

ReportedUsage = tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt | None]
"""Prompt, completion and total tokens to report; a total of None is left out."""


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedToolCall(_Options):
    """A tool call to answer with; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ScriptedReply(_Options):
    """A reply given word by word. `status` answers with that HTTP error instead."""

    text: str = ""
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    status: int | None = Field(default=None, ge=400, le=599)


class RehearsalOptions(_Options):
    """Options of one rehearsal model. Lengths are tokens of its own tokenizer."""

    model: str = "rehearsal"
    window_tokens: PositiveInt = 8192
    window_told: bool = True
    """Whether `GET /v1/models` names the window, in the place where llama.cpp has it."""

    reply_tokens: PositiveInt = 120
    """Longest ordinary answer."""

    summary_tokens: PositiveInt = 600
    """Longest summary; one is never longer than a sixth of what it summarises, or 64 tokens."""

    tokens_per_chunk: PositiveInt = 6
    chunk_delay_seconds: float = Field(default=0.0, ge=0.0)
    """Pause before every chunk after the first."""

    served_model: str | None = None
    """The name answered with, when it differs from `model`."""

    api_key: str | None = None
    """When set, every other key gets HTTP 401."""

    usage_on: UsageOn = "empty_last_chunk"
    fixed_usage: tuple[ReportedUsage | None, ...] = ()
    """What the first calls report, one entry a call, None for no usage; later calls report the truth.
    Requests for a summary take no entry."""

    reasoning_tokens: NonNegativeInt = 0
    """Hidden thinking: counted in the completion and named in its details, never sent."""

    visible_reasoning: str = ""
    """Thinking streamed before the answer; counted in the completion, and named in its details unless
    `reasoning_reported` is off."""

    reasoning_reported: bool = True
    cached_tokens: NonNegativeInt | None = None
    """Reported as the cached part of the prompt; left out when None."""

    script: tuple[ScriptedReply, ...] = ()
    """The first replies, one a call. Requests for a summary take none."""

    summary_behaviour: SummaryBehaviour = "extract"
    reject_stream_options: bool = False
    """HTTP 400 to any request with `stream_options`."""

    refuse_streaming: bool = False
    """HTTP 400 to any streamed request."""

    refuse_tools: bool = False
    """HTTP 400 to any request that offers tools, in the words of a server whose model takes none."""

    cut_after_chunks: NonNegativeInt | None = None
    cut_style: CutStyle = "connection"
    empty_stream_on_overflow: bool = False
    """Answer a streamed request that does not fit with HTTP 200 and no chunk, as some servers do."""

    status: int | None = Field(default=None, ge=400, le=599)
    """Answer every completion with this HTTP status."""

    retry_after_seconds: float | None = Field(default=None, ge=0.0)
    """Sent as `Retry-After` with `status`."""
