"""Counts what code does, for tests of its cost: the same in each run, on an idle machine and on a busy one."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(run: Callable[[], object]) -> int:
    """Return how many functions are called in this thread meanwhile, in Python and in C.

    It does not see how much one call of a C function does: a search of a long text counts as one of a short text.
    """
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def growth(run: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how many times as many calls four times the size takes: 4 if they are linear, 16 if quadratic.

    `run` prepares a size, and what it returns is counted.
    """
    return calls(run(4 * size)) / calls(run(size))
