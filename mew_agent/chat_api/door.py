"""The door in the space: a person who passes questions of chat clients to agents, and their answers back.

Owns who can be asked, the asking, and that an agent whose asker has gone away is told to stop. What belongs to
which question is `listening`, what becomes of it as text is `answer`; it knows no HTTP.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio

from mew_agent.chat_api.answer import HOLD_CHARACTERS, Answer, NoticePlace
from mew_agent.chat_api.exchange import Exchange
from mew_agent.chat_api.listening import Listening
from mew_agent.chat_api.problems import BAD_GATEWAY, BUSY, FORBIDDEN, UNAVAILABLE, Problem, unknown_model
from mew_agent.chat_api.usage import CallUsage
from mew_agent.errors import GatewayError, NotPermitted
from mew_agent.participant import Participant
from mew_agent.peers import Peer, PeerContext
from protocol import kinds
from protocol.capability import CapabilitySet
from protocol.codec import StreamFrame
from protocol.envelope import Envelope

SILENCE_SECONDS: Final = 300.0
SEND_SECONDS: Final = 10.0
GOODBYE_SECONDS: Final = 2.0
STATUS_SECONDS: Final = 0.5
"""How long somebody who is here may take to report by themselves, before we ask."""

MAX_EXCHANGES: Final = 100
_ASKER_LEFT: Final = {"reason": "the asker left"}


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """How answers come.

    `configured` are the agents that the space's configuration names, here or not. `silence_seconds` is how long
    an agent may show no sign of working on a question. `hold_characters` as in `Answer`.
    """

    configured: frozenset[str] = frozenset()
    silence_seconds: float = SILENCE_SECONDS
    hold_characters: int = HOLD_CHARACTERS
    notices: NoticePlace = "content"


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
        self._listening = Listening(person, self.peers)
        self._since: dict[str, int] = {}
        self._is_joined_again = False

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
    async def asking(self, agent: str, text: str) -> AsyncIterator[Exchange]:
        """Say something to an agent, and read its answer while the block runs. Leaving it early stops the agent.

        Raises `Problem` when it cannot be said.
        """
        self._check(agent)
        chat = self.draft(kinds.CHAT, {"text": text}, to=(agent,))
        if not self.capabilities.allows(chat):
            raise Problem(FORBIDDEN, "not_permitted", f"'{self.id}' may not chat with '{agent}' in this space")
        exchange = self._exchange(agent, chat.id, text)
        self._listening.add(exchange)
        try:
            await self._say(chat)
            yield exchange
        finally:
            del self._listening.exchanges[chat.id]
            if exchange.is_to_be_stopped:
                with anyio.CancelScope(shield=True), anyio.move_on_after(GOODBYE_SECONDS):
                    await self._stop(exchange)

    def close(self) -> None:
        """The door closes: nobody waits any longer."""
        self._listening.fail_all(Problem(UNAVAILABLE, "closing", "this server is being stopped"))

    # -- asking ------------------------------------------------------------------------------------------

    def _check(self, agent: str) -> None:
        if not self.is_joined:
            raise _no_gateway()
        if not self.agent(agent).is_here:
            raise Problem(UNAVAILABLE, "agent_not_here", f"'{agent}' is not in the space now", is_repeatable=True)
        if self.control.is_paused:
            raise Problem(UNAVAILABLE, "paused", f"'{self.id}', who asks for chat clients, is paused in the space")
        if len(self._listening.exchanges) >= MAX_EXCHANGES:
            raise Problem(BUSY, "busy", f"{MAX_EXCHANGES} questions are being answered already", is_repeatable=True)

    def _exchange(self, agent: str, chat_id: str, text: str) -> Exchange:
        peer, options = self.peers[agent], self.options
        answer = Answer(
            notices=options.notices,
            hold_characters=options.hold_characters,
            may_use_tools=agent in self._listening.users_of_tools or _may_call_tools(peer),
        )
        return Exchange(agent, chat_id, text, answer, CallUsage(peer.context), options.silence_seconds, peer.context)

    async def _say(self, chat: Envelope) -> None:
        try:
            with anyio.fail_after(SEND_SECONDS):
                await self._client.send(chat)
        except (GatewayError, TimeoutError) as error:
            raise _no_gateway(str(error)) from None

    async def _stop(self, exchange: Exchange) -> None:
        """Nobody reads any more: take the question back, and stop the thinking about it."""
        with suppress(GatewayError, NotPermitted):
            await self.send(kinds.CHAT_CANCEL, _ASKER_LEFT, to=exchange.agent, correlation_id=(exchange.chat_id,))
        if exchange.reasoning_id is None:
            self._listening.abandon(exchange)
        else:
            await self._cancel_reasoning(exchange.agent, exchange.reasoning_id)

    async def _cancel_reasoning(self, agent: str, reasoning_id: str) -> None:
        with suppress(GatewayError, NotPermitted):
            await self.send(kinds.REASONING_CANCEL, _ASKER_LEFT, to=agent, context=reasoning_id)

    def _offered(self, name: str) -> OfferedAgent:
        peer = self.peers.get(name)
        since = self._since.setdefault(name, int(time.time()))
        return OfferedAgent(name, since, peer is not None, peer.context if peer else PeerContext())

    # -- hearing -----------------------------------------------------------------------------------------

    async def joined(self) -> None:
        """After a reconnect nobody knows what was missed: waiting on would be guessing."""
        if self._is_joined_again:
            broke = "the connection to the space broke during the answer"
            self._listening.fail_all(Problem(BAD_GATEWAY, "connection_lost", broke))
        self._is_joined_again = True
        self.start_soon(self._ask_who_is_an_agent)

    async def receive(self, envelope: Envelope) -> None:
        if self._listening.hear(envelope):
            self.start_soon(self._cancel_reasoning, envelope.sender, envelope.id)
        if envelope.kind == kinds.SYSTEM_PRESENCE and envelope.body.get("event") == "join":
            self.start_soon(self._ask_who_is_an_agent)

    async def _ask_who_is_an_agent(self) -> None:
        """Agents exist that say how full they are only when they are asked."""
        await anyio.sleep(STATUS_SECONDS)
        silent = [name for name in self.peers if self.peers[name].context.messages is None]
        if silent:
            with suppress(GatewayError, NotPermitted):
                await self.send(kinds.PARTICIPANT_REQUEST_STATUS, {}, to=silent)

    async def receive_frame(self, frame: StreamFrame) -> None:
        self._listening.hear_frame(frame)


def _is_agent(peer: Peer) -> bool:
    """Whoever reports how full its context window is. Agents of other makes send no report, but a size."""
    return peer.context.report is not None or peer.context.max_tokens is not None


def _may_call_tools(peer: Peer) -> bool:
    """Whether the agent's capabilities let it call, or propose to call, anybody's tool."""
    held = CapabilitySet(peer.capabilities)
    return any(
        held.allows(Envelope.write(kind, id="", ts="", sender=peer.id, payload={"method": "tools/call"}))
        for kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL)
    )


def _no_gateway(cause: str = "") -> Problem:
    tail = f": {cause}" if cause else ""
    return Problem(UNAVAILABLE, "no_gateway", f"there is no connection to the space now{tail}", is_repeatable=True)
