"""A log in a SQLite file: what was published is there again after a restart, under the same epoch and numbers.

One batch is one transaction in write-ahead mode. `flushed` leaves it to the operating system when the disk is
written, which survives a killed gateway; `synced` waits for the disk, which survives a power failure. Reading goes
through a `MemoryLog` that holds what the bounds allow, so the file is read once, at the start.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from mew_spaces.log.interface import Batch, Bounds, Durability, Entry, NotStored
from mew_spaces.log.memory import MemoryLog

log = logging.getLogger("mew_spaces.log")

SCHEMA_VERSION = 1
PRUNE_EVERY_ENTRIES = 512
"""Deleting in steps costs one statement for many entries."""

_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE envelopes (
  sequence INTEGER PRIMARY KEY, at REAL NOT NULL, sender TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL
);
"""


class SqliteLog(MemoryLog):
    """See `SpaceLog`. `write` may run in any thread, one call at a time."""

    def __init__(
        self,
        path: Path,
        *,
        bounds: Bounds,
        durability: Durability = "flushed",
        remembered_ids: int = 50_000,
        clock: Callable[[], float] = time.time,
        new_epoch: Callable[[], str] = lambda: token_hex(4),
    ) -> None:
        """Open or create the file, readable by its owner alone.

        A file that cannot be read is renamed to `<name>.damaged-<seconds>` and a new epoch starts; one warning says
        so. Raises `OSError` or `NotStored` if no file can be made at all.
        """
        self.path = path
        self._clock = clock
        try:
            self._database, epoch = self._open_or_set_aside(durability, new_epoch)
        except sqlite3.Error as error:
            raise NotStored(str(error)) from error
        super().__init__(epoch=epoch, bounds=bounds, remembered_ids=remembered_ids)
        self.durability = durability
        self._deleted_through = 0
        self._restore()

    def write(self, batch: Batch) -> None:
        try:
            with self._database:  # one transaction: committed, or rolled back by an error
                if batch.state:
                    self._write_state(batch)
                if batch.entries:
                    self._database.executemany(
                        "INSERT INTO envelopes (sequence, at, sender, id, data) VALUES (?, ?, ?, ?, ?)",
                        ((one.sequence, one.at, one.sender, one.id, one.data) for one in batch.entries),
                    )
                    if self._gone_through - self._deleted_through >= PRUNE_EVERY_ENTRIES:
                        self._prune()
        except sqlite3.Error as error:
            raise NotStored(f"{self.path}: {error}") from error

    def close(self) -> None:
        super().close()
        try:
            self._prune()
            self._database.close()
        except sqlite3.Error as error:
            log.warning("closing %s failed: %s", self.path, error)

    def _write_state(self, batch: Batch) -> None:
        for key, value in batch.state.items():
            if value is None:
                self._database.execute("DELETE FROM state WHERE key = ?", (key,))
            else:
                self._database.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (key, value))

    def _prune(self) -> None:
        """Delete what the bounds no longer allow, but never the newest entry: its number must not be given again."""
        through = min(self._gone_through, self._published - 1)
        if through > self._deleted_through:
            self._database.execute("DELETE FROM envelopes WHERE sequence <= ?", (through,))
            self._deleted_through = through

    def _open_or_set_aside(
        self, durability: Durability, new_epoch: Callable[[], str]
    ) -> tuple[sqlite3.Connection, str]:
        try:
            return self._open(durability, new_epoch)
        except (sqlite3.DatabaseError, _Unreadable) as error:
            if isinstance(error, sqlite3.OperationalError) and "disk I/O" not in str(error):
                raise  # no such folder, a full disk, a lock: the file itself may be fine
            aside = self.path.with_name(f"{self.path.name}.damaged-{int(self._clock())}")
            for suffix in ("", "-wal", "-shm"):
                if (part := self.path.with_name(self.path.name + suffix)).exists():
                    part.rename(aside.with_name(aside.name + suffix))
            log.warning("%s cannot be read (%s); renamed to %s, history starts anew", self.path, error, aside.name)
            return self._open(durability, new_epoch)

    def _open(self, durability: Durability, new_epoch: Callable[[], str]) -> tuple[sqlite3.Connection, str]:
        is_new = not self.path.exists()
        if is_new:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif self.path.stat().st_size == 0:
            raise _Unreadable("the file is empty")
        database = sqlite3.connect(self.path, check_same_thread=False, timeout=5.0, isolation_level="IMMEDIATE")
        try:
            # One gateway a file: a second one would number its envelopes alike.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if durability == 'synced' else 'NORMAL'}")
            if is_new:
                with database:
                    database.executescript(_SCHEMA)
                    about = {"schema_version": str(SCHEMA_VERSION), "epoch": new_epoch()}
                    database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            about = dict(database.execute("SELECT key, value FROM about"))
            if about.get("schema_version") != str(SCHEMA_VERSION):
                raise _Unreadable(f"schema version {about.get('schema_version')}, expected {SCHEMA_VERSION}")
            return database, about["epoch"]
        except BaseException:
            database.close()
            raise

    def _restore(self) -> None:
        rows = self._database.execute("SELECT sequence, data, sender, id, at FROM envelopes ORDER BY sequence")
        entries = [Entry(*row) for row in rows]
        first = entries[0].sequence - 1 if entries else 0
        last = entries[-1].sequence if entries else 0
        state = dict(self._database.execute("SELECT key, value FROM state"))
        self._deleted_through = first
        self.restore(entries, state=state, gone_through=first, last_sequence=last)


class _Unreadable(Exception):
    """The file exists and is not a log of ours."""
