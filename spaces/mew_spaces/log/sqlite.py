"""A log in a SQLite file: published entries outlast a restart, with the same epoch and numbers.

`synced` makes each batch a transaction and waits for the disk, which survives a power failure. `flushed` passes each
batch to the operating system, which survives a killed gateway. A write to a tail file (`TailFile`) takes a tenth of a
transaction's time, and never waits for the disk, as a transaction does after each checkpoint, when SQLite reuses its
WAL file. `upkeep` moves many batches at once from there into the database. The next start reads these files up to the
first incomplete record. `memory` stores no envelopes, and only the state that must be on the disk. Reads use a
`SpaceLog` within its bounds, so the files are read only once.
"""

import logging
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from os import write
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import NamedTuple
from zlib import crc32

from mew_protocol.ids import Position
from mew_settings.private_files import FileLock, sync_folder

from mew_spaces.log.memory import SYNCED_PREFIX, Batch, Bounds, Durability, Entry, NotStored, OutcomeUnknown, SpaceLog

log = logging.getLogger("mew_spaces")

SCHEMA_VERSION = 1
PRUNE_EVERY_ENTRIES = 512
"""Deleting in steps costs one statement for many entries."""

UPKEEP_EVERY_BATCHES = 1_000
UPKEEP_EVERY_BYTES = 4 * 1024 * 1024
"""How much is written before it is due to be moved into the database file."""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_INSERT = "INSERT INTO envelopes (sequence, data, sender, id, at) VALUES "
_ROWS_PER_INSERT = 100
"""A statement for each row releases the GIL each time; with a busy event loop, that takes three times the CPU."""

_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE envelopes (
  sequence INTEGER PRIMARY KEY, at REAL NOT NULL, sender TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL
);
"""


def lock_path(path: Path) -> Path:
    """Return the lock file of a log's gateway."""
    return path.with_name(f"{path.name}.lock")


class SqliteLog(SpaceLog):
    """See `SpaceLog`. `write` may run in any thread, one call at a time."""

    def __init__(
        self,
        path: Path,
        *,
        bounds: Bounds,
        durability: Durability = "flushed",
        new_epoch: Callable[[], str] = lambda: token_hex(4),
        lock: Path | None = None,
    ) -> None:
        """Open or create the file, readable only by its owner. `memory` starts a new epoch each time.

        Raises `Unreadable` for a damaged file, `OSError` or `NotStored` if none can be created, and `BlockingIOError`
        if another gateway has it open.
        """
        self.path: Path = path
        self._lock = FileLock(lock or lock_path(path))  # a second gateway would give its envelopes the same numbers
        try:
            if not path.exists():
                self._create(new_epoch())
            opened = _open(path, durability)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise (Unreadable if _is_damage(error) else NotStored)(str(error)) from error
            raise
        super().__init__(epoch=opened.epoch, bounds=bounds)
        self._database = opened.database
        self.durability = durability
        self._checkpoints = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._commits_since_checkpoint = 0
        self._stored_through = opened.entries[-1].sequence if opened.entries else 0
        self._tail_lock = Lock()  # held while a tail file is written or changed, never during a transaction
        self._tail: TailFile | None = None
        self._ended: list[Path] = []
        """The tail files that are not written to any more, and not moved."""
        self._moved: list[Path] = []
        """The tail files that are moved, and not removed."""
        self._unmoved: list[Batch] = []
        try:
            tails = self._earlier_tails()
            # The database may be newer than a tail file that was moved.
            self._moved = [one for one in tails if _number_of(one) <= opened.moved_tail]
            self._ended = tails[len(self._moved) :]
            self._tails = max(opened.moved_tail, *map(_number_of, tails), 0)
            self._restore_all(opened)
            self._move()
            self._remove_moved()
        except (sqlite3.Error, OSError) as error:
            self._release()
            raise NotStored(f"{path}: {error}") from error
        if durability == "memory":  # the rest of an earlier run stays in the file
            super().begin_at(Position(new_epoch(), 0))
            self._state = {key: value for key, value in self._state.items() if key.startswith(SYNCED_PREFIX)}

    def _earlier_tails(self) -> list[Path]:
        """Return the tail files of an earlier run, oldest first. Raises `OSError`."""
        # `glob` finds nothing in an unreadable folder: the newest entries would be missing without an error.
        tails = (one for one in self.path.parent.iterdir() if one.name.startswith(self._tail_name))
        return sorted((one for one in tails if one.suffix[1:].isdecimal()), key=_number_of)

    def _restore_all(self, opened: "_OpenedFile") -> None:
        """Start with the database and the tail files of an earlier run."""
        entries, state = list(opened.entries), dict[str, bytes | None](opened.state)
        for batch in (batch for path in self._ended for batch in read_tail(path)):
            new = [entry for entry in batch.entries if entry.sequence > self._stored_through]
            self._unmoved.append(Batch(new, batch.state))
            entries += new
            state |= batch.state
        self._deleted_through = entries[0].sequence - 1 if entries else 0
        self.restore(entries, {key: value for key, value in state.items() if value is not None})

    @property
    def _tail_name(self) -> str:
        """The common beginning of tail file names. It contains the epoch, so that other epochs' files are never
        read.
        """
        return f"{self.path.name}-tail-{self.epoch}."

    def write(self, batch: Batch) -> None:
        SpaceLog.write(self, batch)
        if self.durability == "memory":
            if not (batch.state and batch.synced_state):
                return
            batch = Batch(state=batch.synced_state)
        try:
            if self.durability != "flushed":
                self._write_all(batch.entries, batch.state)
                self._commits_since_checkpoint += 1
                return
            with self._tail_lock:
                self._append(batch)
        except (sqlite3.Error, OSError) as error:
            raise (OutcomeUnknown if _has_failed_late(error) else NotStored)(f"{self.path}: {error}") from error

    def _append(self, batch: Batch) -> None:
        """Write a batch to the tail file. Raises `OSError`."""
        if self._tail is None or self._tail.is_damaged:
            self._end_tail()
            self._tail = TailFile(self.path.with_name(f"{self._tail_name}{self._tails + 1}"))
            self._tails += 1
        self._tail.append(batch)
        self._unmoved.append(batch)

    def _end_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._ended.append(self._tail.path)
            self._tail = None

    def begin_at(self, position: Position) -> None:
        is_continued = self.epoch == position.epoch and position.sequence <= self.position.sequence
        super().begin_at(position)
        if is_continued or self.durability == "memory":
            return
        with self._tail_lock:
            self._unmoved = []
        self._move()
        with self._database as database:
            database.execute("DELETE FROM envelopes")
            database.execute("UPDATE about SET value = ? WHERE key = 'epoch'", (position.epoch,))
        self._stored_through = self._deleted_through = position.sequence

    @property
    def wants_upkeep(self) -> bool:
        is_full = self._tail is not None and self._tail.size >= UPKEEP_EVERY_BYTES
        return is_full or len(self._unmoved) + self._commits_since_checkpoint >= UPKEEP_EVERY_BATCHES

    def upkeep(self) -> None:
        """Move written batches into the database file. Runs in a thread; neither blocks nor is blocked by `write`."""
        self._commits_since_checkpoint = 0
        try:
            self._move()
            self._remove_moved()
        except sqlite3.Error as error:
            log.warning("%s: maintenance failed: %s", self.path, error)

    def _move(self) -> None:
        """Move the contents of tail files into the database. Raises `sqlite3.Error`."""
        with self._tail_lock:
            self._end_tail()
            batches, self._unmoved = self._unmoved, []
            tails, self._ended = self._ended, []
        state: dict[str, bytes | None] = {}
        for batch in batches:
            state |= batch.state
        try:
            if batches:
                moved = _number_of(tails[-1]) if tails else 0
                self._write_all([entry for batch in batches for entry in batch.entries], state, moved_tail=moved)
        except sqlite3.Error:
            with self._tail_lock:
                self._unmoved = batches + self._unmoved
                self._ended = tails + self._ended
            raise
        self._moved += tails

    def _remove_moved(self) -> None:
        """Remove the moved tail files, once the disk has their contents."""
        try:
            ((is_busy, frames, written),) = self._checkpoints.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            log.warning("%s: maintenance failed: %s", self.path, error)
            return
        if is_busy or frames != written:
            return  # another program reads the file
        while self._moved:
            try:
                self._moved[0].unlink(missing_ok=True)
            except OSError:
                break  # the next start reads this file again, so the older files must have the newer state, too
            del self._moved[0]

    def close(self) -> None:
        super().close()
        try:
            self._move()
            self._prune()
            self._remove_moved()
        except sqlite3.Error as error:
            log.warning("%s: closing failed: %s", self.path, error)
        finally:
            self._release()

    def _release(self) -> None:
        try:
            self._checkpoints.close()
            self._database.close()
        except sqlite3.Error as error:
            log.warning("%s: closing failed: %s", self.path, error)
        finally:
            self._lock.release()

    def _write_all(self, entries: Sequence[Entry], state: Mapping[str, bytes | None], *, moved_tail: int = 0) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for key, value in state.items():
                if value is None:
                    database.execute("DELETE FROM state WHERE key = ?", (key,))
                else:
                    database.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, value))
            for rows in (entries[at : at + _ROWS_PER_INSERT] for at in range(0, len(entries), _ROWS_PER_INSERT)):
                places = ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
                database.execute(_INSERT + places, tuple(chain.from_iterable(rows)))
            if entries:
                self._stored_through = entries[-1].sequence
            if moved_tail:
                database.execute("INSERT OR REPLACE INTO about VALUES ('moved_tail', ?)", (str(moved_tail),))
            if self._gone_through - self._deleted_through >= PRUNE_EVERY_ENTRIES:
                self._prune()
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _prune(self) -> None:
        """Delete entries beyond the bounds, but never the newest, whose number must not be reused."""
        through = min(self._gone_through, self._stored_through - 1)
        if through > self._deleted_through and self.durability != "memory":
            self._database.execute("DELETE FROM envelopes WHERE sequence <= ?", (through,))
            self._deleted_through = through

    def _create(self, epoch: str) -> None:
        """Create the file under another name first, so that a killed gateway leaves no incomplete file."""
        new = self.path.with_name(f"{self.path.name}.new")
        # SQLite would apply the changes to a file that was moved away.
        for left in (f"{new.name}", f"{new.name}-journal", f"{self.path.name}-wal", f"{self.path.name}-shm"):
            self.path.with_name(left).unlink(missing_ok=True)
        new.touch(mode=0o600, exist_ok=False)
        database = sqlite3.connect(new, isolation_level=None)
        try:
            database.executescript(f"BEGIN; {_SCHEMA}")
            settings = {"schema_version": str(SCHEMA_VERSION), "epoch": epoch}
            database.executemany("INSERT INTO about VALUES (?, ?)", settings.items())
            database.execute("COMMIT")
        finally:
            database.close()
        new.rename(self.path)


class _OpenedFile(NamedTuple):
    """One of our databases, opened, with its contents."""

    database: sqlite3.Connection
    epoch: str
    entries: Sequence[Entry]
    state: Mapping[str, bytes]
    moved_tail: int
    """The number of the newest tail file with contents that are here."""


def _open(path: Path, durability: Durability) -> _OpenedFile:
    if path.stat().st_size == 0:
        raise Unreadable("the file is empty")
    database = sqlite3.connect(path, check_same_thread=False, timeout=5.0, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")  # `upkeep` does this and delays no sender
        database.execute(f"PRAGMA synchronous = {'NORMAL' if durability == 'flushed' else 'FULL'}")
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone():
            raise Unreadable("not a history of a gateway")
        about = dict(database.execute("SELECT key, value FROM about"))
        if about.get("schema_version") != str(SCHEMA_VERSION) or "epoch" not in about:
            raise Unreadable(f"schema version {about.get('schema_version')}, expected {SCHEMA_VERSION}")
        rows = database.execute("SELECT sequence, data, sender, id, at FROM envelopes ORDER BY sequence")
        entries = [Entry(*row) for row in rows]
        state = dict(database.execute("SELECT key, value FROM state"))
        return _OpenedFile(database, about["epoch"], entries, state, int(about.get("moved_tail", 0)))
    except BaseException:
        database.close()
        raise


def _number_of(tail: Path) -> int:
    return int(tail.suffix[1:])


def _is_damage(error: sqlite3.Error) -> bool:
    """Return True if the file's contents caused an error. SQLite does not distinguish a full disk from a failing
    one.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Python cannot decode a text
        return isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


def _has_failed_late(error: Exception) -> bool:
    """Return True if a batch may be in the file although the disk did not confirm it."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, _NotSynced) or (code is not None and code & 0xFF == sqlite3.SQLITE_IOERR)


class _NotSynced(OSError):
    """The disk did not confirm a record of a tail file."""


class Unreadable(NotStored):
    """The file exists, but is not a gateway's log."""


_RECORD = struct.Struct("<II")
"""The start of a record: the size and the checksum of its body."""

_ITEM = struct.Struct("<cQdIII")
"""The start of an item: its type, number, time, and the sizes of its three values."""

_ENTRY, _VALUE, _DELETED = b"E", b"S", b"D"


class TailFile:
    """One file of batches, readable only by its owner."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises `OSError`."""
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        self.size = 0
        self.is_damaged = False
        """Whether it may end with an incomplete record, behind which nothing is read."""

    def append(self, batch: Batch) -> None:
        """Append all of a batch, or nothing. On return, the disk has everything that must survive. Raises `OSError`."""
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
        if batch.synced_state:
            self._sync()
        self.size += len(record)

    def _finish(self, record: bytes, written: int) -> None:
        """Write the rest of a record, because a write may be partial near a disk's end or a limit."""
        try:
            while written < len(record):
                written += write(self._file, record[written:])
        except OSError:
            self.is_damaged = True
            os.ftruncate(self._file, self.size)
            self.is_damaged = False
            raise

    def _sync(self) -> None:
        """Wait until the disk has the last record. Raises `OSError`."""
        try:
            os.fsync(self._file)
            sync_folder(self.path.parent)
        except OSError as error:
            self.is_damaged = True
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise _NotSynced(*error.args) from error

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
