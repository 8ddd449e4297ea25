"""The context of a participant whose conversation is outside this package: reported figures, and handlers.

Owns the checks of reports, the known figures during and after a compaction, and the refusals of controls: those without
a handler, and those for a history kept here. Sends nothing.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import anyio
from mew_protocol.context_report import (
    AgentMode,
    ContextReport,
    LastCompaction,
    LastReported,
    Measure,
    QueuedMessages,
    SenderSpending,
    Spending,
    UnknownReason,
    Waiting,
    report_time,
)
from mew_protocol.payloads.participant import (
    Compact,
    CompactDone,
    Forget,
    Status,
)
from mew_protocol.payloads.read_receipts import InContext
from mew_protocol.status_word import StatusWord, status_word

from mew_agent.errors import ControlImpossible, InvalidReport, described
from mew_agent.participant.compaction_driver import Begun, CompactionDriver, Requester, no_news
from mew_agent.participant.controls import Archive, Controllable, PinKeeper, waiting_status
from mew_agent.participant.messenger import timestamp
from mew_agent.participant.peers import PeerContext
from mew_agent.tools.functions import run_function

if TYPE_CHECKING:
    from mew_agent.context.policy.reported_levels import ReportedLevels
    from mew_agent.model.usage import Usage

logger = logging.getLogger(__name__)

ReportedBasis = Literal["reported", "agent_reported", "provisional"]
"""The source of a program's figure: the provider's usage, the agent's own report, or a call that may not belong to the
agent's main conversation."""

MAX_SHOWN_CHARS: Final = 300
"""How much of a usage object that cannot be read an error shows."""

GROWTH_PERCENT: Final = 5
"""Percentage of its window by which a context grows between two compactions that are of use."""

NO_CONTEXT: Final = "this participant has no context"
KEPT_ELSEWHERE: Final = "the agent's own program keeps its history: nothing can be pinned, undone or searched in it"

Handler = TypeVar("Handler")

CompactHandler = Callable[[Compact], Awaitable[CompactDone | None] | CompactDone | None]
ForgetHandler = Callable[[Forget], Awaitable[int | None] | int | None]
ClearHandler = Callable[[], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """One report: the size in tokens, how it is known, and when it was measured (ISO 8601)."""

    tokens: int
    basis: ReportedBasis
    measured_at: str
    usage: "Usage | None" = None
    window: int | None = None
    messages: int | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidReport` naming the wrong argument, for impossible figures."""
        for name, least in (("tokens", 1), ("window", 1), ("messages", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidReport(name, f"{value!r} is not possible", f"a whole number of {least} or more")
        if self.usage is not None and self.tokens < self.usage.prompt_tokens:
            raise InvalidReport("tokens", f"{self.tokens} is below the prompt of {self.usage.prompt_tokens} tokens")
        if self.basis not in get_args(ReportedBasis):
            raise InvalidReport("basis", f"{self.basis!r} is not known", " or ".join(get_args(ReportedBasis)))
        if not isinstance(self.model, str | None):
            raise InvalidReport("model", f"{self.model!r} is not a name", "a text")
        _time(self.measured_at)


def _checked_usage(usage: object, window: int | None) -> "Usage | None":
    if usage is None:
        return None
    from mew_agent.model.usage import implausibility, usage_from

    read = usage_from(usage)
    problem = "no usage" if read is None else implausibility(read, window_tokens=window)
    if problem is not None:
        shown, expected = repr(usage)[:MAX_SHOWN_CHARS], "the usage object of one call, with its prompt and completion"
        raise InvalidReport("usage", f"no call has these figures: {shown} ({problem})", expected)
    return read


def _time_after(previous: str, measured_at: str | None, now: str) -> str:
    """Return the time of a report after a previous one. Raises `InvalidReport` if it names an earlier time."""
    if measured_at is None:  # a report stays the newest even if the clock was set back
        return max(now, previous, key=_time)
    if _time(measured_at) < _time(previous):
        raise InvalidReport("measured_at", f"{measured_at} is older than the last report", previous)
    return measured_at


def _time(at: str) -> datetime:
    try:
        return report_time(at)
    except (TypeError, ValueError):
        expected = "ISO 8601 with a time zone: 2026-01-31T12:00:00Z"
        raise InvalidReport("measured_at", f"{at!r} is not a time", expected) from None


class ExternalContext(Controllable):
    """The context of a participant that is not an `Agent`. Before the first report it has no figures."""

    def __init__(self) -> None:
        self.on_compact: CompactHandler | None = None
        self.on_forget: ForgetHandler | None = None
        self.on_clear: ClearHandler | None = None
        self.on_changed: Callable[[InContext], None] = lambda _: None
        """Takes the form in which the context holds everything read before: `unknown` or `gone`."""
        self.refuses_with: str | None = None
        """The answer to a control that is refused, if it is not the usual one."""
        self.handler_timeout_seconds = 300.0
        """How long a handler of a control may take."""
        self.shows_level = True
        """Whether reports have a level; False if nothing should act on the figures."""
        self.compact_at_percent: int | None = None
        """The part of the window at which we ask for a compaction ourselves."""
        self.waiting: tuple[Waiting, ...] = ()
        self.spending: Spending | None = None
        """The cost of the model calls so far, as far as our program knows."""
        self.spent_for: tuple[SenderSpending, ...] = ()
        """Our program's spending for each sender."""
        self.failing: StatusWord | None = None
        """The status of an event handler that failed last; None if all work."""
        self.figures: Figures | None = None
        """The last accepted report."""
        self.window: int | None = None
        """The window as configured; reports that name another one replace it."""
        self._last_reported: LastReported | None = None
        """The figure of an earlier process."""
        self._unknown: UnknownReason | None = None
        """Why the size is now unknown, independent of earlier reports."""
        self._size: int | None = None
        """The known size, without figures that were reported during a compaction: these may be from its end."""
        self._revision = 0
        self.compacting = CompactionDriver(
            is_stalled=lambda: self.is_stalled,
            ended=self._compaction_ended,
            is_due=lambda: self._full_figures() is not None,
            run_due=self.compact_if_full,
        )
        self._one_check = anyio.Lock()
        self._full_at: int | None = None
        """The first size after our last compaction; 0 until the program reports it, None before the first one."""
        self._compactions = 0
        self._last_compaction: LastCompaction | None = None
        self.measure: Measure | None = "total"
        """The kind of the figures; None if unknown."""
        self.queued: QueuedMessages | None = None
        """The chats that are not in the context yet; None if they are not counted."""
        self.reply_tokens: int | None = None
        """Tokens that an uncounted reply adds to the next request, by its text alone."""
        self.mode: AgentMode | None = None
        """The mode in which our program works, if it has modes."""
        self._is_unjudged = False
        """Whether the result of the last compaction is still unknown."""
        self._smallest: int | None = None
        self._largest: int | None = None
        """The sizes since the last compaction, figures in the middle of a turn included."""

    @cached_property
    def _levels(self) -> "ReportedLevels":
        # Created here, because a participant without figures needs no policy, and its models take time to build.
        from mew_agent.context.policy.reported_levels import ReportedLevels

        return ReportedLevels()

    # -- what the program reports ------------------------------------------------------------------------

    def report(
        self,
        tokens: int | None,
        usage: object = None,
        *,
        basis: ReportedBasis,
        now: str,
        measured_at: str | None = None,
        window: int | None = None,
        messages: int | None = None,
        model: str | None = None,
    ) -> None:
        """Replace the figures. The first report after a compaction completes `last_compaction`. Raises `InvalidReport`.

        Omitted values stay as reported before. `usage` is a usage object as `usage_from` reads it. A sum over several
        calls is `provisional`.
        """
        previous = self.figures
        window = self._known_window if window is None else window
        read = _checked_usage(usage, window)
        if read is not None and not read.is_plain:
            basis = "provisional"
        if tokens is None:
            if read is None:
                raise InvalidReport("tokens", "neither `tokens` nor `usage` was given", "one of them, or `unknown`")
            tokens = read.total_tokens
        at = measured_at or now
        if previous is not None:
            at = _time_after(previous.measured_at, measured_at, now)
            messages, model = previous.messages if messages is None else messages, model or previous.model
        self.figures = Figures(
            tokens, basis, at, read, window, messages, model
        )  # before any other change: it may raise
        if previous is not None and (window or 0) > (previous.window or 0):
            self._levels.window_grew()
        self._measure_last_compaction(tokens)
        self.note_size(tokens)
        if not self.compacting.is_running:
            self._unknown, self._size = None, tokens
        self._revision += 1

    @property
    def _known_window(self) -> int | None:
        """The window of the last report; before the first one, the configured window."""
        return self.window if self.figures is None else self.figures.window

    def _measure_last_compaction(self, tokens: int) -> None:
        """Complete the last compaction with the size after it."""
        last = self._last_compaction
        if last is None or self.compacting.is_running:
            return
        if self._unknown == "compacted" and last.freed_tokens is None and last.tokens_before:
            freed = max(0, last.tokens_before - tokens)
            # The new size includes the next turn, so this is the least number of freed tokens.
            self._last_compaction = last.model_copy(
                update={"tokens_after": tokens, "freed_tokens": freed, "basis": "projected"}
            )
        if self._is_unjudged:
            self._judge_compaction(progressed=last.tokens_before is None or tokens < last.tokens_before)

    def restart_after(self, last: PeerContext | None) -> bool:
        """Continue with the last context of an earlier process (None without one).

        Returns whether to announce that the size is unknown, with the earlier figure.
        """
        if self.figures is None and self._last_reported is None and last is not None and last.report is not None:
            self._last_reported = last.report.last_reported
            if last.tokens:
                at = last.report.measured_at or last.at
                self._last_reported = LastReported(tokens=last.tokens, measured_at=at, call_id=last.report.call_id)
            if self._last_reported is not None:
                self.forget_figures("restarted")
        return self.figures is None and self._unknown is not None

    def note_size(self, tokens: int) -> None:
        """Note an unreported size, such as one in the middle of a turn. It shows whether a compaction helped."""
        if not self.compacting.is_running:
            self._smallest = min(tokens, self._smallest or tokens)
            self._largest = max(tokens, self._largest or tokens)

    def _judge_by_growth(self) -> None:
        """Judge the last compaction by the context's growth since then."""
        window = self.figures.window if self.figures is not None else None
        grown = (self._largest or 0) - (self._smallest or 0)
        self._judge_compaction(progressed=grown * 100 > GROWTH_PERCENT * (window or 0))

    def _judge_compaction(self, *, progressed: bool) -> None:
        self._levels.compacted(progressed=progressed)
        self._is_unjudged = False

    @property
    def is_stalled(self) -> bool:
        """Whether several compactions in a row did not help."""
        return self._levels.is_stalled

    def forget_figures(self, reason: UnknownReason) -> None:
        """Treat the size as unknown until the next report. Raises `InvalidReport` for a reason without a meaning."""
        if reason not in get_args(UnknownReason):
            raise InvalidReport("unknown", f"{reason!r} is not known", " or ".join(get_args(UnknownReason)))
        self._unknown, self._size = reason, None
        self._revision += 1
        if reason in ("compacted", "cleared"):
            self.on_changed("unknown" if reason == "compacted" else "gone")

    @property
    def known(self) -> Figures | None:
        """The valid figures; None while the size is unknown."""
        return None if self._unknown is not None or self.compacting.is_running else self.figures

    def _compaction_ended(self, trigger: str, reason: str | None, done: CompactDone) -> None:
        """Record how the compaction ended. Unless it was skipped, the size is unknown until the next report."""
        if done.skipped:
            return
        if self._is_unjudged:  # a whole compaction after the last one, without a finished turn between them
            self._judge_by_growth()
        self._smallest = self._largest = None
        self._is_unjudged = done.freed_tokens is None
        if done.freed_tokens is not None:
            self._judge_compaction(progressed=done.freed_tokens > 0)
        before = self._size if done.tokens_before is None else done.tokens_before
        self._compactions += 1
        self._last_compaction = LastCompaction(
            at=timestamp(),
            trigger=trigger,
            tokens_before=before,
            tokens_after=done.tokens_after,
            freed_tokens=done.freed_tokens,
            freed_messages=done.freed_messages,
            basis=done.basis or "projected",
            reason=reason,
        )
        self._drop_messages(done.freed_messages)
        self.forget_figures("compacted")

    def _drop_messages(self, count: int | None) -> None:
        """Subtract messages that left the context from the last reported number (None: their number is unknown)."""
        if self.figures is not None and self.figures.messages is not None and count is not None:
            self.figures = replace(self.figures, messages=max(0, self.figures.messages - max(0, count)))

    # -- Controllable ------------------------------------------------------------------------------------

    @property
    def pins(self) -> PinKeeper:
        raise self._without_history

    @property
    def archive(self) -> Archive:
        raise self._without_history

    @property
    def _without_history(self) -> ControlImpossible:
        return ControlImpossible(self.refuses_with or (NO_CONTEXT if self._report() is None else KEPT_ELSEWHERE))

    def _known(self, handler: Handler | None) -> Handler:
        """Return the program's handler. Raises `ControlImpossible` without one."""
        if handler is None:
            raise ControlImpossible(self.refuses_with or "not_supported")
        return handler

    def status(self, word: StatusWord | None = None) -> Status:
        word, figures, report = word or self._default_word(), self.figures, self._report()
        if report is None:
            return Status(messages_in_context=0, status=str(word))
        known = figures is not None and report.basis != "unknown"
        return Status(
            messages_in_context=(figures.messages if figures else None) or 0,
            tokens=figures.tokens if figures is not None and known else None,
            max_tokens=figures.window if figures else self.window,
            status=str(word),
            context=report,
        )

    def _default_word(self) -> StatusWord:
        stalled = status_word("compaction_stalled" if self.is_stalled else "active")
        failing = None if self.compacting.is_running else self.failing
        return failing or self.compacting.word or waiting_status(self.waiting) or stalled

    async def compact(self, request: Compact, requester: Requester | None = None) -> CompactDone:
        work = partial(self._call_compact_handler, self._known(self.on_compact), request)
        trigger = "compact_at" if requester is None else "requested"
        return await self.compacting.run(trigger, request.reason, work, requester)

    async def _call_compact_handler(self, handler: CompactHandler, request: Compact, begun: Begun) -> CompactDone:
        await begun()
        with anyio.move_on_after(self.handler_timeout_seconds):
            try:
                answer = await run_function(partial(handler, request), {})
            except Exception as error:  # requesters wait for an answer, even after an unexpected error
                logger.exception("a handler of compactions failed")
                return CompactDone.as_skipped(described(error))
            return answer if isinstance(answer, CompactDone) else CompactDone(status="compacted")
        return CompactDone.as_skipped("timeout")

    async def forget(self, request: Forget, asked_by: str | None = None, begun: Begun = no_news) -> int:
        handler = self._known(self.on_forget)
        await begun()
        with anyio.fail_after(self.handler_timeout_seconds):
            answer = await run_function(partial(handler, request), {})
        count = answer if isinstance(answer, int) else 0
        self._drop_messages(count)
        self.forget_figures("compacted")
        return count

    async def clear(self, asked_by: str | None = None, reason: str | None = None, begun: Begun = no_news) -> None:
        handler = self._known(self.on_clear)
        await begun()
        with anyio.fail_after(self.handler_timeout_seconds):
            await run_function(handler, {})
        self._levels.cleared()
        self._full_at = None
        self._is_unjudged = False
        self._drop_messages(self.figures.messages if self.figures is not None else None)
        self.forget_figures("cleared")

    # -- compactions at a percentage ---------------------------------------------------------------------

    def _full_figures(self) -> Figures | None:
        """Return the figures if a compaction is due: the context is full and has grown since the last compaction."""
        known, percent = self.known, self.compact_at_percent
        if percent is None or known is None or known.window is None or not self.shows_level or self.is_stalled:
            return None
        if self._full_at == 0:  # the first figure since our last compaction
            self._full_at = known.tokens
        grown = known.window if self._full_at is None else known.tokens - self._full_at
        is_full = known.tokens * 100 >= percent * known.window
        return known if is_full and grown * 100 >= GROWTH_PERCENT * known.window else None

    async def compact_if_full(self) -> None:
        """Compact after a turn, if due. Postpone it while too many other agents compact."""
        # A late figure and the end of its turn both check; the second check must see the effect of the first.
        async with self._one_check:
            if self._full_figures() is None or not await self.compacting.may_begin():
                return
            known = self._full_figures()
            if known is not None:
                done = await self.compact(Compact(reason=f"{self.compact_at_percent} % of its window"))
                self._full_at = known.tokens if done.skipped else 0

    # -- the report --------------------------------------------------------------------------------------

    def _report(self) -> ContextReport | None:
        figures, window = self.figures, self._known_window
        reason: UnknownReason | None = "compacted" if self.compacting.is_running else self._unknown
        if figures is None and reason is None and not self.waiting and self.queued is None:
            return None
        known, last = self._lasting_keys(), self._last_reported
        if figures is not None:
            known["measured_at"], known["model"] = figures.measured_at, figures.model
            if window is not None and self.compact_at_percent is not None:
                known["compact_at_tokens"] = window * self.compact_at_percent // 100
            if reason is None:
                return ContextReport(basis=figures.basis, **known, **self._keys_of(figures))
            last = LastReported(tokens=figures.tokens, measured_at=figures.measured_at)
        return ContextReport(basis="unknown", reason=reason or "no_call_yet", last_reported=last, **known)

    def _lasting_keys(self) -> dict[str, Any]:
        """Return the report keys that need no figures."""
        return {
            "measure": self.measure,
            "mode": self.mode,
            "queued": self.queued,
            "policy": self._levels.name if self.shows_level else None,
            "revision": self._revision,
            "compactions": self._compactions,
            "last_compaction": self._last_compaction,
            "waiting": self.waiting or None,
            "spending": self.spending,
            "spent_for": self.spent_for or None,
            "max_tokens_basis": None if self._known_window is None else "agent_reported",
        }

    def _keys_of(self, figures: Figures) -> dict[str, Any]:
        """Return the report keys that are valid only with the figures."""
        keys: dict[str, Any] = {}
        if (usage := figures.usage) is not None:
            keys["prompt_tokens"], keys["completion_tokens"] = usage.prompt_tokens, usage.completion_tokens
            keys["reasoning_tokens"], keys["cached_tokens"] = usage.reasoning_tokens, usage.cached_tokens
        if self.reply_tokens is not None:
            keys |= {"next_prompt_tokens": figures.tokens + self.reply_tokens, "next_prompt_basis": "heuristic"}
        if self.shows_level:
            level, severity = self._levels.level_of(figures.tokens, figures.basis, figures.window)
            keys |= {"level": level, "severity": "unknown" if severity is None else severity}
        return keys
