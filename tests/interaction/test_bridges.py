"""MCP servers in a space as people run it: real processes, published servers, and nothing left behind."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from mew_spaces.gateway.auth import read_token

from mew_agent.cli.app.locate import OWN_COMMAND
from mew_agent.participant.participant import Participant
from tests.parts.mcp.conftest import mortal
from tests.support.space_folder import Folder, environment
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
  watch: {{type: mcp-bridge, mcp_server: {{command: "{BIN}/mcp-server-time"}}}}
  broken:
    type: mcp-bridge
    mcp_server: {{command: "{sys.executable}", args: ["-c", "import sys; sys.exit('no licence here')"]}}
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


@pytest.fixture(scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Folder]:
    """A running space, of which `mew down` leaves nothing. What `mew up` printed is in its file `up.out`."""
    folder = Folder(tmp_path_factory.mktemp("bridges") / "space", SPACE)
    try:
        (folder.path / "up.out").write_text(await folder.mew("up", "--detach", "--port", "0", code=1))
        mark = f"MEW_RUN={folder.run.run_id}"
        assert len(servers(mark)) >= 3  # the gateway, the bridge, its server
        yield folder
    finally:
        await folder.mew("down")
    assert servers(mark) == []


async def ask_the_time(folder: Folder) -> str:
    token = read_token(folder.path / ".mew", "ada")
    assert token is not None
    async with Participant(folder.run.ws, space="review", id="ada", token=token) as ada:
        call = {"method": "tools/call", "params": {"name": "get_current_time", "arguments": {"timezone": "UTC"}}}
        answer = await ada.ask("mcp/request", call, to="clock", answer="mcp/response", timeout_seconds=PATIENCE_SECONDS)
        content = json.loads(answer.body["result"]["content"][0]["text"])
        return str(content["timezone"])


async def test_up_reports_a_server_that_dies_at_its_start(space: Folder) -> None:
    printed = (space.path / "up.out").read_text()
    assert "clock: joined" in printed
    assert "exited with code 1 before it was ready; stderr: no licence here" in printed


async def test_a_killed_server_comes_back(space: Folder) -> None:
    assert await ask_the_time(space) == "UTC"
    bridge = space.run.pids.participants["clock"]
    (server,) = [pid for pid in servers(f"MEW_RUN={space.run.run_id}") if parent_of(pid) == bridge]
    os.kill(server, signal.SIGKILL)
    log = space.path / ".mew" / "logs" / "clock.log"
    await until(lambda: log.read_text().count("is ready (MCP") == 2)
    assert "was terminated by signal 9; restart in 1 s (1 of 3)" in log.read_text()
    assert await ask_the_time(space) == "UTC"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_bridge_in_the_foreground_takes_its_server_with_it(space: Folder, number: signal.Signals) -> None:
    mark = f"marked-{os.getpid()}-{number}"
    server = mortal().server
    assert server.command is not None
    command = (
        *OWN_COMMAND, "bridge", "start", "--participant-id", "watch",
        "--mcp-command", server.command, "--mcp-args", json.dumps(server.args), "--mcp-env", f"MARK={mark}",
    )  # fmt: skip
    output = space.path / f"bridge-{number}.out"
    with output.open("wb") as out:
        process = await anyio.open_process(
            command, cwd=space.path, env=environment(), stdout=out, stderr=out, start_new_session=True
        )
    try:
        await until(lambda: "watch joined" in output.read_text())
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


async def test_a_server_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    who = ("--gateway", "ws://127.0.0.1:1", "--space", "s", "--participant-id", "clock", "--token", "t")
    shown = await Folder(tmp_path).mew_process("bridge", "start", *who, "-m", "no-such-program-here", code=1)
    assert shown == "mew: the MCP server 'no-such-program-here' cannot be started: no such file or directory\n"
