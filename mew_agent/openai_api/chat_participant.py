"""The participant behind the API: a person who forwards messages of chat clients to agents, and returns the answers.

Owns which agents are offered, how many requests may be open, and which error a missing answer is. Does not know HTTP,
or how an answer is assembled; see `mew_agent.participant.answers`.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio
from mew_protocol import kinds
from mew_protocol.envelope import Envelope

from mew_agent.errors import GatewayError, NoAnswer, NotConnected, NotPermitted
from mew_agent.openai_api.format import BUSY, FORBIDDEN, UNAVAILABLE, OpenAIApiError, no_answer, unknown_model
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS
from mew_agent.participant.answers.builder import HOLD_CHARACTERS, AnswerBuilder, NoticePlacement
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import PeerContext

STATUS_WAIT_SECONDS: Final = 0.5
"""Time for a new participant to report its status before we request it."""

MAX_OPEN_REQUESTS: Final = 100


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options for answers.

    `configured` are the agents named in the space's configuration, present or absent. `inactivity_seconds` is the
    timeout for an agent without any activity. For `notices` and `hold_characters` see `AnswerBuilder`.
    """

    configured: frozenset[str] = frozenset()
    inactivity_seconds: float = INACTIVITY_SECONDS
    hold_characters: int = HOLD_CHARACTERS
    notices: NoticePlacement = "content"


@dataclass(frozen=True, slots=True)
class OfferedAgent:
    """An agent that clients see as a model. `since` is when it was first seen, in seconds since 1970."""

    name: str
    since: int
    is_present: bool
    context: PeerContext


class ChatParticipant(Participant):
    """A person of the space who acts for chat clients."""

    def __init__(
        self, gateway: str, *, space: str, person: str, token: str, options: ChatOptions | None = None
    ) -> None:
        super().__init__(gateway, space=space, id=person, token=token)
        self.options = options or ChatOptions()
        self._since: dict[str, int] = {}

    # -- for clients -------------------------------------------------------------------------------------

    def agents(self) -> list[OfferedAgent]:
        """All agents: participants that report their context, and agents named in the configuration."""
        # Foreign agents send a window size without a report.
        contexts = {name: peer.context for name, peer in self.peers.items()}
        reporting = {name for name, one in contexts.items() if one.report is not None or one.max_tokens is not None}
        names = reporting | (self.options.configured - {self.id})
        return [self._offered(name) for name in sorted(names)]

    def agent(self, name: str) -> OfferedAgent:
        """One agent by name. Raises `OpenAIApiError` (404)."""
        agents = self.agents()
        found = next((agent for agent in agents if agent.name == name), None)
        if found is None:
            raise unknown_model(name, [agent.name for agent in agents])
        return found

    @asynccontextmanager
    async def open_exchange(self, agent: str, text: str) -> AsyncIterator[Exchange]:
        """Ask an agent; leaving the block early cancels the turn. Raises `OpenAIApiError` without an answer."""
        self._check(agent)
        answer = AnswerBuilder(
            notices=self.options.notices,
            hold_characters=self.options.hold_characters,
            may_use_tools=self.answers.may_use_tools(agent),
        )
        try:
            async with self.answers.open(
                agent, text, answer, inactivity_seconds=self.options.inactivity_seconds
            ) as exchange:
                yield exchange
        except NoAnswer as failure:
            raise no_answer(failure) from None
        except NotPermitted:
            problem = f"'{self.id}' may not chat with '{agent}' in this space"
            raise OpenAIApiError(FORBIDDEN, "not_permitted", problem) from None
        except NotConnected as error:
            raise _no_gateway(str(error)) from None

    def close(self) -> None:
        """End all open requests, because the server stops."""
        self.answers.fail_all("closing", "the server is stopping")

    def _check(self, agent: str) -> None:
        if not self.is_joined:
            raise _no_gateway()
        if not self.agent(agent).is_present:
            raise OpenAIApiError(UNAVAILABLE, "agent_not_here", f"'{agent}' is not in the space", is_retryable=True)
        if self.control.is_paused:
            raise OpenAIApiError(UNAVAILABLE, "paused", f"'{self.id}', the participant of this server, is paused")
        if len(self.answers) >= MAX_OPEN_REQUESTS:
            problem = f"the server has {MAX_OPEN_REQUESTS} open requests already"
            raise OpenAIApiError(BUSY, "busy", problem, is_retryable=True)

    def _offered(self, name: str) -> OfferedAgent:
        peer = self.peers.get(name)
        since = self._since.setdefault(name, int(time.time()))
        return OfferedAgent(name, since, peer is not None, peer.context if peer else PeerContext())

    async def joined(self) -> None:
        self.start_soon(self._request_missing_statuses)

    async def receive(self, envelope: Envelope) -> None:
        if envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join":
            self.start_soon(self._request_missing_statuses)

    async def _request_missing_statuses(self) -> None:
        """Request the status of participants without one: some agents report only on request."""
        await anyio.sleep(STATUS_WAIT_SECONDS)
        missing = [name for name in self.peers if self.peers[name].context.messages is None]
        if missing:
            with suppress(GatewayError, NotPermitted):
                await self.send(kinds.PARTICIPANT_REQUEST_STATUS, {}, to=missing)


def _no_gateway(cause: str = "") -> OpenAIApiError:
    tail = f": {cause}" if cause else ""
    return OpenAIApiError(UNAVAILABLE, "no_gateway", f"no connection to the space{tail}", is_retryable=True)
