"""[pure] What an agent asks of a language model, and what it gets back.

Owns the request and reply shapes and the `Model` protocol; knows no vendor, no history and no token policy.
Two implementations live beside it: `openai_client` (any OpenAI-compatible server) and, behind real HTTP,
the rehearsal model's server.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from mew_agent.model.usage import Usage

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model asks for. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request. `content` is never None: servers exist that answer 500 to a null."""

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool offered to the model; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call. `max_output_tokens` None leaves the bound to the server."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    response_format: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the visible answer, as it arrived."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of visible thinking (`reasoning_content` or `reasoning`), as it arrived."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A call that ended with a finish reason. Always the last event of a stream.

    `usage` is None when the server reported none. `served_model` is the name the server answered with, which
    may differ from the one asked for. `finish_reason` is the provider's word (`stop`, `length`, `tool_calls`, ...).
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Usage | None
    served_model: str
    reasoning_text: str = ""
    request_id: str | None = None
    streamed: bool = True


ModelEvent = TextDelta | ReasoningDelta | ModelReply

WindowBasis = Literal["configured", "loaded", "trained", "assumed"]


@dataclass(frozen=True, slots=True)
class Window:
    """A context window in tokens and how it is known. `source` names the endpoint or setting it came from."""

    max_tokens: int
    basis: WindowBasis
    source: str = ""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model an agent was told to use, and where."""

    model: str
    endpoint: str
    extra: Mapping[str, str] = field(default_factory=dict)


class Model(Protocol):
    """A language model behind some transport."""

    @property
    def identity(self) -> ModelIdentity:
        """Which model it is, and where."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call. Iterate it inside `contextlib.aclosing`, so that leaving early closes it at once.

        Yields deltas as they arrive and ends with exactly one `ModelReply`. Raises a `ModelError` instead of a
        reply whenever the call failed or was cut; what was yielded before that must then be thrown away.
        Closing the iterator early (or cancelling) stops the request at the server.
        """
        ...

    async def discover_window(self) -> Window | None:
        """Ask the server how large the window of the model it serves is; None when it does not tell."""
        ...

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Ask the server how many prompt tokens `request` will be, template and tools included.

        None when the server does not tell. It takes a round trip and the whole prompt, so ask only where a decision
        hangs on it; never longer than some seconds, and raises nothing.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
