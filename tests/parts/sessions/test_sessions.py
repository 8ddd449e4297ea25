"""`mew sessions`: what it lists, prints, exports and removes."""

import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from mew_agent.context.history import History
from mew_agent.context.sqlite_store import SqliteStore
from mew_agent.context.store import (
    Session,
    SessionChange,
)
from mew_agent.model.interface import ToolCall
from tests.support.cli import mew
from tests.support.waiting import PATIENCE_SECONDS, until
from tests.support.warm_start import MEW


@pytest.fixture(autouse=True)
async def stored(tmp_path: Path) -> None:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").write_text("space: {id: s}\n")

    store = SqliteStore(tmp_path / ".mew" / "sessions" / "coder.db")
    history = History()
    for text in ("One.", "Two.", "Three."):
        history.append("user", text, id=text, at="2020-01-01T00:00:00Z", name="ada")
    await store.keep(Session(next_seq=3), SessionChange(added=history.items, evicted=[0, 1]))
    await store.aclose()


async def test_sessions_are_listed_with_their_sizes(tmp_path: Path) -> None:
    done = await mew("sessions", "--json", "-d", str(tmp_path))
    (row,) = json.loads(done.out)
    assert (row["agent"], row["items"], row["evicted"], row["calls"], row["open_chats"]) == ("coder", 1, 2, 0, 0)
    assert "coder" in (await mew("sessions", "-d", str(tmp_path))).out


async def test_the_newest_items_are_shown(tmp_path: Path) -> None:
    assert (await mew("sessions", "coder", "-n", "2", "-d", str(tmp_path))).out.splitlines() == [
        "2020-01-01T00:00:00Z  user (ada): Two.",
        "2020-01-01T00:00:00Z  user (ada): Three.",
    ]


async def test_an_export_holds_every_item(tmp_path: Path) -> None:
    exported = json.loads((await mew("sessions", "coder", "--json", "-d", str(tmp_path))).out)
    assert [one["content"] for one in exported] == ["One.", "Two.", "Three."]


async def test_an_export_as_markdown_holds_every_item(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / ".mew" / "sessions" / "coder.db")
    history = History()
    history.append("user", "Is ```` a fence?", id="a", at="12:00", name="ada")
    history.append("assistant", "I look.", id="b", at="12:01", tool_calls=(ToolCall("1", "read", '{"a": "```"}'),))
    history.append("tool", "````\nyes", id="c", at="12:02", tool_call_id="1")
    items = [replace(item, seq=item.seq + 3) for item in history.items]
    await store.keep(Session(next_seq=6), SessionChange(added=items))
    await store.aclose()
    shown = await mew("sessions", "coder", "--markdown", "-d", str(tmp_path))
    assert shown.out.startswith("# coder\n\n## 2020-01-01T00:00:00Z ada\n\n```markdown\nOne.\n```\n")
    assert 'Calls read:\n\n````json\n{"a": "```"}\n````\n' in shown.out
    assert shown.out.endswith("## 12:02 tool\n\n`````\n````\nyes\n`````\n")


async def test_pruning_removes_old_items_outside_the_context(tmp_path: Path) -> None:
    assert "removed 2 items and 0 calls" in (await mew("sessions", "--prune-days", "30", "-d", str(tmp_path))).out
    assert (await mew("sessions", "coder", "-d", str(tmp_path))).out.splitlines() == [
        "2020-01-01T00:00:00Z  user (ada): Three."
    ]


async def test_an_unknown_agent_and_missing_limits_are_refused(tmp_path: Path) -> None:
    assert "did you mean 'coder'" in (await mew("sessions", "codr", "-d", str(tmp_path))).err


def has_open(pid: int, path: Path) -> bool:
    with suppress(FileNotFoundError):  # closed in between
        return any(os.path.realpath(one) == str(path) for one in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the files that a process has open")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_a_command_that_waits_for_a_session(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / ".mew" / "sessions" / "coder.db"
    shutil.copy(path, path.with_stem("writer"))
    command = [*MEW, "sessions", "--prune-days", "1"]
    with closing(sqlite3.connect(path, isolation_level=None)) as agent:
        agent.execute("BEGIN IMMEDIATE")
        process = await anyio.open_process(command, cwd=tmp_path)
        try:
            await until(partial(has_open, process.pid, path))
            process.send_signal(number)
            agent.execute("ROLLBACK")
            with anyio.fail_after(PATIENCE_SECONDS):
                assert await process.wait() == 130
            assert process.stderr is not None
            assert b"".join([piece async for piece in process.stderr]) == b""
        finally:
            if process.returncode is None:
                process.kill()
            await process.aclose()
    assert len((await mew("sessions", "writer", "-d", str(tmp_path))).out.splitlines()) == 3
