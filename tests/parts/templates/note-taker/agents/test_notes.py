"""The tools for notes: files that are easy to find, in one folder only."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def notes(load: Callable[[str, str], ModuleType], tmp_path: Path) -> Any:
    return load("note-taker", "agents/notes.py").Notes(tmp_path / "notes")


def test_note_is_saved_read_and_listed(notes: Any) -> None:
    assert notes.list_notes() == "(no notes yet)"
    assert notes.save_note("Stand-up, 4 May", "- ship it\n") == "saved as stand-up-4-may.md"
    assert notes.read_note("Stand-up, 4 May") == "# Stand-up, 4 May\n\n- ship it\n"
    assert notes.read_note("stand-up-4-may.md") == notes.read_note("Stand-up, 4 May")
    assert notes.list_notes() == "stand-up-4-may.md"


def test_no_title_leads_out_of_the_folder(notes: Any, tmp_path: Path) -> None:
    notes.save_note("../../outside", "x")
    assert [path.name for path in tmp_path.rglob("*.md")] == ["outside.md"]
    assert (tmp_path / "notes" / "outside.md").is_file()
    with pytest.raises(ValueError, match="a title needs a letter"):
        notes.save_note("../..", "x")


def test_missing_note_lists_the_existing_ones(notes: Any) -> None:
    notes.save_note("Plan", "x")
    with pytest.raises(ValueError, match=r"no note 'Plans'; existing notes: plan\.md"):
        notes.read_note("Plans")
