"""Runs an async function as a whole program that ends without a traceback.

Owns how a program ends: at its end, at Ctrl-C, and after an error. Programs may also use `anyio.run`.
"""

import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, TypeVarTuple, Unpack

import anyio

from mew_agent.errors import MewAgentError

INTERRUPTED: Final = 130
"""The exit code of a program that was ended by Ctrl-C, as shells report it."""

Arguments = TypeVarTuple("Arguments")


def run(main: Callable[[Unpack[Arguments]], Awaitable[object]], *args: *Arguments) -> None:
    """Run an async function as a whole program: `run(me.take_part)`, `run(main, "an argument")`.

    Ctrl-C leaves the space and exits with code 130. An uncaught `MewAgentError` prints one line to standard error and
    exits with code 1. Every other exception is raised as `anyio.run` raises it.
    """
    try:
        anyio.run(main, *args)
    except KeyboardInterrupt:
        _end(INTERRUPTED)
    except MewAgentError as error:
        print(error, file=sys.stderr)
        _end(1)


def _end(code: int) -> NoReturn:
    """Exit even if a thread waits for input: it cannot be cancelled, and a normal exit would wait for it."""
    if any(not one.daemon and one is not threading.current_thread() for one in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
