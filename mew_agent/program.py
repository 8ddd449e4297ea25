"""Runs an async function as a whole program that ends without a traceback.

Ends the program cleanly after its work, at Ctrl-C, and after an error. Programs may also use `anyio.run`.
"""

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn, TypeVar, TypeVarTuple, Unpack

import anyio
from mew_listener.freed_memory import return_freed_memory
from mew_listener.log_budget import LogBudget

from mew_agent.errors import MewAgentError

_LOG_BUDGET: Final = LogBudget()
"""Of a program that configures no logging: Python then writes warnings to standard error, however many there are."""

INTERRUPTED: Final = 130
"""The exit code of a program that was ended by Ctrl-C, as shells report it."""

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


def run(main: Callable[[Unpack[Arguments]], Awaitable[object]], *args: *Arguments) -> None:
    """Run an async function as a whole program: `run(me.take_part)`, `run(main, "an argument")`.

    Ctrl-C leaves the space and exits with code 130; SIGTERM leaves it and returns. An uncaught `MewAgentError` prints
    one line to standard error and exits with code 1. Other exceptions are raised as in `anyio.run`.
    """
    given: object = main
    if inspect.iscoroutine(given):
        given.close()
        raise TypeError("run() takes the function itself: write run(main), not run(main())")
    try:
        run_until_signal(main, *args)
    except KeyboardInterrupt:
        _end(INTERRUPTED)
    except MewAgentError as error:
        print(error, file=sys.stderr)
        _end(1)


def run_until_signal(main: Callable[[Unpack[Arguments]], Awaitable[T]], *args: *Arguments) -> T | None:
    """Run an async function that SIGINT and SIGTERM cancel, so that it can shut down in order.

    `asyncio` cancels only one `await`, which other code may take for its own cancellation, and raises while its loop
    starts and stops, when Python may lose the exception. A cancelled scope cancels every `await` until the end.

    Returns the result of `main`, or None if SIGTERM cancelled it. Raises the errors of `main`, and finally
    `KeyboardInterrupt` after a SIGINT. If the second signal is SIGINT, it stops the loop at once. Ignored signals stay
    ignored.
    """
    received: list[int] = []
    loop: asyncio.AbstractEventLoop | None = None
    scope: anyio.CancelScope
    is_stopped = False
    own_error: RuntimeError | None = None

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopped
        received.append(number)
        if loop is not None and len(received) == 1:
            loop.call_soon_threadsafe(scope.cancel)
        elif number != signal.SIGINT or len(received) == 1:
            return
        elif loop is not None and len(received) == 2:
            is_stopped = True
            loop.set_exception_handler(lambda _loop, _context: None)  # interrupted tasks need no traceback
            loop.call_soon_threadsafe(loop.stop)
        else:
            raise KeyboardInterrupt

    async def cancellable() -> T | None:
        nonlocal loop, scope, own_error
        with anyio.CancelScope() as scope:
            loop = asyncio.get_running_loop()
            return_freed_memory(loop)
            try:
                if received:  # a signal before the loop ran
                    scope.cancel()
                return await main(*args)
            except RuntimeError as error:
                own_error = error
                raise
            finally:
                loop = None
        return None

    if logging.lastResort is not None:
        logging.lastResort.addFilter(_LOG_BUDGET)
    with _handling_signals(handle):
        try:
            result = anyio.run(cancellable)
        except RuntimeError as error:
            if error is own_error or not is_stopped:
                raise
            result = None  # asyncio's error about the loop that was stopped
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    return result


@contextmanager
def _handling_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handle` for SIGINT and SIGTERM during the block. Signals that are ignored or handled already stay so."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if threading.current_thread() is not threading.main_thread():
        defaults = {}
    replaced = {one: signal.signal(one, handle) for one, usual in defaults.items() if signal.getsignal(one) is usual}
    try:
        yield
    finally:
        for one, handler in replaced.items():
            signal.signal(one, handler)


def _end(code: int) -> NoReturn:
    """Exit even if a thread waits for input. Such a thread cannot be cancelled, and a normal exit would wait for it."""
    if any(not one.daemon and one is not threading.current_thread() for one in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
