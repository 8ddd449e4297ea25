"""The core works without parts, and each part without the others: folders are removed from a copy of the tree."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.conftest import PACKAGES, ROOT
from tests.house.test_layering import SHARED

PARTS = sorted({path.parent.name for path in (ROOT / "mew_agent" / "parts").glob("*/__init__.py")} - {SHARED})
IS_LONG = bool(os.environ.get("MEW_ALL_PARTS"))
"""`make test-long` runs all tests that a missing part leaves."""

QUICK = ("mew_agent/test_errors.py", "mew_agent/tools", "mew_agent/context/test_window.py", "parts/integrations")
"""Tests that run in seconds, and show that the core and one part can be used."""

REMOVABLE = {*PARTS} - {"rehearsal"}
"""The parts without which tests run: most of them need the rehearsal model."""

REMOVED = [{part} for part in sorted(REMOVABLE)] if IS_LONG else [REMOVABLE - {"integrations"}]
"""The parts that are away while tests run: in the short form all but one, in the long form each in turn."""

PROGRAM = """
import importlib, importlib.util, os, pkgutil, subprocess, sys, traceback
from pathlib import Path
home, away = Path(sys.argv[1]), Path(sys.argv[2])
parts, groups, shared = sys.argv[3].split(), sys.argv[4].split(), sys.argv[5]

def import_all():
    importlib.invalidate_caches()
    import mew_agent
    for module in pkgutil.walk_packages(mew_agent.__path__, "mew_agent."):
        if ".templates" not in module.name and ".__main__" not in module.name:
            importlib.import_module(module.name)

def check(present):
    import_all()
    from mew_settings.plugins import load_table
    for part in parts:
        assert (importlib.util.find_spec(f"mew_agent.parts.{part}") is None) == (part not in present), part
    for group in groups:
        load_table(group)
    subprocess.run([sys.executable, "-P", "-m", "mew_agent", "--help"], check=True)

for part in parts:
    (home / part).rename(away / part)
(home / shared).rename(away / shared)
import_all()
(away / shared).rename(home / shared)
for present in ([], *([part] for part in parts)):
    for part in present:
        (away / part).rename(home / part)
    child = os.fork()  # its modules and tables are its own, and the imported core is not imported again
    if not child:
        code = 1
        try:
            check(present)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, f"with no part but {present}"
    for part in present:
        (home / part).rename(away / part)
"""
"""Imports the core without any part, then with each part alone: its modules, and what the tables name."""


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


def files_without(parts: Collection[str]) -> Iterator[str]:
    """Yield the test files that use none of these parts: the quick ones, or all of the core and of the other parts."""
    places = ("mew_agent", "parts", "protocol", "spaces") if IS_LONG else QUICK
    for place in places:
        path = ROOT / "tests" / place
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            if not any(uses(file, part) for part in parts) and "local" not in file.parts:
                yield file.relative_to(ROOT).as_posix()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source tree and its tests."""
    for place in (*PACKAGES, "tests", "docs"):
        shutil.copytree(ROOT / place, tmp_path / place)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(tree: Path, *arguments: str) -> str:
    """Run Python in a copy of the tree. Returns what it wrote."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / one) for one in ("", "protocol", "spaces"))}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


def test_the_core_is_imported_without_parts_and_with_each_part_alone(tree: Path) -> None:
    """What can be imported without all other parts can be imported without any one of them."""
    away = tree / "away"
    away.mkdir()
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    home = tree / "mew_agent" / "parts"
    written = run(tree, "-c", PROGRAM, str(home), str(away), " ".join(PARTS), " ".join(groups), SHARED)
    assert written.count("Start and stop") == 1 + len(PARTS)


@pytest.mark.parametrize("parts", REMOVED, ids=lambda parts: "-".join(sorted(parts)) if IS_LONG else "")
def test_core_and_other_parts_work_without_parts(parts: set[str], tree: Path) -> None:
    for part in parts:
        shutil.rmtree(tree / "mew_agent" / "parts" / part)
    files = list(files_without(parts))
    assert files
    run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
