"""[pure] The newest measured size of a context: the report, its time and items, and the growth.

Owns the transitions of `tokens` and its basis. Does not know prices of items or policies.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from mew_protocol.context_report import Basis, LastReported, UnknownReason

from mew_agent.context.history import Item
from mew_agent.context.item_sizes import ItemSize
from mew_agent.context.persisted_state import CallRecord, SavedContext
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration

TREND_TURNS = 8  # number of recent turns in the trend
TASKS, FEWEST_TASKS = 20, 5  # number of recent turns that show the size of a usual task, and the minimum number
USUAL_SHARE = (9, 10)  # the share of these turns that are no larger than a usual task

_SEQ: Callable[[Item], int] = attrgetter("seq")


@dataclass
class TurnGrowth:
    """Growth of the reported total over the recent turns; calls of one turn count as one."""

    growth: deque[int] = field(default_factory=lambda: deque(maxlen=TASKS))
    """Tokens that each of the recent turns added; those of an earlier process too."""
    tokens_per_turn: float | None = None
    """Mean growth of the recent turns; None until this process has compared two calls."""

    _turn: int | None = None
    _last_tokens: int | None = None

    def add(self, total_tokens: int, *, turn: int) -> None:
        """Add the reported total of a call in this turn."""
        if self._last_tokens is not None:
            grown = total_tokens - self._last_tokens
            if self._turn == turn and self.growth:
                self.growth[-1] += grown
            else:
                self.growth.append(grown)
            self._turn, recent = turn, list(self.growth)[-TREND_TURNS:]
            self.tokens_per_turn = sum(recent) / len(recent)
        self._last_tokens = total_tokens

    def interrupt(self) -> None:
        """Restart from the next report, because something left the context."""
        self._last_tokens = None

    def reset(self) -> None:
        """Forget all turns."""
        self.growth.clear()
        self._turn = self._last_tokens = self.tokens_per_turn = None

    @property
    def usual_task_tokens(self) -> int | None:
        """The size that 9 of 10 recent turns did not exceed, in tokens; None until some turns have ended."""
        if len(self.growth) < FEWEST_TASKS:
            return None
        numerator, denominator = USUAL_SHARE
        return max(0, sorted(self.growth)[len(self.growth) * numerator // denominator])


@dataclass
class KeptReply:
    """The reply of the newest kept call: in its reported total, but not yet in a prompt."""

    tokens: int = 0  # its share of the total
    hidden_tokens: int = 0  # reasoning in it that is not sent again
    seq: int | None = None
    is_awaited: bool = False  # its call was kept, but its item is not added yet

    def identify(self, size: ItemSize, calibration: Calibration) -> bool:
        """Treat an added item as the expected reply. Returns whether one was expected."""
        if not self.is_awaited:
            return False
        self.is_awaited, self.seq = False, size.seq
        visible = size.sized_tokens(calibration)
        if visible is None:
            visible = min(self.tokens, calibration.project(size.features, messages=0))
        self.hidden_tokens = max(0, self.tokens - visible)
        return True

    @property
    def figures(self) -> tuple[int, int, int] | None:
        """The reply's seq, its share of the total and its hidden tokens; None without a reply."""
        return None if self.seq is None else (self.seq, self.tokens, self.hidden_tokens)

    def is_in(self, first_seq: int, last_seq: int) -> bool:
        """Return whether the reply is among these items."""
        return self.seq is not None and first_seq <= self.seq <= last_seq


@dataclass
class Measurement:
    """The size of the context as last measured. `tokens` is None if it is unknown; `reason` says why."""

    tokens: int | None = None
    basis: Basis = "unknown"
    reason: UnknownReason | None = "no_call_yet"
    usage: Usage | None = None
    measured_at: str | None = None
    call_id: str | None = None
    served_model: str | None = None  # the model of this report
    revision: int = 0  # the revision of the history that was measured
    last_seq: int = -1
    """The newest item that was measured; `reply_seq` is that of the reply, which the total includes too."""
    reply_seq: int | None = None
    spent_since_clear: int = 0  # tokens of all main calls since the last clear; `Spending` has those of all calls
    reply: KeptReply = field(default_factory=KeptReply)
    trend: TurnGrowth = field(default_factory=TurnGrowth)
    is_undecided: bool = False  # whether the newest call reported no usage and the policy has not decided about it yet
    last_reported: LastReported | None = None  # the newest size that a provider reported

    def record(self, usage: Usage, call: CallRecord, *, last_seq: int, turn: int) -> None:
        """Record the usage of a main call that sent all items up to `last_seq`."""
        # A report stays the newest even if the clock was set back.
        before = self.measured_at
        at = call.at if before is None or call.at > before else before
        self.usage, self.call_id, self.measured_at, self.served_model = usage, call.id, at, call.model
        self.revision, self.last_seq, self.reply_seq = call.revision, last_seq, None
        self.tokens, self.basis, self.reason = usage.total_tokens, "reported", None
        self.reply = KeptReply(max(0, usage.total_tokens - usage.prompt_tokens), is_awaited=True)
        if not usage.is_plain:
            # It lacks the rest of the reply, or includes inner calls, so later totals cannot be compared with it.
            self.basis = "provisional"
            self.trend.interrupt()
            return
        self.last_reported = LastReported(tokens=usage.total_tokens, measured_at=at, call_id=call.id)
        self.trend.add(usage.total_tokens, turn=turn)

    def record_missing_usage(self, served_model: str, *, keep_last: bool) -> None:
        """Record a main call without usage. `keep_last` keeps the last size as a projection if the model is the
        same.
        """
        if self.served_model not in (None, served_model):
            # Another model has another tokenizer, so the last size is invalid.
            self.become_unknown("model_changed")
            self.trend.reset()
        elif keep_last and self.tokens is not None:
            self.become(self.tokens, "projected")
        else:
            self.become_unknown("usage_unavailable")

    def become_unknown(self, reason: UnknownReason) -> None:
        """Set the size to unknown."""
        self.tokens, self.basis, self.reason = None, "unknown", reason
        self.reply.hidden_tokens = 0

    def includes(self, seq: int) -> bool:
        """Return whether the reported size includes everything up to this item, and no hidden reasoning."""
        reply = self.reply
        return seq <= self.last_seq or (reply.seq is not None and seq <= reply.seq and not reply.hidden_tokens)

    def become(self, tokens: int, basis: Basis) -> None:
        """Set the size after items left or returned, with its basis."""
        self.tokens, self.basis, self.reason = tokens, basis, None

    def resume(self, tokens: int | None) -> None:
        """Continue with the size from before a clear; None if it was unknown."""
        if tokens is None:
            self.become_unknown("usage_unavailable" if self.last_reported else "no_call_yet")
        else:
            self.become(tokens, "projected")

    def clear(self) -> None:
        """Start over with an empty history."""
        self.become_unknown("cleared")
        self.reply = KeptReply()
        self.spent_since_clear = 0
        self.trend.reset()

    def restore(self, saved: SavedContext) -> None:
        """Restore the measurements of an earlier process. The size stays unknown until the next report."""
        last = saved.last_reported
        if last is not None:
            self.measured_at, self.call_id = last.measured_at, last.call_id
            self.last_reported = last
        self.revision, self.last_seq = saved.measured_revision, saved.measured_seq
        self.reply_seq = saved.measured_reply_seq
        self.served_model, self.spent_since_clear = saved.served_model, saved.spent_tokens
        self.trend.growth.extend(saved.growth)

    def stale_messages(self, items: Sequence[Item]) -> int:
        """Return the number of history items that the measurement does not include."""
        if not items or items[-1].seq <= self.last_seq:
            return 0
        count, reply = len(items) - bisect_right(items, self.last_seq, key=_SEQ), self.reply_seq
        if reply is None:
            return count
        place = bisect_left(items, reply, key=_SEQ)
        return count - (place < len(items) and items[place].seq == reply)
