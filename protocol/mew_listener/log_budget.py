"""Limits the log, so that a flood of bad input or failures cannot fill the disk.

Lines with the same template are one kind, whatever their addresses and names.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

LINES_PER_WINDOW = 5
"""How many different warnings or errors of one kind are logged. One that says the same is logged once."""

INFORMATION_FACTOR = 4
"""How many times more lines of information are logged, such as who granted what to whom or that a server is ready.

They may say the same: a server that is ready again is news."""

ALL_LINES_PER_WINDOW = 100
"""How many lines of all kinds are logged: a library may write each line without a template."""

MAX_KINDS = 1_000
"""Maximum number of kinds in the count of omitted lines."""

WINDOW_SECONDS = 60.0

MAX_LINE_CHARS = 500
"""Maximum logged length of a line, because clients send lines of any length."""

SERVER_LOGGERS = ("mew_listener", "asyncio")
"""The loggers that write about any server's connections."""

UNBOUNDED: Final = {"is_unbounded": True}
"""The `extra` of a record that always passes: the output of a program that the user started."""


@dataclass(slots=True)
class _Kind:
    shown: set[str] = field(default_factory=set)
    logged: int = 0
    left_out: int = 0


class LogBudget(logging.Filter):
    """Passes at most `lines` different records of each kind per window, and `all_lines` in total.

    The first record of a later window states the number of omitted ones of its kind.
    """

    def __init__(
        self,
        *,
        least_level: int = logging.NOTSET,
        lines: int = LINES_PER_WINDOW,
        all_lines: int = ALL_LINES_PER_WINDOW,
        seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Records below `least_level` are not counted and always pass."""
        super().__init__()
        self._least_level = least_level
        self._lines, self._all_lines = lines, all_lines
        self._seconds = seconds
        self._clock = clock
        self._start = clock()
        self._logged = 0
        """How many lines were logged in this window."""
        self._unnamed = 0
        """How many were left out because of `all_lines`, in kinds that are not counted one by one."""
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True to log the record."""
        if record.levelno < self._least_level or hasattr(record, "is_unbounded"):
            return True
        if self._clock() - self._start >= self._seconds:
            self._begin_window()
        kind = self._kinds.get(str(record.msg))
        if kind is None:
            if self._logged >= self._all_lines:
                self._unnamed += 1
                return False
            kind = self._kinds[str(record.msg)] = _Kind()
        return self._log_one(record, kind)

    def _begin_window(self) -> None:
        self._start, self._logged = self._clock(), 0
        incomplete = [(name, kind.left_out) for name, kind in self._kinds.items() if kind.left_out]
        self._kinds = {name: _Kind(left_out=left_out) for name, left_out in incomplete[-MAX_KINDS:]}

    def _log_one(self, record: logging.LogRecord, kind: _Kind) -> bool:
        is_problem = record.levelno >= logging.WARNING
        most = self._lines if is_problem else INFORMATION_FACTOR * self._lines
        most = 1 if record.exc_info else most  # a traceback is long
        has_room = self._logged < self._all_lines and kind.logged < most
        text = _short(record.getMessage()) if has_room else ""
        if not text or (is_problem and text in kind.shown):
            kind.left_out += 1
            return False
        notes = self._notes(kind)
        kind.shown.add(text)
        kind.logged += 1
        self._logged += 1
        record.msg, record.args = text + notes, ()
        record.is_unbounded = True  # so that a second budget, of a handler, does not count it again
        return True

    def _notes(self, kind: _Kind) -> str:
        """Return the number of lines omitted in earlier windows, for the first line of this window."""
        notes = ""
        if kind.left_out and not kind.logged:
            notes, kind.left_out = f" ({kind.left_out} more like this were left out)", 0
        if self._unnamed and not self._logged:
            notes, self._unnamed = f"{notes} ({self._unnamed} lines of other kinds were left out)", 0
        return notes


def _short(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}... ({len(text):,} characters)"


@contextmanager
def bounded_logs(*names: str) -> Iterator[None]:
    """Limit the lines of these loggers and of the HTTP server while the block runs."""
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
    """Log an `OSError` of a recurring task instead of ending it. A repeated error is logged once a minute."""
    try:
        yield
    except OSError as error:
        log.warning("%s failed: %s; it is tried again", what, error.strerror or error)
