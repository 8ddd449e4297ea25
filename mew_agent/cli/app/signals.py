"""Ending on a signal: a program shuts down in order, and a command undoes what it began."""

import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import anyio


def run_until_terminated(main: Callable[[], Awaitable[None]]) -> None:
    """Run until `main` returns. SIGTERM cancels it, so that it can shut down in order; Ctrl-C raises as usual."""

    async def guarded() -> None:
        if sys.platform == "win32":
            await main()
            return
        # Open the receiver before `main` starts, so that no signal is lost.
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope)
                await main()
                tasks.cancel_scope.cancel()

    anyio.run(guarded)


async def _cancel_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
        return


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
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):  # as in a shell's background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    replaced = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
