"""Spaces made from our templates, run as people run them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

MEW = (sys.executable, "-P", "-m", "mew_agent")

Mew = Callable[..., str]


@pytest.fixture
def mew(tmp_path: Path) -> Iterator[Mew]:
    """Runs a command in the space's folder, holds it to exit code 0 and returns what it printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}

    def run(*arguments: str, typed: str = "") -> str:
        done = subprocess.run(
            (*MEW, *arguments),
            cwd=tmp_path,
            env={**environment, "HOME": str(tmp_path)},
            input=typed,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout

    yield run
    run("down")


def test_maze_is_played_from_a_terminal(mew: Mew) -> None:
    mew("init", "cat-maze", "--name", "play", "--model", "rehearsal")
    shown = mew("up", "--detach", "--port", "0")
    assert "  maze: joined" in shown
    assert "  guide: joined" in shown
    assert mew("chat", "maze", "right").startswith("The cat went right.\n")
    assert "2 steps; open: down, left" in mew("chat", "maze", "right")


def test_interactive_up_joins_and_leaves_the_space_running(mew: Mew) -> None:
    mew("init", "demo", "--name", "room")
    shown = mew("up", "-i", "--port", "0", typed="/target reader\n/who\n/nonsense\n/exit\n")
    assert "you are human in 'room'; here: reader, writer." in shown
    assert "text goes to reader\n  human (you)\n  reader" in shown
    assert "* unknown command /nonsense; see /help" in shown
    assert shown.endswith("the space keeps running; `mew down` stops it\n")
    assert "reader" in mew("status")


@pytest.mark.parametrize(("template", "tools"), [("coder-agent", "files"), ("note-taker", "notes")])
def test_tools_of_a_template_join_its_agent(mew: Mew, template: str, tools: str) -> None:
    mew("init", template, "--model", "rehearsal")
    shown = mew("up", "--detach", "--port", "0")
    assert f"  {tools}: joined" in shown
    assert shown.count(": joined") == 2


def test_participants_are_added_without_a_restart(mew: Mew, tmp_path: Path) -> None:
    person, agent = '{capabilities: [{kind: "*"}]}', "{agent: {base_url: rehearsal}, auto_start: true}"
    (tmp_path / "space.yaml").write_text(f"space: {{id: room}}\nparticipants:\n  human: {person}\n  reader: {agent}\n")
    mew("up", "--detach", "--port", "0")
    run = (tmp_path / ".mew" / "run.json").read_text()
    assert mew("agent", "add", "late", "--model", "rehearsal", "--base-url", "rehearsal") == "late: added and joined\n"
    assert mew("agent", "add", "sums", "--command", "mew agent start -t calculator") == "sums: added and joined\n"
    assert 'Noted: "hello"' in mew("chat", "late", "hello")
    assert mew("agent", "add", "bob", "--person").startswith("bob: added; its token is in ")
    token = mew("token", "create", "-p", "guest", "-c", '["chat"]').strip()
    assert (tmp_path / ".mew" / "tokens" / "guest.token").read_text().strip() == token
    flags = ("--participant", "guest", "--token", token)
    assert 'Noted: "I am new"' in mew("chat", "late", "I am new", *flags)
    started = json.loads(run)["pids"]["gateway"]
    assert json.loads((tmp_path / ".mew" / "run.json").read_text())["pids"]["gateway"] == started
    mew("down")
    shown = mew("up", "--detach", "--port", "0")
    assert "  late: joined" in shown
    assert "  sums: joined" in shown
