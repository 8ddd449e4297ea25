"""`pytest --workers` runs each test once and loses none."""

import os
import subprocess
import sys
from pathlib import Path

from tests.house.conftest import ROOT
from tests.support.workers import Shares

TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(20))
def test_passes(number, capfd):
    os.write(1, b"written")
    assert capfd.readouterr().out == "written"

def test_fails():
    print("shown")
    assert 1 == 2

def test_ends_the_worker():
    os.kill(os.getpid(), 9)

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_whose_fixture_fails(broken):
    pass
"""


def test_each_test_is_taken_once() -> None:
    shares = Shares(100, 3)
    first = [shares.take(worker) for worker in range(3)]
    assert first == [0, 33, 66]
    taken = [test for test, _ in shares.taken(1)]
    assert taken[:32] == list(range(34, 66))
    assert sorted([*taken, *map(int, filter(None, first)), 0]) == list(range(100))
    assert shares.take(0) is None


def test_reports_of_workers_are_complete(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ("-p", "tests.support.workers", "--workers", "2", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA")
    command = [sys.executable, "-P", "-m", "pytest", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert sum(line.startswith("PASSED") for line in lines) >= 20
    assert "shown" in lines
    outcomes = {tuple(line.split(" - ")[0].split()) for line in lines if line.startswith(("ERROR", "FAILED"))}
    assert {("FAILED", "test_it.py::test_fails"), ("FAILED", "test_it.py::test_ends_the_worker")} <= outcomes
    # The worker that ended may have held it.
    assert outcomes & {(word, "test_it.py::test_whose_fixture_fails") for word in ("ERROR", "FAILED")}
