"""One contract for both stores: what is stored and loaded, and errors for unusable files."""

import json
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mew_protocol.context_report import LastCompaction, LastReported
from mew_protocol.envelope import Envelope

from mew_agent.context.history import History, Item, Summary
from mew_agent.context.persisted_state import CallRecord, PersistedState, SavedContext
from mew_agent.context.policy import PolicyState
from mew_agent.context.reminders import Reminder
from mew_agent.context.sqlite_schema import open_session_file, set_aside
from mew_agent.context.sqlite_store import PRUNE_EVERY, MemoryStore, SqliteStore, Store
from mew_agent.context.store import (
    InboxChange,
    Session,
    SessionChange,
    StoreDamaged,
    StoredChat,
    StoredInbox,
    StoreLimits,
    StoreUnusable,
)
from mew_agent.model.interface import ToolCall
from mew_agent.model.usage import Usage

CONTEXT = SavedContext(
    last_reported=LastReported(tokens=98_412, measured_at="2026-01-01T00:00:00Z", call_id="c"),
    measured_revision=3,
    measured_seq=7,
    measured_reply_seq=8,
    compactions=2,
    last_compaction=LastCompaction(
        at="t",
        trigger="threshold",
        tokens_before=100,
        tokens_after=40,
        freed_tokens=60,
        freed_gross_tokens=70,
        summary_tokens=10,
        freed_messages=4,
        basis="projected",
    ),
    policy_state=PolicyState(armed=False, announced_at_seconds=17.5, stalls=1, prompting="critical", remaining=2),
    served_model="gpt",
    calibrations={"gpt": (120.5, 100.25)},
)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "deep" / "session.db")
    yield made
    await made.aclose()


def items(*contents: str) -> list[Item]:
    history = History()
    for content in contents:
        history.append("user", content, id=f"i{history.next_seq}", at="t", envelope_id=f"e{history.next_seq}")
    return history.items


@pytest.mark.parametrize(("newest", "parts"), [(None, [(1000, 2100), (2000, 2100), (2100, 2100)]), (3, [(3, 3)])])
async def test_reading_many_items_says_how_far_it_is(
    tmp_path: Path, newest: int | None, parts: list[tuple[int, int]]
) -> None:
    store, kept, seen = SqliteStore(tmp_path / "s.db"), items(*map(str, range(2100))), []
    await store.keep(Session(items=tuple(kept), next_seq=len(kept)), SessionChange(added=kept))
    found = await store.items(newest, lambda read, total: seen.append((read, total)))
    assert found == kept[-(newest or len(kept)) :]
    assert seen == parts
    assert await store.items(0) == []
    await store.aclose()


async def test_a_new_store_has_no_session(store: Store) -> None:
    assert await store.load() is None
    assert await store.recall("i0") is None
    assert await store.calls() == []


async def test_a_stored_session_is_loaded_unchanged(store: Store) -> None:
    history = History()
    history.begin_turn()
    history.append("user", "Where?", id="u", at="t", name="ada", envelope_id="e")
    history.append(
        "assistant",
        "",
        id="a",
        at="t",
        tool_calls=(ToolCall("c", "read", '{"path": "é"}'), ToolCall("d", "read", "{}")),
        known_tokens=17,
        thinking=True,
    )
    history.append("tool", "text", id="r", at="t", tool_call_id="c")
    session = Session((), Summary("Frames.", 12, ("e", "f")), 4, 3, 1, CONTEXT)
    await store.keep(session, SessionChange(added=history.items))
    loaded = await store.load()
    assert loaded == Session(tuple(history.items), session.summary, 4, 3, 1, CONTEXT)


async def test_items_come_back_in_order_however_they_were_kept(store: Store) -> None:
    first, second, third = items("a", "b", "c")
    for item in (first, third, second):
        await store.keep(Session(), SessionChange(added=[item]))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == (first, second, third)


async def test_an_evicted_item_leaves_the_session_and_can_be_recalled(store: Store) -> None:
    kept = items("a", "b", "c")
    await store.keep(Session(), SessionChange(added=kept))
    await store.keep(Session(revision=1), SessionChange(evicted=[0, 1]))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == (kept[2],)
    assert await store.recall("i0") == kept[0]


async def test_a_note_replaces_its_item_and_the_original_can_be_recalled(store: Store) -> None:
    history = History()
    history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "read", "{}"),))
    original = history.append("tool", "a long text", id="r", at="t", tool_call_id="c")
    await store.keep(Session(), SessionChange(added=history.items))
    stubs = history.stub([1])
    await store.keep(Session(revision=1), SessionChange(replaced=stubs))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items[1] == stubs[0]
    assert await store.recall("r") == original


async def test_a_note_does_not_restore_its_item(store: Store) -> None:
    kept = items("a", "b")
    await store.keep(Session(), SessionChange(added=kept))
    await store.keep(Session(), SessionChange(evicted=[0]))
    await store.keep(Session(), SessionChange(replaced=[kept[0]]))
    await store.keep(Session(), SessionChange(evicted=[0, 99]))
    await store.keep(Session(), SessionChange(replaced=[kept[0]]))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == (kept[1],)


async def test_an_item_added_and_evicted_in_one_go_is_only_recalled(store: Store) -> None:
    (item,) = items("a")
    await store.keep(Session(), SessionChange(added=[item], evicted=[0]))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == ()
    assert await store.recall("i0") == item


async def test_of_two_items_with_one_id_the_newer_is_recalled(store: Store) -> None:
    history = History()
    for content in ("first", "second"):
        history.append("user", content, id="same", at="t")
        await store.keep(Session(), SessionChange(added=history.items[-1:]))
        history.clear()
        await store.keep(Session(), SessionChange(evicted=[0]))
    found = await store.recall("same")
    assert found is not None
    assert found.content == "second"


async def test_calls_are_stored_in_order_with_role_and_usage(store: Store) -> None:
    calls = [
        CallRecord("1", "main", "t", "gpt", 0, Usage(10, 5, 15, 2, None, total_computed=True), 120, "stop"),
        CallRecord("2", "summary", "t", "gpt", 1, None, None, None, failed="unreachable"),
        CallRecord("1", "utility", "t", "gpt", 1, Usage(1, 1, 2)),
    ]
    for call in calls:
        await store.keep(Session(), SessionChange(call=call))
    assert await store.calls() == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "half a pair \ud83d",
        "\ude00 the other half",
        "'; DROP TABLE items; --",
        "\u2028\r\n",
        "é中😀",
        "x" * 10**6,
    ],
    ids=["empty", "zero byte", "high half", "low half", "quotes", "line ends", "scripts", "a megabyte"],
)
async def test_any_text_is_kept_as_it_is(store: Store, text: str) -> None:
    history = History()
    history.append("user", text, id="i", at="t", name=text[:50], envelope_id=text[:50])
    await store.keep(Session(summary=Summary(text)), SessionChange(added=history.items))
    loaded = await store.load()
    assert loaded is not None
    assert (loaded.items, loaded.summary) == (tuple(history.items), Summary(text))
    assert await store.recall("i") == history.items[0]


async def test_many_callers_at_once_lose_nothing(store: Store) -> None:
    kept = items(*(f"text {number}" for number in range(30)))
    async with anyio.create_task_group() as tasks:
        for item in kept:
            tasks.start_soon(lambda item=item: store.keep(Session(next_seq=30), SessionChange(added=[item])))  # type: ignore[misc]
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == tuple(kept)


async def test_a_caller_that_gives_up_leaves_a_whole_transaction_or_none(store: Store) -> None:
    kept = items("a", "b")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.keep(Session(next_seq=2), SessionChange(added=kept))
    loaded = await store.load()
    assert loaded is None or loaded.items == tuple(kept)
    await store.keep(Session(next_seq=3), SessionChange(call=CallRecord("1", "main", "t", "gpt", 0)))
    assert len(await store.calls()) == 1


# -- the file -------------------------------------------------------------------------------------------------


async def test_a_file_is_read_again_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    first = SqliteStore(path)
    kept = items("a", "b")
    await first.keep(Session(next_seq=2, context=CONTEXT), SessionChange(added=kept))
    await first.aclose()
    second = SqliteStore(path)
    loaded = await second.load()
    await second.aclose()
    assert loaded == Session(tuple(kept), None, 0, 2, 0, CONTEXT)


async def test_a_closed_store_can_be_closed_again_and_used_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "session.db")
    await store.aclose()
    await store.keep(Session(), SessionChange(added=items("a")))
    await store.aclose()
    await store.aclose()
    assert await store.recall("i0") is not None
    await store.aclose()


async def test_the_session_file_and_its_extra_files_are_private(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "session.db")
    await store.keep(Session(), SessionChange(added=items("a")))
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    await store.aclose()
    assert "session.db-wal" in found
    assert set(found.values()) == {0o600}


async def test_a_refused_change_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "session.db")
    kept = items("a", "b")
    await store.keep(Session(next_seq=2), SessionChange(added=kept))
    with pytest.raises(StoreUnusable, match="UNIQUE"):
        await store.keep(Session(next_seq=9), SessionChange(added=[*items("a", "b", "c")[2:], kept[0]], evicted=[0]))
    loaded = await store.load()
    await store.aclose()
    assert loaded == Session(tuple(kept), None, 0, 2, 0)


BROKEN_STATES = {"broken state": "{", "state without its keys": "{}", "state of another shape": "[]"}


def damaged(path: Path, kind: str) -> None:
    if kind in BROKEN_STATES:
        with closing(open_session_file(path)) as db, db:
            db.execute("INSERT INTO state VALUES ('session', ?)", (BROKEN_STATES[kind],))
        return
    if kind == "not a database":
        path.write_bytes(b"this is a text, and long enough to be one " * 10)
        return
    if kind == "zeros":
        path.write_bytes(bytes(8192))
        return
    if kind == "empty":
        path.touch()
        return
    if kind == "a directory":
        path.mkdir()
        return
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        if kind in ("another program's database", "no tables"):
            db.execute("DROP TABLE state" if kind == "no tables" else "ALTER TABLE state RENAME TO bookmarks")
        elif kind == "a later version":
            db.execute("INSERT INTO state VALUES ('schema', '99')")
    db.close()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("a directory", "directory"),
        ("a later version", "version is 99"),
        ("not a database", "not an SQLite file"),
        ("another program's database", "not a session file"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, kind: str, why: str) -> None:
    path = tmp_path / "session.db"
    damaged(path, kind)
    store = SqliteStore(path)
    with pytest.raises(StoreUnusable, match=why) as caught:
        await store.load()
    await store.aclose()
    assert str(path) in str(caught.value)


async def test_a_file_of_another_format_stays_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    damaged(path, "not a database")
    path.chmod(0o644)
    content = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"notes\.txt"):
        await SqliteStore(path).load()
    assert (path.read_bytes(), path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (content, 0o644, [path])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("zeros", "not a database"),
        ("empty", "it is empty"),
        ("no tables", "it has no tables"),
        ("no version", "it has no version"),
        ("broken state", "content is invalid"),
        ("state without its keys", "content is invalid"),
        ("state of another shape", "content is invalid"),
    ],
)
async def test_a_damaged_file_is_set_aside_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, why: str
) -> None:
    path = tmp_path / "session.db"
    damaged(path, kind)
    store = SqliteStore(path)
    assert await store.load() is None
    await store.keep(Session(next_seq=1), SessionChange(added=items("One.")))
    await store.aclose()
    (aside,) = tmp_path.glob("session.db.damaged-*[0-9]")
    (line,) = caplog.messages
    assert why in line
    assert str(aside) in line


async def test_items_are_loaded_without_a_state_except_those_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    store = SqliteStore(path)
    await store.keep(Session(next_seq=3), SessionChange(added=items("One.", "Two.", "Three.")))
    await store.aclose()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE items SET present = '{' WHERE seq = 1")
        db.execute("DELETE FROM state WHERE key = 'session'")
    store = SqliteStore(path)
    loaded = await store.load()
    await store.aclose()
    assert loaded is not None
    assert ([item.content for item in loaded.items], loaded.next_seq) == (["One.", "Three."], 3)


def test_files_damaged_in_the_same_second_are_all_set_aside(tmp_path: Path) -> None:
    path, now = tmp_path / "session.db", datetime(2026, 1, 1, tzinfo=UTC)
    names: list[str] = []
    for _ in range(3):
        path.write_bytes(bytes(8192))
        names.append(set_aside(path, now)[0].name.removeprefix("session.db.damaged-20260101T000000"))
    assert names == ["", ".again1", ".again2"]


async def test_the_readable_part_of_a_damaged_file_is_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "session.db"
    store = SqliteStore(path)
    added = items(*(f"Item {number}. {'x' * 500}" for number in range(400)))
    await store.keep(Session(next_seq=400), SessionChange(added=added, inbox=InboxChange((chat(1),), position="e-1")))
    await store.aclose()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    store = SqliteStore(path)
    loaded = await store.load()
    assert loaded is not None
    assert 200 < len(loaded.items) < 400
    assert set(loaded.items) <= set(added)
    assert loaded.next_seq == 400
    assert await store.load_inbox() == StoredInbox((chat(1),), "e-1")
    assert f"{len(loaded.items)} items" in caplog.text
    await store.aclose()


async def test_pruning_removes_only_items_outside_the_context(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "session.db")
    added = [replace(item, at="2020-01-01T00:00:00Z") for item in items(*("x" * 1000 for _ in range(200)))]
    call = CallRecord("c", "main", "2020-01-01T00:00:00Z", "m", 0)
    await store.keep(Session(next_seq=200), SessionChange(added=added, evicted=range(150), call=call))
    by_size = await store.prune(StoreLimits(max_bytes=800_000))
    assert 0 < by_size.items < 150
    assert by_size.bytes_after <= 600_000 < by_size.bytes_before
    by_age = await store.prune(StoreLimits(max_age_days=30))
    assert by_age.items == 150 - by_size.items
    loaded = await store.load()
    assert loaded is not None
    assert len(loaded.items) == 50
    assert len(await store.calls()) == 1
    await store.aclose()


async def test_a_file_that_cannot_shrink_enough_keeps_the_context(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "session.db")
    await store.keep(Session(next_seq=3), SessionChange(added=items("One.", "Two.", "Three."), evicted=[0]))
    pruned = await store.prune(StoreLimits(max_bytes=1))
    loaded = await store.load()
    await store.aclose()
    assert loaded is not None
    assert (pruned.items, [item.content for item in loaded.items]) == (1, ["Two.", "Three."])


async def test_limits_apply_again_after_a_thousand_changes() -> None:
    store = MemoryStore(StoreLimits(max_age_days=1))
    added = [replace(item, at="2020-01-01T00:00:00Z") for item in items("One.")]
    await store.keep(Session(next_seq=1), SessionChange(added=added, evicted=[0]))
    for _ in range(PRUNE_EVERY - 2):
        await store.keep(Session(next_seq=1))
    assert await store.recall("i0") is not None
    await store.keep(Session(next_seq=1))
    assert await store.recall("i0") is None
    await store.aclose()


async def test_the_persisted_state_is_stored_with_the_session(store: Store) -> None:
    persisted = PersistedState(
        reminders=(Reminder("r1", "The pier.", "t"),),
        reminders_made=1,
        pending_prompts=("a prompt",),
        planned_clear="x",
    )
    await store.keep(Session(persisted=persisted))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.persisted == persisted


async def test_a_session_of_an_earlier_version_has_no_persisted_state(tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    store = SqliteStore(path)
    await store.keep(Session(persisted=PersistedState(pending_prompts=("a prompt",))))
    await store.aclose()
    with sqlite3.connect(path) as db:
        (text,) = db.execute("SELECT value FROM state WHERE key = 'session'").fetchone()
        old = {key: value for key, value in json.loads(text).items() if key != "persisted"}
        db.execute("UPDATE state SET value = ? WHERE key = 'session'", (json.dumps(old),))
    db.close()
    store = SqliteStore(path)
    loaded = await store.load()
    assert loaded is not None
    assert loaded.persisted == PersistedState()
    await store.aclose()


async def test_the_newest_calls_come_oldest_first(store: Store) -> None:
    for number in range(5):
        await store.keep(
            Session(),
            SessionChange(call=CallRecord(f"c{number}", "main", "t", "m", 0, level="healthy", limit_tokens=9)),
        )
    assert [call.id for call in await store.calls(2)] == ["c3", "c4"]
    assert [call.id for call in await store.calls(9)] == [f"c{number}" for number in range(5)]
    assert (await store.calls(1))[0] == CallRecord("c4", "main", "t", "m", 0, level="healthy", limit_tokens=9)


# -- the inbox ---------------------------------------------------------------------------------------------


def chat(number: int, **values: Any) -> StoredChat:
    asked = Envelope.write("chat", id=f"q{number}", ts="t", sender="ada", payload={"text": "é?"}, to=("coder",))
    return StoredChat(number, asked, **values)


async def test_the_inbox_is_loaded_as_it_was_changed(store: Store) -> None:
    assert await store.load_inbox() == StoredInbox()
    first, second = chat(1), chat(2, state="answering", position="e-7", turn=3, first_seq=9, attempts=2)
    await store.change_inbox(InboxChange((second, first), position="e-7"))
    assert await store.load_inbox() == StoredInbox((first, second), "e-7")
    answered = replace(second, state="answered", answer="Yes.")
    await store.change_inbox(InboxChange((answered,), (1,)))
    assert await store.load_inbox() == StoredInbox((answered,), "e-7")


async def test_a_change_of_the_inbox_is_stored_with_the_session(store: Store) -> None:
    await store.change_inbox(InboxChange((chat(1),), position="e-1"))
    added = items("One.")
    await store.keep(Session(next_seq=1), SessionChange(added=added, inbox=InboxChange(removed=(1,), position="e-2")))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.items == tuple(added)
    assert await store.load_inbox() == StoredInbox((), "e-2")


async def test_an_unreadable_chat_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "session.db"
    store = SqliteStore(path)
    await store.change_inbox(InboxChange((chat(1), chat(2), chat(3))))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE inbox SET chat = '{' WHERE number = 1")
        db.execute("UPDATE inbox SET chat = json_set(chat, '$.state', 'lost') WHERE number = 3")
    assert [await store.load_inbox() for _ in range(2)] == [StoredInbox((chat(2),))] * 2
    await store.aclose()
    assert caplog.text.count("cannot be read and is left out") == 2


async def test_a_row_that_cannot_be_read_is_a_damage_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "session.db"
    store = SqliteStore(path)
    await store.keep(Session(next_seq=1), SessionChange(added=items("One.")))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE items SET original = '{'")
        db.execute("INSERT INTO calls (role, record) VALUES ('main', '{')")
    for read in (store.calls, store.items, partial(store.recall, items("One.")[0].id)):
        with pytest.raises(StoreDamaged):
            await read()
    await store.aclose()


async def test_an_older_state_uses_no_number_again(store: Store) -> None:
    await store.keep(Session(next_seq=0), SessionChange(added=items("One.", "Two.")))
    loaded = await store.load()
    assert loaded is not None
    assert loaded.next_seq == 2
