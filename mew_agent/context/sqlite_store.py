"""A session in an SQLite database, in a file or in memory: the transactions, and the form of values.

A compaction only changes the view: an evicted item stays in the store, with the revision of its removal.
`sqlite_schema` defines the tables, `store` their contents.
"""

import json
import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

import anyio
import anyio.to_thread
from mew_protocol.payloads.retrieval import CompactionEntry
from mew_settings.setting_problems import first_problem
from pydantic import TypeAdapter, ValidationError

from mew_agent.context import sqlite_archive, sqlite_receipts
from mew_agent.context.archive import ArchivedCompaction, ItemLife
from mew_agent.context.history import Item
from mew_agent.context.message_facts import NO_RECEIPTS, MessageKey, MessageRecord, ReceiptFollower
from mew_agent.context.persisted_state import CallRecord
from mew_agent.context.sqlite_archive import item_from, text_of
from mew_agent.context.sqlite_schema import Pruned, open_session_file, open_session_in_memory, prune, set_aside
from mew_agent.context.store import (
    NO_CHANGE,
    InboxChange,
    Session,
    SessionChange,
    StoreDamaged,
    StoredChat,
    StoredInbox,
    StoreLimits,
    StoreUnusable,
)

logger = logging.getLogger("mew_agent.context.sqlite_store")

_CALL = TypeAdapter(CallRecord)
_CHAT = TypeAdapter(StoredChat)
_SESSION = TypeAdapter(Session)
_STATE_KEYS = {"summary", "revision", "next_seq", "turn", "context"}  # keys in the state of every version
_NAMED = "value:"  # begins the keys of `keep_value` in the state
T = TypeVar("T")

READ_ITEMS = 1000  # number of items to read at a time
_MAX_SEQ = 2**63 - 1
PRUNE_EVERY = 1000  # number of changes between two checks of a file's limits


@dataclass(frozen=True, slots=True)
class SessionOverview:
    """A session in figures: items in context, removed items, calls, unanswered chats, size, newest item."""

    items: int
    evicted: int
    calls: int
    open_chats: int
    size_bytes: int
    newest_at: str | None


class Store(ABC):
    """Stores one agent's session. Each method is one transaction in a worker thread, one at a time.

    Every method but `value` and `keep_value` raises `StoreUnusable` if the file is no session, damaged,
    locked, or of a later version.
    """

    def __init__(self, path: Path, limits: StoreLimits | None = None) -> None:
        """`limits` apply at loading, and after every thousand changes."""
        self._path = path
        self._limits = limits
        self._changes = 0
        self._connection: sqlite3.Connection | None = None
        self._one_at_a_time = anyio.CapacityLimiter(1)

    async def load(self) -> Session | None:
        """Load the session; None if it is new. Renames a damaged file and loads its readable rows."""
        session = await self._load_or_rescue()
        if self._limits is not None:
            await self.prune(self._limits)
        return session

    async def _load_or_rescue(self) -> Session | None:
        try:
            return await self._run(_load)
        except StoreDamaged as damage:
            await anyio.to_thread.run_sync(self._rescue, damage, limiter=self._one_at_a_time)
        try:
            return await self._run(_load)
        except StoreDamaged:
            return await self._run(_load_items)

    async def prune(self, limits: StoreLimits) -> Pruned:
        """Remove items and calls beyond the limits."""
        return await self._run(lambda db: prune(db, limits, datetime.now(UTC)))

    async def keep(self, session: Session, change: SessionChange = NO_CHANGE) -> int | None:
        """Store a change and the whole state. Returns the number of its compaction, if it has one.

        Does not read `session.items`: items are stored one by one as they change.
        """

        def write(db: sqlite3.Connection) -> int | None:
            number = None
            if change.compaction is not None:
                most = None if self._limits is None else self._limits.max_compactions
                number = sqlite_archive.archive_cut(db, change.compaction, most=most)
            for item in change.added:
                text = text_of(item)
                db.execute("INSERT INTO items VALUES (?, ?, ?, ?, NULL)", (item.seq, item.id, text, text))
            db.executemany(
                "UPDATE items SET present = ? WHERE seq = ? AND present IS NOT NULL",
                [(text_of(item), item.seq) for item in change.replaced],
            )
            db.executemany(
                "UPDATE items SET present = NULL, left_at_revision = ? WHERE seq = ? AND present IS NOT NULL",
                [(session.revision, seq) for seq in change.evicted],
            )
            db.executemany(
                "UPDATE items SET present = ?, left_at_revision = NULL WHERE seq = ?",
                [(text_of(item), item.seq) for item in change.restored],
            )
            if (call := change.call) is not None:
                record = json.dumps(_CALL.dump_python(call, mode="json"))
                db.execute("INSERT INTO calls (role, record) VALUES (?, ?)", (call.role, record))
            state = json.dumps(_SESSION.dump_python(session, mode="json", exclude={"items"}))
            db.execute("INSERT OR REPLACE INTO state VALUES ('session', ?)", (state,))
            if change.receipts is not NO_RECEIPTS:
                sqlite_receipts.change_receipts(db, change.receipts)
            _change_inbox(db, change.inbox)
            return number

        number = await self._run(write, is_change=True)
        self._changes += 1
        if self._limits is not None and self._changes % PRUNE_EVERY == 0:
            await self.prune(self._limits)
        return number

    async def load_inbox(self) -> StoredInbox:
        """Load the inbox; empty if the session is new."""
        return await self._run(_load_inbox)

    async def change_inbox(self, change: InboxChange) -> None:
        """Store a change of the inbox only."""
        await self._run(lambda db: _change_inbox(db, change), is_change=True)

    async def value(self, name: str, form: TypeAdapter[T]) -> T | None:
        """Return the value that `keep_value` stored under a name; None if there is none.

        One that cannot be read, or has another form, is ignored with a warning.
        """

        def read(db: sqlite3.Connection) -> T | None:
            row = db.execute("SELECT value FROM state WHERE key = ?", (f"{_NAMED}{name}",)).fetchone()
            return None if row is None else form.validate_json(row[0])

        try:
            return await self._run(read)
        except StoreUnusable as error:
            logger.warning("%s not loaded: %s", name, error)
            return None

    async def keep_value(self, name: str, value: object) -> None:
        """Store a JSON value under a name, replacing an earlier one. A failure is only logged."""
        row = f"{_NAMED}{name}", json.dumps(value)
        try:
            await self._run(lambda db: db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", row), is_change=True)
        except StoreUnusable as error:
            logger.warning("%s not stored: %s", name, error)

    async def recall(self, item_id: str) -> Item | None:
        """Return an item by id as added, even if it has left the context; None if unknown."""
        found = await self._read(
            item_from, "SELECT original FROM items WHERE id = ? ORDER BY seq DESC LIMIT 1", item_id
        )
        return found[0] if found else None

    async def compactions(self) -> list[CompactionEntry]:
        """Return all archived compactions, oldest first. Those with lower numbers were deleted."""
        return await self._run(sqlite_archive.entries)

    async def archived(self, number: int) -> ArchivedCompaction | None:
        """Return a compaction with its stored items as they were in context; None for an unknown number."""
        return await self._run(lambda db: sqlite_archive.archived(db, number))

    async def search(self, words: str, limit: int) -> list[Item]:
        """Return the removed items and notes that contain these words, best match first."""
        try:
            return await self._search(words, limit)
        except StoreUnusable as error:
            logger.warning("rebuilding the full-text index: %s", error)
            await self._run(sqlite_archive.drop_index)
            return await self._search(words, limit)

    async def _search(self, words: str, limit: int) -> list[Item]:
        # In parts, so that writes to a large session need not wait.
        while await self._run(sqlite_archive.index_some):
            pass
        seqs = await self._run(lambda db: sqlite_archive.search(db, words, limit))
        found = [await self._read(item_from, "SELECT original FROM items WHERE seq = ?", seq) for seq in seqs]
        return [item for items in found for item in items]

    async def message(self, key: MessageKey) -> MessageRecord:
        """Return the record of a message for its receipt."""
        return await self._run(lambda db: sqlite_receipts.record_of(db, key))

    async def senders_of(self, message_id: str) -> list[str]:
        """Return the senders of messages with this id, newest first."""
        return await self._run(lambda db: sqlite_receipts.senders_of(db, message_id))

    async def followers(self) -> list[ReceiptFollower]:
        """Return the newest thousand followers of receipts."""
        return await self._run(sqlite_receipts.followers)

    async def prompts_read(self) -> int:
        """Return the number of the newest prompt of another program's history."""
        return (await self._read(int, "SELECT coalesce(max(call), 0) FROM prompts WHERE seq IS NULL"))[0]

    async def life_of(self, seq: int) -> ItemLife | None:
        """Return an item as added, with the changes since it first left; None if no longer stored."""
        return await self._run(lambda db: sqlite_archive.life_of(db, seq))

    async def items(self, newest: int | None = None, on_read: Callable[[int, int], None] | None = None) -> list[Item]:
        """Return all items as added, in context or not, or the `newest` ones, oldest first.

        After each part, `on_read` gets the number of items read and the total.
        """
        (total,) = await self._read(int, "SELECT count(*) FROM items")
        total = total if newest is None else min(newest, total)
        found: list[Item] = []
        before = _MAX_SEQ
        while len(found) < total:
            most = min(READ_ITEMS, total - len(found))
            query = "SELECT original FROM items WHERE seq < ? ORDER BY seq DESC LIMIT ?"
            if not (part := await self._read(item_from, query, before, most)):
                break
            found += part
            before = part[-1].seq
            if on_read is not None:
                on_read(len(found), total)
        return found[::-1]

    async def overview(self) -> SessionOverview:
        """Count the contents of the session."""

        def count(db: sqlite3.Connection) -> SessionOverview:
            (present, evicted), (calls,), (chats,), newest = (
                db.execute("SELECT count(present), count(*) - count(present) FROM items").fetchone(),
                db.execute("SELECT count(*) FROM calls").fetchone(),
                db.execute("SELECT count(*) FROM inbox WHERE json_extract(chat, '$.state') <> 'overheard'").fetchone(),
                db.execute("SELECT json_extract(original, '$.at') FROM items ORDER BY seq DESC LIMIT 1").fetchone(),
            )
            size = self._path.stat().st_size
            return SessionOverview(present, evicted, calls, chats, size, newest[0] if newest else None)

        return await self._run(count)

    async def calls(self, newest: int | None = None) -> list[CallRecord]:
        """Return all calls, or the `newest` ones, oldest first."""
        query = "SELECT record FROM calls ORDER BY number DESC LIMIT ?"
        return (await self._read(_CALL.validate_json, query, -1 if newest is None else newest))[::-1]

    async def aclose(self) -> None:
        """Close the store. All stored data stays."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await anyio.to_thread.run_sync(connection.close, limiter=self._one_at_a_time)

    async def _read(self, read: Callable[[Any], T], query: str, *values: object) -> list[T]:
        """Return the only column of each row as `read` reads it."""
        return await self._run(lambda db: [read(value) for (value,) in db.execute(query, values)])

    async def _run(self, work: Callable[[sqlite3.Connection], T], *, is_change: bool = False) -> T:
        """Run a transaction. A cancelled task still completes it, because the caller has already changed its memory."""

        def transaction() -> T:
            try:
                connection = self._connection = self._connection or self._connect()
                with connection:
                    return work(connection)
            except (OSError, sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                raise StoreUnusable(self._path, str(error)) from error
            except sqlite3.DatabaseError as error:
                raise StoreDamaged(self._path, str(error)) from error
            except (KeyError, TypeError, ValueError) as error:
                problem = first_problem(error) if isinstance(error, ValidationError) else error
                raise StoreDamaged(self._path, f"its content is invalid ({problem})") from error

        with anyio.CancelScope(shield=is_change):
            done = await anyio.to_thread.run_sync(transaction, limiter=self._one_at_a_time)
        return done  # noqa: RET504 - to mypy, a scope may swallow what is raised in it

    @abstractmethod
    def _connect(self) -> sqlite3.Connection: ...

    def _rescue(self, damage: StoreDamaged) -> None:
        """Rename the damaged file and continue with its readable rows."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        try:
            aside, saved = set_aside(self._path, datetime.now(UTC))
        except (OSError, sqlite3.Error):
            raise damage from None
        logger.warning(
            "session file %s is damaged (%s); it is now %s; saved from it: %d items, %d calls, %d chats%s",
            *(self._path, damage.problem, aside, saved["items"], saved["calls"], saved["inbox"]),
            "" if saved["state"] else ", no figures",
        )


class SqliteStore(Store):
    """A session in an SQLite file, created if missing."""

    def _connect(self) -> sqlite3.Connection:
        return open_session_file(self._path)


class MemoryStore(Store):
    """A session in memory, until the process ends. `limits` apply to removed items."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        super().__init__(Path(":memory:"), limits)

    def _connect(self) -> sqlite3.Connection:
        connection = open_session_in_memory()
        finalize(self, connection.close)  # closes it with the store, which need not be closed
        return connection


def _load(db: sqlite3.Connection) -> Session | None:
    row = db.execute("SELECT value FROM state WHERE key = 'session'").fetchone()
    if row is None:
        return _load_items(db)
    items = db.execute("SELECT present FROM items WHERE present IS NOT NULL ORDER BY seq")
    state = json.loads(row[0])
    session = _SESSION.validate_python(state)
    if missing := _STATE_KEYS - state.keys():
        raise ValueError(f"the state has no {', '.join(sorted(missing))}")
    (last,) = db.execute("SELECT coalesce(max(seq), -1) FROM items").fetchone()
    # An older copy of the state must not use a number again.
    next_seq = max(session.next_seq, last + 1)
    return replace(session, items=tuple(item_from(present) for (present,) in items), next_seq=next_seq)


def _load_items(db: sqlite3.Connection) -> Session | None:
    """Load the session of a file that lost its state; None if it has no items either."""
    db.execute("DELETE FROM state WHERE key = 'session'")
    items: list[Item] = []
    for seq, present in db.execute("SELECT seq, present FROM items WHERE present IS NOT NULL ORDER BY seq").fetchall():
        try:
            items.append(item_from(present))
        except ValueError:
            db.execute("DELETE FROM items WHERE seq = ?", (seq,))
    (last,) = db.execute("SELECT max(seq) FROM items").fetchone()
    if last is None:
        return None
    return Session(tuple(items), next_seq=last + 1, turn=max((item.turn for item in items), default=0))


def _load_inbox(db: sqlite3.Connection) -> StoredInbox:
    found = db.execute("SELECT value FROM state WHERE key = 'position'").fetchone()
    chats: list[StoredChat] = []
    for number, text in db.execute("SELECT number, chat FROM inbox ORDER BY number").fetchall():
        try:
            chats.append(_CHAT.validate_python({"number": number, **json.loads(text)}))
        except (TypeError, ValueError) as error:
            logger.warning("a chat of the inbox cannot be read and is left out: %s", error)
            db.execute("DELETE FROM inbox WHERE number = ?", (number,))
    return StoredInbox(tuple(chats), found[0] if found else None)


def _change_inbox(db: sqlite3.Connection, change: InboxChange) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO inbox VALUES (?, ?)", [(chat.number, _chat_text(chat)) for chat in change.put]
    )
    db.executemany("DELETE FROM inbox WHERE number = ?", [(number,) for number in change.removed])
    if change.position is not None:
        db.execute("INSERT OR REPLACE INTO state VALUES ('position', ?)", (change.position,))
    if change.receipts is not NO_RECEIPTS:
        sqlite_receipts.change_receipts(db, change.receipts)


def _chat_text(chat: StoredChat) -> str:
    values = _CHAT.dump_python(chat, mode="json", exclude={"number", "envelope"})
    return json.dumps({"envelope": json.loads(chat.envelope.encode()), **values})
