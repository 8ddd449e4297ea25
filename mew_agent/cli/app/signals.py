"""Handles signals: `mew` ends at once while it is loading; a running command cleans up first."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mew_agent.cli.app.exit_codes import ExitCode


def end_on_interrupt() -> None:
    """Let Ctrl-C end the process at once: an exception that is raised during an import may be lost or replaced."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Undo `end_on_interrupt`, so that a command can clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    if os.isatty(2):
        os.write(2, b"\n")  # the next prompt starts on its own line, not after ^C
    os._exit(ExitCode.INTERRUPTED)


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise `KeyboardInterrupt` as Ctrl-C does, so that cleanup code runs.

    Only the first signal does: a terminal that closes sends two. Signals that are ignored (`nohup`) stay ignored.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in replaced:
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):  # as for background jobs of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    replaced = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
