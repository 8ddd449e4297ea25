"""Bounds how many lines of one kind are logged, so that a flood of bad input or of failures cannot fill a disk.

Owns the bound only. Lines count as one kind if they have the same template, whatever address or name they mention.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LINES_PER_WINDOW = 20
"""How many different lines of one kind are logged. One that says the same is logged once."""
WINDOW_SECONDS = 60.0

MAX_KINDS = 1_000
"""How many kinds are counted: a library may write each line without a template."""

SERVER_LOGGERS = ("mew_listener", "asyncio")
"""The loggers that write about any server's connections."""


@dataclass(slots=True)
class _Window:
    start: float
    shown: set[str] = field(default_factory=set)
    left_out: int = 0


class LogBudget(logging.Filter):
    """Passes `lines` different records of each kind in each window; the next one says how many were left out."""

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
        self._windows: dict[str, _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to log the record."""
        if record.levelno < self._least_level:
            return True
        now, kind = self._clock(), str(record.msg)
        if len(self._windows) > MAX_KINDS:
            self._windows.clear()
        window = self._windows.get(kind)
        if window is None or now - window.start >= self._seconds:
            left_out = window.left_out if window is not None else 0
            window = self._windows[kind] = _Window(now)
        else:
            left_out = 0
        most = 1 if record.exc_info else self._lines  # a traceback is long
        text = record.getMessage() if len(window.shown) < most else ""
        if not text or text in window.shown:
            window.left_out += 1
            return False
        window.shown.add(text)
        if left_out:
            record.msg, record.args = f"{text} ({left_out} more like this were left out)", ()
        return True


@contextmanager
def bounded_logs(*names: str) -> Iterator[None]:
    """Bound the lines of these loggers and of the HTTP server while the block runs."""
    # Grants and removals are logged as information by participants who may do that; they are never left out.
    budgets = {name: LogBudget(least_level=logging.WARNING) for name in names}
    budgets |= {name: LogBudget() for name in SERVER_LOGGERS}
    for name, budget in budgets.items():
        logging.getLogger(name).addFilter(budget)
    try:
        yield
    finally:
        for name, budget in budgets.items():
            logging.getLogger(name).removeFilter(budget)


@contextmanager
def survived(what: str, log: logging.Logger) -> Iterator[None]:
    """Log an `OSError` of a task that runs again, in place of ending it. A repeated one is logged once a minute."""
    try:
        yield
    except OSError as error:
        log.warning("%s failed: %s; it is tried again", what, error.strerror or error)
