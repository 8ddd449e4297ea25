"""`mew demo` as a newcomer runs it: real processes, a real file, a mistake, an interruption."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import cli
from tests.support.warm_start import MEW

DEMO_SECONDS = 60
"""The promise: it ends in under a minute."""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for temporary files, so that what is left behind can be seen."""
    for name in list(os.environ):
        if name.startswith(("MEW_", "OPENAI_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    tempfile.tempdir = None
    return folder


def mew(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MEW, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )


async def test_the_demo_reads_a_file_and_compacts_both_ways(tmp_path: Path, scratch: Path) -> None:
    file = tmp_path / "report.txt"
    file.write_text("\n\n".join(f"Finding {n}: pump {n * 3} lost {n}.4 bar at 03:{n:02}." * 3 for n in range(50)))
    done = mew("demo", "--json", "--keep", str(file), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}
    folder = events["kept"]["folder"]
    try:
        assert json.loads(done.stdout.splitlines()[0])["files"] == ["report.txt"]
        checks = events["summary"]["checks"]
        assert {check["participant"] for check in checks} == {"reader", "editor"}
        for check in checks:
            # The model server counts what left; the next question is projected.
            assert abs(check["off_tokens"]) <= 4
        status = await cli.mew("status", "--space-dir", folder)
        assert "reader" in status.out
        compacted = await cli.mew("compact", "reader", "--space-dir", folder)
        assert compacted.code in (0, 3)
    finally:
        assert (await cli.mew("down", "--space-dir", folder)).code == 0


def test_without_a_terminal_it_prints_plain_lines_and_ends_clean(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "mew_agent.py").write_text("raise SystemExit('a file of the user')")
    done = mew("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "tokens freed, and the next size with an estimated question:" in done.stdout
    assert "\ntry next:\n" in done.stdout
    assert "  mew init --model rehearsal && mew up -i " in done.stdout
    assert list(scratch.iterdir()) == []


def test_make_demo_installs_no_tools_for_tests() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(("make", "-n", "-B", "demo"), cwd=root, capture_output=True, text=True, check=True)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert [line.split("pip install ")[1] for line in installs] == ["--disable-pip-version-check -e '.[space]'"]


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path, scratch: Path) -> None:
    done = mew("demo", "nowhere.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "mew: FILE: nowhere.txt cannot be read: No such file or directory (expected a text file)\n"


def started(scratch: Path) -> bool:
    """Whether the process of the demo's space exists, of which the command does not know yet."""
    return any(scratch.glob("mew-demo-*/.mew/run.json"))


# One handler makes SIGTERM and SIGHUP what Ctrl-C is; its own tests are in tests/mew_agent/cli/app/test_signals.py.
@pytest.mark.parametrize(
    ("moment", "number"), [("as the space starts", signal.SIGTERM), ("in the middle", signal.SIGINT)]
)
def test_any_end_ends_all_its_processes(tmp_path: Path, scratch: Path, moment: str, number: signal.Signals) -> None:
    command = [*MEW, "demo"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if moment == "in the middle":
            child.stdout.readline()
        while not started(scratch):
            assert child.poll() is None
            time.sleep(0.005)
        child.send_signal(number)
        _, errors = child.communicate(timeout=DEMO_SECONDS)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert list(scratch.iterdir()) == []
    left = subprocess.run(["ps", "-Ao", "args"], capture_output=True, text=True, check=True)
    assert str(scratch) not in left.stdout
