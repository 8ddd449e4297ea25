"""A fulfiller with a policy file, and the person at its terminal."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mew_agent.errors import ConfigError
from mew_agent.parts.simple_agents.run_simple import ask_at_terminal, fulfiller_policy
from tests.support import command_space
from tests.support.peers import read_proposal, space_of_peers, with_tools
from tests.support.waiting import until
from tests.support.warm_start import MEW

gateway, quiet_environment = command_space.gateway, command_space.quiet_environment


SPACE = """
space: {id: demo}
participants:
  proposer: {command: mew, capabilities: [{kind: mcp/proposal}, {kind: mcp/withdraw}]}
  tools: {command: mew, capabilities: [{kind: mcp/response}]}
  keeper: {command: mew, capabilities: [{kind: mcp/reject}, {kind: mcp/request}]}
"""

PROPOSAL = read_proposal(
    "files", payload={"method": "tools/call", "params": {"name": "rm", "arguments": {"path": "a"}}}
)


def test_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keeper.yaml"
    path.write_text("allow: [files/read_*]\notherwise: reject\nreason: read only\n")
    policy = fulfiller_policy(path, is_fulfiller=True)
    assert policy is not None
    assert (policy.allow, policy.otherwise, policy.reason) == (("files/read_*",), "reject", "read only")
    assert fulfiller_policy(None, is_fulfiller=True) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alow: []\n", "keeper.yaml:1:1: unknown key 'alow' (did you mean 'allow'?)"),
        ("allow: [rm]\n", "keeper.yaml:1:1: allow: should be PEER/TOOL"),
        ("colour: red\n", "unknown key 'colour' (expected one of allow, deny"),
        ("otherwise: ask\n", "keeper.yaml: `otherwise: ask` needs `ask`"),
    ],
)
def test_mistake_in_the_policy_is_reported_with_its_position(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keeper.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        fulfiller_policy(path, is_fulfiller=True)
    assert said in str(caught.value)


def test_policy_requires_a_fulfiller(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="requires --type fulfiller"):
        fulfiller_policy(tmp_path / "any.yaml", is_fulfiller=False)


async def test_lines_typed_before_a_question_do_not_answer_it(capsys: pytest.CaptureFixture[str]) -> None:
    send, lines = anyio.create_memory_object_stream[str](9)
    decide = ask_at_terminal(lines)
    said: list[str | None] = []

    async def ask() -> None:
        said.append(await decide(PROPOSAL))

    async with send, lines:
        send.send_nowait("yes")  # typed before anything was asked
        for typed in (["perhaps", "no, never"], ["yes"]):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await _until(lambda: lines.statistics().tasks_waiting_receive == 1)
                for line in typed:
                    await send.send(line)
        assert said == ["never", None]
        printed = capsys.readouterr().out
        assert printed.startswith("'coder' proposes to call 'rm' on 'files' with {\"path\": \"a\"}. Allow?")
        assert "Please answer yes, or no and a reason." in printed


async def test_end_of_input_rejects_proposals() -> None:
    send, lines = anyio.create_memory_object_stream[str](9)
    send.close()
    with lines:
        assert await ask_at_terminal(lines)(PROPOSAL) == "no one is at the terminal"


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
async def test_fulfiller_with_a_policy_runs_as_a_process(tmp_path: Path) -> None:
    path = tmp_path / "keeper.yaml"
    path.write_text("allow: [tools/where]\nask: terminal\n")
    async with space_of_peers(SPACE) as (gateway, join), with_tools(join("tools")), join("proposer") as me:
        command = [*MEW, "agent", "start", "-t", "fulfiller", "-g", gateway.ws_url]
        command += ["-s", "demo", "--id", "keeper", "--config", str(path)]
        environment = {**os.environ, "MEW_TOKEN": gateway.token_of("keeper")}
        async with await anyio.open_process(command, stderr=None, env=environment) as process:
            assert process.stdin is not None
            await _until(lambda: {"keeper", "tools"} <= set(me.peers))
            assert (await me.call_tool("tools", "where")).text == "tools"
            results: list[Any] = []

            async def add() -> None:
                results.append((await me.call_tool("tools", "add", {"a": 2, "b": 3})).text)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(add)
                assert process.stdout is not None
                printed = ""
                while "Allow?" not in printed:
                    printed += (await process.stdout.receive()).decode()
                await process.stdin.send(b"yes\n")
            assert results == ["5"]
            process.terminate()
            assert await process.wait() == 0


async def _until(condition: Callable[[], bool]) -> None:
    await until(lambda: condition())
