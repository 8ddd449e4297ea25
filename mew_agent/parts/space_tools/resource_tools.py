"""A model's tools for reading peers' resources, while a peer has announced some that we may read."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import anyio
from mew_board.quoting import one_line
from mew_protocol.json_values import well_formed

from mew_agent.config.agent_config import AgentConfig
from mew_agent.errors import MewAgentError, PeerAbsent
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.mcp_client import PeerCall
from mew_agent.participant.participant import Participant
from mew_agent.tools.functions import ToolCallFailed
from mew_agent.tools.peer_offers import PeerResource
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext, FunctionTools

MAX_DESCRIPTION_CHARS: Final = 200

_call_context: ContextVar[CallContext | None] = ContextVar("call_context", default=None)
"""The purpose of the running call. A model's arguments have no place for it."""


def resource_tools(me: Participant, _config: AgentConfig) -> "ResourceTools":
    """Return the tools."""
    return ResourceTools(me)


class ResourceTools(FunctionTools):
    """The source of these tools; see `ToolSource`."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        super().__init__(self.list_resources, self.read_resource)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`."""
        return self.methods if self._me.discovery.with_resources() else ()

    async def run(self, call: ToolCall, context: CallContext | None = None) -> ToolResult:
        """See `ToolSource`."""
        _call_context.set(context)
        return await super().run(call, context)

    # -- docstrings are what the model sees --------------------------------------------------------------

    async def list_resources(self, peer: str | None = None) -> str:
        """List the resources of one participant or of all: participant, URI and description.

        Replace {placeholders} in a URI with values of your own.
        """
        peers = self._me.discovery.with_resources() if peer is None else (self._known(peer),)
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

    def _known(self, peer: str) -> str:
        if peer not in self._me.peers:
            raise PeerAbsent(peer)
        return peer


def contents_text(peer: str, result: Any) -> str:
    """Return the contents of a resource as text; parts other than text are only named. Raises `ToolCallFailed`."""
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
