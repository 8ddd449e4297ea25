"""The compactions of one context, with any engine: one at a time, all announced in the same way.

Owns the state of the running compaction: its trigger, progress, waiting tasks, and statuses. Does not compact, or
decide when to.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import anyio
from mew_protocol.payloads.participant import CompactDone
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.errors import described

logger = logging.getLogger(__name__)

Begun = Callable[[], Awaitable[object]]
Work = Callable[[Begun], Awaitable[CompactDone]]
"""Compacts, and returns the answer, with failures. Calls its argument as soon as it is clear that it has work to do."""

Announce = Callable[[StatusWord | None, tuple[str, ...]], Awaitable[object]]
"""Announces the current status with this word or the usual one; it refers to these envelopes."""

CompactionStep = Literal["started", "completed", "failed"]
"""How far a compaction is that another program carries out."""

IN_PROGRESS: Final = "compaction_in_progress"
NOT_NEEDED: Final = "not_needed"
"""The context changed before the compaction began, so nothing has to be announced."""

NOTHING_TO_DO: Final = frozenset({"no_history", IN_PROGRESS, "already_below_target", "not_supported", "not_owner"})
"""Reasons to skip a compaction that are not failures, unless a policy decided that it has to be."""

STALLED_STATUS: Final = status_word("compaction_stalled", "compacting does not free enough")


async def no_news(*_: object) -> None:
    """Ignore the news."""


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Requester:
    """The participant that requested a compaction, the ids for the statuses, and the function that answers it."""

    id: str
    about: tuple[str, ...] = ()
    answer: Callable[[CompactDone], Awaitable[object]] = no_news
    unchanged: StatusWord | None = None
    """The status if there was nothing to do; None: the usual one."""


class CompactionDriver:
    """The compactions of one context; at most one runs."""

    def __init__(
        self,
        announce: Announce = no_news,
        *,
        is_stalled: Callable[[], bool] = lambda: False,
        ended: Callable[[str, str | None, CompactDone], object] = lambda *_: None,
        skipped: Callable[[str], CompactDone] = CompactDone.as_skipped,
        is_due: Callable[[], bool] = lambda: False,
        run_due: Callable[[], Awaitable[object]] = no_news,
    ) -> None:
        """`ended` records the end of each compaction, with its trigger and reason, before the announcement.

        `skipped` returns the answer to a request that changed nothing, for a reason. `run_due` runs a due compaction
        without a request, if `may_begin` allows it.
        """
        self.announce, self.skipped, self.is_due, self.run_due = announce, skipped, is_due, run_due
        self.may_begin: Callable[[], Awaitable[bool]] = _always
        """Whether a compaction that can wait may begin now; asked between two tasks."""
        self._is_stalled, self._ended = is_stalled, ended
        self.trigger: str | None = None
        """The trigger of the running compaction; None if none runs."""
        self._reason: str | None = None
        self._is_announced = False
        """Whether it is known that the compaction that runs has work to do."""
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
        """The status word of a context that compacts or must compact; None for any other."""
        waiting = status_word("compaction_waiting") if self.is_held_up else None
        return status_word("compacting") if self._is_announced else waiting

    # -- one compaction ----------------------------------------------------------------------------------

    async def run(
        self, trigger: str, reason: str | None, work: Work, requester: Requester | None = None
    ) -> CompactDone:
        """Let `work` compact, unless a compaction runs. Answers the requester, and announces the start and the end.

        An error of `work` ends the compaction. It is sent to the requester, or raised without one.
        """
        done, is_first, about = self.skipped(IN_PROGRESS), not self.is_running, requester.about if requester else ()
        if is_first:
            self.begin(trigger, reason)
            done = self.skipped("failed")
            try:
                done = await work(partial(self.announce_begin, about))
            except Exception as error:
                done = self.skipped(described(error))
                if requester is None:
                    raise
                logger.exception("a compaction failed")
            finally:
                self.end(done)
        try:
            if requester is not None:
                await requester.answer(done)
        finally:
            # A running compaction announces its own end.
            if done.reason != NOT_NEEDED and (is_first or not self.is_running):
                await self._announce_end(trigger, done, requester)
        return done

    def begin(self, trigger: str, reason: str | None = None) -> None:
        """Record that a compaction runs. A postponed one stays postponed, because a request may change nothing."""
        self.trigger, self._reason, self.step, self._is_announced = trigger, reason, None, False

    async def announce_begin(self, about: tuple[str, ...] = ()) -> None:
        """Announce that a compaction runs."""
        self._is_announced = True
        await self.announce(status_word("compacting"), about)

    async def finish(self, done: CompactDone) -> None:
        """Record and announce the end of a compaction that was begun with `begin`."""
        trigger = self.trigger or ""
        self.end(done)
        await self._announce_end(trigger, done)

    def end(self, done: CompactDone) -> None:
        """Record the end of the compaction, and wake the waiting tasks."""
        trigger, reason, self.trigger, self._reason = self.trigger or "", self._reason, None, None
        self._is_announced = False
        self._ended(trigger, reason, done)
        self._wake()

    async def _announce_end(self, trigger: str, done: CompactDone, requester: Requester | None = None) -> None:
        about = requester.about if requester is not None else ()
        is_policys = trigger not in ("requested", "compact_at", "agent")
        if not done.skipped:
            await self.announce(status_word("compacted"), about)
            if self._is_stalled():
                await self.announce(STALLED_STATUS, ())
        elif done.reason in NOTHING_TO_DO and not is_policys:
            await self.announce(requester.unchanged if requester is not None else None, about)
        else:
            word = "compaction_stalled" if is_policys and self._is_stalled() else "compaction_failed"
            await self.announce(status_word(word, done.reason), about)

    # -- waiting -----------------------------------------------------------------------------------------

    def note_step(self, step: CompactionStep | None) -> None:
        """Record a progress step of the program (None: a new compaction), and wake the waiting tasks."""
        self.step = step
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds; check it after each step and at the end."""
        while not is_so():
            await self._changed.wait()

    async def wait_until_idle(self) -> None:
        """Wait until no compaction runs."""
        await self.wait_until(lambda: not self.is_running)
