"""One contract for the archive of both stores: what is kept, restored, found and dropped; and what may be undone."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mew_protocol.payloads.retrieval import CompactionEntry

from mew_agent.context.archive import (
    ArchivedCompaction,
    RestorePoint,
    extract_around,
    query_of,
    refusal_of,
    returning_items,
)
from mew_agent.context.history import History, Item, Summary
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore, Store
from mew_agent.context.store import Session, SessionChange, StoreLimits
from mew_agent.model.interface import ToolCall

OpenStore = Callable[[StoreLimits | None], Store]


@pytest.fixture(params=["memory", "sqlite"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    opened: list[Store] = []

    def make(limits: StoreLimits | None = None) -> Store:
        path = tmp_path / f"{len(opened)}.db"
        opened.append(MemoryStore(limits or StoreLimits()) if request.param == "memory" else SqliteStore(path, limits))
        return opened[-1]

    yield make
    for store in opened:
        await store.aclose()


def entry(**values: Any) -> CompactionEntry:
    figures = {"freed_tokens": 60, "freed_gross_tokens": 70, "summary_tokens": 10, "freed_messages": 2}
    known = {"number": 0, "at": "2026-01-01T00:00:00Z", "trigger": "requested", "basis": "projected", **figures}
    return CompactionEntry.model_validate({**known, **values})


def items(*contents: str) -> list[Item]:
    history = History()
    for content in contents:
        history.append("user", content, id=f"i{history.next_seq}", at="2026-01-01T00:00:00Z")
    return history.items


def removal(*left: Item, **values: Any) -> ArchivedCompaction:
    point = RestorePoint(prices={item.seq: 30 for item in left}, booked_until=9, tokens=100, reply=(1, 2, 3))
    return ArchivedCompaction(entry(items=len(left), **values), left, Summary("before \ud83d"), Summary("after"), point)


async def test_a_compaction_is_archived_with_everything_it_removed(open_store: OpenStore) -> None:
    store, kept = open_store(None), items("a", "half a pair \ud83d", "c")
    await store.keep(Session(next_seq=3), SessionChange(added=kept))
    made = removal(*kept[:2], asked_by="ada", reason="why \ud83d not")
    assert await store.keep(Session(revision=1), SessionChange(evicted=[0, 1], compaction=made)) == 1
    (listed,) = await store.compactions()
    assert (listed.number, listed.asked_by, listed.reason, listed.problem) == (1, "ada", "why \ud83d not", None)
    found = await store.archived(1)
    assert found is not None
    assert found == ArchivedCompaction(listed, tuple(kept[:2]), made.before, made.after, made.point)
    assert await store.archived(2) is None


async def test_restored_items_are_in_context_as_they_were(open_store: OpenStore) -> None:
    store, history = open_store(None), History()
    history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "read", "{}"),))
    result = history.append("tool", "cut [...]", id="r", at="t", tool_call_id="c")
    last = history.append("user", "And?", id="u", at="t")
    whole = Item(1, "tool", "the whole text", 0, "r", "t", tool_call_id="c")
    await store.keep(Session(), SessionChange(added=[history.items[0], whole, last], replaced=[result]))
    stubs = history.stub([1])
    await store.keep(Session(), SessionChange(replaced=stubs, compaction=removal(result)))
    await store.keep(Session(), SessionChange(evicted=[0, 1], compaction=removal(history.items[0], stubs[0])))
    for number in (2, 1):
        archived = await store.archived(number)
        assert archived is not None
        undo = ArchivedCompaction(entry(trigger="undo", undoes=number))
        await store.keep(Session(), SessionChange(restored=archived.items, compaction=undo))
    loaded = await store.load()
    assert loaded is not None
    assert [item.content for item in loaded.items] == ["", "cut [...]", "And?"]
    assert [(one.number, one.undone_by, one.undoes) for one in await store.compactions()] == [
        *((1, 4, None), (2, 3, None), (3, None, 2), (4, None, 1))
    ]
    recalled = await store.recall("r")
    assert recalled is not None
    assert recalled.content == "the whole text"


async def test_a_search_finds_only_removed_messages(open_store: OpenStore) -> None:
    store = open_store(None)
    kept = items("The Übergrößen of port 8080", "port 9090 is free", "東京塔の高さは333メートル", "nothing of note")
    await store.keep(Session(), SessionChange(added=kept))
    assert await store.search("port", 5) == []
    await store.keep(Session(), SessionChange(evicted=[0, 1, 2]))
    assert {item.seq for item in await store.search("port", 5)} == {0, 1}
    assert [item.seq for item in await store.search("port 8080", 5)] == [0]  # with every word
    assert [item.seq for item in await store.search("gone 9090", 5)] == [1]  # no item has every word
    assert [item.seq for item in await store.search("ubergro", 5)] == [0]
    assert [item.seq for item in await store.search("東京塔", 5)] == [2]
    assert len(await store.search("port", 1)) == 1
    for words in ('"port 9090', "NOT (", "*", '""', "port:^8080"):
        await store.search(words, 5)
    await store.keep(Session(), SessionChange(restored=[kept[0]]))
    assert [item.seq for item in await store.search("port", 5)] == [1]


async def test_only_so_many_compactions_are_kept(open_store: OpenStore) -> None:
    store, kept = open_store(StoreLimits(max_compactions=3)), items(*"abcdef")
    await store.keep(Session(), SessionChange(added=kept))
    for item in kept[:5]:
        await store.keep(Session(), SessionChange(evicted=[item.seq], compaction=removal(item)))
    assert [one.number for one in await store.compactions()] == [3, 4, 5]
    assert await store.archived(2) is None


@pytest.mark.parametrize("limits", [StoreLimits(max_bytes=300_000), StoreLimits(max_age_days=1)])
async def test_a_compaction_reports_that_its_items_were_pruned(open_store: OpenStore, limits: StoreLimits) -> None:
    store, kept = open_store(limits), items(*(f"{place} " + "x" * 1000 for place in range(400)))
    await store.keep(Session(), SessionChange(added=kept))
    await store.keep(Session(), SessionChange(evicted=range(390), compaction=removal(*kept[:390])))
    assert await store.search("17", 1)
    await store.prune(limits)
    (listed,) = await store.compactions()
    assert listed.problem == "pruned"
    archived = await store.archived(1)
    assert archived is not None
    assert len(archived.items) < 390
    assert [item.seq for item in await store.search("x*", 500)] != list(range(390))
    assert "was deleted" in (refusal_of([listed], 1) or "")
    loaded = await store.load()
    assert loaded is not None
    assert len(loaded.items) == 10


async def test_the_archive_of_a_damaged_file_is_saved(tmp_path: Path) -> None:
    path, kept = tmp_path / "session.db", items(*(f"Item {number}. {'x' * 500}" for number in range(400)))
    store = SqliteStore(path)
    await store.keep(Session(next_seq=400), SessionChange(added=kept))
    await store.keep(Session(next_seq=400), SessionChange(evicted=[0, 1], compaction=removal(*kept[:2])))
    await store.search("Item", 1)
    await store.aclose()
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    store = SqliteStore(path)
    assert await store.load() is not None
    (listed,) = await store.compactions()
    assert listed.number == 1
    assert await store.search("Item", 1)
    await store.aclose()


@pytest.mark.parametrize("part", ['{"entry"', '"entry"', '"before"', '"point"'])
async def test_a_damaged_entry_is_reported_without_its_items(tmp_path: Path, part: str) -> None:
    path, kept = tmp_path / "session.db", items("a", "b")
    store = SqliteStore(path)
    await store.keep(Session(next_seq=2), SessionChange(added=kept))
    await store.keep(Session(next_seq=2), SessionChange(evicted=[0], compaction=removal(kept[0])))
    await store.aclose()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE compactions SET record = replace(record, ?, ?)", (part, '"x"'))
    store = SqliteStore(path)
    archived = await store.archived(1)
    assert len(await store.compactions()) == 1
    await store.aclose()
    assert archived is not None
    assert (archived.entry.number, archived.entry.problem, archived.items) == (1, "damaged", ())


@pytest.mark.parametrize(
    ("number", "refusal"),
    [
        (None, "3 is damaged in the session file"),
        (1, "1 was deleted (store_max_compactions); the oldest is 2"),
        (2, "3 came after it; undo 3 first"),
        (4, "4 was undone already, by 5"),
        (5, "5 is an undo itself; compact again instead"),
        (6, "there is no entry 6; the newest is 5"),
    ],
)
def test_an_undo_is_refused_with_advice(number: int | None, refusal: str) -> None:
    undone = entry(number=4, undone_by=5), entry(number=5, trigger="undo", undoes=4)
    entries = [entry(number=2), entry(number=3, problem="damaged"), *undone]
    assert refusal_of(entries, number) == refusal
    assert refusal_of(entries[:1], None) is None


def test_a_call_without_all_its_results_stays_away() -> None:
    history = History()
    history.append("user", "Go.", id="u", at="t")
    history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "r", "{}"), ToolCall("d", "r", "{}")))
    history.append("tool", "one", id="r", at="t", tool_call_id="c")
    later = Item(7, "user", "New.", 2, "v", "t")
    assert returning_items(history.items, [later]).merged == (history.items[0], later)


def test_a_call_with_a_taken_id_gets_another() -> None:
    history = History()
    for _ in range(2):
        history.append("assistant", "", id="a", at="t", tool_calls=(ToolCall("c", "r", "{}"),))
        history.append("tool", "one", id="r", at="t", tool_call_id="c")
    back = returning_items(history.items[:2], history.items[2:])
    assert [item.tool_call_id or item.tool_calls[0].id for item in back.merged] == ["c-0", "c-0", "c", "c"]


def test_words_become_a_query_and_an_extract() -> None:
    assert query_of('port "mew_agent/cli" OR') == '"port"* "mew agent cli"* "OR"*'
    assert query_of("a b", every=False) == '"a"* OR "b"*'
    assert query_of('"*" ...') == ""
    shown, clipped = extract_around("x" * 500 + " needle " + "y" * 500, "the needle", 100)
    assert "needle" in shown
    assert (clipped, len(shown)) == (908, 106)
