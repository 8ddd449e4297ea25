"""The tools of peers, for an agent's model: their specs under names that a model can call, and the calls.

Owns which tools are offered: those that our capabilities allow us to request or propose. Does not know how a request
travels (see `McpClient`) or how tools are discovered (see `Discovery`).
"""

from collections.abc import Callable, Collection

from mew_agent.errors import MewAgentError
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.participant import Participant
from mew_agent.tools.functions import UnknownTool, read_arguments
from mew_agent.tools.names import Target, ToolNames
from mew_agent.tools.peer_offers import PeerTool
from mew_agent.tools.results import ToolResult, well_formed
from mew_agent.tools.sources import CallContext

DESCRIPTION_CHARS = 1_000
"""Descriptions are cut here; a model needs no more to choose a tool."""


class PeerTools:
    """The source of all peers' tools; see `ToolSource`. `reserved` returns the names that are already in use."""

    def __init__(self, me: Participant, reserved: Callable[[], Collection[str]] = tuple) -> None:
        self._me = me
        self._reserved = reserved
        self._names = ToolNames()
        self._state: object = None
        self._specs: tuple[ToolSpec, ...] = ()

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. Ordered by peer, so that the list does not depend on the order of joining."""
        me = self._me
        offers = tuple((name, me.peers[name].tools or ()) for name in sorted(me.peers))
        state = (me.capabilities, frozenset(self._reserved()), offers)
        if state != self._state:
            self._state = state
            self._specs = tuple(
                self._spec(tool, state[1]) for _, tools in offers for tool in tools if self._may(tool.peer, tool.name)
            )
        return self._specs

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """See `ToolSource`. The envelope refers to the reasoning and the chat it serves, so that peers can follow."""
        known = tuple(spec.name for spec in self.specs())
        target = self._names.target_of(call.name)
        if target is None:
            return ToolResult.from_error(UnknownTool(call.name, known))
        try:
            params = {"name": target.tool, "arguments": read_arguments(call.name, call.arguments)}
            raw = await self._me.mcp.request(
                target.peer,
                "tools/call",
                params,
                context=context.reasoning_id,
                correlation_id=(context.chat_id,),
            )
        except MewAgentError as error:
            return ToolResult.from_error(error)
        return ToolResult.from_peer(raw)

    def _may(self, peer: str, tool: str) -> bool:
        """Whether we may call a tool with some arguments; capabilities may require certain ones."""
        return self._me.mcp.may_ask_with_any_arguments(peer, "tools/call", {"name": tool})

    def _spec(self, tool: PeerTool, reserved: Collection[str]) -> ToolSpec:
        name = self._names.name_of(Target(tool.peer, tool.name), reserved)
        return ToolSpec(name, _described(tool), tool.schema)


def _described(tool: PeerTool) -> str:
    text = well_formed(tool.description).strip() or f"The tool {tool.name}."
    return f"{text[:DESCRIPTION_CHARS]} (of {tool.peer})"
