"""Commands of an ACP agent start in its folder, leave bounded output, and end with it."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mew_agent.parts.acp import terminals as module
from mew_agent.parts.acp.terminals import MAX_TERMINALS, Terminals, terminals_below
from mew_agent.parts.shared import child_program
from tests.parts.acp.conftest import Start
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_program, "CLOSE_SECONDS", 0.1)


@pytest.fixture
async def terminals(tmp_path: Path) -> AsyncIterator[Terminals]:
    """The terminals of a folder with links that lead outside."""
    for folder in ("project/inside", "project/.mew", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project" / "up").symlink_to(tmp_path / "outside")
    (tmp_path / "project" / "home").symlink_to("inside")
    with anyio.fail_after(PATIENCE_SECONDS):
        async with terminals_below(str(tmp_path / "project"), True) as below:
            yield below


async def finished(terminals: Terminals, command: str, *args: str, **params: Any) -> dict[str, Any]:
    """The output of a command that ended by itself."""
    created = await terminals.request("terminal/create", {"command": command, "args": list(args), **params})
    await terminals.request("terminal/wait_for_exit", created)
    output = await terminals.request("terminal/output", created)
    await terminals.request("terminal/release", created)
    return output


async def test_commands_start_in_the_folder_only(terminals: Terminals, tmp_path: Path) -> None:
    project = tmp_path / "project"
    places = {"": project, "inside": project / "inside", "home": project / "inside", str(project): project}
    for path, folder in places.items():
        assert (await finished(terminals, "pwd", cwd=path))["output"].strip() == str(folder)
    for path in ("up", "..", "/", ".mew", "home/../..", str(tmp_path / "outside"), "a\0b"):
        with pytest.raises((ValueError, OSError)):
            await terminals.request("terminal/create", {"command": "pwd", "cwd": path})


async def test_commands_see_no_keys(terminals: Terminals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sesame")
    monkeypatch.setenv("MEW_TOKEN", "sesame")
    shown = await finished(terminals, "env | sort", env=[{"name": "MADE_UP", "value": "1"}])
    assert "sesame" not in shown["output"]
    assert "MADE_UP=1\n" in shown["output"]
    assert "PATH=" in shown["output"]


async def test_exit_status_is_a_code_or_a_signal(terminals: Terminals) -> None:
    assert (await finished(terminals, "exit 3"))["exitStatus"] == {"exitCode": 3, "signal": None}
    assert (await finished(terminals, "kill -9 $$"))["exitStatus"] == {"exitCode": None, "signal": "SIGKILL"}
    for wrong in ({"command": " "}, {"command": "/no/such", "args": ["x"]}):
        with pytest.raises((ValueError, OSError)):
            await terminals.request("terminal/create", wrong)
    with pytest.raises(ValueError, match="no terminal"):
        await terminals.request("terminal/output", {"terminalId": "terminal-99"})


async def test_only_the_end_of_a_huge_output_is_kept(terminals: Terminals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLACK_BYTES", 1_000)
    script = "import sys; sys.stdout.write('ü' * 3_000_000 + 'end')"
    whole = await finished(terminals, sys.executable, "-c", script)
    short = await finished(terminals, sys.executable, "-c", script, outputByteLimit=6)
    assert whole["truncated"]
    assert len(whole["output"].encode()) in (999_999, 1_000_000)
    assert short["output"] == "üend"  # 6 bytes would begin in the middle of a character
    assert (await finished(terminals, "echo hi"))["truncated"] is False


async def test_killed_command_that_ignores_sigterm_keeps_its_output(terminals: Terminals) -> None:
    created = await terminals.request(
        "terminal/create", {"command": "trap '' TERM; echo on; while :; do sleep 0.01; done"}
    )
    while "on" not in (await terminals.request("terminal/output", created))["output"]:
        await anyio.sleep(0.01)
    await terminals.request("terminal/kill", created)
    await terminals.request("terminal/wait_for_exit", created)
    output = await terminals.request("terminal/output", created)
    assert output == {"output": "on\n", "truncated": False, "exitStatus": {"exitCode": None, "signal": "SIGKILL"}}


async def test_number_of_terminals_is_bounded(terminals: Terminals) -> None:
    for _ in range(MAX_TERMINALS):
        await terminals.request("terminal/create", {"command": "true"})
    with pytest.raises(ValueError, match="release one"):
        await terminals.request("terminal/create", {"command": "true"})


async def test_commands_end_with_an_agent_that_dies(start: Start, tmp_path: Path) -> None:
    left = "(sleep 600 & echo $! > left; wait) & echo $$ > started; wait"
    async with start(terminal=True, max_restarts=0) as s:
        assert '"terminal": true' in await s.ask("What is declared?")
        assert "terminal-1" in await s.ask(f"terminal/create {left}")
        await until(
            lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in ("left", "started"))
        )
        pids = [int((tmp_path / name).read_text()) for name in ("left", "started")]
        await s.ada.chat("Please crash.", to="codex")
        await until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
