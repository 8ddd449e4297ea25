"""Agents that share a process, as people run them: real processes, kills, failures, and commands for one of them."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mew_spaces.launch.program_logs import log_path

from mew_agent.participant.participant import Participant
from tests.support.space_folder import Folder, nothing_left
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

AGENT = "role: agent, auto_start: true"
SPACE = f"""
space: {{id: review}}
participants:
  ada: {{capabilities: [{{kind: "*"}}]}}
  coder: {{{AGENT}, agent: {{base_url: rehearsal, log_level: debug}}}}
  writer: {{{AGENT}, agent: {{base_url: rehearsal}}}}
  editor: {{{AGENT}, agent: {{base_url: rehearsal}}, restart_policy: on-failure}}
"""
OTHERS = f"""
  alone: {{{AGENT}, own_process: true, agent: {{base_url: rehearsal}}}}
  tinted: {{{AGENT}, env: {{COLOUR: red}}, agent: {{base_url: rehearsal}}}}
"""
SHARING = ("coder", "writer", "editor")


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    place = Folder(tmp_path / "room", SPACE)
    yield place
    await place.stop()


async def board(folder: Folder) -> dict[str, dict[str, Any]]:
    """The lines of `mew status`, by participant."""
    return {line["id"]: line for line in json.loads(await folder.mew("status", "--json"))}


def token(folder: Folder, name: str) -> str:
    return (folder.path / ".mew" / "tokens" / f"{name}.token").read_text().strip()


def log(folder: Folder, name: str) -> str:
    return log_path(folder.path / ".mew" / "logs", name).read_text()


async def test_agents_share_a_process_but_neither_tokens_nor_logs(folder: Folder) -> None:
    (folder.path / "space.yaml").write_text(SPACE + OTHERS)
    await folder.mew("up", "--detach", "--port", "0")
    pids = folder.run.pids.participants
    assert len({pids[name] for name in SHARING}) == 1
    assert len({*pids.values()}) == 3

    shared = psutil.Process(pids["coder"])
    for name in (*SHARING, "ada"):
        assert token(folder, name) not in " ".join(shared.cmdline())
        assert token(folder, name) not in shared.environ().values()
    assert psutil.Process(pids["tinted"]).environ()["COLOUR"] == "red"
    assert "COLOUR" not in shared.environ()

    for name in SHARING:
        await folder.mew("chat", name, f"A word for {name}.")
    assert "DEBUG" in log(folder, "coder")
    assert "DEBUG" not in log(folder, "writer")
    assert "coder" not in log(folder, "editor").partition("\n")[0]
    run = folder.run
    await folder.mew("down")
    assert nothing_left(run)


async def test_a_killed_process_brings_every_agent_back_with_its_history(folder: Folder) -> None:
    await folder.mew("up", "--detach", "--port", "0")
    for name in SHARING:
        await folder.mew("chat", name, f"Remember the word {name}-berry.")
    before, first = await board(folder), folder.run
    os.kill(first.pids.participants["coder"], signal.SIGKILL)
    await until(lambda: {folder.run.starts[name] for name in SHARING} == {2})

    async def are_back() -> bool:
        lines = await board(folder)
        return all(
            lines[name]["connected"] and lines[name]["status_id"] != before[name]["status_id"] for name in SHARING
        )

    await until(are_back)
    after = await board(folder)
    for name in SHARING:
        assert after[name]["status"]["messages_in_context"] == before[name]["status"]["messages_in_context"] > 0
        assert after[name]["status"]["context"]["reason"] == "restarted"
        assert f"{name}-berry" in await folder.mew("sessions", name)
        assert await folder.mew("chat", name, "And again.")
    assert not folder.run.exits


async def test_agents_that_fail_leave_the_others_in_their_process_alone(folder: Folder) -> None:
    (folder.path / ".mew" / "sessions" / "editor.db").mkdir(parents=True)  # no agent can open that
    shown = await folder.mew("up", "--detach", "--port", "0", code=1)
    assert "editor: exited with code 1" in shown
    assert "coder: joined" in shown
    await until(lambda: folder.run.starts["editor"] > 1)  # by its policy, with growing pauses
    assert "editor.db" in log(folder, "editor")

    run = folder.run
    thief = Participant(run.ws, space="review", id="writer", token=token(folder, "writer"))
    async with thief:  # the gateway lets the newest connection of an id win
        await until(lambda: "writer" in folder.run.exits)
    assert folder.run.exits["writer"].code == 1
    assert "another connection joined" in folder.run.exits["writer"].detail
    assert folder.run.starts["coder"] == 1
    assert "again" in await folder.mew("chat", "coder", "Say it again.")
    assert "editor.db" not in log(folder, "coder")


async def test_commands_act_on_one_agent_of_a_process(folder: Folder) -> None:
    await folder.mew("up", "--detach", "--port", "0")
    pid = folder.run.pids.participants["coder"]
    assert await folder.mew("restart", "coder") == "coder: restarted\n"
    assert await folder.mew("shutdown", "writer") == "writer: shut down; `mew restart writer` starts it again\n"
    await until(lambda: "writer" in folder.run.exits)
    assert await folder.mew("agent", "add", "late", "--base-url", "rehearsal") != ""
    run = folder.run
    assert run.starts == {**run.starts, "coder": 2, "editor": 1, "late": 1}
    assert {run.pids.participants[name] for name in ("coder", "editor", "late")} == {pid}
    assert run.exits["writer"].code == 0
    assert await folder.mew("restart", "writer") == "writer: restarted\n"
    assert await folder.mew("chat", "writer", "Are you there?")


async def test_agents_outlive_a_killed_supervisor(folder: Folder) -> None:
    await folder.mew("up", "--detach", "--port", "0")
    run = folder.run
    assert run.pids.supervisor is not None
    os.kill(run.pids.supervisor, signal.SIGKILL)
    await until(lambda: not run.is_running(run.pids.supervisor))
    for name in SHARING:
        assert await folder.mew("chat", name, "Still here?")
    await folder.mew("down")
    assert nothing_left(run)


async def test_foreground_shows_what_each_agent_writes(folder: Folder) -> None:
    (folder.path / ".mew" / "sessions" / "editor.db").mkdir(parents=True)
    async with folder.running("up", "--port", "0") as (process, printed):
        await until(lambda: "editor  | mew: " in printed() and "coder   | " in printed())
        run = folder.run
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(60):
            assert await process.wait() == 130
    assert "editor.db" in printed()
    assert "Traceback" not in printed()
    assert nothing_left(run)
