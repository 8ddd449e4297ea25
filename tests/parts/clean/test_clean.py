"""`mew clean`: what it removes, keeps and refuses."""

import os
import sys
from pathlib import Path

import pytest

from tests.mew_agent.cli.remote.test_identity import running_space
from tests.support.cli import mew

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs")

LOGS = ("logs/coder.log", "logs/coder.previous.log", ".mew/logs/envelope-history.jsonl", ".mew/logs/history.jsonl.1")
FIFOS = ("fifos/ada-in", "fifos/ada-out")
PRIVATE = (
    ".mew/sessions/coder.db",
    ".mew/tokens/ada.token",
    ".mew/history-demo.sqlite3",
    ".mew/history-demo.sqlite3-wal",
)
STAYS = (
    ".mew/space.yaml",
    ".mew/agents/maze.py",
    "logs/.gitignore",
    "logs/notes.txt",
    ".mew/tokens/.gitignore",
    "a.log",
)


@pytest.fixture(autouse=True)
def used(tmp_path: Path) -> None:
    for name in (*LOGS, *PRIVATE, *STAYS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("space: {id: s}\n" if name.endswith("yaml") else "something")
    (tmp_path / "fifos").mkdir()
    for name in FIFOS:
        os.mkfifo(tmp_path / name)
    (tmp_path / "logs" / "dir.log").mkdir()


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize(
    ("flags", "gone"),
    [
        ((), {*LOGS, *FIFOS}),
        (("--logs",), {*LOGS}),
        (("--fifos",), {*FIFOS}),
        (("--all", "--force"), {*LOGS, *FIFOS, *PRIVATE}),
    ],
)
async def test_each_selection_removes_its_own_files(tmp_path: Path, flags: tuple[str, ...], gone: set[str]) -> None:
    before = left(tmp_path)
    assert {*LOGS, *FIFOS, *PRIVATE, *STAYS} == before
    outcome = await mew("clean", *flags)
    assert (outcome.code, outcome.out) == (0, f"{len(gone)} files cleaned\n")
    assert left(tmp_path) == before - gone


async def test_dry_run_lists_files_and_keeps_them(tmp_path: Path) -> None:
    before = left(tmp_path)
    outcome = await mew("clean", "--fifos", "--dry-run", "--space-dir", str(tmp_path))
    assert outcome.out == "would remove fifos/ada-in\nwould remove fifos/ada-out\n2 files to clean\n"
    listed = await mew("clean", "--fifos", "--dry-run", "--json")
    assert listed.out == '{"files":["fifos/ada-in","fifos/ada-out"],"dry_run":true}\n'
    assert left(tmp_path) == before


async def test_tokens_need_force_without_a_terminal(tmp_path: Path) -> None:
    outcome = await mew("clean", "--all")
    assert "--force" in outcome.err
    assert outcome.code == 2
    assert set(PRIVATE) <= left(tmp_path)


async def test_force_empties_logs_of_a_running_space(tmp_path: Path) -> None:
    running_space(tmp_path)
    before = left(tmp_path)
    assert "the space is running" in (await mew("clean")).err
    assert "`mew down`" in (await mew("clean", "--all", "--force")).err
    assert (tmp_path / LOGS[0]).read_text() == "something"
    assert (await mew("clean", "--force")).out == "4 files cleaned\n"
    assert left(tmp_path) == before
    assert [(tmp_path / name).read_text() for name in LOGS] == [""] * 4


async def test_clean_space_has_nothing_to_clean() -> None:
    await mew("clean")
    assert (await mew("clean")).out == "nothing to clean\n"


async def test_clean_without_a_space_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / ".mew" / "space.yaml").unlink()
    before = left(tmp_path)
    outcome = await mew("clean", "--all", "--force")
    assert "no space.yaml here" in outcome.err
    assert outcome.code == 2
    assert left(tmp_path) == before
