"""`mew gateway start`: what it refuses. That it serves is seen where it runs as a process."""

import socket
from pathlib import Path

from tests.support.cli import mew


async def test_a_file_that_is_not_there_is_named() -> None:
    outcome = await mew("gateway", "start", "--space-config", "nowhere.yaml")
    assert outcome.err == "mew: nowhere.yaml: there is no such file\n"
    assert outcome.code == 2


async def test_a_mistake_is_named_with_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\nparticipant: {}\n")
    outcome = await mew("gateway", "start")
    assert outcome.err.startswith("mew: space.yaml:2:1: unknown key 'participant' (did you mean 'participants'?)")
    assert outcome.code == 2


async def test_a_taken_port_is_said(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: s}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = await mew("gateway", "start", "--port", str(taken.getsockname()[1]), "--auto-start")
    warning, refusal = outcome.err.splitlines()
    assert "`mew up` starts those with auto_start" in warning
    assert "is taken by another program" in refusal
    assert outcome.code == 2
