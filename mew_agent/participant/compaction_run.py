"""The compaction of one context that runs now, whichever engine has the context.

Owns whether a compaction runs or is held up, what began it, how far it is, who waits for it, and its status word. Does
not know how a context is compacted, and sends nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
from mew_protocol.status_word import StatusWord, status_word

News = Callable[[], Awaitable[object]]


async def no_news() -> None:
    """Tell nobody."""


CompactionStep = Literal["started", "completed", "failed"]
"""How far a compaction is that another program carries out."""


class CompactionRun:
    """The compactions of one context; at most one runs."""

    def __init__(self) -> None:
        self.trigger: str | None = None
        """What began the compaction that runs; None if none runs."""
        self.reason: str | None = None
        self.step: CompactionStep | None = None
        """The last step that the program reported of the compaction that runs."""
        self.is_held_up = False
        """Whether a compaction that is due waits until fewer other agents compact."""
        self._changed = anyio.Event()

    @property
    def is_running(self) -> bool:
        """Whether a compaction runs, or waits for the running call."""
        return self.trigger is not None

    @property
    def word(self) -> StatusWord | None:
        """The status word of a context that compacts, or has to; None for any other."""
        waiting = status_word("compaction_waiting") if self.is_held_up else None
        return status_word("compacting") if self.is_running else waiting

    def begin(self, trigger: str, reason: str | None = None) -> None:
        """Record that a compaction runs. One that is held up stays so: a request may have nothing to do."""
        self.trigger, self.reason, self.step = trigger, reason, None

    def follow(self, step: CompactionStep) -> None:
        """Record a step that the program reported, and wake those who wait for it."""
        self.step = step
        self._wake()

    def end(self) -> None:
        """Record that no compaction runs any more, and wake those who wait for that."""
        self.trigger = self.reason = None
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this holds; it is checked after each step and at the end."""
        while not is_so():
            await self._changed.wait()
