"""The archive of a session file: items removed by each compaction, and their full-text index.

Owns the tables `compactions`, `archive` and `left_text`. A damaged row or index is reported and never stops the agent.
The caller holds the transaction.
"""

import json
import logging
import sqlite3
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from mew_protocol.payloads.retrieval import CompactionEntry
from pydantic import TypeAdapter

from mew_agent.context.archive import ArchivedCompaction, ItemLife, query_of, searchable
from mew_agent.context.history import Item

logger = logging.getLogger("mew_agent.context.sqlite_archive")

ARCHIVE_TABLES: Final = """
CREATE TABLE IF NOT EXISTS compactions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL, undone_by INTEGER);
CREATE TABLE IF NOT EXISTS archive (
    compaction INTEGER NOT NULL, seq INTEGER NOT NULL, present TEXT, PRIMARY KEY (compaction, seq)) WITHOUT ROWID;
"""
"""`archive.present` is an item as it was in context when it left; NULL if that is its original."""

_INDEX: Final = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS left_text USING fts5(text, tokenize='unicode61 remove_diacritics 2')"
)
_ITEM: Final = TypeAdapter(Item)
_ARCHIVED: Final = TypeAdapter(ArchivedCompaction)
_COMPACTIONS: Final = (
    "SELECT number, record, undone_by,"
    " (SELECT count(*) FROM archive JOIN items USING (seq) WHERE compaction = number) FROM compactions"
)
_LEFT: Final = "SELECT seq, original FROM items WHERE (present IS NULL OR present <> original)"
_INDEXED_AT_ONCE: Final = 500


def item_from(text: str) -> Item:
    """Return the item that a row contains as JSON."""
    return _ITEM.validate_python(json.loads(text))


def text_of(item: Item) -> str:
    """Return an item as JSON in ASCII, because models may write lone surrogates, which UTF-8 cannot encode."""
    return json.dumps(_ITEM.dump_python(item, mode="json"))


def archive_cut(db: sqlite3.Connection, compaction: ArchivedCompaction, *, most: int | None) -> int:
    """Store a compaction before its items change. Returns its number. Beyond `most`, the oldest is dropped."""
    record = json.dumps(_ARCHIVED.dump_python(compaction, mode="json", exclude={"items"}))
    number = db.execute("INSERT INTO compactions (record) VALUES (?)", (record,)).lastrowid or 0
    db.executemany(
        "INSERT OR REPLACE INTO archive SELECT ?, seq, nullif(present, original) FROM items WHERE seq = ?",
        [(number, item.seq) for item in compaction.items],
    )
    if compaction.entry.undoes is not None:
        db.execute("UPDATE compactions SET undone_by = ? WHERE number = ?", (number, compaction.entry.undoes))
    if most is not None and number > most:
        dropped = db.execute("DELETE FROM compactions WHERE number <= ?", (number - most,)).rowcount
        db.execute("DELETE FROM archive WHERE compaction <= ?", (number - most,))
        if dropped:
            logger.info("compactions up to %d were deleted (store_max_compactions)", number - most)
    return number


def entries(db: sqlite3.Connection) -> list[CompactionEntry]:
    """Return all compactions, oldest first. A damaged one only has its number."""
    return [_entry(*row) for row in db.execute(f"{_COMPACTIONS} ORDER BY number")]


def archived(db: sqlite3.Connection, number: int) -> ArchivedCompaction | None:
    """Return a compaction with its items still stored; None for an unknown number."""
    row = db.execute(f"{_COMPACTIONS} WHERE number = ?", (number,)).fetchone()
    if row is None:
        return None
    entry, change = _entry(*row), _change(number, row[1])
    texts = db.execute(
        "SELECT coalesce(archive.present, original) FROM archive JOIN items USING (seq) WHERE compaction = ?"
        " ORDER BY seq",
        (number,),
    )
    items: tuple[Item, ...] = ()
    try:
        items = tuple(item_from(text) for (text,) in texts)
    except ValueError as error:
        logger.warning("an item of compaction %d is damaged in the session file: %s", number, error)
        change = None
    if change is None:
        return ArchivedCompaction(entry.model_copy(update={"problem": "damaged"}))
    return replace(change, entry=entry, items=items)


def life_of(db: sqlite3.Connection, seq: int) -> ItemLife | None:
    """Return an item as added, with the changes since it first left; None if no longer stored."""
    row = db.execute("SELECT original FROM items WHERE seq = ?", (seq,)).fetchone()
    if row is None:
        return None
    took = frozenset(number for (number,) in db.execute("SELECT compaction FROM archive WHERE seq = ?", (seq,)))
    since = db.execute("SELECT number, record FROM compactions WHERE number >= ? ORDER BY 1", (min(took, default=-1),))
    changes = [_change(number, record) for number, record in since] if took else []
    return ItemLife(item_from(row[0]), tuple(one for one in changes if one is not None), took)


def _change(number: int, record: str) -> ArchivedCompaction | None:
    """Return a change without its items; None if its row is damaged."""
    try:
        values: dict[str, Any] = json.loads(record)
        if missing := {"before", "after", "point"} - values.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        change = _ARCHIVED.validate_python(values)
    except (AttributeError, ValueError) as error:
        logger.warning("compaction %d is damaged in the session file: %s", number, error)
        return None
    return replace(change, entry=change.entry.model_copy(update={"number": number}))


def _entry(number: int, record: str, undone_by: int | None, stored_items: int) -> CompactionEntry:
    change = _change(number, record)
    if change is None:
        return CompactionEntry(
            number=number,
            at="",
            trigger="unknown",
            freed_tokens=0,
            freed_gross_tokens=0,
            summary_tokens=0,
            freed_messages=0,
            basis="projected",
            undone_by=undone_by,
            problem="damaged",
        )
    is_pruned = stored_items < change.entry.items
    problem = {"problem": "pruned"} if is_pruned else {}
    return change.entry.model_copy(update={"undone_by": undone_by, **problem})


# -- full text --------------------------------------------------------------------------------------------


def index_some(db: sqlite3.Connection) -> bool:
    """Index at most 500 more removed items. Returns whether more remain.

    Only searches write the index, so a damaged index cannot fail a compaction. It is rebuilt.
    """
    db.execute(_INDEX)
    db.execute(f"DELETE FROM left_text WHERE rowid NOT IN (SELECT seq FROM ({_LEFT}))")  # noqa: S608 - our own names
    missing = " AND seq NOT IN (SELECT rowid FROM left_text) LIMIT ?"
    rows = db.execute(_LEFT + missing, (_INDEXED_AT_ONCE,)).fetchall()
    texts = [(seq, searchable(item_from(text).text())) for seq, text in rows]
    db.executemany("INSERT INTO left_text (rowid, text) VALUES (?, ?)", texts)
    return len(rows) == _INDEXED_AT_ONCE


def drop_index(db: sqlite3.Connection) -> None:
    """Remove the index; the next search rebuilds it."""
    with suppress(sqlite3.DatabaseError):
        db.execute("DROP TABLE IF EXISTS left_text")


def search(db: sqlite3.Connection, words: str, limit: int) -> list[int]:
    """Return the seqs of the best matches: items with every word, or if there are none, with any word."""
    for every in (True, False):
        if not (query := query_of(words, every=every)):
            break
        found = db.execute(
            "SELECT rowid FROM left_text WHERE left_text MATCH ? ORDER BY rank, rowid DESC LIMIT ?", (query, limit)
        ).fetchall()
        if found:
            return [seq for (seq,) in found]
    return []
