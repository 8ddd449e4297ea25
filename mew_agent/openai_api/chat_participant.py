"""The door in the space: a person who passes questions of chat clients to agents, and their answers back.

Owns who can be asked, how many at once, and what a client is told when it gets no answer. The asking itself is the
business of `exchanges`; it knows no HTTP.
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
from mew_agent.openai_api.problems import BUSY, FORBIDDEN, UNAVAILABLE, Problem, no_answer, unknown_model
from mew_agent.participant.answers.agent_answers import INACTIVITY_SECONDS
from mew_agent.participant.answers.builder import HOLD_CHARACTERS, AnswerBuilder, NoticePlacement
from mew_agent.participant.answers.exchange import Exchange
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext

STATUS_SECONDS: Final = 0.5
"""How long somebody who is here may take to report by themselves, before we ask."""

MAX_EXCHANGES: Final = 100


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """How answers come.

    `configured` are the agents that the space's configuration names, here or not. `silence_seconds` is how long
    an agent may show no sign of working on a question. `hold_characters` as in `AnswerBuilder`.
    """

    configured: frozenset[str] = frozenset()
    silence_seconds: float = INACTIVITY_SECONDS
    hold_characters: int = HOLD_CHARACTERS
    notices: NoticePlacement = "content"


@dataclass(frozen=True, slots=True)
class OfferedAgent:
    """An agent that can be asked. `since` is when the door first knew it, in seconds since 1970."""

    name: str
    since: int
    is_here: bool
    context: PeerContext


class Door(Participant):
    """A person of the space who asks on behalf of chat clients."""

    def __init__(
        self, gateway: str, *, space: str, person: str, token: str, options: DoorOptions | None = None
    ) -> None:
        super().__init__(gateway, space=space, id=person, token=token)
        self.options = options or DoorOptions()
        self._since: dict[str, int] = {}

    # -- for clients -------------------------------------------------------------------------------------

    def agents(self) -> list[OfferedAgent]:
        """Every agent: whoever reports how full its context is, and whom the configuration names as one."""
        names = {name for name in self.peers if _is_agent(self.peers[name])} | (self.options.configured - {self.id})
        return [self._offered(name) for name in sorted(names)]

    def agent(self, name: str) -> OfferedAgent:
        """One agent. Raises `Problem` (404)."""
        agents = self.agents()
        found = next((agent for agent in agents if agent.name == name), None)
        if found is None:
            raise unknown_model(name, [agent.name for agent in agents])
        return found

    @asynccontextmanager
    async def exchange_with(self, agent: str, text: str) -> AsyncIterator[Exchange]:
        """Say something to an agent, and read its answer while the block runs. Leaving it early stops the agent.

        Raises `Problem` when it cannot be said.
        """
        self._check(agent)
        answer = AnswerBuilder(
            notices=self.options.notices,
            hold_characters=self.options.hold_characters,
            may_use_tools=self.answers.may_use_tools(agent),
        )
        try:
            async with self.answers.open(
                agent, text, answer, inactivity_seconds=self.options.silence_seconds
            ) as exchange:
                yield exchange
        except NoAnswer as failure:
            raise no_answer(failure) from None
        except NotPermitted:
            said = f"'{self.id}' may not chat with '{agent}' in this space"
            raise Problem(FORBIDDEN, "not_permitted", said) from None
        except NotConnected as error:
            raise _no_gateway(str(error)) from None

    def close(self) -> None:
        """The door closes: nobody waits any longer."""
        self.answers.fail_all("closing", "this server is being stopped")

    # -- asking ------------------------------------------------------------------------------------------

    def _check(self, agent: str) -> None:
        if not self.is_joined:
            raise _no_gateway()
        if not self.agent(agent).is_here:
            raise Problem(UNAVAILABLE, "agent_not_here", f"'{agent}' is not in the space now", is_repeatable=True)
        if self.control.is_paused:
            raise Problem(UNAVAILABLE, "paused", f"'{self.id}', who asks for chat clients, is paused in the space")
        if len(self.answers) >= MAX_EXCHANGES:
            raise Problem(BUSY, "busy", f"{MAX_EXCHANGES} questions are being answered already", is_repeatable=True)

    def _offered(self, name: str) -> OfferedAgent:
        peer = self.peers.get(name)
        since = self._since.setdefault(name, int(time.time()))
        return OfferedAgent(name, since, peer is not None, peer.context if peer else PeerContext())

    # -- hearing -----------------------------------------------------------------------------------------

    async def joined(self) -> None:
        self.start_soon(self._ask_who_is_an_agent)

    async def receive(self, envelope: Envelope) -> None:
        if envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join":
            self.start_soon(self._ask_who_is_an_agent)

    async def _ask_who_is_an_agent(self) -> None:
        """Agents exist that say how full they are only when they are asked."""
        await anyio.sleep(STATUS_SECONDS)
        silent = [name for name in self.peers if self.peers[name].context.messages is None]
        if silent:
            with suppress(GatewayError, NotPermitted):
                await self.send(kinds.PARTICIPANT_REQUEST_STATUS, {}, to=silent)


def _is_agent(peer: Peer) -> bool:
    """Whoever reports how full its context window is. Agents of other makes send no report, but a size."""
    return peer.context.report is not None or peer.context.max_tokens is not None


def _no_gateway(cause: str = "") -> Problem:
    tail = f": {cause}" if cause else ""
    return Problem(UNAVAILABLE, "no_gateway", f"there is no connection to the space now{tail}", is_repeatable=True)
