"""Finding the space.yaml of a folder."""

import os
from pathlib import Path

import pytest
from mew_spaces.launch.run_file import find_run_file

from mew_agent.cli.app.locate import space_config_path, space_folder
from mew_agent.errors import ConfigError


def test_given_file_is_used(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.touch()
    assert space_config_path(file, None) == file
    with pytest.raises(ConfigError, match=r"missing\.yaml: no such file"):
        space_config_path(tmp_path / "missing.yaml", None)


def test_file_in_the_state_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").touch()
    assert space_config_path(None, tmp_path) == tmp_path / "space.yaml"
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").touch()
    assert space_config_path(None, tmp_path) == tmp_path / ".mew" / "space.yaml"


def test_file_of_the_nearest_parent_is_found_unless_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "space.yaml").touch()
    monkeypatch.chdir(inner)
    assert space_config_path(None, None) == tmp_path / "space.yaml"
    (inner.parent / "space.yaml").touch()
    assert space_config_path(None, None) == inner.parent / "space.yaml"
    with pytest.raises(ConfigError, match=r"no space\.yaml here"):
        space_config_path(None, inner)


def test_files_of_other_users_in_parent_folders_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "src"
    (tmp_path / ".mew").mkdir()
    inner.mkdir()
    for name in (".mew/run.json", "space.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(inner)
    assert (find_run_file(inner), space_config_path(None, None)) == (
        tmp_path / ".mew/run.json",
        tmp_path / "space.yaml",
    )
    if os.geteuid() == 0:  # files of root always count
        for path in tmp_path.rglob("*"):
            os.chown(path, 4711, -1)
    monkeypatch.setattr("os.geteuid", lambda: 4712)
    assert find_run_file(inner) is None
    assert find_run_file(tmp_path) == tmp_path / ".mew" / "run.json"
    with pytest.raises(ConfigError, match=r"no space\.yaml here"):
        space_config_path(None, None)


def test_missing_file_names_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`mew init` creates one, --space-dir"):
        space_config_path(None, tmp_path)


def test_space_belongs_to_the_folder_of_its_state(tmp_path: Path) -> None:
    assert space_folder(tmp_path / "space.yaml") == tmp_path
    assert space_folder(tmp_path / ".mew" / "space.yaml") == tmp_path
