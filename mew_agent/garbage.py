"""How often Python searches objects for cycles: rarely while `mew` loads, as usual once a command serves."""

import gc
from typing import Final

WHILE_LOADING: Final = 20_000
"""Modules make many objects that stay: to search them at the usual rate delays the start by 5 %."""

_usual: list[tuple[int, int, int]] = []


def collect_rarely() -> None:
    """Search rarely until `collect_as_usual`."""
    _usual.append(gc.get_threshold())
    gc.set_threshold(WHILE_LOADING)


def collect_as_usual() -> None:
    """Search at the usual rate, but never again what has been loaded. Does nothing without `collect_rarely`.

    A cancelled request leaves cycles that hold its body. At the rate of a start, a server would keep them for minutes.
    """
    if _usual:
        gc.freeze()
        gc.set_threshold(*_usual.pop())
