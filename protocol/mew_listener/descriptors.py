"""File descriptors: how many the process may open, and how many of them connections may use.

Owns the reserve for everything except connections, such as logs, databases and token files.
"""

import errno
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of a process or machine that has nothing left to open a file or a socket with. They pass."""

RESERVED_SHARE: Final = 8
"""One descriptor in this many stays free of connections."""

RECOUNT_SECONDS: Final = 1.0
"""How often all descriptors are counted while connections arrive."""

_FALLBACKS: Final = (65_536, 10_240)
"""Soft limits to try where the system refuses one as high as its hard limit: macOS accepts 10,240."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    for limit in (hard, *_FALLBACKS):
        if limit != resource.RLIM_INFINITY and limit <= soft:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            continue
        return


class DescriptorBudget:
    """Decides whether the process may have one more connection."""

    def __init__(self, connections: Callable[[], int]) -> None:
        """`connections` returns the server's number of connections, which saves counting all descriptors."""
        self._connections = connections
        self._others = 0
        """How many descriptors are used for anything else."""
        self._counted_at = -RECOUNT_SECONDS
        self._limit = _connection_limit()

    def is_full(self) -> bool:
        """Return True if no descriptor is left for connections."""
        if self._limit is None:
            return False
        now = time.monotonic()
        if now - self._counted_at >= RECOUNT_SECONDS:
            with suppress(OSError):  # counting needs a descriptor, too
                self._others = sum(1 for _ in Path("/dev/fd").iterdir()) - self._connections()
            self._counted_at = now
        return self._others + self._connections() >= self._limit


def _connection_limit() -> int | None:
    """Return how many descriptors may be in use before connections are refused; None without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft - soft // RESERVED_SHARE
