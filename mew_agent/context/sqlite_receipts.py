"""The receipts in a session file: entries of messages into prompts, their endings, and their followers.

Owns these tables. The caller holds the transaction.
"""

import sqlite3
from typing import Final, cast

from mew_protocol.payloads.read_receipts import InContext, PromptCall

from mew_agent.context.message_facts import (
    MAX_FOLLOWERS,
    MAX_KEPT,
    Ending,
    MessageEnding,
    MessageEntry,
    MessageKey,
    MessageRecord,
    ReceiptChange,
    ReceiptFollower,
)

RECEIPT_TABLES: Final = """
CREATE TABLE IF NOT EXISTS prompts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER, call INTEGER,
    call_id TEXT, call_at TEXT, doubtful INTEGER NOT NULL DEFAULT 0, form TEXT, form_at TEXT);
CREATE INDEX IF NOT EXISTS prompts_by_id ON prompts (id, sender);
CREATE INDEX IF NOT EXISTS prompts_unread ON prompts (seq) WHERE call IS NULL AND seq IS NOT NULL;
CREATE TABLE IF NOT EXISTS endings (
    number INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, id TEXT NOT NULL, what TEXT NOT NULL,
    at TEXT NOT NULL, session TEXT, answer TEXT, reason TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS endings_by_id ON endings (id, sender);
CREATE TABLE IF NOT EXISTS follows (
    number INTEGER PRIMARY KEY AUTOINCREMENT, sender TEXT NOT NULL, id TEXT NOT NULL, follower TEXT NOT NULL,
    told TEXT NOT NULL, times INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX IF NOT EXISTS follows_by_id ON follows (id, sender, follower);
CREATE INDEX IF NOT EXISTS archive_by_seq ON archive (seq);
"""

_READ: Final = (
    "UPDATE prompts SET call = ?, call_id = ?, call_at = ? WHERE call IS NULL AND seq <= ?"
    " AND seq IN (SELECT seq FROM items WHERE present IS NOT NULL)"
)
_DOUBTED: Final = (
    "UPDATE prompts SET doubtful = 1 WHERE call IS NULL AND seq <= ?"
    " AND seq IN (SELECT seq FROM items WHERE present IS NOT NULL)"
)
_NEWEST_SEQ: Final = 2**63 - 1


def change_receipts(db: sqlite3.Connection, change: ReceiptChange) -> None:
    """Write a change of the facts."""
    for seq, key in change.seqs:
        db.execute("INSERT INTO prompts (sender, id, seq) VALUES (?, ?, ?)", (key.sender, key.id, seq))
    if (prompted := change.prompted) is not None:
        call = prompted.call
        if prompted.is_read:
            db.execute(_READ, (call.number, call.id, call.at, prompted.last_seq))
        else:
            db.execute(_DOUBTED, (prompted.last_seq,))
    if change.is_restart:
        db.execute(_DOUBTED, (_NEWEST_SEQ,))
    for key, call in change.read:
        db.execute(
            "INSERT INTO prompts (sender, id, call, call_id, call_at, form) VALUES (?, ?, ?, ?, ?, 'whole')",
            (key.sender, key.id, call.number, call.id, call.at),
        )
    if change.forms is not None:
        db.execute("UPDATE prompts SET form = ?, form_at = ? WHERE seq IS NULL AND form <> 'gone'", change.forms)
    for one in change.endings:
        db.execute(
            "INSERT OR REPLACE INTO endings (sender, id, what, at, session, answer, reason)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (one.key.sender, one.key.id, one.what, one.at, one.session, one.answer, one.reason),
        )
    for follower in change.followers:
        db.execute(
            "INSERT INTO follows (sender, id, follower, told, times) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id, sender, follower) DO UPDATE SET told = excluded.told, times = excluded.times",
            (follower.key.sender, follower.key.id, follower.participant, follower.told, follower.times),
        )


def record_of(db: sqlite3.Connection, key: MessageKey) -> MessageRecord:
    """Return the record of one message."""
    entries = [
        MessageEntry(seq, _call(call, call_id, call_at), bool(doubtful), cast("InContext | None", form), form_at)
        for seq, call, call_id, call_at, doubtful, form, form_at in db.execute(
            "SELECT seq, call, call_id, call_at, doubtful, form, form_at FROM prompts"
            " WHERE id = ? AND sender = ? ORDER BY number",
            (key.id, key.sender),
        )
    ]
    row = db.execute(
        "SELECT what, at, session, answer, reason FROM endings WHERE id = ? AND sender = ?", (key.id, key.sender)
    ).fetchone()
    ending = None if row is None else MessageEnding(key, cast("Ending", row[0]), *row[1:])
    return MessageRecord(tuple(entries), ending)


def senders_of(db: sqlite3.Connection, message_id: str) -> list[str]:
    """Return the senders of messages with this id, newest first."""
    rows = db.execute(
        "SELECT sender, max(number) FROM (SELECT sender, number FROM endings WHERE id = :id"
        " UNION ALL SELECT sender, number FROM prompts WHERE id = :id) GROUP BY sender ORDER BY 2 DESC",
        {"id": message_id},
    )
    return [sender for sender, _ in rows]


def followers(db: sqlite3.Connection) -> list[ReceiptFollower]:
    """Return the newest thousand followers of messages."""
    rows = db.execute(
        "SELECT sender, id, follower, told, times FROM follows ORDER BY number DESC LIMIT ?", (MAX_FOLLOWERS,)
    )
    return [ReceiptFollower(MessageKey(sender, name), *rest) for sender, name, *rest in rows][::-1]


def prune_receipts(db: sqlite3.Connection) -> None:
    """Delete the oldest entries and followers beyond their limits."""
    for table, kept in (("prompts", MAX_KEPT), ("endings", MAX_KEPT), ("follows", MAX_FOLLOWERS)):
        db.execute(f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (kept,))  # noqa: S608 - our own names


def _call(number: int | None, call_id: str | None, at: str | None) -> PromptCall | None:
    return None if number is None else PromptCall(number=number, id=call_id or "", at=at or "")
