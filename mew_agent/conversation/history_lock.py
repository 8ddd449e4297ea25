"""Who may touch the history: a running call holds it, and whoever wants to change it waits until between two calls.

Owns the bound of that waiting. It knows no history and no call, only how to interrupt one.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio


class HistoryLock:
    """See the module. `interrupt` makes the running call end soon; its maker makes it again."""

    def __init__(self, interrupt: Callable[[], None], bound_seconds: float) -> None:
        self.lock = anyio.Lock()
        """What a call, and a compaction that follows one, hold without a bound."""
        self._interrupt = interrupt
        self._bound_seconds = bound_seconds

    @asynccontextmanager
    async def between_calls(self) -> AsyncIterator[None]:
        """Hold the history between two calls; a call that runs past the bound is interrupted."""
        with anyio.move_on_after(self._bound_seconds) as wait:
            await self.lock.acquire()
        if wait.cancelled_caught:
            self._interrupt()
            await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()
