"""Ending when asked to: a coroutine that is a program says goodbye, and a command undoes what it began."""

import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import anyio


def run_until_terminated(main: Callable[[], Awaitable[None]]) -> None:
    """Run until `main` returns, or cancel it on SIGTERM so that it can say goodbye. Ctrl-C raises as usual."""

    async def guarded() -> None:
        if sys.platform == "win32":
            await main()
            return
        # The receiver is open before `main` runs, so that no signal falls in between.
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_at_first, signals, tasks.cancel_scope)
                await main()
                tasks.cancel_scope.cancel()

    anyio.run(guarded)


async def _cancel_at_first(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
        return


@contextmanager
def asked_like_ctrl_c() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP interrupt as Ctrl-C does, so that what was begun is undone.

    Only the first of them does: a terminal that is closed sends two. What somebody chose to ignore (`nohup`) stays so.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for heeded in before:
            signal.signal(heeded, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):  # as in a shell's background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
