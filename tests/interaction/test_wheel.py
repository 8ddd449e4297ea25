"""The wheel: it takes no import name that another distribution uses, and works without a clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {"mew_agent", "mew_listener", "mew_protocol", "mew_settings", "mew_spaces"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built_before := os.environ.get("MEW_WHEEL"):  # by `make dist`
        return ROOT / built_before
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_takes_only_our_own_import_names(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == TOP_LEVEL


def test_the_wheel_holds_every_source_file(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for base, package in (
        ("", "mew_agent"),
        ("protocol", "mew_listener"),
        ("protocol", "mew_protocol"),
        ("protocol", "mew_settings"),
        ("spaces", "mew_spaces"),
    ):
        files = [
            file for file in (ROOT / base / package).rglob("*") if file.is_file() and "__pycache__" not in file.parts
        ]
        assert files
        assert {file.relative_to(ROOT / base).as_posix() for file in files} <= shipped


def test_the_wheel_works_next_to_the_package_called_spaces(wheel: Path, tmp_path: Path) -> None:
    """`spaces` on the package index is Hugging Face's; both distributions must work in one environment."""
    target = tmp_path / "site"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        target,
        wheel,
        "spaces",
        cwd=tmp_path,
    )
    assert (target / "spaces" / "__init__.py").exists()
    program = (
        "import importlib.util, sys; sys.path.insert(0, sys.argv[1]);"
        "import mew_spaces.gateway.gateway, mew_protocol, mew_agent;"
        "print(importlib.util.find_spec('spaces').origin, mew_spaces.__file__, mew_agent.__file__, sep='\\n')"
    )
    origins = run(sys.executable, "-I", "-c", program, target, cwd=tmp_path).split()
    assert all(Path(origin).is_relative_to(target) for origin in origins)
