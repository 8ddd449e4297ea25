"""A scripted ACP agent in a space with two people: a real program behind a real gateway."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.participant import CompactDone
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import RunningGateway, serve_gateway

from mew_agent import Participant
from mew_agent.cli.remote.identity import Identity
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.parts.mcp.bridge_and_serve import serve_space_tools
from tests.support.agents import EnvelopeRecorder
from tests.support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from mew_agent.parts.acp.acp_agent import AcpAgent

PROGRAM = Path(__file__).with_name("scripted_agent.py")
SPACE_WITH_RIGHTS = """
space: {id: demo}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  bob: {role: person, capabilities: [{kind: "*"}]}
  codex: {acp: codex, role: agent, capabilities: [{kind: participant/compact}, {kind: mcp/request}]}
"""
SPACE = """
space: {id: demo}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  bob: {role: person, capabilities: [{kind: "*"}]}
  codex: {acp: codex}
"""


@dataclass
class Stage:
    """An ACP agent `codex` with ada and bob, whose envelopes ada's `recorder` records."""

    gateway: RunningGateway
    agent: "AcpAgent"
    ada: Participant
    bob: Participant
    recorder: EnvelopeRecorder

    async def ask(self, text: str) -> str:
        await self.recorder.until(lambda: "codex" in self.ada.peers)
        answer = await self.ada.ask("chat", {"text": text}, to="codex", answer="chat", timeout_seconds=PATIENCE_SECONDS)
        return str(answer.body["text"])

    async def interrupt_and_compact(self) -> CompactDone:
        """Ask for a compaction that does not wait for the end of the turn."""
        answer = await self.ada.ask(
            "participant/compact",
            {"interrupt": True},
            to="codex",
            answer="participant/compact-done",
            timeout_seconds=PATIENCE_SECONDS,
        )
        return CompactDone.model_validate(answer.body)

    async def status(self) -> dict[str, Any]:
        """The newest status that all members received."""
        found = [e for e in self.recorder.sent_by("codex", "participant/status") if not e.to]
        return dict(found[-1].body)

    async def until_status(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a status that all members received."""

        def found() -> list[Envelope]:
            sent = self.recorder.sent_by("codex", "participant/status")
            return [e for e in sent if not e.to and condition(dict(e.body))]

        await self.recorder.until(lambda: bool(found()))
        return dict(found()[-1].body)

    @asynccontextmanager
    async def client_of_tools(self) -> AsyncIterator[Client]:
        """An MCP client of the server that the agent was given."""
        (server,) = self.agent.engine.mcp_servers
        headers = {one["name"]: one["value"] for one in server["headers"]}
        assert self.gateway.token_of("codex") not in str(server)
        await until(lambda: "bob" in self.agent.peers and self.agent.peers["bob"].tools is not None)
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, verify=False, timeout=PATIENCE_SECONDS) as http,
            Client(streamable_http_client(server["url"], http_client=http)) as client,
        ):
            yield client


Start = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts an agent of this style with ada and bob, in a gateway of its own unless one is given."""

    # Not at the top: `acp` takes half a second to load, in each worker.
    from mew_agent.parts.acp.acp_agent import AcpAgent

    @asynccontextmanager
    async def build(
        style: str = "codex", *, gateway: RunningGateway | None = None, space: str = SPACE, **settings: Any
    ) -> AsyncIterator[Stage]:
        chosen = {
            "agent": style if style in ("claude", "codex", "opencode", "kimi", "qwen") else None,
            "command": sys.executable,
            "args": (str(PROGRAM),),
            "env": {"AGENT_STYLE": {"kimi": "late"}.get(style, style)},
            "cwd": str(tmp_path),
            **settings,
        }
        async with AsyncExitStack() as stack:
            running = gateway
            if running is None:
                running = await stack.enter_async_context(serve_gateway(parse_space(space)))
            ada, bob = [await stack.enter_async_context(joined(running, name)) for name in ("ada", "bob")]
            bob.tool(add)
            agent = AcpAgent(
                AcpConfig.model_validate(chosen),
                running.ws_url,
                space="demo",
                id="codex",
                token=running.token_of("codex"),
                first_pause_seconds=0.01,
            )
            who = Identity(running.ws_url, "demo", "codex", running.token_of("codex"))
            agent.engine.mcp_servers = (await stack.enter_async_context(serve_space_tools(agent, who)),)
            recorder = EnvelopeRecorder(ada)
            async with agent:
                yield Stage(running, agent, ada, bob, recorder)

    return build


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def joined(gateway: RunningGateway, name: str) -> Participant:
    return Participant(gateway.ws_url, space="demo", id=name, token=gateway.token_of(name))
