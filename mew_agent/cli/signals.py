"""Running a coroutine as a program: an orderly end when asked to terminate."""

import signal
import sys
from collections.abc import Awaitable, Callable

import anyio


def run_until_terminated(main: Callable[[], Awaitable[None]]) -> None:
    """Run until `main` returns, or cancel it on SIGTERM so that it can say goodbye. Ctrl-C raises as usual."""

    async def guarded() -> None:
        async with anyio.create_task_group() as tasks:
            if sys.platform != "win32":
                tasks.start_soon(_cancel_when_terminated, tasks.cancel_scope)
            await main()
            tasks.cancel_scope.cancel()

    anyio.run(guarded)


async def _cancel_when_terminated(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
