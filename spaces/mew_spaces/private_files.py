"""Writes files that only their owner may read, each in one step: a reader sees the old content or the new one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_private_file(path: Path, text: str) -> None:
    """Write a file, or replace it. Raises `OSError`."""
    with _draft(path, text) as draft:
        draft.replace(path)


def create_private_file(path: Path, text: str) -> bool:
    """Write a file unless it exists, and return whether it was written. Raises `OSError`."""
    with _draft(path, text) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    return True


@contextmanager
def _draft(path: Path, text: str) -> Iterator[Path]:
    """Yield a complete new file beside `path`; one that is still there at the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
