"""The board for agents: tools with which a model reads all contexts, requests compactions, and waits for room.

Owns how a report reads as text, and which of the tools our capabilities allow. The figures are those of the report that
every reader sees.
"""

from datetime import UTC, datetime
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import ContextReport
from mew_protocol.envelope import unix_seconds
from mew_protocol.figure_age import old_figure, span
from mew_protocol.payloads.participant import CompactDone, Status, basis_words
from mew_protocol.quoting import one_line

from mew_agent.model.interface import ToolSpec
from mew_agent.participant.controls import NOTHING_TO_DO
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.tools.functions import ToolCallFailed
from mew_agent.tools.sources import FunctionTools

CONTEXT_BOARD: Final = "context_board"
REQUEST_COMPACTION: Final = "request_compaction"
WAIT_FOR_HEADROOM: Final = "wait_for_headroom"
BOARD_TOOLS: Final = (CONTEXT_BOARD, REQUEST_COMPACTION, WAIT_FOR_HEADROOM)

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
        may_compact = self._may(kinds.PARTICIPANT_COMPACT)
        if not may_compact and not self._may(kinds.PARTICIPANT_REQUEST_STATUS):
            return ()
        return tuple(spec for spec in super().specs() if may_compact or spec.name != REQUEST_COMPACTION)

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
        return _outcome(peer, await self._me.compact(peer, reason=reason, target_tokens=target_tokens))

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

    def _may(self, kind: str) -> bool:
        """Return whether we may send such a control to any participant."""
        return any(self._me.may_send(kind, {}, (name,)) for name in (self._me.id, *self._me.peers))

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
    if report.last_compaction is not None and report.last_compaction.freed_tokens is not None:
        words.append(f"last compaction freed {report.last_compaction.freed_tokens:,}")
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


def _outcome(peer: str, done: CompactDone) -> str:
    if done.skipped:
        reason = (done.reason or "no reason given").replace("_", " ")
        return f"{peer} {'did not' if done.reason in NOTHING_TO_DO else 'failed to'} compact: {reason}"
    now = f"; now {done.tokens_after:,} tokens" if done.tokens_after is not None else ""
    basis = f" ({done.basis.replace('_', ' ')})" if done.basis else ""
    freed = f"{done.freed_tokens:,} tokens" if done.freed_tokens is not None else "an unreported number of tokens"
    return f"{peer} freed {freed}{now}{basis}"
