"""Agents that work with published MCP servers: `mew up`, bridges, a fulfiller, a person who chats."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mew_spaces.gateway.auth import read_token

from mew_agent.participant.participant import Participant
from tests.interaction.test_cli_processes import Folder
from tests.mew_agent.conftest import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS, until

BIN = Path(sys.executable).parent
COMMITS = 60
SPACE = f"""
space: {{id: review}}
participants:
  ada: {{capabilities: [{{kind: "*"}}]}}
  clock:
    type: mcp-bridge
    mcp_server: {{command: "{BIN}/mcp-server-time", args: ["--local-timezone", "UTC"]}}
    auto_start: true
  pages:
    type: mcp-bridge
    mcp_server: {{command: "{BIN}/mcp-server-git", args: ["--repository", "repository"]}}
    auto_start: true
  keeper:
    command: mew
    args: [agent, start, --type, fulfiller]
    auto_start: true
    capabilities: [{{kind: mcp/request, to: [clock]}}, {{kind: mcp/reject}}]
  caller:
    agent: {{model: rehearsal, base_url: rehearsal, max_result_tokens: 400}}
    auto_start: true
    capabilities: [{{kind: chat}}, {{kind: "reasoning/*"}}, {{kind: participant/status}}, {{kind: mcp/request}}]
  asker:
    agent: {{model: rehearsal, base_url: rehearsal}}
    auto_start: true
    capabilities:
      - {{kind: chat}}
      - {{kind: participant/status}}
      - {{kind: mcp/request, payload: {{method: tools/list}}}}
      - {{kind: mcp/proposal}}
      - {{kind: mcp/withdraw}}
"""


@asynccontextmanager
async def space(path: Path) -> AsyncIterator[tuple[Participant, EnvelopeRecorder, Path]]:
    """Everybody is here; Ada, what she hears, and the repository that `pages` reads."""
    folder = Folder(path / "space")
    (folder.path / "space.yaml").write_text(SPACE)
    repository = folder.path / "repository"
    write_history(repository)
    try:
        await folder.mew("up", "--detach", "--port", "0")
        token = read_token(folder.path / ".mew", "ada")
        assert token is not None
        async with Participant(folder.run.ws, space="review", id="ada", token=token) as ada:
            await until(lambda: {"clock", "pages", "keeper", "caller", "asker"} <= set(ada.peers))
            yield ada, EnvelopeRecorder(ada), repository
    finally:
        await folder.stop()


def write_history(repository: Path) -> None:
    assert shutil.which("git"), "these tests need git"
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    repository.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    for number in range(COMMITS):
        message = f"Page {number} of the diary, about the weather and the water in station {number * 7}"
        subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", message], cwd=repository, check=True)


async def chat(ada: Participant, agent: str, text: str) -> str:
    answer = await ada.ask("chat", {"text": text}, to=agent, answer="chat", timeout_seconds=PATIENCE_SECONDS)
    return str(answer.body["text"])


async def test_tools_of_published_servers_are_called_from_a_chat_by_request_and_by_proposal(tmp_path: Path) -> None:
    async with space(tmp_path) as (ada, recorder, _):
        question = 'call clock__get_current_time with {"timezone": "Asia/Kolkata"}'
        assert '"timezone": "Asia/Kolkata"' in await chat(ada, "caller", question)
        request = await recorder.first("caller", "mcp/request", method="tools/call")
        assert request.addressees == ("clock",)
        assert not recorder.sent_by("caller", "mcp/proposal")

        assert '"timezone": "Asia/Kolkata"' in await chat(ada, "asker", question)
        proposal = await recorder.first("asker", "mcp/proposal", method="tools/call")
        fulfilment = await recorder.first("keeper", "mcp/request", about=proposal)
        await recorder.first("clock", "mcp/response", about=fulfilment)
        assert not [one for one in recorder.sent_by("asker", "mcp/request") if one.body["method"] != "tools/list"]

        refused = await chat(ada, "asker", f'call pages__git_status with {{"repo_path": "{tmp_path}"}}')
        assert "'keeper' rejected the proposal of 'tools/call' to 'pages': incapable" in refused


async def test_calls_of_several_servers_in_one_reply_each_get_their_own_result(tmp_path: Path) -> None:
    async with space(tmp_path) as (ada, recorder, repository):
        log = json.dumps({"repo_path": str(repository), "max_count": 1})
        answer = await chat(
            ada,
            "caller",
            'call clock__get_current_time with {"timezone": "Asia/Kolkata"} and '
            f'call pages__git_log with {log} and call clock__get_current_time with {{"timezone": "Europe/Paris"}}',
        )
        newest = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True
        ).stdout.strip()
        lines = [line for line in answer.splitlines() if " answered: " in line]
        expected = [("clock__", "Asia/Kolkata"), ("pages__", newest), ("clock__", "Europe/Paris")]
        assert len(lines) == len(expected), answer
        assert all(line.startswith(name) and text in line for line, (name, text) in zip(lines, expected, strict=True))
        requests = [one for one in recorder.sent_by("caller", "mcp/request") if one.body["method"] == "tools/call"]
        assert [one.addressees for one in requests] == [("clock",), ("pages",), ("clock",)]


async def test_a_long_result_of_a_published_server_is_bounded_and_the_rest_can_be_read(tmp_path: Path) -> None:
    async with space(tmp_path) as (ada, _, repository):
        call = json.dumps({"repo_path": str(repository), "max_count": COMMITS})
        answer = await chat(ada, "caller", f"call pages__git_log with {call}")
        cut = re.search(r"about ([\d,]+) tokens .* are omitted; the complete result is kept as (\S+)", answer)
        assert cut is not None
        left_out, name = int(cut[1].replace(",", "")), cut[2]
        context = ada.peers["caller"].context
        assert context.tokens is not None
        assert context.tokens < left_out
        page = await chat(ada, "caller", f'call recall_result with {{"id": "{name}", "find": "Page 20 of"}}')
        assert "Page 20 of the diary" in page
