"""[pure] Requests to a language model, and its replies.

Owns the request and reply types and the `Model` protocol. Does not know any vendor, the agent's history, or token
policies. `openai_client` implements the protocol for every OpenAI-compatible server.

To use another kind of model, write a class with the five members of `Model` and pass an instance to `Agent`. It need
not inherit from anything. The smallest useful one:

    class EchoModel:
        identity = ModelIdentity("echo", "local")

        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            text = request.messages[-1].content
            yield TextDelta(text)
            yield ModelReply(text, tool_calls=(), finish_reason="stop", usage=None, served_model="echo")

        async def discover_window(self) -> Window | None:
            return Window(8192, "loaded", "echo")

        async def count_prompt(self, request: ModelRequest) -> int | None:
            return None

        async def aclose(self) -> None:
            pass
"""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from mew_agent.model.image import Image
from mew_agent.model.usage import Usage

MAX_NAME_LENGTH: Final = 64
"""The most characters of a name that model servers accept."""

_FOREIGN_TO_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def plain_name(name: str) -> str:
    """Return a name of a tool or an author with only the characters that model servers accept; "_" for none."""
    return _FOREIGN_TO_NAMES.sub("_", name)[:MAX_NAME_LENGTH] or "_"


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model requests. `arguments` is JSON text exactly as the model wrote it; it may be invalid.

    `id` connects the call to its result and is unique within a request. `extra` is JSON text that the server wants back
    with the call, such as Gemini's thought signature.
    """

    id: str
    name: str
    arguments: str
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request.

    `content` is never None: some servers answer a null with HTTP 500. `tool_calls` belong to the role `assistant`,
    `tool_call_id` to the role `tool`. The text names `images`; a model that takes none may ignore them. `reasoning` is
    what the model thought in a turn with tool calls; send it only to a server that requires it. For `extra`, see
    `ModelReply`.
    """

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    images: tuple[Image, ...] = ()
    reasoning: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool offered to the model. `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call: the whole conversation, not only its new part.

    `max_output_tokens` limits the reply; None leaves the limit to the server. `response_format` has the shape of
    OpenAI's parameter of that name.
    """

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
    """A piece of the visible reasoning (`reasoning_content` or `reasoning`), as it arrived."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The complete reply: always the last event of a stream, and only of a call that succeeded.

    `text` and `reasoning_text` are the joined deltas. `finish_reason` is the provider's word (`stop`, `length`,
    `tool_calls`, `content_filter`). `usage` is the provider's report, or None. Never fill in an estimate: the agent
    labels estimates itself. `served_model` is the name in the reply, which may differ from the requested one.
    `extra` is a JSON object with keys that the server wants back in the message, or "". `request_id` appears in logs.
    `streamed` is False if the reply arrived in one piece.

    `backend` identifies the machine that answered (`provider`, `system_fingerprint`); None if unknown. Two prompts are
    only compared to the token if both name the same: a router may have another model, another template or a hidden
    prefix behind the same name.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Usage | None
    served_model: str
    reasoning_text: str = ""
    request_id: str | None = None
    streamed: bool = True
    backend: str | None = None
    extra: str = ""


ModelEvent = TextDelta | ReasoningDelta | ModelReply

WindowBasis = Literal["configured", "loaded", "trained", "assumed"]


@dataclass(frozen=True, slots=True)
class Window:
    """A context window: its size in tokens and how that size is known.

    `loaded` is the window of the running instance, `trained` the maximum of the model; `configured` and `assumed` come
    from the agent's settings and its default. `source` names the endpoint or setting, for people.
    """

    max_tokens: int
    basis: WindowBasis
    source: str = ""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The configured model name and where the model runs, for error messages and statuses.

    `endpoint` is shown to peers: leave out credentials.
    """

    model: str
    endpoint: str


class Model(Protocol):
    """A language model. See the module for a minimal implementation.

    An agent runs one `stream` at a time in each of its conversations, and may call `discover_window` and `count_prompt`
    at the same time.
    """

    @property
    def identity(self) -> ModelIdentity:
        """Which model this is, and where it runs. Does not change."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Run one call: yield deltas as they arrive, then exactly one `ModelReply`.

        Raise a `ModelError` instead of the reply when the call failed or the reply is incomplete; the agent then
        discards the deltas. Raise `ContextOverflow` when the request does not fit the window, so that the agent
        compacts and retries, and `ToolsUnsupported` when the model takes no tools, so that it retries without.

        Closing the generator or cancelling its task must stop the request at the server. Callers iterate inside
        `contextlib.aclosing`, so that leaving the loop early closes the generator at once.
        """

    async def discover_window(self) -> Window | None:
        """Return the window of the model that the server runs, or None if unknown. Never raises."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the exact number of prompt tokens of `request`, chat template and tools included, or None if unknown.

        Must return within a few seconds and raises nothing. The agent asks where a decision depends on the count, and
        before and after a compaction.
        """

    async def aclose(self) -> None:
        """Close all connections."""
