"""A session in an SQLite file.

Owns the tables, the transactions and how values are written. Which form the tables have, and how older forms become the
present one, is decided in `schema`; what is stored is defined in `store`.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from mew_protocol.envelope import Envelope
from pydantic import TypeAdapter, ValidationError

from mew_agent.context.history import Item, Summary
from mew_agent.context.persisted_state import SavedContext, persisted_state_from_json, persisted_state_json
from mew_agent.context.store import (
    UNCHANGED,
    CallRecord,
    InboxChange,
    Session,
    StoredChat,
    StoredInbox,
    StoreUnusable,
)
from mew_agent.model.usage import Usage

SCHEMA_VERSION = 1

_ITEM = TypeAdapter(Item)
_SUMMARY = TypeAdapter(Summary)
T = TypeVar("T")

_TABLES = """
CREATE TABLE IF NOT EXISTS items (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, original TEXT NOT NULL, present TEXT, left_at_revision INTEGER);
CREATE INDEX IF NOT EXISTS items_by_id ON items (id);
CREATE TABLE IF NOT EXISTS calls (number INTEGER PRIMARY KEY AUTOINCREMENT, role TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (number INTEGER PRIMARY KEY, chat TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class SqliteStore:
    """A session in an SQLite file, created if missing. Calls run in a worker thread, one at a time.

    Every method raises `StoreUnusable` if the file is not a session, of a later version, damaged or locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def load(self) -> Session | None:
        """See `Store.load`."""
        return await self._run(self._load)

    async def keep(
        self,
        session: Session,
        *,
        added: Sequence[Item] = (),
        call: CallRecord | None = None,
        evicted: Sequence[int] = (),
        replaced: Sequence[Item] = (),
        inbox: InboxChange = UNCHANGED,
    ) -> None:
        """See `Store.keep`."""

        def write(db: sqlite3.Connection) -> None:
            self._keep(db, session, added, call, evicted, replaced)
            self._change_inbox(db, inbox)

        await self._run(write)

    async def load_inbox(self) -> StoredInbox:
        """See `Store.load_inbox`."""
        return await self._run(self._load_inbox)

    async def change_inbox(self, change: InboxChange) -> None:
        """See `Store.change_inbox`."""
        await self._run(lambda db: self._change_inbox(db, change))

    async def recall(self, item_id: str) -> Item | None:
        """See `Store.recall`."""
        row = await self._run(
            lambda db: db.execute(
                "SELECT original FROM items WHERE id = ? ORDER BY seq DESC LIMIT 1", (item_id,)
            ).fetchone()
        )
        return _item_from(row[0]) if row else None

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        """See `Store.calls`."""
        bound = -1 if newest is None else newest
        rows = await self._run(
            lambda db: db.execute("SELECT record FROM calls ORDER BY number DESC LIMIT ?", (bound,)).fetchall()
        )
        return [_call_from(row[0]) for row in reversed(rows)]

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await anyio.to_thread.run_sync(connection.close, limiter=self._one_at_a_time)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def transaction() -> T:
            try:
                connection = self._open()
                with connection:
                    return work(connection)
            except (OSError, sqlite3.Error) as error:
                raise StoreUnusable(self._path, str(error)) from error
            except (KeyError, TypeError, ValueError, ValidationError) as error:
                raise StoreUnusable(self._path, f"its content is invalid ({error})") from error

        return await anyio.to_thread.run_sync(transaction, limiter=self._one_at_a_time)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives its extra files the mode of this one, so it must be private before it is opened.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            self._path.chmod(0o600)
            connection = sqlite3.connect(self._path, check_same_thread=False)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_TABLES)
        connection.execute("INSERT OR IGNORE INTO state VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        connection.commit()
        (found,) = connection.execute("SELECT value FROM state WHERE key = 'schema'").fetchone()
        if found != str(SCHEMA_VERSION):
            raise StoreUnusable(self._path, f"its version is {found}, expected {SCHEMA_VERSION}")

    @staticmethod
    def _load(db: sqlite3.Connection) -> Session | None:
        row = db.execute("SELECT value FROM state WHERE key = 'session'").fetchone()
        if row is None:
            return None
        state: dict[str, Any] = json.loads(row[0])
        items = [
            _item_from(present)
            for (present,) in db.execute("SELECT present FROM items WHERE present IS NOT NULL ORDER BY seq")
        ]
        summary = state["summary"]
        return Session(
            items=tuple(items),
            summary=_SUMMARY.validate_python(summary) if summary else None,
            revision=state["revision"],
            next_seq=state["next_seq"],
            turn=state["turn"],
            context=SavedContext.model_validate(state["context"]),
            persisted=persisted_state_from_json(json.dumps(state.get("persisted", {}))),
        )

    @staticmethod
    def _keep(
        db: sqlite3.Connection,
        session: Session,
        added: Iterable[Item],
        call: CallRecord | None,
        evicted: Iterable[int],
        replaced: Iterable[Item],
    ) -> None:
        for item in added:
            text = _text_of(item)
            db.execute("INSERT INTO items VALUES (?, ?, ?, ?, NULL)", (item.seq, item.id, text, text))
        db.executemany(
            "UPDATE items SET present = ? WHERE seq = ? AND present IS NOT NULL",
            [(_text_of(item), item.seq) for item in replaced],
        )
        db.executemany(
            "UPDATE items SET present = NULL, left_at_revision = ? WHERE seq = ? AND present IS NOT NULL",
            [(session.revision, seq) for seq in evicted],
        )
        if call is not None:
            db.execute("INSERT INTO calls (role, record) VALUES (?, ?)", (call.role, json.dumps(asdict(call))))
        state = {
            "summary": asdict(session.summary) if session.summary else None,
            "revision": session.revision,
            "next_seq": session.next_seq,
            "turn": session.turn,
            "context": session.context.model_dump(mode="json"),
            "persisted": json.loads(persisted_state_json(session.persisted)),
        }
        db.execute("INSERT OR REPLACE INTO state VALUES ('session', ?)", (json.dumps(state),))

    @staticmethod
    def _load_inbox(db: sqlite3.Connection) -> StoredInbox:
        rows = db.execute("SELECT number, chat FROM inbox ORDER BY number").fetchall()
        found = db.execute("SELECT value FROM state WHERE key = 'position'").fetchone()
        return StoredInbox(tuple(_chat_from(number, text) for number, text in rows), found[0] if found else None)

    @staticmethod
    def _change_inbox(db: sqlite3.Connection, change: InboxChange) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO inbox VALUES (?, ?)", [(chat.number, _chat_text(chat)) for chat in change.put]
        )
        db.executemany("DELETE FROM inbox WHERE number = ?", [(number,) for number in change.removed])
        if change.position is not None:
            db.execute("INSERT OR REPLACE INTO state VALUES ('position', ?)", (change.position,))


def _chat_text(chat: StoredChat) -> str:
    return json.dumps(
        {
            "envelope": json.loads(chat.envelope.encode()),
            "state": chat.state,
            "position": chat.position,
            "turn": chat.turn,
            "first_seq": chat.first_seq,
            "attempts": chat.attempts,
            "answer": chat.answer,
        }
    )


def _chat_from(number: int, text: str) -> StoredChat:
    values = json.loads(text)
    return StoredChat(number, Envelope.model_validate(values.pop("envelope")), **values)


def _text_of(item: Item) -> str:
    """Encode as ASCII: models do write halves of surrogate pairs, which UTF-8 cannot encode."""
    return json.dumps(asdict(item))


def _item_from(text: str) -> Item:
    return _ITEM.validate_python(json.loads(text))


def _call_from(text: str) -> CallRecord:
    values = json.loads(text)
    usage = values.pop("usage")
    return CallRecord(**values, usage=Usage(**usage) if usage else None)
