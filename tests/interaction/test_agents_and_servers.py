"""Agents that work with published MCP servers: `mew up`, bridges, a fulfiller, a person who chats."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mew_spaces.gateway.auth import read_token

from mew_agent.participant.participant import Participant
from tests.support.agents import EnvelopeRecorder
from tests.support.space_folder import Folder
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


@dataclass
class ServedSpace:
    """A space in which everyone has joined: Ada, what she receives, and the repository that `pages` reads."""

    ada: Participant
    recorder: EnvelopeRecorder
    repository: Path


@pytest.fixture(scope="module")
async def space(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedSpace]:
    """One space for all tests: its five programs and two servers take long to start."""
    folder = Folder(tmp_path_factory.mktemp("servers") / "space", SPACE)
    repository = folder.path / "repository"
    write_history(repository)
    try:
        await folder.mew("up", "--detach", "--port", "0")
        token = read_token(folder.path / ".mew", "ada")
        assert token is not None
        async with Participant(folder.run.ws, space="review", id="ada", token=token) as ada:
            await until(lambda: {"clock", "pages", "keeper", "caller", "asker"} <= set(ada.peers))
            yield ServedSpace(ada, EnvelopeRecorder(ada), repository)
    finally:
        await folder.stop()


def write_history(repository: Path) -> None:
    assert shutil.which("git"), "these tests need git"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    commits = []
    for number in range(COMMITS):
        message = f"Page {number} of the diary, about the weather and the water in station {number * 7}"
        commits.append(f"commit HEAD\ncommitter Ada <ada@example.org> {number} +0000\ndata {len(message)}\n{message}\n")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repository, input="".join(commits), text=True, check=True)


async def chat(ada: Participant, agent: str, text: str) -> str:
    answer = await ada.ask("chat", {"text": text}, to=agent, answer="chat", timeout_seconds=PATIENCE_SECONDS)
    return str(answer.body["text"])


async def test_a_chat_calls_published_tools_by_request_and_by_proposal(space: ServedSpace) -> None:
    ada, recorder = space.ada, space.recorder
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

    refused = await chat(ada, "asker", f'call pages__git_status with {{"repo_path": "{space.repository.parent}"}}')
    assert "'keeper' rejected the proposal of 'tools/call' to 'pages': incapable" in refused


async def test_calls_of_several_servers_get_their_own_results(space: ServedSpace) -> None:
    ada, recorder, repository = space.ada, space.recorder, space.repository
    earlier = len(recorder.sent_by("caller", "mcp/request"))
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
    new = recorder.sent_by("caller", "mcp/request")[earlier:]
    requests = [one for one in new if one.body["method"] == "tools/call"]
    assert [one.addressees for one in requests] == [("clock",), ("pages",), ("clock",)]


async def test_a_long_result_is_bounded_and_its_rest_readable(space: ServedSpace) -> None:
    ada = space.ada
    call = json.dumps({"repo_path": str(space.repository), "max_count": COMMITS})
    answer = await chat(
        ada, "caller", f"Which tokens of the complete result are omitted? call pages__git_log with {call}"
    )
    # The rehearsal model quotes the sentences of a result that share words with the question.
    cut = re.search(r"about ([\d,]+) tokens .* are omitted; the complete result is kept as (\S+)", answer)
    assert cut is not None, answer
    left_out, name = int(cut[1].replace(",", "")), cut[2]
    context = ada.peers["caller"].context
    assert context.tokens is not None
    assert context.tokens < left_out
    page = await chat(ada, "caller", f'call recall_result with {{"id": "{name}", "find": "Page 20 of"}}')
    assert "Page 20 of the diary" in page
