"""MCP servers in a space as people run it: real processes, published servers, and nothing left behind."""

import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from mew_spaces.gateway.auth import read_token

from mew_agent.participant.participant import Participant
from tests.interaction.test_cli_processes import MEW, Folder, environment
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")

BIN = Path(sys.executable).parent
SPACE = f"""
space: {{id: review}}
participants:
  ada: {{capabilities: [{{kind: "*"}}]}}
  clock:
    type: mcp-bridge
    mcp_server: {{command: "{BIN}/mcp-server-time", args: ["--local-timezone", "UTC"]}}
    auto_start: true
"""


def servers(mark: str) -> list[int]:
    """The processes that still run whose command line or environment holds a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in text and state not in "ZX" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "space")
    (made.path / "space.yaml").write_text(SPACE)
    return made


async def ask_the_time(folder: Folder) -> str:
    token = read_token(folder.path / ".mew", "ada")
    assert token is not None
    async with Participant(folder.run.ws, space="review", id="ada", token=token) as ada:
        call = {"method": "tools/call", "params": {"name": "get_current_time", "arguments": {"timezone": "UTC"}}}
        answer = await ada.ask("mcp/request", call, to="clock", answer="mcp/response", timeout_seconds=PATIENCE_SECONDS)
        content = json.loads(answer.body["result"]["content"][0]["text"])
        return str(content["timezone"])


async def test_a_killed_server_comes_back_and_down_leaves_nothing_of_it(folder: Folder) -> None:
    try:
        shown = await folder.mew("up", "--detach", "--port", "0")
        assert "clock: joined" in shown
        assert await ask_the_time(folder) == "UTC"
        mark = folder.run.run_id
        assert len(servers(f"MEW_RUN={mark}")) >= 3  # supervisor's gateway, the bridge, its server
        bridge = folder.run.pids.participants["clock"]
        (server,) = [pid for pid in servers(f"MEW_RUN={mark}") if parent_of(pid) == bridge]
        os.kill(server, signal.SIGKILL)
        log = folder.path / ".mew" / "logs" / "clock.log"
        await until(lambda: log.read_text().count("is ready (MCP") == 2)
        assert "was terminated by signal 9; restart in 1 s (1 of 3)" in log.read_text()
        assert await ask_the_time(folder) == "UTC"
    finally:
        await folder.mew("down")
    assert servers(f"MEW_RUN={mark}") == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_bridge_in_the_foreground_takes_its_server_with_it(folder: Folder) -> None:
    (folder.path / "space.yaml").write_text(SPACE.replace("auto_start: true", ""))
    try:
        await folder.mew("up", "--detach", "--port", "0")
        for number in (signal.SIGTERM, signal.SIGINT):
            await bridge_until_signal(folder, number)
    finally:
        await folder.stop()


async def bridge_until_signal(folder: Folder, number: signal.Signals) -> None:
    """Start a bridge in a session of its own, and end it with a signal."""
    mark = f"marked-{os.getpid()}-{number}"
    command = (
        *MEW, "bridge", "start", "--participant-id", "clock",
        "--mcp-command", f"{BIN}/mcp-server-time", "--mcp-env", f"MARK={mark}",
    )  # fmt: skip
    output = folder.path / f"bridge-{number}.out"
    with output.open("wb") as out:
        process = await anyio.open_process(
            command, cwd=folder.path, env=environment(), stdout=out, stderr=out, start_new_session=True
        )
    try:
        await until(lambda: "clock joined" in output.read_text())
        assert await ask_the_time(folder) == "UTC"
        assert len(servers(mark)) == 2  # the bridge, whose arguments hold the mark, and the server
        process.send_signal(number)
        with anyio.fail_after(PATIENCE_SECONDS):
            code = await process.wait()
        assert code in (0, 130)
        assert "Traceback" not in output.read_text()
        assert servers(mark) == []
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()


async def test_up_reports_a_server_that_dies_at_its_start(folder: Folder) -> None:
    broken = f"""
space: {{id: review}}
participants:
  ada: {{}}
  broken:
    type: mcp-bridge
    mcp_server: {{command: "{sys.executable}", args: ["-c", "import sys; sys.exit('no licence here')"]}}
    auto_start: true
"""
    (folder.path / "space.yaml").write_text(broken)
    try:
        shown = await folder.mew("up", "--detach", "--port", "0", code=1)
        assert "exited with code 1 before it was ready; stderr: no licence here" in shown
    finally:
        await folder.stop()


async def test_a_server_that_cannot_be_started_is_one_line(folder: Folder) -> None:
    who = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--participant-id", "clock", "--token", "t")
    shown = await folder.mew("bridge", "start", *who, "-m", "no-such-program-here", code=1)
    assert shown == "mew: the MCP server 'no-such-program-here' cannot be started: no such file or directory\n"
