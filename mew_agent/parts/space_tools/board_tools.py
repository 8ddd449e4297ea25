"""A model's tools for reading the board, requesting compactions, and waiting for room.

The figures come from the reports that everyone sees. Offers only the tools that our capabilities allow.
"""

from datetime import UTC, datetime
from typing import Final

import anyio
from mew_board.words import compaction_answer, report_line
from mew_protocol import kinds
from mew_protocol.payloads.participant import BoardEntry

from mew_agent.config.agent_config import AgentConfig
from mew_agent.model.interface import ToolSpec
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext
from mew_agent.tools.functions import ToolCallFailed
from mew_agent.tools.sources import FunctionTools

REQUEST_COMPACTION: Final = "request_compaction"

WAIT_SECONDS: Final = 60.0
MAX_WAIT_SECONDS: Final = 240.0


def board_tools(me: Participant, config: AgentConfig) -> "BoardTools | None":
    """Return the tools, unless they are switched off."""
    return BoardTools(me) if config.board_tools else None


class BoardTools(FunctionTools):
    """The source of these tools; see `ToolSource`."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._changed = anyio.Event()
        super().__init__(self.context_board, self.request_compaction, self.wait_for_headroom)
        me.on_context(self._wake_waiting)
        me.on(kinds.SYSTEM_PRESENCE)(self._wake_waiting)

    def specs(self) -> tuple[ToolSpec, ...]:
        """See `ToolSource`. Offers the board to agents that may request reports or compactions."""
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
        lines = [f"{one.id}{' (you)' if one.id == me.id else ''}: {_line(one)}" for one in reporting]
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
                    return f"{peer} has room for {room:,} tokens: {_line(self._known(peer))}"
                await changed.wait()
        known = self._known(peer)
        room = headroom_tokens(known.context)
        problem = "its room is unknown" if room is None else f"it has room for only {room:,} tokens"
        raise ToolCallFailed(f"waited {bound_seconds:g} seconds for '{peer}': {problem} ({_line(known)})")

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


def _line(peer: Peer) -> str:
    context = peer.context
    entry = BoardEntry(
        id=peer.id, connected=True, status=context.as_status(), figure_at=context.at, outdated=context.outdated
    )
    return report_line(entry, datetime.now(UTC))


def _has_context(context: PeerContext) -> bool:
    return context.report is not None or bool(context.tokens)
