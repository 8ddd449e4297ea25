"""Ask an ACP agent to compact at a percentage of its window, at the end of a turn.

Owns when that is due: the context has reached the percentage, and has grown since the last compaction. Does not know
how the agent compacts, nor how many agents may compact at the same time; see `StaggeredCompactions`.
"""

from collections.abc import Awaitable, Callable

import anyio
from mew_protocol.payloads.participant import Compact
from mew_protocol.status_word import status_word

from mew_agent.participant.external_context import GROWTH_PERCENT, STALLED_STATUS, Figures
from mew_agent.participant.participant import Participant


class OwnCompactions:
    """The compactions of one agent at `percent` of its window (None: never); see `CompactsItself`."""

    def __init__(self, me: Participant, percent: int | None) -> None:
        self._me, self._percent = me, percent
        self.may_compact: Callable[[], Awaitable[bool]]
        self.waits_to_compact = False
        self._one_check = anyio.Lock()
        self._full_at: int | None = None
        """The first size after our last compaction; 0 until the agent reports it."""

    def clear(self) -> None:
        """Forget the last compaction: the agent has a new session."""
        self._full_at = None

    @property
    def is_compacting(self) -> bool:
        """See `CompactsItself`."""
        return self._me.external_context.is_compacting

    @property
    def has_pending_compaction(self) -> bool:
        """See `CompactsItself`."""
        return self._full_figures() is not None

    def _full_figures(self) -> Figures | None:
        """Return the figures if a compaction is due, else None."""
        context = self._me.external_context
        known = context.known
        if self._percent is None or known is None or known.window is None or context.policy is None:
            return None
        if context.is_stalled:
            return None
        if self._full_at == 0:  # the first figure since our last compaction
            self._full_at = known.tokens
        grown = known.window if self._full_at is None else known.tokens - self._full_at
        is_full = known.tokens * 100 >= self._percent * known.window
        return known if is_full and grown * 100 >= GROWTH_PERCENT * known.window else None

    async def apply_pending(self) -> None:
        """Ask for a compaction if it is due. While too many other agents compact, it is postponed."""
        # A late figure and the end of its turn ask at once; the second must see what the first has done.
        async with self._one_check:
            if self._full_figures() is None or not await self.may_compact():
                return
            known = self._full_figures()
            if known is None:
                return
            context, request = self._me.external_context, Compact(reason=f"{self._percent} % of its window")
            context.prepare_compaction(request)
            await self._me.control.announce(status_word("compacting"))
            done = await context.compact(request)
            if done.skipped:
                await self._me.control.announce(status_word("compaction_failed", done.reason))
                self._full_at = known.tokens
            else:
                await self._me.control.announce(status_word("compacted"))
                self._full_at = 0
                if context.is_stalled:
                    await self._me.control.announce(STALLED_STATUS)
