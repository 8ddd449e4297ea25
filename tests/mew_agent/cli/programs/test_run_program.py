"""`mew run`: the environment of the program, and its exit code."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cli import mew
from tests.support.warm_start import MEW, REAL_MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a program takes another's place on POSIX systems only")

WHO = ("--gateway", "http://127.0.0.1:4711/", "--space", "demo", "--participant", "ada", "--token", "secret")
SHOW = """
import os, sys
from mew_agent import Participant
me = Participant.from_environment()
print(me.id, me.space, os.environ["MEW_GATEWAY"], os.environ["MEW_TOKEN"], sys.argv[1:], sep="|")
sys.exit(7)
"""


def mew_run(folder: Path, *arguments: str, command: Sequence[str] = MEW) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[3])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MEW_")}
    return subprocess.run(
        (*command, "run", *WHO, *arguments),
        cwd=folder,
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("command", [MEW, REAL_MEW], ids=["copied", "real"])
def test_python_file_gets_environment_arguments_and_its_exit_code(tmp_path: Path, command: Sequence[str]) -> None:
    (tmp_path / "show.py").write_text(SHOW, encoding="utf-8")
    done = mew_run(tmp_path, "show.py", "--participant", "mine", command=command)
    assert done.stdout == "ada|demo|ws://127.0.0.1:4711|secret|['--participant', 'mine']\n"
    assert done.returncode == 7


def test_any_program_can_run(tmp_path: Path) -> None:
    done = mew_run(tmp_path, "sh", "-c", "echo $MEW_PARTICIPANT_ID in $MEW_SPACE")
    assert (done.stdout, done.returncode) == ("ada in demo\n", 0)


@pytest.mark.parametrize("command", ["no-such-program", "missing.py"])
async def test_missing_program_is_named(command: str) -> None:
    done = await mew("run", *WHO, command)
    assert done.err == f"mew: COMMAND: program '{command}' not found\n"
    assert done.code == 2


async def test_a_participant_option_after_the_program_is_refused() -> None:
    done = await mew("run", *WHO[:4], "no-such-program", "--participant=eve")
    assert "--participant: after no-such-program is an argument of that program" in done.err
    assert "`mew run --participant ... no-such-program`" in done.err
    assert (done.out, done.code) == ("", 2)
