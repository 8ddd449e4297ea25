"""Spaces made from our templates, run as people run them."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cli import mew_in, run_program
from tests.support.warm_start import MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

Mew = Callable[..., str]


@pytest.fixture
def mew(tmp_path: Path) -> Iterator[Mew]:
    """Runs a command in the space's folder, holds it to exit code 0 and returns what it printed.

    One that text is typed at has a process of its own; the others run inside the test.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}
    environment = {**kept, "HOME": str(tmp_path), "LOGNAME": "human"}

    def run(*arguments: str, typed: str = "") -> str:
        if typed:
            done = run_program((*MEW, *arguments), tmp_path, environment, typed)
        else:
            done = mew_in(tmp_path, *arguments, environment=environment)
        assert done.code == 0, done.out + done.err
        assert [line for line in done.err.splitlines() if not line.startswith("(read by ")] == []
        return done.out

    yield run
    run("down")


def test_maze_is_played_from_a_terminal(mew: Mew) -> None:
    mew("init", "cat-maze", "--name", "play", "--model", "rehearsal")
    shown = mew("up", "--detach", "--port", "0")
    assert "  maze: joined" in shown
    assert "  guide: joined" in shown
    assert mew("chat", "maze", "right").startswith("The cat went right.\n")
    assert "2 steps; open: down, left" in mew("chat", "maze", "right")


@pytest.mark.parametrize(("template", "tools"), [("coder-agent", "files"), ("note-taker", "notes")])
def test_tools_of_a_template_join_its_agent(mew: Mew, template: str, tools: str) -> None:
    mew("init", template, "--model", "rehearsal")
    shown = mew("up", "--detach", "--port", "0")
    assert f"  {tools}: joined" in shown
    assert shown.count(": joined") == 2


def test_a_running_space_is_joined_and_gets_new_participants(mew: Mew, tmp_path: Path) -> None:
    mew("init", "demo", "--name", "room")
    shown = mew("up", "-i", "--port", "0", typed="/target reader\n/who\n/nonsense\n/exit\n")
    assert "you are human in 'room'; here: reader, writer." in shown
    assert "text goes to reader\n  human (you)\n  reader" in shown
    assert "* unknown command /nonsense; see /help" in shown
    assert shown.endswith("the space keeps running; `mew down` stops it\n")
    assert "reader" in mew("status")
    run = (tmp_path / ".mew" / "run.json").read_text()
    assert mew("agent", "add", "late", "--model", "rehearsal", "--base-url", "rehearsal") == "late: added and joined\n"
    assert mew("agent", "add", "sums", "--command", "mew agent start -t calculator") == "sums: added and joined\n"
    assert 'Noted: "hello"' in mew("chat", "late", "hello")
    assert mew("agent", "add", "bob", "--person").startswith("bob: added; `mew dashboard --participant bob`")
    token = mew("invite", "guest", "chat").splitlines()[1].split()[-1]
    assert (tmp_path / ".mew" / "tokens" / "guest.token").read_text().strip() == token
    flags = ("--participant", "guest")
    assert 'Noted: "I am new"' in mew("chat", "late", "I am new", *flags)
    started = json.loads(run)["pids"]["gateway"]
    assert json.loads((tmp_path / ".mew" / "run.json").read_text())["pids"]["gateway"] == started
    mew("down")
    shown = mew("up", "--detach", "--port", "0")
    assert "  late: joined" in shown
    assert "  sums: joined" in shown
