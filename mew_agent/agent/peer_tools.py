"""The tools of peers for a model.

Owns the names of offered tools, and the choice: our capabilities allow a request or a proposal, and the tools fit into
their part of the window. Does not know how requests are sent (see `McpClient`), how offers are discovered (see
`Discovery`), or how much of a text enters the context.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mew_protocol.json_values import well_formed

from mew_agent.context.window import DEFAULT_WINDOW_TOKENS
from mew_agent.errors import MewAgentError
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.mcp_client import PeerCall
from mew_agent.participant.participant import Participant
from mew_agent.tokens.projection import Calibration, features
from mew_agent.tools.bounds import fair_shares
from mew_agent.tools.functions import UnknownTool, read_arguments
from mew_agent.tools.peer_offers import MAX_LIST_BYTES, MAX_LISTED, PeerTool
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext, Target, ToolNames

DESCRIPTION_CHARS = 1_000
"""Descriptions are cut here; a model needs no more to choose a tool."""

WINDOW_PART: Final = 4
"""The tools of all peers may take a quarter of the window."""

FREE_PART: Final = 2
"""New tools may take half of the free tokens before a compaction, because the next question and its answer need room,
too."""

MOST_TOOLS: Final = 112
"""OpenAI and others accept 128 tools in a request; some are the agent's own."""

PROJECT: Final = Calibration().project
"""Weighs tools. It does not learn: which tools are offered must not change from call to call."""

UNREAD: Final = (
    f"more tools of it ({{count:,}} or more) are not read: at most {MAX_LISTED}, of {MAX_LIST_BYTES:,} bytes"
)
NO_ROOM: Final = (
    "{left:,} of its {count:,} tools are not offered to the model: the tools of participants may take {tokens:,} tokens"
    f" (projected), new ones half of what is free, and number {MOST_TOOLS} with the agent's own functions"
)


@dataclass(frozen=True, slots=True)
class ToolRoom:
    """The room for tools in one conversation: its window, and the free tokens before a compaction, if known.

    `revision` changes when history is removed.
    """

    window_tokens: Callable[[], int | None] = lambda: None
    free_tokens: Callable[[], int | None] = lambda: None
    revision: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A tool that may be offered, and its projected tokens."""

    spec: ToolSpec
    tool: PeerTool
    tokens: int


class PeerTools:
    """The source of all peers' tools; see `ToolSource`.

    `reserved` returns the names that are already in use. Without a known window, `room` counts as the default window.
    `on_left_out` is called when the set of peers with omitted tools changes, with the reason for each peer.
    """

    def __init__(
        self,
        me: Participant,
        reserved: Callable[[], Collection[str]] = tuple,
        room: ToolRoom | None = None,
        on_left_out: Callable[[Mapping[str, str]], object] = lambda _: None,
    ) -> None:
        self._me = me
        self._reserved = reserved
        self._room = room or ToolRoom(lambda: me.context.max_tokens)
        self._on_left_out = on_left_out
        self._names = ToolNames()
        self._state: object = None
        self._revision = 0
        self._offered: tuple[_Weighed, ...] = ()
        self._weighed: dict[str, tuple[object, tuple[_Weighed, ...]]] = {}
        self._left_out: dict[str, str] = {}

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`."""
        me = self._me
        offers = tuple((name, me.peers[name].tools or (), me.peers[name].tools_left_out) for name in sorted(me.peers))
        reserved = frozenset(self._reserved())
        has_offers = any(tools for _, tools, _ in offers)
        window_tokens = (has_offers and self._room.window_tokens()) or DEFAULT_WINDOW_TOKENS
        state = (me.messenger.capabilities, reserved, window_tokens, offers)
        if state != self._state or (self._left_out and self._room.revision() != self._revision):
            self._state, self._revision = state, self._room.revision()
            most = window_tokens // WINDOW_PART
            candidates = {name: self._candidates(name, tools, reserved, most) for name, tools, _ in offers}
            self._weighed = {name: self._weighed[name] for name in candidates}  # removes peers that left
            self._offered = self._fitting(candidates, most, max(0, MOST_TOOLS - len(reserved)))
            self._report(most)
        return tuple(one.spec for one in self._offered)

    def offered(self) -> tuple[tuple[ToolSpec, PeerTool], ...]:
        """Return the tools that we may call or propose, in the model's form and in the peer's.

        Ordered by peer, so that the list does not depend on the order of joining.
        """
        self.specs()
        return tuple((one.spec, one.tool) for one in self._offered)

    def _candidates(
        self, peer: str, tools: tuple[PeerTool, ...], reserved: Collection[str], most: int
    ) -> tuple[_Weighed, ...]:
        """Return a peer's tools that we may call, no more than could ever fit."""
        key = (tools, reserved, most, self._me.capabilities)
        known = self._weighed.get(peer)
        if known is not None and known[0] == key:
            return known[1]
        found: list[_Weighed] = []
        left = most
        for tool in tools:
            # Assume some arguments: capabilities may require certain ones, and the model has not chosen any yet.
            if left >= 0 and self._me.mcp.may_ask_with_any_arguments(
                PeerCall(tool.peer, "tools/call", {"name": tool.name})
            ):
                spec = self._spec(tool, reserved)
                tokens = PROJECT(features(f"{spec.name}{spec.description}{spec.parameters}"), messages=0)
                found.append(_Weighed(spec, tool, tokens))
                left -= tokens
        self._weighed[peer] = key, tuple(found)
        return tuple(found)

    def _fitting(self, candidates: Mapping[str, tuple[_Weighed, ...]], most: int, count: int) -> tuple[_Weighed, ...]:
        """Return the tools that fit, `count` at most, in each peer's order; tools offered before come first."""
        before = {(one.tool.peer, one.tool.name) for one in self._offered}
        kept_tokens = sum(one.tokens for tools in candidates.values() for one in tools if _key(one) in before)
        free_tokens = None if not any(candidates.values()) else self._room.free_tokens()
        room = most if free_tokens is None else min(most, kept_tokens + max(0, free_tokens) // FREE_PART)
        shares = fair_shares({peer: sum(one.tokens for one in tools) for peer, tools in candidates.items()}, room)
        counts = fair_shares({peer: len(tools) for peer, tools in candidates.items()}, count)
        return tuple(
            one for peer, tools in candidates.items() for one in _within(shares[peer], tools, before, most=counts[peer])
        )

    def _report(self, most: int) -> None:
        """Report the peers with omitted tools, and the reason."""
        me, left_out = self._me, dict[str, str]()
        offered = Counter(one.tool.peer for one in self._offered)
        for name, peer in me.peers.items():
            permitted = sum(
                me.mcp.may_ask_with_any_arguments(PeerCall(name, "tools/call", {"name": tool.name}))
                for tool in peer.tools or ()
            )
            if peer.tools_left_out:
                left_out[name] = UNREAD.format(count=peer.tools_left_out)
            if offered[name] < permitted:
                why = NO_ROOM.format(left=permitted - offered[name], count=permitted, tokens=most)
                left_out[name] = "; ".join(filter(None, (left_out.get(name), why)))
        if left_out != self._left_out:
            self._left_out = left_out
            self._on_left_out(left_out)

    def target_of(self, name: str) -> Target | None:
        """Return the tool of a peer that has this name; None for names never offered."""
        return self._names.target_of(name)

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """See `ToolSource`. The envelope refers to its reasoning and chat, so that peers can follow the work."""
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


def _within(
    tokens: int, tools: tuple[_Weighed, ...], first: Collection[tuple[str, str]], *, most: int
) -> list[_Weighed]:
    """Return the tools of one peer that fit into these tokens, in its order; those in `first` have precedence."""
    chosen = set[tuple[str, str]]()
    for one in sorted(tools, key=lambda one: _key(one) not in first):
        if one.tokens <= tokens and len(chosen) < most:
            tokens -= one.tokens
            chosen.add(_key(one))
    return [one for one in tools if _key(one) in chosen]


def _key(one: _Weighed) -> tuple[str, str]:
    return one.tool.peer, one.tool.name
