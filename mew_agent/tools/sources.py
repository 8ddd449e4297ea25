"""The tools of an agent's model: several sources under one set of names. Does not know the model or envelopes."""

import hashlib
import inspect
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Final, NamedTuple, Protocol

import anyio
from mew_listener.bounded_dict import FairDict
from mew_protocol.envelope import Envelope

from mew_agent import tracing
from mew_agent.model.interface import MAX_NAME_LENGTH, ToolCall, ToolSpec
from mew_agent.tools.functions import Tool, Toolbox, ToolFunction, UnknownTool
from mew_agent.tools.results import ToolResult

SEPARATOR: Final = "__"

logger = logging.getLogger(__name__)

_PLAIN: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
_ACCEPTED: Final = re.compile(r"[a-zA-Z0-9_-]+")
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9-]+")
_DIGEST_BYTES: Final = 8


class Target(NamedTuple):
    """A tool of a peer."""

    peer: str
    tool: str


def plain_name(target: Target) -> str | None:
    """Return `peer__tool` if the first `__` divides it unambiguously, else None."""
    name = f"{target.peer}{SEPARATOR}{target.tool}"
    # The name of a peer that ends with an underscore would move the separator.
    readable = target.tool and SEPARATOR not in target.peer and not target.peer.endswith("_")
    return name if readable and len(name) <= MAX_NAME_LENGTH and _PLAIN.fullmatch(name) else None


def digest_name(target: Target) -> str:
    """Return a name for any target: the valid characters of peer and tool, and a digest of both."""
    # The digest distinguishes targets with the same accepted characters. Without a separator it equals no plain name.
    identity = f"{len(target.peer)}:{target.peer}{target.tool}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(identity, digest_size=_DIGEST_BYTES).hexdigest()
    kept = _FOREIGN.sub("_", f"t_{target.peer}_{target.tool}")[: MAX_NAME_LENGTH - len(digest) - 1].rstrip("_")
    return f"{kept}_{digest}"


def own_name(tool: str) -> str:
    """Return the name of one of our own functions: unchanged if model servers accept it, else a digest name."""
    fits = len(tool) <= MAX_NAME_LENGTH and _ACCEPTED.fullmatch(tool)
    return tool if fits else digest_name(Target("", tool))


MAX_NAMES: Final = 20_000
"""How many names are remembered; the peer with the most loses its oldest."""


@dataclass
class ToolNames:
    """The assigned names, kept so that calls of withdrawn tools are still understood."""

    _targets: FairDict[str, Target] = field(default_factory=lambda: FairDict(MAX_NAMES, lambda _, one: one.peer))

    def name_of(self, target: Target, reserved: Collection[str] = ()) -> str:
        """Return the name of a target. `reserved` names are taken by other tools."""
        name = plain_name(target)
        if name is None or name in reserved:
            name = digest_name(target)
        self._targets[name] = target
        return name

    def target_of(self, name: str) -> Target | None:
        """Return the target of a name; None for names never assigned."""
        return self._targets.get(name)


@dataclass(frozen=True, slots=True)
class CallContext:
    """The purpose of a tool call: the ids of the chat being answered and of its reasoning, if any.

    `messages` collects the peers' envelopes that decide and answer the call, because the model reads them in the
    result.
    """

    chat_id: str
    reasoning_id: str | None = None
    messages: list[Envelope] = field(default_factory=list, compare=False)


class ToolSource(Protocol):
    """Offers tools. Both methods may be called at any time.

    The offered tools may change only with peers, capabilities, the toolbox, the history or the window: a conversation
    keeps the list until one of these changes.
    """

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may call now."""

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """Carry out one call and return its result. Never raises: a failed call has a result with `is_error`."""


def _spec(tool: Tool) -> ToolSpec:
    """Return a tool in the model's form."""
    return ToolSpec(tool.name, tool.description, tool.schema)


@cache  # schemas take a millisecond each, and every session of an agent has the same methods
def _method_tool(method: ToolFunction) -> Tool:
    """Return the tool of a class's method, not yet bound to an object."""
    return Tool.from_function(partial(method, None))


class FunctionTools:
    """A source that offers its own methods as tools: all of `methods`, unless a subclass chooses."""

    def __init__(self, *functions: ToolFunction) -> None:
        self._toolbox = Toolbox()
        for function in functions:
            tool = _method_tool(function.__func__) if inspect.ismethod(function) else Tool.from_function(function)
            self._toolbox.add(tool._replace(function=function))
        self.methods = tuple(_spec(tool) for tool in self._toolbox.tools.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        return self.methods

    async def run(self, call: ToolCall, context: CallContext | None = None) -> ToolResult:
        return await self._toolbox.run(call.name, call.arguments)


class OwnTools:
    """The functions of a participant's toolbox as a source. Each call ends after `timeout_seconds`.

    If model servers reject a function's name, our model uses another name; peers use the original.
    """

    def __init__(self, toolbox: Toolbox, timeout_seconds: float) -> None:
        self._toolbox = toolbox
        self._timeout_seconds = timeout_seconds

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(replace(_spec(tool), name=own_name(tool.name)) for tool in self._toolbox.tools.values())

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        name = next((tool for tool in self._toolbox.tools if own_name(tool) == call.name), call.name)
        with anyio.move_on_after(self._timeout_seconds):
            return await self._toolbox.run(name, call.arguments)
        return ToolResult(f"'{call.name}' did not finish within {self._timeout_seconds:g} seconds", is_error=True)


class AgentTools:
    """All sources of one agent. If two tools have the same name, the earlier source's is offered."""

    def __init__(self, *sources: ToolSource) -> None:
        self.sources = sources
        self._owners: dict[str, ToolSource] = {}

    def add(self, source: ToolSource) -> None:
        """Add a source after the existing ones."""
        self.sources += (source,)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may call now, in the order of the sources."""
        offered: dict[str, ToolSpec] = {}
        for source in self.sources:
            for spec in source.specs():
                if spec.name not in offered:
                    offered[spec.name] = spec
                    self._owners[spec.name] = source
        return tuple(offered.values())

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """Carry out one call. Never raises: an unknown name returns a result with `is_error`."""
        offered = self.specs()
        # Send a call of a tool that is no longer offered to its former source, which can give the reason.
        source = self._owners.get(call.name)
        if source is None:
            return ToolResult.from_error(UnknownTool(call.name, tuple(spec.name for spec in offered)))
        with tracing.span("tool_call", {"tool_call_id": call.id}, tool=call.name, call=call.id) as span:
            try:
                result = await source.run(call, context)
            except Exception as error:  # arguments may, for example, be nested too deep to be sent
                logger.exception("call of '%s' failed", call.name)
                result = ToolResult.from_error(error)
            span.failure = "tool_error" if result.is_error else None
        return result
