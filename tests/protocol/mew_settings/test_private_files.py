"""Files that only their owner may read, written in one step."""

from pathlib import Path

import pytest
from mew_settings.private_files import create_private_file, replace_private_file


def test_a_file_is_private_and_replaced_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for text in ("old", "new"):
        replace_private_file(path, text)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert create_private_file(path, "first")
    assert not create_private_file(path, "second")
    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "content").touch()
    with pytest.raises(OSError, match="file"):
        replace_private_file(tmp_path / "file", "text")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
