"""The contract of a space's log, held by each implementation, and what only the stored one promises."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.ids import Position
from mew_spaces.log import sqlite
from mew_spaces.log.memory import Bounds, Durability, NotStored, OutcomeUnknown, SpaceLog
from mew_spaces.log.sqlite import UPKEEP_EVERY_BATCHES, SqliteLog, Unreadable

from tests.support.full_disk import full_disk
from tests.support.space_logs import commit
from tests.support.waiting import PATIENCE_SECONDS

ROOMY = Bounds(entries=1_000, bytes=1_000_000)
Make = Callable[[Bounds], SpaceLog]


@pytest.fixture(params=["memory", "flushed", "synced"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def build(bounds: Bounds = ROOMY) -> SpaceLog:
        if request.param == "memory":
            return SpaceLog(epoch="e", bounds=bounds)
        return SqliteLog(tmp_path / "log.sqlite3", bounds=bounds, durability=request.param, new_epoch=lambda: "e")

    return build


def append_chats(log: SpaceLog, *texts: str, at: float = 0.0, sender: str = "ada") -> list[int]:
    numbers = [log.stage(text.encode(), sender=sender, id=f"{sender}-{text}", at=at) for text in texts]
    commit(log)
    return numbers


def copy_of(folder: Path, *names: str) -> list[Path]:
    """What a kill leaves, one copy for each name."""
    copies = [folder.parent / f"{folder.name}-{name}" for name in names]
    for one in copies:
        shutil.copytree(folder, one, ignore=shutil.ignore_patterns("*.lock", "*-shm"))
    return copies


def texts(entries: object) -> list[str]:
    assert isinstance(entries, tuple)
    return [entry.data.decode() for entry in entries]


def test_numbers_grow_and_entries_follow_a_position(make: Make) -> None:
    log = make(ROOMY)
    assert log.position == log.start == Position("e", 0)
    assert append_chats(log, "a", "b", "c") == [1, 2, 3]
    assert texts(log.since(Position("e", 1))) == ["b", "c"]
    assert texts(log.since(Position("e", 1), limit=1)) == ["b"]
    assert log.since(log.position) == ()
    assert texts(log.last(2)) == ["b", "c"]
    log.close()


def test_readers_see_nothing_before_the_batch_is_published(make: Make) -> None:
    log = make(ROOMY)
    assert log.stage(b"a", sender="ada", id="1", at=0.0) == 1
    batch = log.seal()
    log.write(batch)
    assert log.since(Position("e", 0)) == ()
    log.publish(batch)
    assert texts(log.since(Position("e", 0))) == ["a"]
    log.close()


@pytest.mark.parametrize("place", [Position("other", 0), Position("e", 4), Position("e", 99)])
def test_unknown_positions_are_recognised(make: Make, place: Position) -> None:
    log = make(ROOMY)
    append_chats(log, "a", "b", "c")
    assert log.since(place) is None
    log.close()


def test_a_position_before_the_oldest_entry_is_gone(make: Make) -> None:
    log = make(Bounds(entries=2, bytes=1_000))
    append_chats(log, "a", "b", "c", "d")
    assert log.start == Position("e", 2)
    assert log.since(Position("e", 1)) is None
    assert texts(log.since(Position("e", 2))) == ["c", "d"]
    log.close()


def test_bytes_and_age_bound_a_log(make: Make) -> None:
    log = make(Bounds(entries=100, bytes=10, age_seconds=60.0))
    append_chats(log, "aaaa", "bbbb", at=0.0)
    append_chats(log, "cccc", at=1.0)
    assert texts(log.last(10)) == ["bbbb", "cccc"]
    append_chats(log, "d", at=60.5)
    assert texts(log.last(10)) == ["cccc", "d"]
    log.close()


def test_a_batch_that_is_not_written_leaves_a_gap_that_readers_pass(make: Make) -> None:
    log = make(ROOMY)
    append_chats(log, "a")
    log.stage(b"lost", sender="ada", id="lost", at=0.0)
    log.seal()
    assert append_chats(log, "c", "d") == [3, 4]
    assert texts(log.since(Position("e", 1))) == ["c", "d"]
    assert texts(log.since(Position("e", 2))) == ["c", "d"]
    assert texts(log.since(Position("e", 3))) == ["d"]
    log.close()


def test_state_changes_with_its_batch(make: Make) -> None:
    log = make(ROOMY)
    log.put("roster", b"{}")
    log.put("board", b"[]")
    assert not log.state()
    commit(log)
    assert dict(log.state()) == {"roster": b"{}", "board": b"[]"}
    log.put("board", None)
    commit(log)
    assert dict(log.state()) == {"roster": b"{}"}
    log.close()


async def test_a_waiting_reader_wakes_for_an_entry_and_for_the_end(make: Make) -> None:
    log = make(ROOMY)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.wait_beyond, log.position)
            await anyio.wait_all_tasks_blocked()
            append_chats(log, "a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log.wait_beyond, log.position)
            await anyio.wait_all_tasks_blocked()
            log.close()
    assert log.is_closed


@given(
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60),
    st.integers(1, 8),
    st.integers(1, 120),
    st.integers(0, 70),
)
def test_since_returns_exactly_the_kept_entries_after_a_position(
    writes: list[tuple[int, bool]], entries: int, size: int, place: int
) -> None:
    log = SpaceLog(epoch="e", bounds=Bounds(entries, size))
    kept: list[tuple[int, bytes]] = []
    for index, (length, is_stored) in enumerate(writes):
        number = log.stage(b"x" * length, sender="ada", id=str(index), at=0.0)
        if is_stored:
            commit(log)
            kept.append((number, b"x" * length))
        else:
            log.seal()
    gone = 0
    while len(kept) > entries or sum(len(data) for _, data in kept) > size:
        gone = kept.pop(0)[0]
    found = log.since(Position("e", place))
    if gone <= place <= log.position.sequence:
        assert found is not None
        assert [(entry.sequence, entry.data) for entry in found] == [one for one in kept if one[0] > place]
    else:
        assert found is None


# What the stored log promises beyond that


def test_a_restart_keeps_epoch_numbers_entries_and_state(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a", "b")
    log.put("board", b"[1]")
    commit(log)
    log.close()
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert again.epoch == log.epoch
    assert texts(again.since(Position(log.epoch, 0))) == ["a", "b"]
    assert again.state()["board"] == b"[1]"
    assert append_chats(again, "c") == [3]
    again.close()


def test_a_log_that_emptied_gives_no_number_twice(tmp_path: Path) -> None:
    bounds = Bounds(entries=0, bytes=0)
    log = SqliteLog(tmp_path / "log", bounds=bounds)
    assert append_chats(log, "a", "b") == [1, 2]
    log.close()
    again = SqliteLog(tmp_path / "log", bounds=bounds)
    assert append_chats(again, "c") == [3]
    again.close()


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    SqliteLog(tmp_path / "log", bounds=ROOMY).close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    for _ in range(2):  # the failed start holds no lock
        with pytest.raises(Unreadable):
            SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert (tmp_path / "log").read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_refuses_a_batch_and_the_log_continues(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    with full_disk(log), pytest.raises(NotStored, match="No space"):
        append_chats(log, "x")
    assert texts(log.since(Position(log.epoch, 0))) == ["a"]
    assert append_chats(log, "b") == [3]
    log.close()
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert texts(again.last(9)) == ["a", "b"]
    again.close()


def test_a_full_disk_refuses_a_synced_batch(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY, durability="synced")
    append_chats(log, "a")
    pages = log._database.execute("PRAGMA page_count").fetchone()[0]
    log._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(NotStored, match="full"):
        append_chats(log, "x" * 100_000)
    assert texts(log.since(Position(log.epoch, 0))) == ["a"]
    log._database.execute("PRAGMA max_page_count = 100000")
    assert append_chats(log, "b") == [3]
    log.close()


def test_a_database_that_takes_nothing_loses_no_flushed_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    log._database.execute("PRAGMA query_only = ON")
    assert append_chats(log, "a") == [1]
    log.upkeep()
    assert "maintenance failed" in caplog.text
    log.put("board", b"[]")
    assert append_chats(log, "b") == [2]
    log.close()
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert texts(again.last(9)) == ["a", "b"]
    assert again.state() == {"board": b"[]"}
    assert append_chats(again, "c") == [3]
    again.close()
    assert not list(tmp_path.glob("*-tail-*"))


def test_state_that_must_be_on_the_disk_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    log.put("board", b"[]")
    commit(log)
    assert not synced
    log.put("synced/kicked", b"bob")
    commit(log)
    assert synced[0] == next(tmp_path.glob("*-tail-*")).stat().st_size
    log.close()


def copy_as_killed(folder: Path) -> Path:
    """The files as a gateway leaves them that is killed now."""
    killed = folder / "killed"
    shutil.copytree(folder, killed, ignore=lambda *_: ["killed", "log.lock"])
    return killed / "log"


def test_a_record_that_the_disk_does_not_confirm_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        log.put("synced/kicked", b"bob")
        with pytest.raises(OutcomeUnknown, match="Input/output"):
            append_chats(log, "kick")
    log.put("synced/kicked", b"bob")
    append_chats(log, "kick")
    again = SqliteLog(copy_as_killed(tmp_path), bounds=ROOMY)
    assert (texts(again.last(9)), dict(again.state())) == (["a", "kick"], {"synced/kicked": b"bob"})
    for one in (log, again):
        one.close()


def test_tail_files_stay_until_the_moved_entries_are_on_the_disk(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    log.upkeep()
    reader = sqlite3.connect(tmp_path / "log", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM envelopes").fetchone()
    append_chats(log, "b")
    log.upkeep()
    append_chats(log, "c")
    log.upkeep()
    assert list(tmp_path.glob("*-tail-*"))
    reader.close()
    log.upkeep()
    assert not list(tmp_path.glob("*-tail-*"))
    log.close()


class FailingAtTheEnd(sqlite3.Connection):
    """A database on a disk that does not confirm a transaction."""

    code = sqlite3.SQLITE_IOERR_FSYNC

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(sql, parameters)


@pytest.mark.parametrize(("code", "is_unknown"), [(sqlite3.SQLITE_IOERR_FSYNC, True), (sqlite3.SQLITE_FULL, False)])
def test_a_transaction_that_fails_at_its_end_may_be_stored(tmp_path: Path, code: int, is_unknown: bool) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY, durability="synced")
    database, log._database = (
        log._database,
        sqlite3.connect(tmp_path / "log", factory=FailingAtTheEnd, isolation_level=None),
    )
    log._database.code = code
    log.stage(b"a", sender="ada", id="a", at=0.0)
    batch = log.seal()
    with pytest.raises(NotStored) as raised:
        log.write(batch)
    assert isinstance(raised.value, OutcomeUnknown) == is_unknown
    log._database.close()
    log._database = database
    log.write(batch)
    log.close()


def test_in_memory_only_durable_state_outlasts_the_run(tmp_path: Path) -> None:
    few = Bounds(entries=2, bytes=1_000_000)
    log = SqliteLog(tmp_path / "log", bounds=few)
    log.put("grant", b"of an earlier run")
    append_chats(log, "stored", "too")
    log.close()
    log = SqliteLog(tmp_path / "log", bounds=few, durability="memory")
    assert (log.last(9), dict(log.state())) == ((), {})
    first = log.epoch
    log.put("synced/kicked", b"bob")
    log.put("board", b"[]")
    assert append_chats(log, *(str(number) for number in range(600)))[:2] == [1, 2]
    log.close()
    again = SqliteLog(tmp_path / "log", bounds=few, durability="memory")
    assert (again.epoch != first, again.last(9), dict(again.state())) == (True, (), {"synced/kicked": b"bob"})
    again.close()
    stored = SqliteLog(tmp_path / "log", bounds=few)
    assert texts(stored.last(9)) == ["stored", "too"]
    stored.close()


def test_records_behind_a_damaged_one_are_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "write", lambda file, data: os.write(file, data[:9]) if len(data) > 30 else fail())
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(NotStored):
            append_chats(log, "b" * 30)
    append_chats(log, "c")
    log.upkeep()
    append_chats(log, "d")
    again = SqliteLog(copy_as_killed(tmp_path), bounds=ROOMY)
    assert texts(again.last(9)) == ["a", "c", "d"]
    for one in (log, again):
        one.close()


def test_a_tail_that_was_moved_but_not_removed_changes_nothing(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a", "b")
    tail = next(tmp_path.glob("*-tail-*"))
    content = tail.read_bytes()
    log.close()
    tail.write_bytes(content)
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert texts(again.last(9)) == ["a", "b"]
    assert append_chats(again, "c") == [3]
    again.close()


def test_a_tail_that_cannot_be_removed_brings_no_old_state_back(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    log.put("grant", b"old")
    append_chats(log, "a")
    tail = next(tmp_path.glob("*-tail-*"))
    kept = tail.rename(tmp_path / "kept")
    (tail / "busy").mkdir(parents=True)  # a folder cannot be unlinked
    log.upkeep()
    log.put("grant", None)
    append_chats(log, "b")
    log.close()
    (tail / "busy").rmdir()
    tail.rmdir()
    kept.rename(tail)
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert (texts(again.last(9)), dict(again.state())) == (["a", "b"], {})
    again.close()


@pytest.mark.parametrize("durability", ["synced", "memory"])
def test_a_moved_tail_file_changes_no_newer_state(tmp_path: Path, durability: Durability) -> None:
    first = SqliteLog(tmp_path / "log", bounds=ROOMY)
    first.put("synced/invited/eve", b"invited")
    append_chats(first, "a")
    (killed,) = copy_of(tmp_path, "killed")
    first.close()
    with closing(sqlite3.connect(killed / "log", isolation_level=None)) as backup:
        backup.execute("BEGIN")
        backup.execute("SELECT count(*) FROM state").fetchall()
        second = SqliteLog(killed / "log", bounds=ROOMY, durability=durability)
    second.put("synced/invited/eve", None)
    second.put("synced/removed/eve", b"removed")
    commit(second)
    again, new_start = copy_of(killed, "again", "new_start")
    second.close()
    assert list(again.glob("*-tail-*"))
    with closing(SqliteLog(again / "log", bounds=ROOMY, durability=durability)) as third:
        assert dict(third.state()) == {"synced/removed/eve": b"removed"}
    # Its tails have higher numbers than those that were moved.
    with closing(SqliteLog(new_start / "log", bounds=ROOMY)) as third:
        append_chats(third, "b")
        (last,) = copy_of(new_start, "last")
    with closing(SqliteLog(last / "log", bounds=ROOMY)) as fourth:
        assert texts(fourth.last(1)) == ["b"]


def test_an_old_tail_that_is_back_lowers_no_number(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    (tail,) = tmp_path.glob("*-tail-*")
    content = tail.read_bytes()
    for text in "bc":
        log.upkeep()
        append_chats(log, text)
    log.close()
    tail.write_bytes(content)
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(again, "new")
    (killed,) = copy_of(tmp_path, "killed")
    again.close()
    with closing(SqliteLog(killed / "log", bounds=ROOMY)) as last:
        assert texts(last.last(9)) == ["a", "b", "c", "new"]


@pytest.mark.parametrize("restores", [False, True])
def test_a_damaged_history_is_replaced_as_the_error_says(tmp_path: Path, *, restores: bool) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, *("x" * 200 for _ in range(300)))
    log.close()
    backup = (tmp_path / "log").read_bytes()
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, *(f"{n} {'y' * 300}" for n in range(5)))
    log.upkeep()
    (killed,) = copy_of(tmp_path, "killed")
    log.close()
    path = killed / "log"
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(Unreadable):
        SqliteLog(path, bounds=ROOMY)
    path.unlink()
    if restores:
        for one in killed.glob("log*"):
            one.unlink()
        path.write_bytes(backup)
    with closing(SqliteLog(path, bounds=ROOMY)) as again:
        assert len(again.last(999)) == (300 if restores else 0)


@pytest.mark.parametrize(
    "damage", ["UPDATE envelopes SET id = CAST(x'ff' AS TEXT)", "DELETE FROM about WHERE key = 'epoch'"]
)
def test_contents_that_are_not_ours_are_damage(tmp_path: Path, damage: str) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    log.close()
    with closing(sqlite3.connect(tmp_path / "log", isolation_level=None)) as database:
        database.execute(damage)
    with pytest.raises(Unreadable):
        SqliteLog(tmp_path / "log", bounds=ROOMY)


@pytest.mark.parametrize("damage", [b"", b"\x05", b"\xff" * 40, bytes(40)])
def test_a_tail_is_read_up_to_its_first_damaged_record(tmp_path: Path, damage: bytes) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a", "b")
    append_chats(log, "c")
    tail = next(tmp_path.glob("*-tail-*"))
    content = tail.read_bytes()
    log.close()
    again = SqliteLog(tmp_path / "other", bounds=ROOMY, new_epoch=lambda: log.epoch)
    again.close()
    (tmp_path / tail.name.replace("log", "other")).write_bytes(content + damage)
    again = SqliteLog(tmp_path / "other", bounds=ROOMY)
    assert texts(again.last(9)) == ["a", "b", "c"]
    again.close()


def test_a_folder_that_cannot_be_listed_opens_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    tail = next(tmp_path.glob("*-tail-*"))
    content = tail.read_bytes()
    log.close()
    tail.write_bytes(content)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:  # a file mode would not stop the superuser
        patch.setattr(os, "listdir", refuse)
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(NotStored, match=os.strerror(errno.EACCES)):
            SqliteLog(tmp_path / "log", bounds=ROOMY)
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)  # the failed start holds no lock
    assert texts(again.last(9)) == ["a"]
    again.close()


def test_a_file_named_like_a_tail_without_a_number_is_left_alone(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, "a")
    tail = next(tmp_path.glob("*-tail-*"))
    log.close()
    (copy := tail.with_suffix(".backup")).write_bytes(b"x")
    again = SqliteLog(tmp_path / "log", bounds=ROOMY)
    assert append_chats(again, "b") == [2]
    again.close()
    assert copy.read_bytes() == b"x"


def test_a_history_without_our_tables_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "log")
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    with pytest.raises(Unreadable, match="not a history of a gateway"):
        SqliteLog(tmp_path / "log", bounds=ROOMY)


def test_a_history_with_damaged_pages_is_refused(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    append_chats(log, *("x" * 3_000 for _ in range(20)))
    log.close()
    content = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(content[:16_384] + b"\xaa" * 16_384 + content[32_768:])
    with pytest.raises(Unreadable):
        SqliteLog(tmp_path / "log", bounds=ROOMY)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes")
@pytest.mark.parametrize("is_new", [True, False])
def test_opening_on_a_full_disk_fails_and_loses_nothing(tmp_path: Path, is_new: bool) -> None:
    path, epoch = tmp_path / "log", None
    if not is_new:
        log = SqliteLog(path, bounds=ROOMY)
        epoch = log.epoch
        append_chats(log, "a")
        log.close()
    script = (
        "import resource, sys; from pathlib import Path; from mew_spaces.log.memory import Bounds, NotStored\n"
        "from mew_spaces.log.sqlite import SqliteLog\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "try: SqliteLog(Path(sys.argv[1]), bounds=Bounds(10, 10_000))\n"
        "except NotStored: print('not stored')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, env=environment)
    assert run.stdout == "not stored\n", run.stderr
    log = SqliteLog(path, bounds=ROOMY)
    assert texts(log.since(Position(log.epoch, 0))) == ([] if is_new else ["a"])
    assert is_new or log.epoch == epoch
    log.close()


def test_a_second_gateway_cannot_open_the_same_file(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    with pytest.raises(BlockingIOError):
        SqliteLog(tmp_path / "log", bounds=ROOMY)
    log.close()
    SqliteLog(tmp_path / "log", bounds=ROOMY).close()


def test_upkeep_moves_the_written_batches_into_the_database(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log", bounds=ROOMY)
    for number in range(UPKEEP_EVERY_BATCHES):
        log.stage(b"a", sender="ada", id=str(number), at=0.0)
        commit(log)
    was_due = log.wants_upkeep
    log.upkeep()
    assert (was_due, log.wants_upkeep) == (True, False)
    assert not list(tmp_path.glob("*-tail-*"))
    assert log._database.execute("SELECT count(*) FROM envelopes").fetchone() == (UPKEEP_EVERY_BATCHES,)
    size = (tmp_path / "log-wal").stat().st_size
    append_chats(log, "after")
    log.upkeep()
    assert (tmp_path / "log-wal").stat().st_size == size  # written from its beginning again
    log.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_keeps_every_batch_it_wrote(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from mew_spaces.log.memory import Bounds
from mew_spaces.log.sqlite import SqliteLog
log = SqliteLog(Path(sys.argv[1]), bounds=Bounds(100_000, 10_000_000))
number = 0
while True:
    for _ in range(7):
        number = log.stage(b"x" * 50, sender="ada", id=f"{number + 1}", at=0.0)
    log.write(batch := log.seal())
    log.publish(batch)
    print(number, flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        while int(child.stdout.readline()) < 700:
            pass
        child.send_signal(signal.SIGKILL)
        reported = [int(line) for line in child.stdout.read().split("\n")[:-1] if line] or [700]
    log = SqliteLog(tmp_path / "log", bounds=Bounds(100_000, 10_000_000))
    assert log.position.sequence >= reported[-1]
    assert [entry.sequence for entry in log.last(100_000)] == list(range(1, log.position.sequence + 1))
    log.close()
