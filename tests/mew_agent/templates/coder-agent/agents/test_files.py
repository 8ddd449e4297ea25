"""The tools for files: they work inside their folder and nowhere else."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def program(load: Callable[[str, str], ModuleType]) -> ModuleType:
    return load("coder-agent", "agents/files.py")


@pytest.fixture
def folder(program: ModuleType, tmp_path: Path) -> Any:
    (tmp_path / "secret.txt").write_text("top secret")
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("import os\nprint('Hello')\n")
    (root / "README.md").write_text("# Hello\n")
    (root / "picture.bin").write_bytes(b"\xff\xfe")
    (root / ".mew" / "tokens").mkdir(parents=True)
    (root / ".mew" / "tokens" / "ada.token").write_text("hello-token")
    (root / "out").symlink_to(tmp_path / "secret.txt")
    return program.Folder(root)


def test_listing_shows_no_hidden_files(folder: Any) -> None:
    assert folder.list_files() == "README.md\npicture.bin\nsrc/main.py"
    assert folder.list_files("src") == "src/main.py"


def test_file_is_read_with_line_numbers(folder: Any) -> None:
    assert folder.read_file("src/main.py") == "    1 import os\n    2 print('Hello')"


def test_search_names_file_and_line_but_never_a_token(folder: Any) -> None:
    assert folder.search_files("hello") == "README.md:1: # Hello\nsrc/main.py:2: print('Hello')"
    assert folder.search_files("token") == "(no matches)"


def test_file_is_written_with_its_folders(folder: Any) -> None:
    assert folder.write_file("docs/new.md", "one\ntwo\n") == "wrote docs/new.md: 2 lines"
    assert (folder.root / "docs" / "new.md").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "out", ".mew/tokens/ada.token", "src/../../secret.txt"]
)
def test_outside_and_hidden_paths_are_refused(folder: Any, path: str) -> None:
    for act in (folder.read_file, lambda one: folder.write_file(one, "x"), folder.list_files):
        with pytest.raises(ValueError, match=r"is outside the folder|is hidden"):
            act(path)


def test_binary_file_is_refused(folder: Any, program: ModuleType) -> None:
    (folder.root / "long.txt").write_text("x" * (program.MAX_FILE_BYTES + 1))
    for path, said in (("picture.bin", "not a text file"), ("src", "no file src"), ("long.txt", "larger than")):
        with pytest.raises(ValueError, match=said):
            folder.read_file(path)
    with pytest.raises(ValueError, match="is a folder"):
        folder.write_file("src", "x")
