"""Loads the programs of templates, which are copied into spaces and belong to no package."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mew_agent.cli.space.templates import BUILT_IN

Load = Callable[[str], ModuleType]


@pytest.fixture
def load() -> Load:
    """`load("cat-maze/agents/maze.py")` is that program as a module."""

    def read(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(Path(path).stem, BUILT_IN / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return read
