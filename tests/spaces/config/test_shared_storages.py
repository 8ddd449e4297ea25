"""Storages of other packages: their modules may import the settings that they extend."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.cli import run_program

MODULE = """
from mew_settings.values import SettingsModel
from mew_spaces.config.settings import SpaceConfig
from mew_spaces.config.shared_storages import StorageType


class Options(SettingsModel):
    my_servers: str


class MyStorage(StorageType):
    settings = Options

    def with_addresses(self, options, text):
        return Options(my_servers=text)

    def open(self, config: SpaceConfig, *, folder, state):
        raise NotImplementedError


MY = MyStorage()
"""

READ = """
import json
from mew_spaces.config.loading import parse_space
given = ("nats://127.0.0.1:4222", "{my_servers: here}")
found = [parse_space(f"space: {{id: s}}\\nbackplane: {one}").backplane for one in given]
print(json.dumps([type(one).__name__ for one in found]))
"""


@pytest.mark.part("jetstream")
@pytest.mark.parametrize("first", ["mystore", "mew_spaces.parts.jetstream.storage_type", "mew_spaces.config.settings"])
def test_storages_are_found_whichever_module_is_imported_first(first: str, tmp_path: Path) -> None:
    (tmp_path / "mystore.py").write_text(MODULE)
    metadata = tmp_path / "mystore-1.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[mew_spaces.storages]\nmy = mystore:MY\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    script = f"import logging, {first}\nlogging.basicConfig()\n{READ}"
    found = run_program((sys.executable, "-c", script), tmp_path, {**os.environ, "PYTHONPATH": path})
    assert json.loads(found.out) == ["JetStreamOptions", "Options"], found.err
    assert "cannot be loaded" not in found.err
