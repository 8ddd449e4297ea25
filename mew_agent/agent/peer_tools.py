"""The tools and the resources of peers, for an agent's model.

Owns under which names tools are offered, and when: those that our capabilities allow us to request or propose; the
tools for resources while a peer has announced some that we may read. Does not know how a request travels (see
`McpClient`), how offers are discovered (see `Discovery`), or how much of a text enters the context.
"""

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any, Final

import anyio
from mew_protocol.quoting import one_line

from mew_agent.errors import MewAgentError, PeerAbsent
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.mcp_client import PeerCall
from mew_agent.participant.participant import Participant
from mew_agent.tools.functions import ToolCallFailed, UnknownTool, read_arguments
from mew_agent.tools.names import Target, ToolNames
from mew_agent.tools.peer_offers import PeerResource, PeerTool
from mew_agent.tools.results import ToolResult, well_formed
from mew_agent.tools.sources import CallContext, FunctionTools

DESCRIPTION_CHARS = 1_000
"""Descriptions are cut here; a model needs no more to choose a tool."""

LIST_RESOURCES: Final = "list_resources"
READ_RESOURCE: Final = "read_resource"
RESOURCE_TOOLS: Final = (LIST_RESOURCES, READ_RESOURCE)

MAX_DESCRIPTION_CHARS: Final = 200

_call_context: ContextVar[CallContext | None] = ContextVar("call_context", default=None)
"""What the running call is for. A model's arguments have no place for it."""


class PeerTools:
    """The source of all peers' tools; see `ToolSource`. `reserved` returns the names that are already in use."""

    def __init__(self, me: Participant, reserved: Callable[[], Collection[str]] = tuple) -> None:
        self._me = me
        self._reserved = reserved
        self._names = ToolNames()
        self._state: object = None
        self._offered: tuple[tuple[ToolSpec, PeerTool], ...] = ()

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`."""
        return tuple(spec for spec, _ in self.offered())

    def offered(self) -> tuple[tuple[ToolSpec, PeerTool], ...]:
        """Return the tools that we may call or propose to call, as a model sees them and as the peer sent them.

        Ordered by peer, so that the list does not depend on the order of joining.
        """
        me = self._me
        offers = tuple((name, me.peers[name].tools or ()) for name in sorted(me.peers))
        state = (me.capabilities, frozenset(self._reserved()), offers)
        if state != self._state:
            self._state = state
            self._offered = tuple(
                (self._spec(tool, state[1]), tool)
                for _, tools in offers
                for tool in tools
                # With some arguments: capabilities may require certain ones, and the model has not chosen any yet.
                if me.mcp.may_ask_with_any_arguments(PeerCall(tool.peer, "tools/call", {"name": tool.name}))
            )
        return self._offered

    def target_of(self, name: str) -> Target | None:
        """Return the tool of a peer that has this name; None for names never offered."""
        return self._names.target_of(name)

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """See `ToolSource`. The envelope refers to the reasoning and the chat it serves, so that peers can follow."""
        known = tuple(spec.name for spec in self.specs())
        target = self.target_of(call.name)
        if target is None:
            return ToolResult.from_error(UnknownTool(call.name, known))
        try:
            params = {"name": target.tool, "arguments": read_arguments(call.name, call.arguments)}
            raw = await self._me.mcp.request(PeerCall(target.peer, "tools/call", params, context))
        except MewAgentError as error:
            return ToolResult.from_error(error)
        return ToolResult.from_peer(raw)

    def _spec(self, tool: PeerTool, reserved: Collection[str]) -> ToolSpec:
        text = well_formed(tool.description).strip() or f"The tool {tool.name}."
        name = self._names.name_of(Target(tool.peer, tool.name), reserved)
        return ToolSpec(name, f"{text[:DESCRIPTION_CHARS]} (of {tool.peer})", tool.schema)


class ResourceTools(FunctionTools):
    """The source of these tools; see `ToolSource`."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        super().__init__(self.list_resources, self.read_resource)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`."""
        return super().specs() if self._readable() else ()

    async def run(self, call: ToolCall, context: CallContext | None = None) -> ToolResult:
        """See `ToolSource`."""
        _call_context.set(context)
        return await super().run(call, context)

    # -- docstrings are what the model sees --------------------------------------------------------------

    async def list_resources(self, peer: str | None = None) -> str:
        """List the resources of one participant or of all: participant, URI and description.

        Replace {placeholders} in a URI with values of your own.
        """
        peers = self._readable() if peer is None else (self._known(peer),)
        if not peers:
            raise ToolCallFailed("no participant has resources to read")
        lists: dict[str, list[str]] = {}

        async def ask(name: str) -> None:
            try:
                lists[name] = [_line(resource) for resource in await self._me.discovery.resources(name)]
            except MewAgentError as error:
                lists[name] = [f"{name}: {error}"]

        async with anyio.create_task_group() as tasks:
            for name in peers:
                tasks.start_soon(ask, name)
        return "\n".join(line for name in peers for line in lists[name] or [f"{name}: nothing to read"])

    async def read_resource(self, peer: str, uri: str) -> str:
        """Read a resource of a participant by its URI."""
        call = PeerCall(self._known(peer), "resources/read", {"uri": uri}, _call_context.get())
        return contents_text(peer, await self._me.mcp.request(call))

    def _readable(self) -> tuple[str, ...]:
        """Return the peers that announced resources and that we may ask for them."""
        may_read = self._me.mcp.may_ask_with_any_arguments
        with_resources = self._me.discovery.with_resources()
        return tuple(name for name in with_resources if may_read(PeerCall(name, "resources/read", {})))

    def _known(self, peer: str) -> str:
        if peer not in self._me.peers:
            raise PeerAbsent(peer)
        return peer


def contents_text(peer: str, result: Any) -> str:
    """Return the contents of a resource as text; parts that are not text are only named. Raises `ToolCallFailed`."""
    contents = result.get("contents") if isinstance(result, Mapping) else result
    if isinstance(contents, str):
        return well_formed(contents)
    parts = contents if isinstance(contents, list) else [contents]
    texts = [text for part in parts if (text := _part(part)) is not None]
    if not texts:
        raise ToolCallFailed(f"the answer of '{peer}' contains no readable content")
    return well_formed("\n".join(texts))


def _part(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    if isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{part.get('mimeType') or 'data'}, not shown]" if part.get("blob") is not None else None


def _line(resource: PeerResource) -> str:
    details = [resource.name if resource.name != resource.uri else "", resource.description, resource.mime_type or ""]
    words = " · ".join(" ".join(well_formed(detail).split())[:MAX_DESCRIPTION_CHARS] for detail in details if detail)
    return one_line(f"{resource.peer}: {well_formed(resource.uri)}{f' ({words})' if words else ''}")
