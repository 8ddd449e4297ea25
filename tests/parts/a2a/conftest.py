"""A2A in front of a real gateway and a real agent, used by the SDK's own client over HTTP."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import httpx
import pytest
from a2a.client import Client, ClientCallContext, ClientConfig, ClientFactory
from a2a.helpers import new_data_message, new_text_message
from a2a.types import Role, SendMessageRequest, StreamResponse, Task
from google.protobuf.json_format import MessageToDict
from mew_spaces.gateway.gateway import RunningGateway

from mew_agent.parts.a2a.a2a_server import A2AServer
from mew_agent.parts.a2a.tasks import CONTEXT_EXTENSION
from mew_agent.parts.a2a.tool_calls import A2ARole
from mew_agent.parts.shared.chat_participant import ChatOptions, ChatParticipant
from tests.support.agents import AgentDriver, StartAgent
from tests.support.api_participants import knows, space
from tests.support.waiting import PATIENCE_SECONDS

__all__ = ["space"]

WITH_CONTEXT = ClientCallContext(service_parameters={"A2A-Extensions": CONTEXT_EXTENSION})


@dataclass
class A2ADriver:
    """A stage with A2A clients; `bob` is the participant behind the server."""

    driver: AgentDriver
    participant: ChatParticipant
    base_url: str
    http: httpx.AsyncClient
    _clients: dict[tuple[str, bool], Client] = field(default_factory=dict)

    async def client(self, agent: str = "coder", *, streaming: bool = True) -> Client:
        """A client of one agent, made from its card."""
        known = self._clients.get((agent, streaming))
        if known is None:
            factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=self.http))
            known = self._clients[agent, streaming] = await factory.create_from_url(f"{self.base_url}/agents/{agent}")
        return known

    async def stream(self, text: str, *, agent: str = "coder", context_id: str | None = None) -> list[StreamResponse]:
        """All events of a message that is streamed."""
        with anyio.fail_after(PATIENCE_SECONDS):
            client = await self.client(agent)
            return [one async for one in client.send_message(question(text, context_id), context=WITH_CONTEXT)]

    async def send(self, text: str, *, agent: str = "coder", context: ClientCallContext | None = None) -> Task:
        """The final task of a message that is not streamed."""
        return await self.run(question(text), agent=agent, context=context)

    async def run(
        self, request: SendMessageRequest, *, agent: str = "coder", context: ClientCallContext | None = None
    ) -> Task:
        """The final task of a request that is not streamed."""
        with anyio.fail_after(PATIENCE_SECONDS):
            client = await self.client(agent, streaming=False)
            responses = [one async for one in client.send_message(request, context=context)]
        return responses[-1].task


class StartA2A(Protocol):
    """`a2a(options={...}, only=(...), roles={...}, **as for an agent)`."""

    def __call__(
        self,
        *,
        options: dict[str, Any] | None = None,
        only: tuple[str, ...] = (),
        roles: dict[str, A2ARole] | None = None,
        public_url: str | None = None,
        **agent: Any,
    ) -> AbstractAsyncContextManager[A2ADriver]: ...


@pytest.fixture
def a2a(start_agent: StartAgent, gateway: RunningGateway) -> StartA2A:
    """Starts the server next to an agent; see `StartA2A`."""

    @asynccontextmanager
    async def build(
        *,
        options: dict[str, Any] | None = None,
        only: tuple[str, ...] = (),
        roles: dict[str, A2ARole] | None = None,
        public_url: str | None = None,
        **of_agent: Any,
    ) -> AsyncIterator[A2ADriver]:
        token = gateway.token_of("bob")
        chosen = ChatOptions(**{"notices": None, **(options or {})})
        participant = ChatParticipant(
            gateway.ws_url, space="demo", person="bob", token=token, options=chosen, discover=True
        )
        async with (
            start_agent(**of_agent) as built,
            participant,
            A2AServer(participant, token, only, roles or {}, public_url).serve() as base_url,
            httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS) as http,
        ):
            await knows(participant, of_agent.get("name", "coder"))
            yield A2ADriver(built, participant, base_url, http)

    return build


def question(text: str, context_id: str | None = None) -> SendMessageRequest:
    """The request for a message to a participant."""
    return SendMessageRequest(message=new_text_message(text, context_id=context_id, role=Role.ROLE_USER))


def call(tool: str, **arguments: Any) -> SendMessageRequest:
    """The request for a call of a tool."""
    data = {"tool": tool, "arguments": arguments}
    return SendMessageRequest(message=new_data_message(data, role=Role.ROLE_USER))


def report_in(metadata: Any) -> dict[str, Any]:
    """The extension's report in the metadata of a task or an update; empty if there is none."""
    return dict(MessageToDict(metadata).get(CONTEXT_EXTENSION, {}))
