"""The form of a session file: tables, rescue of a damaged file, and pruning.

Does not interpret the rows; see `sqlite_store`.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from mew_agent.context.sqlite_archive import ARCHIVE_TABLES, drop_index
from mew_agent.context.sqlite_receipts import RECEIPT_TABLES, prune_receipts
from mew_agent.context.store import StoreDamaged, StoreLimits, StoreUnusable

SCHEMA_VERSION: Final = 1
"""Changes with the tables, and with the contents of their rows."""

_TABLES: Final = f"""{ARCHIVE_TABLES}
CREATE TABLE IF NOT EXISTS items (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, original TEXT NOT NULL, present TEXT, left_at_revision INTEGER);
CREATE INDEX IF NOT EXISTS items_by_id ON items (id);
CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY AUTOINCREMENT, role TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (number INTEGER PRIMARY KEY, chat TEXT NOT NULL);
{RECEIPT_TABLES}"""

_RESCUED: Final = {
    "items": ("seq",),
    "calls": ("number",),
    "inbox": ("number",),
    "state": ("key",),
    "compactions": ("number",),
    "archive": ("compaction", "seq"),
    "prompts": ("number",),
    "endings": ("number",),
    "follows": ("number",),
}
"""The key of each table that is saved from a damaged file; the full-text index is rebuilt."""
_PRUNED_PARTS: Final = 8
_SQLITE_HEADER: Final = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many items and call records were removed, and the size of the file before and after."""

    items: int
    calls: int
    bytes_before: int
    bytes_after: int


def open_session_file(path: Path) -> sqlite3.Connection:
    """Open a session file in the current format, and create a missing one.

    Raises `StoreDamaged`, `StoreUnusable` for a directory, another program's file (left untouched) or a later version,
    and SQLite's errors.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    elif path.is_file() and not path.stat().st_size:
        raise StoreDamaged(path, "it is empty (0 bytes)")
    os.close(os.open(path, os.O_RDWR))  # the system's error is clearer than that of SQLite
    _refuse_other_formats(path)
    path.chmod(0o600)
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_session_in_memory() -> sqlite3.Connection:
    """Open a new session without a file."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(_TABLES)
    return connection


def _refuse_other_formats(path: Path) -> None:
    """Raise `StoreUnusable` for a file of another format, perhaps named by mistake."""
    with path.open("rb") as file:
        start = file.read(len(_SQLITE_HEADER))
    # A power failure leaves zeros in place of a session's header: damage.
    if start != _SQLITE_HEADER and start.strip(b"\0"):
        raise StoreUnusable(path, "it is not an SQLite file and was not changed; name another file")


def _create(path: Path) -> None:
    """Create a file atomically, so that an empty file always means a loss."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    # SQLite gives its extra files the mode of this one, so it must be private before it is opened.
    new.touch(mode=0o600, exist_ok=False)
    with closing(sqlite3.connect(new)) as connection:
        connection.executescript(_TABLES)
        connection.execute("INSERT INTO state VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        connection.commit()
    new.replace(path)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and "state" not in names:
        raise StoreUnusable(path, "it is not a session file")
    if not names:
        raise StoreDamaged(path, "it has no tables")
    row = connection.execute("SELECT value FROM state WHERE key = 'schema'").fetchone()
    if row is None:
        raise StoreDamaged(path, "it has no version")
    if row != (str(SCHEMA_VERSION),):
        raise StoreUnusable(
            path, f"its version is {row[0]}, expected {SCHEMA_VERSION}; use the mew-agent that wrote it"
        )
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreDamaged(path, str(verdict))


def set_aside(path: Path, now: datetime) -> tuple[Path, dict[str, int]]:
    """Rename a damaged file and save its readable rows into a new one. Returns its new name and rows saved by table."""
    aside = path.with_name(f"{path.name}.damaged-{now.strftime('%Y%m%dT%H%M%S')}")
    number = 0
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.partition('.again')[0]}.again{number}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _create(path)
    saved = dict.fromkeys(_RESCUED, 0)
    if not aside.stat().st_size:
        return aside, saved
    with closing(sqlite3.connect(path)) as whole, closing(sqlite3.connect(aside)) as damaged:
        for table, key in _RESCUED.items():
            names = [name for _, name, *_ in whole.execute(f"PRAGMA table_info({table})")]
            for row in _readable_rows(damaged, table, key):
                with suppress(sqlite3.Error):
                    marks, columns = ", ".join("?" * len(row)), ", ".join(names[: len(row)])
                    whole.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", row)  # noqa: S608 - our own names
                    saved[table] += 1
        whole.commit()
    return aside, saved


def _readable_rows(damaged: sqlite3.Connection, table: str, key: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    """Yield the readable rows of a table, from both ends up to the first error."""
    seen: set[object] = set()
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error, UnicodeDecodeError):
            by = ", ".join(f"{column} {order}" for column in key)
            for row in damaged.execute(f"SELECT * FROM {table} ORDER BY {by}"):  # noqa: S608 - our own names
                if row[: len(key)] in seen:
                    break
                seen.add(row[: len(key)])
                if row[0] != "schema":
                    yield row


def prune(connection: sqlite3.Connection, limits: StoreLimits, now: datetime) -> Pruned:
    """Delete old removed items and old call records until the file is within its limits.

    Keeps the items in context, the inbox and the newest call. A file that was too large shrinks to three quarters.
    """
    before = _size(connection)
    items = calls = 0
    if (oldest := limits.oldest(now)) is not None:
        with connection:
            items += connection.execute(
                "DELETE FROM items WHERE present IS NULL AND json_extract(original, '$.at') < ?", (oldest,)
            ).rowcount
            calls += connection.execute(
                "DELETE FROM calls WHERE json_extract(record, '$.at') < ? AND number < (SELECT max(number) FROM calls)",
                (oldest,),
            ).rowcount
    if items or (limits.max_bytes is not None and _size(connection) > limits.max_bytes):
        with connection:
            drop_index(connection)  # it contains removed texts
    if limits.max_bytes is not None and _size(connection) > limits.max_bytes:
        more_items, more_calls = _shrink(connection, limits.max_bytes * 3 // 4)
        items, calls = items + more_items, calls + more_calls
    with connection:
        prune_receipts(connection)
    if items or calls:
        connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Pruned(items, calls, before, _size(connection))


def _shrink(connection: sqlite3.Connection, target_bytes: int) -> tuple[int, int]:
    """Remove the oldest rows, an eighth of those left at a time."""
    items = calls = 0
    while _size(connection) > target_bytes:
        with connection:
            (evicted,) = connection.execute("SELECT count(*) FROM items WHERE present IS NULL").fetchone()
            (recorded,) = connection.execute("SELECT count(*) FROM calls").fetchone()
            removed_items = connection.execute(
                "DELETE FROM items WHERE seq IN (SELECT seq FROM items WHERE present IS NULL ORDER BY seq LIMIT ?)",
                (evicted // _PRUNED_PARTS + 1,),
            ).rowcount
            removed_calls = connection.execute(
                "DELETE FROM calls WHERE number IN (SELECT number FROM calls ORDER BY number LIMIT ?)",
                (min(recorded // _PRUNED_PARTS + 1, max(recorded - 1, 0)),),
            ).rowcount
        if not removed_items and not removed_calls:
            break
        items, calls = items + removed_items, calls + removed_calls
    return items, calls


def _size(connection: sqlite3.Connection) -> int:
    """Return the bytes in use in the database file."""
    pages, free, page = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * page)
