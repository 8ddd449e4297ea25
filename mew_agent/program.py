"""A whole program around a participant: run until it is done or interrupted, and end without a traceback.

Owns how such a program ends. What it does is its own matter; it may as well use `anyio.run`.
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
"""The exit code that shells give a program that Ctrl-C ended."""

Arguments = TypeVarTuple("Arguments")


def run(main: Callable[[Unpack[Arguments]], Awaitable[object]], *args: *Arguments) -> None:
    """Run an async function as a whole program: `run(me.take_part)`, `run(main, "an argument")`.

    Ctrl-C leaves the space and ends it quietly, with exit code 130. A `MewAgentError` that nobody caught is one line on
    standard error, and exit code 1. Everything else is raised as `anyio.run` raises it.
    """
    try:
        anyio.run(main, *args)
    except KeyboardInterrupt:
        _end(INTERRUPTED)
    except MewAgentError as error:
        print(error, file=sys.stderr)
        _end(1)


def _end(code: int) -> NoReturn:
    """End, also while a thread waits for somebody's input: nothing can cancel that, and Python would wait for it."""
    if any(not one.daemon and one is not threading.current_thread() for one in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
