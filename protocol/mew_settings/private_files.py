"""Files written atomically and readable only by their owner; locks.

A reader sees either the old or the new content.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter, or make an existing one private. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def replace_private_file(path: Path, text: str) -> None:
    """Write a file, or replace it, and wait until the disk has it. Raises `OSError`."""
    with _draft(path, text) as draft:
        draft.replace(path)
    sync_folder(path.parent)


def replace_file(path: Path, text: str) -> None:
    """Replace a file that others may read, with its permissions, and wait until the disk has it. Raises `OSError`."""
    with _draft(path, text) as draft:
        draft.chmod(path.stat().st_mode & 0o777)
        draft.replace(path)
    sync_folder(path.parent)


def create_private_file(path: Path, text: str) -> bool:
    """Write a file unless it exists; return True if it was written. Raises `OSError`."""
    with _draft(path, text) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


_DESCRIPTOR = 64
"""Children may inherit locks: above the descriptors that a shell uses for itself."""


class FileLock:
    """A lock held by one process, or by several that share it, until released or until they end."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        """Raises `BlockingIOError` if it is held. Does nothing on systems without such locks."""
        self.descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        if sys.platform != "win32":
            opened = self.descriptor
            try:
                fcntl.flock(opened, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                self.descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR)
            finally:
                os.close(opened)

    def release(self) -> None:
        """Release the lock for the next process."""
        os.close(self.descriptor)


@contextmanager
def _draft(path: Path, text: str) -> Iterator[Path]:
    """Yield a complete new file next to `path`, and remove it at the end if it still exists."""
    draft = _write_draft(path, text.encode())
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _write_draft(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            _sync(file)
    except BaseException:  # also an interrupt: remove the draft
        draft.unlink(missing_ok=True)
        raise
    return draft


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has stored the names in a folder. Windows needs no such step."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
