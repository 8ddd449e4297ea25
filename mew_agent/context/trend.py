"""[pure] How fast a context grows, by turns."""

from collections import deque
from dataclasses import dataclass, field

TREND_TURNS = 8
"""Turns that count as recent."""


@dataclass
class Trend:
    """Growth of the reported total over the recent turns; calls of one turn count together."""

    _growth: deque[int] = field(default_factory=lambda: deque(maxlen=TREND_TURNS))
    _turn: int | None = None
    _last_tokens: int | None = None

    def note(self, total_tokens: int, *, turn: int) -> None:
        """A call of this turn reported so much."""
        if self._last_tokens is not None:
            grown = total_tokens - self._last_tokens
            if self._turn == turn and self._growth:
                self._growth[-1] += grown
            else:
                self._growth.append(grown)
            self._turn = turn
        self._last_tokens = total_tokens

    def interrupt(self) -> None:
        """Something left the context: the next report is no growth."""
        self._last_tokens = None

    def forget(self) -> None:
        """Another conversation begins."""
        self._growth.clear()
        self._turn = self._last_tokens = None

    @property
    def tokens_per_turn(self) -> float | None:
        """Mean growth of the recent turns; None until two calls can be compared."""
        return sum(self._growth) / len(self._growth) if self._growth else None
