"""Running a coroutine as a program: an orderly end when asked to terminate."""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

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
