"""Without a part, the core and the other parts work: each part's folder is removed from a copy of the tree."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.conftest import PACKAGES, ROOT

PARTS = sorted(path.parent.name for path in (ROOT / "mew_agent" / "parts").glob("*/__init__.py"))
IS_LONG = bool(os.environ.get("MEW_ALL_PARTS"))
"""`make test-long` runs all tests that a missing part leaves."""

QUICK = ("mew_agent/test_errors.py", "mew_agent/tools", "mew_agent/context/test_window.py", "parts/integrations")
"""Tests that run in seconds, and show that the core can be used."""

PROGRAM = """
import importlib, pkgutil, sys, mew_agent
from mew_agent.cli.main import run
from mew_settings.plugins import load_table
without, *groups = sys.argv[1:]
for module in pkgutil.walk_packages(mew_agent.__path__, "mew_agent."):
    if not any(part in module.name for part in (".templates", ".__main__", without)):
        importlib.import_module(module.name)
for group in groups:
    load_table(group)
run(["--help"])
"""
"""Imports the core, in the long form also the other parts, and what the tables name."""


@cache
def imported_by(path: Path) -> frozenset[Path]:
    """Every file of tests that this one imports, and the conftest files that apply to it, itself included."""
    found, waiting = set[Path](), [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        waiting += [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT / "tests")]
        waiting += [ROOT / f"{name.replace('.', '/')}.py" for name in names_in(file) if name.startswith("tests.")]
    return frozenset(found)


@cache
def names_in(file: Path) -> frozenset[str]:
    """Dotted names of all imports of a file."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def uses(file: Path, part: str) -> bool:
    """Return whether a test needs a part."""
    prefix = f"mew_agent.parts.{part}"
    own = ROOT / "tests" / "parts" / part
    names = {name for one in imported_by(file) for name in names_in(one)}
    return own in file.parents or any(f"{name}.".startswith(f"{prefix}.") for name in names)


def files_without(part: str) -> Iterator[str]:
    """Yield the test files that do not use a part: the quick ones, or all of the core and of the other parts."""
    places = ("mew_agent", "parts", "protocol", "spaces") if IS_LONG else QUICK
    for place in places:
        path = ROOT / "tests" / place
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            if not uses(file, part) and "local" not in file.parts:
                yield file.relative_to(ROOT).as_posix()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree and its tests."""
    folder = tmp_path_factory.mktemp("tree")
    for place in (*PACKAGES, "tests", "docs"):
        shutil.copytree(ROOT / place, folder / place, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize("part", PARTS)
def test_core_and_other_parts_work_without_a_part(part: str, tree: Path, tmp_path: Path) -> None:
    home, away = tree / "mew_agent" / "parts" / part, tmp_path / part
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / one) for one in ("", "protocol", "spaces"))}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"without {part}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    shutil.move(home, away)
    try:
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        assert "Start and stop" in run("-c", PROGRAM, "no part" if IS_LONG else ".parts.", *groups)
        files = list(files_without(part))
        if files:
            run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
    finally:
        shutil.move(away, home)
