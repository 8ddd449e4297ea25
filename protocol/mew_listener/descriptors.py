"""File descriptors: how many the process may open, and how many of them connections may use.

Owns the reserve that connections leave for everything else, such as logs, databases and files of tokens.
"""

import errno
import sys
from typing import Final

EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of a process or machine that has nothing left to open a file or a socket with. They pass."""

RESERVED_SHARE: Final = 8
"""One descriptor in this many stays free of connections."""

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


def limit_for_connections() -> int | None:
    """Return the lowest descriptor that a connection may not have; None where there is no limit.

    The system gives out the lowest free descriptor. So a high one shows that all below are in use, whatever uses them.
    """
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft - soft // RESERVED_SHARE
