"""`mew serve` as people run it: a space, the door beside it, and what docs/chat-clients.md shows."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

DOCS = Path(__file__).parents[2] / "docs"
MEW = (sys.executable, "-P", "-m", "mew_agent")
PATIENCE_SECONDS = 60
KEY = "choose-a-key"


def page(name: str, language: str) -> list[str]:
    """The blocks of a language in a page."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MEW_", "OPENAI_"))}
    return {**clean, "MEW_SERVE_API_KEY": KEY}


def run(folder: Path, *command: str) -> str:
    """Run a command to its good end. Returns what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mew serve` in a folder, and its base URL."""
    process = subprocess.Popen(
        (*MEW, "serve", "--port", "0"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"agents of 'review' at (http://\S+/v1), asked by ada", said)
        assert found, said
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (space,) = page("getting-started.md", "yaml")
    (tmp_path / "space.yaml").write_text(space, encoding="utf-8")
    try:
        run(tmp_path, *MEW, "up", "--detach", "--port", "0")
        yield tmp_path
    finally:
        run(tmp_path, *MEW, "down")


def test_what_the_page_shows_works_and_the_door_closes_in_order(folder: Path) -> None:
    commands = [line[2:] for block in page("chat-clients.md", "console") for line in block.splitlines()]
    (program,) = page("chat-clients.md", "python")
    with serving(folder) as (process, base_url):
        here = [text.replace("http://127.0.0.1:8190/v1", base_url) for text in (*commands, program)]
        models, stream = (run(folder, "bash", "-c", command) for command in here[:-1])
        spoken = run(folder, sys.executable, "-c", here[-1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()
    assert '"id":"coder"' in models
    assert stream.endswith("data: [DONE]\n\n")
    assert "I am the rehearsal model" in "".join(re.findall(r'"content":"([^"]*)"', stream))
    assert re.search(r"^prompt: \d+$", spoken, re.MULTILINE)
    assert re.search(r"^context: \d+ of 8192 reported$", spoken, re.MULTILINE)
