"""The board for agents: tools with which a model reads everybody's context, asks for compactions, and waits for room.

Owns the words in which a model reads a report; the figures are those of the one report that everybody reads. Which of
the tools are offered depends on what our capabilities let us do about it.
"""

from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import CompactDone, Status

from mew_agent.errors import MewAgentError
from mew_agent.model.interface import ToolCall, ToolSpec
from mew_agent.participant.controls import NOTHING_TO_DO
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.tools.functions import Tool, Toolbox
from mew_agent.tools.results import ToolResult
from mew_agent.tools.sources import CallContext

CONTEXT_BOARD: Final = "context_board"
REQUEST_COMPACTION: Final = "request_compaction"
WAIT_FOR_HEADROOM: Final = "wait_for_headroom"
BOARD_TOOLS: Final = (CONTEXT_BOARD, REQUEST_COMPACTION, WAIT_FOR_HEADROOM)

WAIT_SECONDS: Final = 60.0
LONGEST_WAIT_SECONDS: Final = 240.0


class NoHeadroom(MewAgentError):
    """The room did not come, or cannot be told."""


class BoardTools:
    """The source of these tools; see `ToolSource`."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._changed = anyio.Event()
        self._toolbox = Toolbox()
        for function in (self.context_board, self.request_compaction, self.wait_for_headroom):
            self._toolbox.add(Tool.from_function(function))
        me.on_context(self._heard)
        me.on(kinds.SYSTEM_PRESENCE)(self._someone_moved)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. Who may ask for reports or compactions reads the board, too."""
        may_compact = self._may(kinds.PARTICIPANT_COMPACT)
        if not may_compact and not self._may(kinds.PARTICIPANT_REQUEST_STATUS):
            return ()
        return tuple(spec for spec in self._toolbox.specs() if may_compact or spec.name != REQUEST_COMPACTION)

    async def run(self, call: ToolCall, context: CallContext) -> ToolResult:
        """See `ToolSource`."""
        return await self._toolbox.run(call.name, call.arguments)

    # -- what a model is told of them: these docstrings --------------------------------------------------

    async def context_board(self) -> str:
        """How full the context window of every participant here is, yours included, as each reports it."""
        me = self._me
        peers = [me.peers[name] for name in sorted(me.peers)]
        told = [Peer(me.id, context=me.context), *(peer for peer in peers if _has_context(peer.context))]
        lines = [f"{peer.id}{' (you)' if peer.id == me.id else ''}: {context_words(peer.context)}" for peer in told]
        silent = [peer.id for peer in peers if not _has_context(peer.context)]
        return "\n".join([*lines, *([f"no context of their own: {', '.join(silent)}"] if silent else [])])

    async def request_compaction(self, peer: str, reason: str | None = None, target_tokens: int | None = None) -> str:
        """Ask a participant to compact its context, and wait until it has.

        Without target_tokens it keeps only what it is working on and its newest turns.
        """
        known = self._known(peer)
        if not _has_context(known.context) and not self._can_tell(known):
            raise NoHeadroom(f"'{peer}' has no context of its own that is known of, and could not tell what came of it")
        return _outcome(peer, await self._me.compact(peer, reason=reason, target_tokens=target_tokens))

    async def wait_for_headroom(self, peer: str, tokens: int, timeout_seconds: float = WAIT_SECONDS) -> str:
        """Wait until a participant has room for so many tokens before it compacts or its window ends."""
        bound_seconds = min(max(0.0, timeout_seconds), LONGEST_WAIT_SECONDS)
        with anyio.move_on_after(bound_seconds):
            while True:
                changed = self._changed
                room = headroom_tokens(self._known(peer).context)
                if room is not None and room >= tokens:
                    return f"{peer} has room for {room:,} tokens: {context_words(self._known(peer).context)}"
                await changed.wait()
        context = self._known(peer).context
        room = headroom_tokens(context)
        problem = "its room is not known" if room is None else f"it has room for {room:,} tokens only"
        raise NoHeadroom(f"waited {bound_seconds:g} seconds for '{peer}': {problem} ({context_words(context)})")

    # -- inside ------------------------------------------------------------------------------------------

    def _may(self, kind: str) -> bool:
        """Whether we may send such a control to anybody who is here, or who may be named."""
        return any(self._me.may_send(kind, {}, (name,)) for name in (self._me.id, *self._me.peers))

    def _can_tell(self, peer: Peer) -> bool:
        """Whether a peer may say what came of a compaction; we ourselves do."""
        me = self._me.id
        done, status = {"status": "compacted"}, {"messages_in_context": 0}
        told = ((kinds.PARTICIPANT_COMPACT_DONE, done), (kinds.PARTICIPANT_STATUS, status))
        return peer.id == me or any(peer.may_send(kind, payload, me) for kind, payload in told)

    def _known(self, peer: str) -> Peer:
        if peer == self._me.id:
            return Peer(peer, context=self._me.context)
        known = self._me.peers.get(peer)
        if known is None:
            raise NoHeadroom(f"there is no participant '{peer}' here (members: {', '.join(self._me.peers) or 'none'})")
        return known

    async def _heard(self, peer: Peer, context: PeerContext) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _someone_moved(self, envelope: Envelope) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def headroom_tokens(context: PeerContext) -> int | None:
    """Tokens until a participant compacts by itself, or its window ends; None when that cannot be told."""
    if context.tokens is None:
        return None
    limit = context.max_tokens
    if context.report is not None and context.report.compact_at_tokens is not None:
        limit = context.report.compact_at_tokens
    return None if limit is None else max(0, limit - context.tokens)


def context_words(context: PeerContext) -> str:
    """A context report in one line: tokens, of how many, how known, what follows."""
    report = context.report
    of = f" of {context.max_tokens:,}" if context.max_tokens else ""
    if context.tokens is None:
        why = report.reason.replace("_", " ") if report is not None and report.reason else "not told"
        last = report.last_reported if report is not None else None
        words = [f"not known{of} tokens ({why})", *([f"last reported {last.tokens:,}"] if last else [])]
    else:
        words = [f"{context.tokens:,}{of} tokens ({context.basis or 'its own count'})"]
    if report is not None:
        if report.level != "unknown":
            words.append(report.level.replace("_", " "))
        if report.compact_at_tokens is not None:
            words.append(f"compacts at {report.compact_at_tokens:,}")
        if report.turns_to_compaction is not None:
            words.append(f"in about {report.turns_to_compaction} turns")
        if report.last_compaction is not None:
            words.append(f"last compaction freed {report.last_compaction.freed_tokens:,}")
    if context.status not in ("", "active"):
        words.append(context.status.partition(":")[0].replace("_", " "))
    return ", ".join(words)


def context_line(status: Status) -> str:
    """An agent's own context as a line for its model, from the report that everybody reads."""
    return f"[Your context: {context_words(PeerContext.from_status(status, ''))}]"


def _has_context(context: PeerContext) -> bool:
    return context.report is not None or bool(context.tokens)


def _outcome(peer: str, done: CompactDone) -> str:
    if done.skipped:
        reason = (done.reason or "no reason given").replace("_", " ")
        return f"{peer} did not compact: {reason}" if done.reason in NOTHING_TO_DO else f"{peer} could not: {reason}"
    now = f"; now {done.tokens_after:,} tokens" if done.tokens_after is not None else ""
    basis = f" ({done.basis})" if done.basis else ""
    freed = f"{done.freed_tokens:,} tokens" if done.freed_tokens is not None else "an amount that it did not tell"
    return f"{peer} freed {freed}{now}{basis}"
