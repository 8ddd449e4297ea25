"""The newest batches of a stored log, in files that only grow: one write a batch, some microseconds.

A written batch survives the end of the process. The next start reads the files up to the first incomplete record. Does
not know when a batch is stored elsewhere and its file may be removed.
"""

import os
import struct
from collections.abc import Iterator
from os import write
from pathlib import Path
from zlib import crc32

from mew_spaces.log.memory import Batch, Entry

_RECORD = struct.Struct("<II")
"""The start of a record: the size and the checksum of its body."""

_ITEM = struct.Struct("<cQdIII")
"""The start of an item: its type, number, time, and the sizes of its three values."""

_ENTRY, _VALUE, _DELETED = b"E", b"S", b"D"


class TailFile:
    """One file of batches, readable by its owner alone."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises `OSError`."""
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self.size = 0

    def append(self, batch: Batch) -> None:
        """Append all of a batch, or nothing. Raises `OSError`."""
        items: list[bytes] = []
        for sequence, data, sender, envelope_id, at in batch.entries:
            who, name = sender.encode(), envelope_id.encode()
            items += (_ITEM.pack(_ENTRY, sequence, at, len(who), len(name), len(data)), who, name, data)
        for key, value in batch.state.items():
            kind, text, data = _DELETED if value is None else _VALUE, key.encode(), value or b""
            items += (_ITEM.pack(kind, 0, 0.0, len(text), 0, len(data)), text, data)
        body = b"".join(items)
        record = _RECORD.pack(len(body), crc32(body)) + body
        written = write(self._file, record)
        if written < len(record):
            self._finish(record, written)
        self.size += len(record)

    def _finish(self, record: bytes, written: int) -> None:
        """Write the rest of a record: a write is cut short where a disk or a limit is nearly reached."""
        try:
            while written < len(record):
                written += write(self._file, record[written:])
        except OSError:
            os.ftruncate(self._file, self.size)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_tail(path: Path) -> Iterator[Batch]:
    """Yield the batches of a file up to the first incomplete record. Raises `OSError`."""
    content, start = path.read_bytes(), 0
    while start + _RECORD.size <= len(content):
        size, checksum = _RECORD.unpack_from(content, start)
        body = content[start + _RECORD.size : start + _RECORD.size + size]
        if not body or len(body) < size or crc32(body) != checksum:
            return
        yield _batch(body)
        start += _RECORD.size + size


def _batch(body: bytes) -> Batch:
    entries: list[Entry] = []
    state: dict[str, bytes | None] = {}
    start = 0
    while start < len(body):
        kind, sequence, at, *sizes = _ITEM.unpack_from(body, start)
        start += _ITEM.size
        first, second, data = (body[start + sum(sizes[:n]) : start + sum(sizes[: n + 1])] for n in range(3))
        start += sum(sizes)
        if kind == _ENTRY:
            entries.append(Entry(sequence, data, first.decode(), second.decode(), at))
        else:
            state[first.decode()] = data if kind == _VALUE else None
    return Batch(entries, state)
