"""Loads the programs of templates, which are copied into spaces and belong to no package."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mew_agent.cli.space.templates import find_templates

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load("cat-maze", "agents/maze.py")` is that program of that template as a module."""

    def read(template: str, path: str) -> ModuleType:
        file = find_templates(tmp_path, tmp_path)[template].folder / path
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return read
