"""The tools with which a model uses the space: those of peers, their resources, and the board of all contexts.

Owns under which names tools of peers are offered, and when: those that our capabilities allow us to request or propose,
as far as they fit into their part of the window; the tools for resources while a peer has announced some that we may
read; and the tools for the board that our capabilities allow. Owns also how a report reads as text; the figures are
those of the report that every reader sees. Does not know how a request travels (see `McpClient`), how offers are
discovered (see `Discovery`), or how much of a text enters the context.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from mew_board.quoting import one_line
from mew_board.words import compaction_answer
from mew_protocol import kinds
from mew_protocol.context_report import ContextReport, old_figure, span
from mew_protocol.envelope import unix_seconds
from mew_protocol.json_values import well_formed
from mew_protocol.payloads.participant import Status, basis_words, freed_words

from mew_agent.context.window import DEFAULT_WINDOW_TOKENS
from mew_agent.errors import MewAgentError, PeerAbsent
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.mcp_client import PeerCall
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.tokens.projection import Calibration, features
from mew_agent.tools.bounds import fair_shares
from mew_agent.tools.functions import ToolCallFailed, UnknownTool, read_arguments
from mew_agent.tools.peer_offers import MAX_LIST_BYTES, MAX_LISTED, PeerResource, PeerTool
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext, FunctionTools, Target, ToolNames

DESCRIPTION_CHARS = 1_000
"""Descriptions are cut here; a model needs no more to choose a tool."""

MAX_DESCRIPTION_CHARS: Final = 200

WINDOW_PART: Final = 4
"""The tools of all peers may take a quarter of the window."""

FREE_PART: Final = 2
"""New tools may take half of what is free before a compaction: the next question and its answer need room, too."""

PROJECT: Final = Calibration().project
"""Weighs tools. It does not learn: which tools are offered must not change from call to call."""

UNREAD: Final = (
    f"more tools of it ({{count:,}} or more) are not read: at most {MAX_LISTED}, of {MAX_LIST_BYTES:,} bytes"
)
NO_ROOM: Final = (
    "{left:,} of its {count:,} tools are not offered to the model: the tools of participants may take {tokens:,} tokens"
    " (projected), new ones half of what is free"
)

_call_context: ContextVar[CallContext | None] = ContextVar("call_context", default=None)
"""What the running call is for. A model's arguments have no place for it."""


@dataclass(frozen=True, slots=True)
class ToolRoom:
    """The room for tools in one conversation: its window, and the tokens that are free before a compaction, if known.

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
    `on_left_out` is called when other peers than before have tools that are not offered, with why, by peer.
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
            self._weighed = {name: self._weighed[name] for name in candidates}  # others have left
            self._offered = self._fitting(candidates, most)
            self._report(most)
        return tuple(one.spec for one in self._offered)

    def offered(self) -> tuple[tuple[ToolSpec, PeerTool], ...]:
        """Return the tools that we may call or propose to call, as a model sees them and as the peer sent them.

        Ordered by peer, so that the list does not depend on the order of joining.
        """
        self.specs()
        return tuple((one.spec, one.tool) for one in self._offered)

    def _candidates(
        self, peer: str, tools: tuple[PeerTool, ...], reserved: Collection[str], most: int
    ) -> tuple[_Weighed, ...]:
        """Return a peer's tools that we may call, as many as could fit at best: no others are weighed."""
        key = (tools, reserved, most, self._me.capabilities)
        known = self._weighed.get(peer)
        if known is not None and known[0] == key:
            return known[1]
        found: list[_Weighed] = []
        left = most
        for tool in tools:
            # With some arguments: capabilities may require certain ones, and the model has not chosen any yet.
            if left >= 0 and self._me.mcp.may_ask_with_any_arguments(
                PeerCall(tool.peer, "tools/call", {"name": tool.name})
            ):
                spec = self._spec(tool, reserved)
                tokens = PROJECT(features(f"{spec.name}{spec.description}{spec.parameters}"), messages=0)
                found.append(_Weighed(spec, tool, tokens))
                left -= tokens
        self._weighed[peer] = key, tuple(found)
        return tuple(found)

    def _fitting(self, candidates: Mapping[str, tuple[_Weighed, ...]], most: int) -> tuple[_Weighed, ...]:
        """Return the tools that fit, each peer's in its order; those that were offered before come first."""
        before = {(one.tool.peer, one.tool.name) for one in self._offered}
        kept_tokens = sum(one.tokens for tools in candidates.values() for one in tools if _key(one) in before)
        free_tokens = None if not any(candidates.values()) else self._room.free_tokens()
        room = most if free_tokens is None else min(most, kept_tokens + max(0, free_tokens) // FREE_PART)
        shares = fair_shares({peer: sum(one.tokens for one in tools) for peer, tools in candidates.items()}, room)
        return tuple(one for peer, tools in candidates.items() for one in _within(shares[peer], tools, before))

    def _report(self, most: int) -> None:
        """Say which peers have tools that are not offered, and why."""
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


def _within(tokens: int, tools: tuple[_Weighed, ...], first: Collection[tuple[str, str]]) -> list[_Weighed]:
    """Return the tools of one peer that fit into these tokens, in its order; those in `first` have precedence."""
    chosen = set[tuple[str, str]]()
    for one in sorted(tools, key=lambda one: _key(one) not in first):
        if one.tokens <= tokens:
            tokens -= one.tokens
            chosen.add(_key(one))
    return [one for one in tools if _key(one) in chosen]


def _key(one: _Weighed) -> tuple[str, str]:
    return one.tool.peer, one.tool.name


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


REQUEST_COMPACTION: Final = "request_compaction"

WAIT_SECONDS: Final = 60.0
MAX_WAIT_SECONDS: Final = 240.0


class BoardTools(FunctionTools):
    """The source of these tools; see `ToolSource`."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._changed = anyio.Event()
        super().__init__(self.context_board, self.request_compaction, self.wait_for_headroom)
        me.on_context(self._wake_waiting)
        me.on(kinds.SYSTEM_PRESENCE)(self._wake_waiting)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. The board is offered to agents that may request reports or compactions."""
        me = self._me
        everyone, controls = (me.id, *me.peers), (kinds.PARTICIPANT_COMPACT, kinds.PARTICIPANT_REQUEST_STATUS)
        allowed = [kind for kind in controls if any(me.messenger.may_send(kind, {}, (name,)) for name in everyone)]
        left_out = () if kinds.PARTICIPANT_COMPACT in allowed else (REQUEST_COMPACTION,)
        return tuple(spec for spec in self.methods if spec.name not in left_out) if allowed else ()

    # -- docstrings are what the model sees --------------------------------------------------------------

    async def context_board(self) -> str:
        """Show how full the context window of each participant is, yours included, as each reports it."""
        me = self._me
        peers = [me.peers[name] for name in sorted(me.peers)]
        reporting = [Peer(me.id, context=me.context), *(peer for peer in peers if _has_context(peer.context))]
        now = datetime.now(UTC)
        lines = [
            f"{one.id}{' (you)' if one.id == me.id else ''}: {context_words(one.context, now)}" for one in reporting
        ]
        without = [peer.id for peer in peers if not _has_context(peer.context)]
        return "\n".join([*lines, *([f"no context of their own: {', '.join(without)}"] if without else [])])

    async def request_compaction(self, peer: str, reason: str | None = None, target_tokens: int | None = None) -> str:
        """Ask a participant to compact its context, and wait until it is done.

        Without target_tokens the participant keeps only its current work and its newest turns.
        """
        known = self._known(peer)
        if not _has_context(known.context) and not self._can_answer(known):
            raise ToolCallFailed(f"'{peer}' reports no context of its own, and may not send the result of a compaction")
        done = await self._me.compact(peer, reason=reason, target_tokens=target_tokens)
        return f"{peer}: {compaction_answer(done)}"

    async def wait_for_headroom(self, peer: str, tokens: int, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Wait until a participant has room for this many tokens before it compacts or its window is full."""
        bound_seconds = min(max(0.0, timeout_seconds), MAX_WAIT_SECONDS)
        with anyio.move_on_after(bound_seconds):
            while True:
                changed = self._changed
                room = headroom_tokens(self._known(peer).context)
                if room is not None and room >= tokens:
                    return f"{peer} has room for {room:,} tokens: {context_words(self._known(peer).context)}"
                await changed.wait()
        context = self._known(peer).context
        room = headroom_tokens(context)
        problem = "its room is unknown" if room is None else f"it has room for only {room:,} tokens"
        raise ToolCallFailed(f"waited {bound_seconds:g} seconds for '{peer}': {problem} ({context_words(context)})")

    def _can_answer(self, peer: Peer) -> bool:
        """Return whether a peer may send the result of a compaction; always true for ourselves."""
        me = self._me.id
        done, status = {"status": "compacted"}, {"messages_in_context": 0}
        answers = ((kinds.PARTICIPANT_COMPACT_DONE, done), (kinds.PARTICIPANT_STATUS, status))
        return peer.id == me or any(peer.may_send(kind, payload, me) for kind, payload in answers)

    def _known(self, peer: str) -> Peer:
        if peer == self._me.id:
            return Peer(peer, context=self._me.context)
        known = self._me.peers.get(peer)
        if known is None:
            names = ", ".join(self._me.peers) or "none"
            raise ToolCallFailed(f"no participant '{peer}' in this space (participants: {names})")
        return known

    async def _wake_waiting(self, *_event: object) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def headroom_tokens(context: PeerContext) -> int | None:
    """Return the tokens until a participant compacts automatically or its window is full; None if unknown."""
    if context.tokens is None or context.outdated is not None:
        return None
    limit = context.max_tokens
    if context.report is not None and context.report.compact_at_tokens is not None:
        limit = context.report.compact_at_tokens
    return None if limit is None else max(0, limit - context.tokens)


def context_words(context: PeerContext, now: datetime | None = None) -> str:
    """Return a context report in one line: tokens, limit, basis, level and next compaction.

    With `now`, the age of a figure that is not of the last turn is in it.
    """
    report, words = context.report, _size_words(context, now)
    if context.outdated is not None:
        words.append(old_figure(context.outdated, _age(context.at, now)))
    elif report is not None and report.stale_messages:
        words.append(f"{report.stale_messages:,} more items since{_ago(report.measured_at, now)}")
    if report is not None:
        words += _outlook_words(report, is_current=context.outdated is None)
    if context.status not in ("", "active"):
        words.append(context.word.word.replace("_", " "))
    return one_line(", ".join(words))  # a level or a status of a peer is no second line


def _size_words(context: PeerContext, now: datetime | None) -> list[str]:
    if context.tokens is not None:
        of = f" of {context.max_tokens:,}" if context.max_tokens else ""
        return [f"{context.tokens:,}{of} tokens ({basis_words(context.basis_label)})"]
    report = context.report
    why = report.reason.replace("_", " ") if report is not None and report.reason else "not reported"
    last = report.last_reported if report is not None else None
    words = [f"size unknown ({why})"]
    words += [f"last reported {last.tokens:,}{_ago(last.measured_at, now)}"] if last else []
    words += [f"limit {context.max_tokens:,} tokens"] if context.max_tokens else []
    return words


def _outlook_words(report: ContextReport, *, is_current: bool) -> list[str]:
    words = [] if report.level == "unknown" else [report.level.replace("_", " ")]
    if report.compact_at_tokens is not None:
        words.append(f"compacts at {report.compact_at_tokens:,}")
    if report.turns_to_compaction is not None and is_current:
        words.append(f"in about {report.turns_to_compaction} turns")
    if (last := report.last_compaction) is not None and last.freed_tokens is not None:
        words.append(f"last compaction {freed_words(last.freed_tokens, last.basis)}")
    return words


def _age(at: str | None, now: datetime | None) -> str | None:
    then = None if now is None else unix_seconds(at)
    return None if then is None or now is None else span(now.timestamp() - then)


def _ago(at: str | None, now: datetime | None) -> str:
    age = _age(at, now)
    return "" if age is None else f" {age} ago"


def context_line(status: Status) -> str:
    """Return an agent's own context as a line for its model, from the report that all readers see."""
    return f"[Your context: {context_words(PeerContext.from_status(status, ''))}]"


def _has_context(context: PeerContext) -> bool:
    return context.report is not None or bool(context.tokens)
