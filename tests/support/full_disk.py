"""A disk that takes nothing more, for the tail file of a stored log."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mew_spaces.log.sqlite import SqliteLog


@contextmanager
def full_disk(log: SqliteLog) -> Iterator[None]:
    """Let every write to the open tail file of a `flushed` log fail as on a full disk."""
    assert log._tail is not None
    file, full = log._tail._file, os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(file)
    os.dup2(full, file)
    try:
        yield
    finally:
        os.dup2(kept, file)
        os.close(full)
        os.close(kept)
