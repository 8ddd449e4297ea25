"""Spaces of the shape that the TypeScript CLI's `init` makes, started unchanged by ours.

The files are written by hand: the same keys, commands, arguments, capabilities and variables, in our words. The agent
of the note taker is a Node program there, which needs its packages; here it is a Node program of a few lines.
"""

import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from mew_agent.cli.app.addresses import choose_address
from mew_agent.participant.participant import Participant
from mew_agent.parts.rehearsal import serve_rehearsal
from tests.parts.mcp import workshop
from tests.support.space_folder import Folder, environment
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.warm_start import MEW

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="`mew up` needs a POSIX system")

AGENT = """
  mew:
    type: local
    command: "mew"
    args: ["agent", "run", "--gateway", "ws://localhost:${{PORT}}", "--space", "{space}", "--token", "${{TOKEN}}",
      "--id", "mew"]
    auto_start: true
    capabilities:
      - kind: "chat"
      - kind: "chat/acknowledge"
      - kind: "chat/cancel"
      - kind: "reasoning/*"
      - kind: "stream/request"
      - kind: "stream/open"
      - kind: "stream/close"
{more}
      - kind: "participant/status"
    env:
      OPENAI_API_KEY: "${{OPENAI_API_KEY}}"
      OPENAI_BASE_URL: "{model_url}"
      OPENAI_MODEL: "rehearsal"
      MEW_AGENT_CONFIG: '{settings}'
"""

BRIDGE = """
  {name}:
    type: local
    command: "mew"
    args: ["bridge", "start", "--gateway", "ws://localhost:${{PORT}}", "--space", "{space}", "--token", "${{TOKEN}}",
      "--participant-id", "{name}", "--mcp-command", "{program}", "--mcp-args", "{arguments}"]
    auto_start: true
    capabilities:
      - kind: "mcp/request"
      - kind: "mcp/response"
      - kind: "mcp/notification"
      - kind: "participant/status"
"""

HUMAN = """
space:
  id: "{space}"
  name: "{space}"
  description: "A room"
  default_participant: human
  ui_theme: "neon-pulse"

participants:
  human:
    default_to:
      chat: ["mew"]
    capabilities:
      - kind: "*"
"""

CODER_MAY = """
      - kind: "mcp/proposal"
      - kind: "mcp/response"
      - kind: "mcp/request"
        payload:
          method: "!tools/call"
      - kind: "mcp/request"
        payload:
          method: "tools/list"
      - kind: "mcp/request"
        payload:
          method: "tools/call"
          params:
            name: "read_text_file"
"""

FULFILLER = """
  auto-fulfiller:
    type: local
    command: "node"
    args: ["./.mew/agents/auto-fulfiller.cjs"]
    auto_start: false
    capabilities:
      - kind: "mcp/proposal"
      - kind: "mcp/request"
      - kind: "chat"
    env:
      NODE_PATH: "./.mew/node_modules"
      MEW_GATEWAY: "ws://localhost:${PORT}"
      MEW_TOKEN: "${TOKEN}"
      MEW_PARTICIPANT_ID: "auto-fulfiller"
      AUTO_APPROVE: "false"
"""

DEFAULTS = """
defaults:
  capabilities:
    - kind: "chat"
"""

NOTES = """
  assistant:
    command: "node"
    args: ["--experimental-websocket", "./.mew/agents/assistant.cjs"]
    auto_start: true
    env:
      NODE_PATH: "./.mew/node_modules"
      MEW_GATEWAY: "ws://localhost:{port}"
      MEW_SPACE: "{space}"
      MEW_TOKEN: "${{TOKEN}}"
      MEW_PARTICIPANT_ID: "assistant"
      OPENAI_API_KEY: "${{OPENAI_API_KEY}}"
      AGENT_MODEL: "rehearsal"
      AGENT_PROMPT: "You take notes."
    capabilities:
      - kind: "mcp/request"
      - kind: "chat"
      - kind: "chat/acknowledge"
      - kind: "chat/cancel"
      - kind: "participant/status"
"""

ASSISTANT = """
const { MEW_GATEWAY, MEW_SPACE, MEW_TOKEN, MEW_PARTICIPANT_ID } = process.env;
const socket = new WebSocket(MEW_GATEWAY);
socket.onopen = () => socket.send(JSON.stringify(
  { type: 'join', space: MEW_SPACE, token: MEW_TOKEN, participantId: MEW_PARTICIPANT_ID, capabilities: [] }));
socket.onmessage = ({ data }) => {
  const said = JSON.parse(data);
  if (said.kind === 'chat' && said.from !== MEW_PARTICIPANT_ID) {
    socket.send(JSON.stringify({ protocol: 'mew/v0.4', id: `a-${said.id}`, ts: new Date().toISOString(),
      from: MEW_PARTICIPANT_ID, to: [said.from], kind: 'chat', correlation_id: [said.id],
      payload: { text: `noted: ${said.payload.text}` } }));
  }
};
socket.onclose = () => process.exit(0);
"""

SETTINGS = json.dumps(
    {
        "maxIterations": 100,
        "requestTimeout": 3_600_000,
        "conversationHistoryLength": 50,
        "reasoningEnabled": True,
        "systemPrompt": "You write code.",
    }
)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    made = Folder(tmp_path / "room")
    (made.path / ".mew" / "agents").mkdir(parents=True)
    yield made
    await made.stop()


def write(folder: Folder, *parts: str) -> None:
    (folder.path / ".mew" / "space.yaml").write_text("".join(parts))


async def up(folder: Folder, *flags: str) -> str:
    with anyio.fail_after(PATIENCE_SECONDS):
        done = await anyio.run_process(
            (*MEW, "up", "--detach", *flags), cwd=folder.path, env={**environment(), "OPENAI_API_KEY": "k"}, check=False
        )
    shown = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, shown
    return shown


async def test_a_tool_is_called_through_the_bridge(folder: Folder) -> None:
    async with serve_rehearsal() as model:
        agent = AGENT.format(space="room", more=CODER_MAY, model_url=model.base_url, settings=SETTINGS)
        bridge = BRIDGE.format(name="mcp-bridge", space="room", program=sys.executable, arguments=workshop.__file__)
        write(folder, HUMAN.format(space="room"), agent, bridge, FULFILLER, DEFAULTS)
        shown = await up(folder, "--port", "0")
        assert "mew: joined" in shown
        assert "mcp-bridge: joined" in shown
        assert "Noted" in await folder.mew("chat", "mew", "hello")
        call = json.dumps({"name": "add", "arguments": {"a": 40, "b": 2}})
        assert "42" in await call_tool(folder, "mcp-bridge", call)


@pytest.mark.skipif(shutil.which("node") is None, reason="its agent is a Node program")
async def test_the_note_taker_answers_from_its_fixed_address(folder: Folder) -> None:
    port = choose_address("127.0.0.1", 0).port
    (folder.path / ".mew" / "agents" / "assistant.cjs").write_text(ASSISTANT)
    write(folder, HUMAN.format(space="notes"), NOTES.format(space="notes", port=port))
    assert "assistant: joined" in await up(folder, "--port", str(port))
    assert "noted: buy fish" in await folder.mew("chat", "assistant", "buy fish")


async def call_tool(folder: Folder, server: str, params: str) -> str:
    """Call a tool as the person of the space."""
    token = (folder.path / ".mew" / "tokens" / "human.token").read_text().strip()
    async with Participant(folder.run.ws, space=folder.run.space, id="human", token=token) as human:
        request = {"method": "tools/call", "params": json.loads(params)}
        answer = await human.ask(
            "mcp/request", request, to=server, answer="mcp/response", timeout_seconds=PATIENCE_SECONDS
        )
        return str(answer.body["result"]["content"][0]["text"])
