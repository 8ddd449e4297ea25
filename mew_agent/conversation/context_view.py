"""A read-only view of an agent's context, for programs in the same process: how full it is and was.

All figures come from the report and the policy. Unknown figures are None.
"""

from dataclasses import dataclass

from mew_agent.context.policy import Suggestion
from mew_agent.context.policy.threshold import Fraction
from mew_agent.context.window import Compression, Occupancy, occupancy_of
from mew_agent.conversation.conversation import Conversation

PAST_CALLS = 500


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """One main call for a plot: its time, reported total, resulting level, and window."""

    at: str
    tokens: int
    level: str | None
    max_tokens: int | None


class ContextView:
    """The context of one conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._tracker = conversation.tracker

    @property
    def occupancy(self) -> Occupancy | None:
        """How full the context is by the policy's measure; None while that or the window is unknown."""
        snapshot = self._tracker.snapshot()
        if snapshot.used_tokens is None or snapshot.limit_tokens is None:
            return None
        return occupancy_of(self._tracker.policy, snapshot.used_tokens, snapshot.limit_tokens)

    def has_room_for(self, tokens: int) -> bool | None:
        """Return whether this many more tokens fit; None if unknown."""
        occupancy = self.occupancy
        return None if occupancy is None else occupancy.has_room_for(tokens)

    def tokens_until(self, level: str) -> int | None:
        """Return the tokens left before a level begins, at least 0; None for unknown figures and levels."""
        found, used = self._tracker.policy.level_named(level), self.occupancy
        mark = None if found is None else found.at.first_tokens(self._tracker.limit_tokens)
        return None if mark is None or used is None else max(0, mark - used.used_tokens)

    def tokens_until_redline(self) -> int | None:
        """Return the tokens left before the policy's redline; None without a redline or known figures."""
        occupancy, redline = self.occupancy, self._tracker.policy.redline
        return None if occupancy is None or redline is None else occupancy.tokens_until(redline)

    @property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """The policy's suggestions to save tokens; the savings are projected."""
        return self._tracker.suggestions

    async def past(self, newest: int = PAST_CALLS) -> list[UsagePoint]:
        """Return the reports of the newest main calls, oldest first, including calls before a restart or a clear."""
        calls = await self._conversation.state.store.calls(newest)
        return [
            UsagePoint(call.at, call.usage.total_tokens, call.level, call.limit_tokens)
            for call in calls
            if call.role == "main" and call.usage is not None
        ]

    async def compress_to(self, percent: int) -> Compression:
        """Drop the oldest turns until the next prompt takes at most `percent` of the window.

        The newest turn stays. `missed_by_tokens` of the result is 0 if the target was reached. Raises `ValueError` for
        a percentage outside 1 to 100.
        """
        if not 0 < percent <= 100:
            raise ValueError(f"{percent} is not a percentage between 1 and 100")
        return await self._conversation.compress_to(Fraction(numerator=percent, denominator=100))
