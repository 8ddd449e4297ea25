"""The core works without parts, and each part without the others: folders are removed from a copy of the tree."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.conftest import PACKAGES, ROOT
from tests.house.test_layering import SHARED

HOMES = {"mew_agent.parts": Path("mew_agent", "parts"), "mew_spaces.parts": Path("spaces", "mew_spaces", "parts")}
PARTS = sorted(
    f"{package}.{path.parent.name}"
    for package, home in HOMES.items()
    for path in (ROOT / home).glob("*/__init__.py")
    if path.parent.name != SHARED
)
IS_LONG = bool(os.environ.get("MEW_ALL_PARTS"))
"""`make test-long` runs all tests, each with the parts that it needs alone."""

QUICK = ("mew_agent/test_errors.py", "mew_agent/tools", "mew_agent/context/test_window.py", "parts/integrations")
"""Tests that run in seconds, and show that the core and one part can be used."""

REHEARSAL, INTEGRATIONS = "mew_agent.parts.rehearsal", "mew_agent.parts.integrations"

SHORT = (frozenset({REHEARSAL, INTEGRATIONS}), frozenset[str]())
"""The parts that are there in the runs of the short form."""

WITHOUT_MODEL = ("protocol/mew_settings", "spaces/core/test_membership_rules.py", "spaces/log")
"""Tests that run without the rehearsal model, which the fixtures of all agents talk to."""

SEEN_FROM_OUTSIDE = {
    "mew_spaces.parts.jetstream": ("tests/mew_agent/cli/space/test_plan.py",),
    "mew_spaces.parts.metrics": ("tests/parts/openai_api/test_metrics.py", "tests/parts/openai_api/test_one_truth.py"),
}
"""Files of tests that use a part without an import: by a public name, a key of space.yaml, or a path of the gateway.

A single test says so with `@pytest.mark.part(NAME)`.
"""

COMMANDS_OF = {
    "a2a": "serve a2a",
    "acp": "acp start",
    "doctor": "doctor",
    "mcp": "bridge start",
    "meter": "meter",
    "openai_api": "serve openai",
}

PROGRAM = """
import gc, importlib, importlib.util, io, json, os, pkgutil, subprocess, sys, traceback
from contextlib import redirect_stdout
from pathlib import Path
parts, groups, shared, commands_of = (json.loads(one) for one in sys.argv[1:])

def move(folder, target):
    Path(folder).rename(target)

def away(folder):
    return folder.replace("/", "+")

def import_all():
    importlib.invalidate_caches()
    for package in ("mew_agent", "mew_spaces"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if ".templates" not in module.name and ".__main__" not in module.name:
                importlib.import_module(module.name)

def written_by(*words):
    from mew_agent.cli.main import run
    with redirect_stdout(io.StringIO()) as written:
        assert run(words) == 0, words
    return written.getvalue()

def import_command_line_again():
    for name in [name for name in sys.modules if name.startswith("mew_agent.cli")]:
        del sys.modules[name]  # its table of commands is made when it is imported
    importlib.invalidate_caches()

def check_alone(part):
    import_command_line_again()
    import_all()
    from mew_settings.plugins import load_table
    for one in parts:
        assert (importlib.util.find_spec(one) is None) == (one != part), one
    for group in groups:
        load_table(group)
    assert "Start and stop" in written_by("--help")

def check_missing(part):
    from mew_spaces.config.loading import parse_space
    import_command_line_again()
    assert written_by("connect" if part.endswith(".doctor") else "doctor", "--help")
    listed = {line.strip().partition("  ")[0] for line in written_by("help", "all").splitlines() if line[:2] == "  "}
    missing = {command for one, command in commands_of.items() if part == "mew_agent.parts." + one}
    assert set(commands_of.values()) - listed == missing, listed
    space = parse_space("{space: {id: a}, participants: {ada: {}, coder: {agent: {model: m}}}}")
    assert space.participants["coder"].acts_as == "agent"

def check_in_child(check, part):
    child = os.fork()  # its modules and tables are its own, and the imported core is not imported again
    if not child:
        code = 1
        try:
            check(part)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, (check.__name__, part)
    print(check.__name__, part)

for folder in (*parts.values(), shared):
    move(folder, away(folder))
import_all()
gc.disable()  # a child is short, and looking at what it shares would copy it
subprocess.run([sys.executable, "-P", "-m", "mew_agent", "--help"], check=True)
move(away(shared), shared)
check_in_child(check_alone, None)
for part, folder in parts.items():
    move(away(folder), folder)
    check_in_child(check_alone, part)
    move(folder, away(folder))
for folder in parts.values():
    move(away(folder), folder)
for part, folder in {**parts, "shared": shared}.items():
    move(folder, away(folder))
    check_in_child(check_missing, part)
    move(away(folder), folder)
"""
"""Imports the core without any part, then with each part alone: its modules, and what the tables name.

Then without each part: only its own commands are missing. The metadata still names it, as after its folder was deleted.
"""


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
        waiting += [
            ROOT / f"{name.replace('.', '/')}.py"
            for name in names_in(file)
            if name.startswith(("tests.", "benchmarks."))
        ]
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


def parts_of(file: Path) -> frozenset[str]:
    """Return the parts that a test needs."""
    names = {name for one in imported_by(file) for name in names_in(one)}
    return frozenset(
        part for part in PARTS if _belongs_to(file, part) or any(f"{name}.".startswith(f"{part}.") for name in names)
    )


def _belongs_to(file: Path, part: str) -> bool:
    package, _, name = part.rpartition(".")
    own = ROOT / "tests" / ("parts" if package == "mew_agent.parts" else "spaces/parts") / name
    return own in file.parents or file.relative_to(ROOT).as_posix() in SEEN_FROM_OUTSIDE.get(part, ())


def folder_of(part: str) -> Path:
    """Return the folder of a part, relative to the root."""
    package, _, name = part.rpartition(".")
    return HOMES[package] / name


def _files_in(*places: str) -> Iterator[Path]:
    for place in places:
        path = ROOT / "tests" / place
        yield from [path] if path.is_file() else sorted(path.rglob("test_*.py"))


@cache
def runs() -> dict[frozenset[str], list[str]]:
    """Return which tests run, by the parts that are there meanwhile.

    In the short form all parts are away but two, then all. In the long form all tests run, each with the parts that it
    needs and no other: what works without all others works without any one of them.
    """
    chosen: dict[frozenset[str], list[str]] = defaultdict(list)
    if IS_LONG:
        for file in _files_in("mew_agent", "parts", "protocol", "spaces"):
            if "local" not in file.parts:
                chosen[parts_of(file) | {REHEARSAL}].append(file.relative_to(ROOT).as_posix())
        return chosen
    for kept, places in zip(SHORT, (QUICK, WITHOUT_MODEL), strict=True):
        chosen[kept] = [file.relative_to(ROOT).as_posix() for file in _files_in(*places) if parts_of(file) <= kept]
    return chosen


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source tree and its tests."""
    for place in (*PACKAGES, "tests", "docs", "deploy"):
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


def test_each_part_can_be_missing_or_alone(tree: Path) -> None:
    """What can be imported without all other parts can be imported without any one of them."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folders = {part: folder_of(part).as_posix() for part in PARTS}
    given = (folders, list(groups), f"mew_agent/parts/{SHARED}", COMMANDS_OF)
    written = run(tree, "-c", PROGRAM, *map(json.dumps, given))
    assert written.count("Start and stop") == 1
    assert written.count("\ncheck_alone") == written.count("\ncheck_missing") == 1 + len(PARTS)


@pytest.mark.parametrize(
    "kept", runs() if IS_LONG else SHORT, ids=lambda kept: "-".join(sorted(one.rpartition(".")[2] for one in kept))
)
def test_the_core_works_without_parts_and_with_each(kept: frozenset[str], tree: Path) -> None:
    for part in PARTS:
        if part not in kept:
            shutil.rmtree(tree / folder_of(part))
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *runs()[kept])
