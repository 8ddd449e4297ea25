"""Bounds how many lines of one kind the gateway logs, so that a flood of bad input cannot fill a disk.

Owns the bound only. Lines count as one kind if they have the same template, whatever address or name they mention.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINES_PER_WINDOW = 20
WINDOW_SECONDS = 60.0


class LogBudget(logging.Filter):
    """Passes `lines` records of each kind in each window; the next one after that says how many were left out."""

    def __init__(
        self,
        *,
        least_level: int = logging.NOTSET,
        lines: int = LINES_PER_WINDOW,
        seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Records below `least_level` are not counted and always pass."""
        super().__init__()
        self._least_level = least_level
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        if record.levelno < self._least_level:
            return True
        now, kind = self._clock(), str(record.msg)
        start, count = self._windows.get(kind, (now, 0))
        left_out = max(0, count - self._lines)
        if now - start >= self._seconds:
            start, count = now, 0
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} more like this were left out)"
                record.args = ()
        self._windows[kind] = (start, count + 1)
        return count < self._lines


@contextmanager
def bounded_logs() -> Iterator[None]:
    """Bound the lines of the gateway and of its HTTP server while the block runs."""
    # Grants and removals are logged as information by participants who may do that; they are never left out.
    budgets = {"mew_spaces": LogBudget(least_level=logging.WARNING), "uvicorn.error": LogBudget()}
    for name, budget in budgets.items():
        logging.getLogger(name).addFilter(budget)
    try:
        yield
    finally:
        for name, budget in budgets.items():
            logging.getLogger(name).removeFilter(budget)
