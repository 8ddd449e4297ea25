"""Token budgets of senders: the tokens spent for each within an hour, and refusals once a budget is spent.

Owns the sums and the limit, and stores them for the next start. Counts tokens as providers or programs report them;
calls without a report are counted separately, never as 0. Makes no call and sends nothing.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from mew_listener.bounded_dict import BoundedDict
from mew_protocol.context_report import SenderSpending, Waiting
from pydantic import NonNegativeInt, TypeAdapter

from mew_agent.context.sqlite_store import Store

HOUR_MINUTES: Final = 60
STORED_AS: Final = "budgets"
MAX_SENDERS: Final = 4_096
"""How many senders' spending is remembered: as many as a space has members."""

MAX_REPORTED: Final = 8
"""How many senders a report names, those with the most tokens first."""

SPENT = (
    "{tokens:,} of {budget:,} tokens per hour are spent for {sender}{unknown}; next messages are answered from {at} on"
)

_Minutes = dict[int, tuple[int, int]]
"""Tokens and unreported calls, by minute since 1970."""

_STORED: Final = TypeAdapter(dict[str, list[tuple[int, NonNegativeInt, NonNegativeInt]]])


class _Hour(NamedTuple):
    """The spending of one sender within the last hour: per minute, and in total."""

    minutes: _Minutes
    tokens: int
    unreported_calls: int


class SenderBudgets:
    """The budget of each sender."""

    def __init__(self, tokens_per_hour: int, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.tokens_per_hour = tokens_per_hour
        self._store = store
        self._clock = clock
        self._spent: BoundedDict[str, _Minutes] = BoundedDict(MAX_SENDERS)

    async def load(self) -> None:
        """Load the spending of an earlier process."""
        for sender, minutes in (await self._store.value(STORED_AS, _STORED) or {}).items():
            self._spent[sender] = {minute: (tokens, calls) for minute, tokens, calls in minutes}

    def add(self, sender: str, tokens: int, unreported_calls: int = 0) -> None:
        """Add tokens spent for a sender now; `store` saves them for the next process."""
        if not tokens and not unreported_calls:
            return
        minutes, now = self._hour(sender).minutes, int(self._clock() // 60)
        known = minutes.get(now, (0, 0))
        minutes[now] = known[0] + tokens, known[1] + unreported_calls
        self._spent[sender] = minutes

    async def record(self, sender: str, tokens: int, unreported_calls: int = 0) -> None:
        """Add tokens spent for a sender now, and store the spending."""
        self.add(sender, tokens, unreported_calls)
        await self.store()

    async def store(self) -> None:
        """Store the spending."""
        listed = {one: [(at, *sums) for at, sums in spent.items()] for one, spent in self._spent.items()}
        await self._store.keep_value(STORED_AS, listed)

    def refusal(self, sender: str) -> str | None:
        """Return the reason to refuse a sender, with the time when the refusal ends; None if its budget has room."""
        _, tokens, calls = self._hour(sender)
        if tokens < self.tokens_per_hour:
            return None
        at = datetime.fromtimestamp(self._frees_at(sender, tokens), UTC).strftime("%Y-%m-%dT%H:%MZ")
        unknown = f" ({calls:,} more calls reported no tokens)" if calls else ""
        return SPENT.format(tokens=tokens, budget=self.tokens_per_hour, sender=sender, unknown=unknown, at=at)

    def seconds_until_next(self) -> float | None:
        """Return the seconds until a refused sender is answered again; None if all are answered."""
        spent = ((sender, self._hour(sender).tokens) for sender in self._spent)
        times = [self._frees_at(sender, tokens) for sender, tokens in spent if tokens >= self.tokens_per_hour]
        return max(0.0, min(times) - self._clock()) if times else None

    @property
    def waits(self) -> tuple[Waiting, ...]:
        """The refused senders, in the form of reports."""
        found = ((sender, self.refusal(sender)) for sender in self._spent)
        refused = [(sender, problem) for sender, problem in found if problem is not None]
        return tuple(
            Waiting(kind="budget", peer=sender, what=problem, since=_time(max(self._hour(sender).minutes) * 60))
            for sender, problem in refused[-MAX_REPORTED:]
        )

    @property
    def reported(self) -> tuple[SenderSpending, ...]:
        """The spending of the last hour, the senders with the most tokens first."""
        sums = {sender: self._hour(sender)[1:] for sender in self._spent}
        most = sorted((one for one in sums.items() if any(one[1])), key=lambda one: one[1], reverse=True)
        return tuple(
            SenderSpending(
                participant=sender,
                tokens=tokens if tokens or not calls else None,
                unreported_calls=calls,
                budget_tokens=self.tokens_per_hour,
                at=_time(self._clock()),
            )
            for sender, (tokens, calls) in most[:MAX_REPORTED]
        )

    def _hour(self, sender: str) -> _Hour:
        """Return the spending of the last hour. Sums with a future time count as now, because the clock was set
        back.
        """
        now, kept = int(self._clock() // 60), dict[int, tuple[int, int]]()
        for minute, (tokens, calls) in sorted(self._spent.get(sender, {}).items()):
            if minute > now - HOUR_MINUTES:
                known = kept.get(min(minute, now), (0, 0))
                kept[min(minute, now)] = known[0] + tokens, known[1] + calls
        return _Hour(kept, sum(tokens for tokens, _ in kept.values()), sum(calls for _, calls in kept.values()))

    def _frees_at(self, sender: str, tokens: int) -> float:
        """Return when the last hour's spending falls below the budget, in seconds since 1970."""
        for minute, (spent, _) in self._hour(sender).minutes.items():
            tokens -= spent
            if tokens < self.tokens_per_hour:
                return (minute + HOUR_MINUTES) * 60.0
        return self._clock()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
