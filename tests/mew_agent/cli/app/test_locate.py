"""Finding the space.yaml of a folder."""

from pathlib import Path

import pytest

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


def test_missing_file_names_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`mew init` creates one, --space-dir"):
        space_config_path(None, tmp_path)


def test_space_belongs_to_the_folder_of_its_state(tmp_path: Path) -> None:
    assert space_folder(tmp_path / "space.yaml") == tmp_path
    assert space_folder(tmp_path / ".mew" / "space.yaml") == tmp_path
